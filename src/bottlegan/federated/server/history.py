"""What happened in each round: the document that `history.json` holds."""

from collections import Counter
from dataclasses import field
from statistics import fmean

from bottlegan.core.config import document


@document
class Standing:
    """How a client's update lay to those of the others in a round: see `suspicion`."""

    cosine: float
    """With the center of the others' updates: around 0 for one that has nothing to do with theirs."""
    length: float
    """In medians of all clients'."""
    nearest: float = 0.0
    """Cosine with the one of another client that is most alike."""


@document
class RoundRecord:
    """What happened in one round."""

    number: int
    trained: tuple[str, ...]
    """Clients whose weights were averaged."""
    left_out: dict[str, str]
    """Clients that were asked, but could not be counted, and why."""
    loss: dict[str, float] = field(default_factory=dict)
    """What each of these clients says its loss was in training, on average over its steps; none in a private round."""
    scores: dict[str, float] = field(default_factory=dict)
    """IOU, ECE and NLL over all clients' test images, where the round was scored."""
    each: dict[str, dict[str, float]] = field(default_factory=dict)
    """The same, client by client."""
    temperature: float | None = None
    """What logits would have to be divided by for honest probabilities on all these images."""
    epsilon: float | None = None
    """What was spent so far of the privacy of the lab that was asked most, at `privacy.delta`, if there is noise."""
    unscored: dict[str, str] = field(default_factory=dict)
    """Clients that were asked for their scores, but could not be counted, and why."""
    standing: dict[str, Standing] = field(default_factory=dict)
    """Of all clients whose reply could be read."""
    suspects: dict[str, str] = field(default_factory=dict)
    """Clients that seem to pull against the others, and why."""

    @property
    def mean_loss(self) -> float | None:
        """The loss in training, averaged over the clients that trained; None where they do not tell it."""
        return fmean(self.loss.values()) if self.loss else None


@document
class History:
    """All rounds so far."""

    rounds: tuple[RoundRecord, ...] = ()

    def count_most_asked(self) -> int:
        """Return in how many rounds the client was asked to train that was asked most."""
        asked = Counter(name for record in self.rounds for name in {*record.trained, *record.left_out})
        return max(asked.values(), default=0)
