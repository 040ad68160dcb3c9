"""Reading and writing the pixels of slides."""
