"""Where tissue ends and pen begins."""

import math

import numpy as np

FAINT = (np.float32(0.1), np.float32(0.2))
"""Density above that of glass: below the first, noise decides what color a pixel has; above the second, it does not."""
NEAR, FAR = np.float32(math.cos(math.radians(15))), np.float32(math.cos(math.radians(22)))
"""Cosine of the angle to the nearest mix of the two stains, above which a color is tissue, and below which it is ink.

Of real tissue in most styles 999 of 1,000 pixels are within 10 degrees, green and blue ink are 22 to 40 off. Red and
black ink cannot be told from blood and dark nuclei, and are mapped."""
