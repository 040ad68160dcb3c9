"""One map of colors, identical to the bit on every machine: the kernel, its table, and exports for other software."""
