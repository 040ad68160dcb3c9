"""Applying a trained network, with its normalizer, to images and slides."""
