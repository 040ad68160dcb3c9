"""Image files as arrays, and arrays as tensors."""
