"""A federation without a network: sealed bundles in a folder that is carried or synchronized."""
