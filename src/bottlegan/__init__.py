"""BottleGAN: every lab's staining style, learned together without sharing a pixel."""

__version__ = "0.1.0"
