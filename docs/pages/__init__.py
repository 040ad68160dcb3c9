"""Pages and figures of the site that are made from the code, so that they cannot disagree with it."""
