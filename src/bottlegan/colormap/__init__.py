"""One map of colors, the same bits on every machine: the kernel, its memory, and coarse tables for others."""
