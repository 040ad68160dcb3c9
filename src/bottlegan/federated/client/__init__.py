"""A lab's half of the federation: its images, its style, its training. Free of any network code."""
