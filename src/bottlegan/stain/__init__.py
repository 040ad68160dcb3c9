"""Color math of stained tissue: optical density, stain estimation, simulated styles."""
