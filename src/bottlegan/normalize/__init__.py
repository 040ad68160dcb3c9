"""Color maps, applied to what users have: images and folders."""
