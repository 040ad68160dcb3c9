"""Where images come from and who holds them: folders, PESO, procedural tissue, federations."""
