"""The history of all rounds: the content of `history.json`."""

from collections import Counter
from dataclasses import field
from statistics import fmean

from bottlegan.core.config import document


@document
class Standing:
    """How a client's update compares with the others' in a round; see `suspicion`."""

    cosine: float
    """Cosine with the center of the others' updates; around 0 for an unrelated update."""
    length: float
    """Length, as a multiple of the median of all clients."""
    nearest: float = 0.0
    """Cosine with the most similar update of another client."""


@document
class RoundRecord:
    """The record of one round."""

    number: int
    trained: tuple[str, ...]
    """Clients whose weights were averaged."""
    left_out: dict[str, str]
    """Clients that were asked but not counted, with the reason."""
    loss: dict[str, float] = field(default_factory=dict)
    """Each client's own mean training loss; empty in a private round."""
    scores: dict[str, float] = field(default_factory=dict)
    """IOU, ECE and NLL over all clients' test images, if the round was scored."""
    each: dict[str, dict[str, float]] = field(default_factory=dict)
    """The same for each client."""
    temperature: float | None = None
    """Divisor of the logits that calibrates the probabilities on all these images."""
    epsilon: float | None = None
    """Privacy spent so far by the lab that was asked most often, at `privacy.delta`, if there is noise."""
    unscored: dict[str, str] = field(default_factory=dict)
    """Clients that were asked for scores but not counted, with the reason."""
    standing: dict[str, Standing] = field(default_factory=dict)
    """The standing of each client whose reply could be read."""
    suspects: dict[str, str] = field(default_factory=dict)
    """Clients that seem to pull against the others, with the reason."""

    @property
    def mean_loss(self) -> float | None:
        """The mean training loss of the clients that trained; None if they did not report it."""
        return fmean(self.loss.values()) if self.loss else None


@document
class History:
    """All rounds so far."""

    rounds: tuple[RoundRecord, ...] = ()

    def count_most_asked(self) -> int:
        """Return the largest number of rounds in which any one client was asked to train."""
        asked = Counter(name for record in self.rounds for name in {*record.trained, *record.left_out})
        return max(asked.values(), default=0)
