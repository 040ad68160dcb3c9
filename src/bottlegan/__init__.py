"""BottleGAN: every lab's staining style, learned together without sharing a pixel."""

from bottlegan.errors import BottleGANError, InputError

__all__ = ["BottleGANError", "InputError", "__version__"]

__version__ = "0.1.0"
