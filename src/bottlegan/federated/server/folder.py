"""The folder of a run. It holds the whole state, so a run can be resumed wherever it stopped.

| file | holds |
| --- | --- |
| federation.json | the configuration |
| federation.jsonl | what happened, line by line; the last one says how it ended |
| clients.json | who takes part |
| prior.safetensors | the model that styles are fitted to, if it is not the shipped one |
| uploads/, styles.safetensors | phase 1: the clients' styles, and the global BottleGAN made of them |
| distilling/ | phase 1: the global BottleGAN while it is being trained |
| checkpoint.safetensors, history.json | phase 2: the last round, and what happened in each so far |
| checkpoint.previous.safetensors, clients.previous.json | the previous versions, used if the files are damaged |
| network.safetensors, scores.txt | the result |

Every file but scores.txt contains a checksum; the lines of the log are chained by checksums.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bottlegan.core.errors import WaitingError
from bottlegan.core.files import make_folder
from bottlegan.core.progress import EventLog, Item, Json, Progress, Silent, Unit
from bottlegan.models.document import PRIOR

CONFIG, LOG, MEMBERS = "federation.json", "federation.jsonl", "clients.json"
UPLOADS, STYLES, DISTILLING = "uploads", "styles.safetensors", "distilling"
CHECKPOINT, HISTORY = "checkpoint.safetensors", "history.json"
OWN_PRIOR = "prior.safetensors"
NETWORK, SCORES = "network.safetensors", "scores.txt"
BEGUN, WAITING, FINISHED, FAILED, REMOVED, DAMAGED = "begun", "waiting", "finished", "failed", "removed", "damaged"
"""Events in the log."""


def holds_run(folder: Path) -> bool:
    """Return whether a federation has begun in `folder`."""
    return (folder / CONFIG).exists()


def find_prior(folder: Path) -> Path:
    """Return the model file that the styles of a run are fitted to: its own, or the shipped one."""
    return folder / OWN_PRIOR if (folder / OWN_PRIOR).exists() else PRIOR


@contextmanager
def logging_to(folder: Path, progress: Progress | None = None) -> Iterator[Progress]:
    """Report events to `progress` and to the log in `folder`, including an error that ends the block."""
    make_folder(folder)
    with EventLog(folder / LOG) as log:
        events = _Both(progress or Silent(), log)
        try:
            yield events
        except WaitingError as error:
            events.event(WAITING, clients=list(error.missing))
            raise
        except BaseException as error:
            events.event(FAILED, error=type(error).__name__, text=" ".join(str(error).split()))
            raise


@dataclass(frozen=True)
class _Both:
    """Shows progress in one place, and reports events to two."""

    shown: Progress
    log: EventLog

    def track(
        self, items: Iterable[Item], label: str, total: int | None = None, unit: Unit | None = None
    ) -> Iterator[Item]:
        return self.shown.track(items, label, total, unit)

    def event(self, kind: str, **fields: Json) -> None:
        self.shown.event(kind, **fields)
        self.log.event(kind, **fields)
