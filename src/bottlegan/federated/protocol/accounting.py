"""Privacy accounting: epsilon at delta, over all rounds of a lab, by Google's dp-accounting.

Two federations are neighbors if a lab sends nothing in one of them, so epsilon covers everything that a lab holds, not
a single image. The server knows who takes part in a round, so drawing labs at random gains nothing. Each round of a lab
is a Gaussian mechanism with noise `z` times the sensitivity; several rounds are together one with less noise.
"""

import math

from bottlegan.core.config import document


@document
class Spent:
    """The privacy that was spent so far."""

    rounds: int = 0
    precision: float = 0.0
    """Sum of 1 / z^2 over all rounds."""

    def after(self, noise: float) -> "Spent":
        """Return the privacy spent after one more round with this noise."""
        return Spent(rounds=self.rounds + 1, precision=self.precision + noise**-2)


def find_epsilon(spent: Spent, delta: float) -> float:
    """Return the spent epsilon at `delta`."""
    if not spent.rounds:
        return 0.0
    from dp_accounting import get_epsilon_gaussian  # noqa: PLC0415 - slow to import, and only needed with noise

    return float(get_epsilon_gaussian(1 / math.sqrt(spent.precision), delta))


def find_noise(rounds: int, epsilon: float, delta: float) -> float:
    """Return the noise with which `rounds` rounds spend `epsilon` in total, to three digits."""
    low, high = 1e-3, 1e3
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        spent = Spent(rounds=rounds, precision=rounds / middle**2)
        low, high = (middle, high) if find_epsilon(spent, delta) > epsilon else (low, middle)
    return high
