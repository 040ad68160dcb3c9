"""Where tissue ends and pen begins: ink is not faint, not near the stains, and absorbs less green than they do."""

import math

import numpy as np

FAINT = (np.float32(0.1), np.float32(0.2))
"""Density above that of glass. Below the first, noise decides the color of a pixel; above the second, it does not."""
NEAR, FAR = np.float32(math.cos(math.radians(15))), np.float32(math.cos(math.radians(22)))
"""Cosine of the angle to the nearest mixture of the two stains: a color is tissue above NEAR, and ink below FAR.

In most styles, 999 of 1,000 pixels of real tissue are within 10 degrees; green and blue ink are 22 to 40 degrees away.
Red and black ink cannot be distinguished from blood and dark nuclei, and are mapped."""
DARKEST_GLASS = np.float32(0.25)
"""If glass is denser than this (level 199), nothing counts as ink. No scanner makes slides so dark, and in photographs
through an eyepiece, noise and shade would count as ink."""
GREENNESS = (np.float32(0.85), np.float32(0.7))
"""Green density over that of the strongest channel: a color is tissue above the first number, and ink below the second.

Hematoxylin and eosin both absorb green light most: the bluest hematoxylin has .93. So blood, noise, and stain of a
different shade than the fitted one are not ink, however far they are from the two stains. Green, blue and yellow pen
have .3 to .7."""
