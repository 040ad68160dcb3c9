"""A lab's side of the federation: its images, its style, its training. Contains no network code."""
