"""Simulated labs with known truth: tissue of many kinds, and what dyes, lamps, sensors and files make of it."""
