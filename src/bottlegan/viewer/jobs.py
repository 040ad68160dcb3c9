"""Background work, such as writing a whole slide. It reports its progress and can be stopped."""

from collections.abc import Callable, Iterable, Iterator
from threading import Event, Thread
from typing import Literal

from bottlegan.core.errors import BottleGANError
from bottlegan.core.progress import Item, Json, Progress, Silent, Unit

State = Literal["running", "done", "failed", "stopped"]


class StoppedError(BottleGANError):
    """The user stopped the work."""


class Job:
    """Work in its own thread."""

    def __init__(self, work: Callable[[Progress], str]) -> None:
        """Start the work. Its return value is the message to show when it is done."""
        self.state: State = "running"
        self.text, self.done, self.total = "", 0, 0
        self._stop = Event()
        self._thread = Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def tell(self) -> dict[str, Json]:
        """Return the progress."""
        share = self.done / self.total if self.total else 0.0
        return {"state": self.state, "share": 1.0 if self.state == "done" else share, "text": self.text}

    def stop(self) -> None:
        """Stop the work, and wait until half-written files are removed."""
        self._stop.set()
        self._thread.join()

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join()

    def _run(self, work: Callable[[Progress], str]) -> None:
        try:
            self.text, self.state = work(_Watched(self, self._stop)), "done"
        except StoppedError:
            self.text, self.state = "stopped; nothing was written", "stopped"
        except (BottleGANError, OSError) as error:
            self.text, self.state = str(error), "failed"
        except Exception as error:
            self.text, self.state = f"{type(error).__name__}: {error}", "failed"
            raise


class _Watched(Silent):
    """Reports progress to a job, and ends its work when it must stop."""

    def __init__(self, job: Job, stop: Event) -> None:
        self._job, self._stop = job, stop

    def track(
        self, items: Iterable[Item], label: str, total: int | None = None, unit: Unit | None = None
    ) -> Iterator[Item]:
        self._job.done, self._job.total = 0, total or 0
        for item in items:
            if self._stop.is_set():
                raise StoppedError
            yield item
            self._job.done += 1
