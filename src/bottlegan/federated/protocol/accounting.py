"""What noise is worth: epsilon at delta, over all rounds of a lab, by Google's dp-accounting.

Neighbors are a federation with a lab and one where it sends nothing: so epsilon is about everything that a lab holds,
not about one image. Who takes part in a round is known, so nothing is gained by drawing labs. Each round in which a lab
takes part is one Gaussian mechanism, of noise `z` times what a lab can matter; so many of them are one with less noise.
"""

import math

from bottlegan.core.config import document


@document
class Spent:
    """What was released."""

    rounds: int = 0
    precision: float = 0.0
    """Sum of 1 / z^2 over all rounds."""

    def after(self, noise: float) -> "Spent":
        """Return what is spent after one more round with this noise."""
        return Spent(rounds=self.rounds + 1, precision=self.precision + noise**-2)


def find_epsilon(spent: Spent, delta: float) -> float:
    """Return the epsilon that was spent, at `delta`."""
    if not spent.rounds:
        return 0.0
    from dp_accounting import get_epsilon_gaussian  # noqa: PLC0415 - slow to import, and only needed with noise

    return float(get_epsilon_gaussian(1 / math.sqrt(spent.precision), delta))


def find_noise(rounds: int, epsilon: float, delta: float) -> float:
    """Return the noise of so many rounds that all of them together spend `epsilon`, to three digits."""
    low, high = 1e-3, 1e3
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        spent = Spent(rounds=rounds, precision=rounds / middle**2)
        low, high = (middle, high) if find_epsilon(spent, delta) > epsilon else (low, middle)
    return high
