"""The folder of a run: all of it is in here, and a run that was stopped anywhere goes on from here.

| file | holds |
| --- | --- |
| federation.json | the configuration |
| federation.jsonl | what happened, line by line; the last one says how it ended |
| clients.json | who takes part |
| prior.safetensors | the model that styles are fitted to, if it is not the one that is shipped |
| uploads/, styles.safetensors | phase 1: the clients' styles, and the global BottleGAN made of them |
| distilling/ | phase 1: the global BottleGAN while it is being trained |
| checkpoint.safetensors, history.json | phase 2: the last round, and what happened in each so far |
| checkpoint.previous.safetensors, clients.previous.json | what these were before, used if they are damaged |
| network.safetensors, scores.txt | the result |

Each has a checksum in it, but for the last; the log is a chain of them.
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
"""Events of a whole run."""


def holds_run(folder: Path) -> bool:
    """Return whether a federation has begun in `folder`."""
    return (folder / CONFIG).exists()


def find_prior(folder: Path) -> Path:
    """Return the model file that the styles of a run are fitted to: its own, or the one that is shipped."""
    return folder / OWN_PRIOR if (folder / OWN_PRIOR).exists() else PRIOR


@contextmanager
def logging_to(folder: Path, progress: Progress | None = None) -> Iterator[Progress]:
    """Yield what tells events to `progress` and to the log in `folder`; whatever ends the block is told there, too."""
    make_folder(folder)
    with EventLog(folder / LOG) as log:
        told = _Both(progress or Silent(), log)
        try:
            yield told
        except WaitingError as error:
            told.event(WAITING, clients=list(error.missing))
            raise
        except BaseException as error:
            told.event(FAILED, error=type(error).__name__, text=" ".join(str(error).split()))
            raise


@dataclass(frozen=True)
class _Both:
    """Shows progress in one place, and tells events to two."""

    shown: Progress
    log: EventLog

    def track(
        self, items: Iterable[Item], label: str, total: int | None = None, unit: Unit | None = None
    ) -> Iterator[Item]:
        return self.shown.track(items, label, total, unit)

    def event(self, kind: str, **fields: Json) -> None:
        self.shown.event(kind, **fields)
        self.log.event(kind, **fields)
