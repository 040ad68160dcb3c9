"""Mapping whole slides: one, or a folder of them, in one process, several processes, or on a cluster."""
