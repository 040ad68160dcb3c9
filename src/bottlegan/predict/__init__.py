"""A trained network on images and slides, with its normalizer."""
