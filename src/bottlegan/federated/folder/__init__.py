"""A federation without any connection: sealed bundles in a folder that is carried or synchronized."""
