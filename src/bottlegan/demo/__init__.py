"""The whole method on procedural tissue, with a report."""
