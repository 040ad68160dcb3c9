"""The whole method on procedural tissue, and a report of it."""
