"""Whole slides in another stain: one, a folder of them, in several processes, or on a cluster."""
