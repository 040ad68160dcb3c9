"""Benchmarks of BottleGAN and its peers, one file per question."""
