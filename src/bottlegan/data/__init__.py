"""Sources of images and who holds them: folders, PESO, procedural tissue, federations."""
