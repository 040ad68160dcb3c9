"""Applying color maps to images, folders and slides."""
