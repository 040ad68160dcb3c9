"""Pixels from and to files."""
