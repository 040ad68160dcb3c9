"""What users ask of their own images: how good they are, whether a stain drifts, and reports to read."""
