"""Where tissue ends and pen begins: what is neither faint, nor near the stains, nor takes green light as they do."""

import math

import numpy as np

FAINT = (np.float32(0.1), np.float32(0.2))
"""Density above that of glass: below the first, noise decides what color a pixel has; above the second, it does not."""
NEAR, FAR = np.float32(math.cos(math.radians(15))), np.float32(math.cos(math.radians(22)))
"""Cosine of the angle to the nearest mix of the two stains, above which a color is tissue, and below which it is ink.

Of real tissue in most styles 999 of 1,000 pixels are within 10 degrees, green and blue ink are 22 to 40 off. Red and
black ink cannot be told from blood and dark nuclei, and are mapped."""
DARKEST_GLASS = np.float32(0.25)
"""Density of glass, 199 levels, above which nothing is taken for ink: no scanner makes slides so dark, and in
photographs through an eyepiece noise and shade would pass for it."""
GREENNESS = (np.float32(0.85), np.float32(0.7))
"""Density of green light, over that of the strongest channel, above which a color is tissue, and below which it is ink.

Hematoxylin and eosin both take green light most: the bluest hematoxylin has .93. So stain of another shade than the
one that was fitted, blood and noise are no ink, however far they are from the two stains. Green, blue and yellow pen
have .3 to .7."""
