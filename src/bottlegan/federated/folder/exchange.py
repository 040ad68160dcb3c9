"""The server's side: sends requests to labs as bundles, and runs the federation over them."""

import hashlib
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bottlegan.core.config import document
from bottlegan.core.errors import InputError, WaitingError
from bottlegan.core.files import keeping_private, make_folder
from bottlegan.core.progress import Progress
from bottlegan.core.state import read_document, write_document
from bottlegan.federated.folder.bundle import BundleError
from bottlegan.federated.folder.channel import Channel
from bottlegan.federated.folder.home import Home
from bottlegan.federated.folder.payload import pack_request, unpack_reply
from bottlegan.federated.protocol.exchange import Absence, Reply, Request
from bottlegan.federated.server.config import FederationConfig
from bottlegan.federated.server.federation import run_federation
from bottlegan.federated.server.rounds import State
from bottlegan.imaging.files import Pixels

RUN = "exchange.json"
DAY = 86400.0
FILE_POLL_SECONDS = 1.0


@document
class RunName:
    """The unique name of a run."""

    run: str


class FolderExchange:
    """Labs that are reached through a folder.

    Requests are remembered. When a restarted server repeats a request, the request is not sent again, and a reply that
    has arrived is read from where it was kept. So a federation can stop whenever it waits for a lab, and resume later.
    """

    def __init__(self, home: Home, shared: Path, run: str, *, patience: float = 14 * DAY, wait: float = 0.0) -> None:
        """Connect to all labs that the home trusts.

        Args:
            home: The server's home.
            shared: The folder that is carried or synchronized.
            run: The name of this run.
            patience: Seconds after a request until a silent lab counts as absent.
            wait: Seconds to wait for replies in this process before `WaitingError` names the missing labs.
        """
        self.channels = {name: Channel(home, card, shared) for name, card in home.trusted().items()}
        self.run, self.patience, self.wait = run, patience, wait

    def clients(self) -> list[str]:
        """Return the names of all labs that are trusted."""
        return sorted(self.channels)

    def most(self) -> int:
        """Return how many labs are trusted."""
        return len(self.channels)

    def ask(self, requests: Mapping[str, Request], deadline: float) -> dict[str, Reply | Absence]:
        """Return the labs' replies. `patience` replaces the deadline, which is meant for networks."""
        asked = self._ask_all(requests)
        end = time.monotonic() + self.wait
        while True:
            replies = {name: self._find(self.channels[name], digest) for name, digest in asked.items()}
            answers = {name: reply for name, reply in replies.items() if reply is not None}
            if len(answers) == len(asked):
                return answers
            if time.monotonic() >= end:
                raise WaitingError(sorted(replies.keys() - answers.keys()))
            time.sleep(min(FILE_POLL_SECONDS, max(0.0, end - time.monotonic())))

    def _ask_all(self, requests: Mapping[str, Request]) -> dict[str, str]:
        """Send all requests that were not sent before; return the digests of all by lab."""
        asked: dict[str, str] = {}
        last: tuple[Request, bytes, str] | None = None
        for name, request in requests.items():
            # Often all labs get the same request: pack it once.
            if last is None or last[0] is not request:
                content = pack_request(request, self.run)
                last = request, content, hashlib.sha256(content).hexdigest()
            _, content, digest = last
            channel = self.channels[name]
            if digest in channel.ledger.asked:
                channel.publish()
            else:
                channel.send("request", digest, content)
            asked[name] = digest
        return asked

    def _find(self, channel: Channel, digest: str) -> Reply | Absence | None:
        """Return the reply to a request; an absence if the lab failed or is late; None if the reply may still come."""
        for arrival in channel.arrivals("reply"):
            kept = channel.replies / f"{arrival.envelope.request}.bundle"
            is_expected = arrival.envelope.request in channel.ledger.asked
            # A lab may replace a failure by a reply, but not change a reply.
            if is_expected and (not kept.exists() or isinstance(unpack_reply(channel.reopen(kept).content), Absence)):
                channel.keep(arrival, kept)
            channel.accept(arrival)
            self._prune(channel)
        kept = channel.replies / f"{digest}.bundle"
        if kept.exists():
            try:
                return unpack_reply(channel.reopen(kept).content)
            except BundleError as error:
                kept.unlink()
                channel.forget(digest)
                raise InputError(
                    f"{kept}: {error}; it was removed; run the command again to ask the lab again"
                ) from None
        late = time.time() - channel.ledger.asked[digest].time
        return Absence(f"no reply after {late / DAY:.1f} days") if late >= self.patience else None

    def _prune(self, channel: Channel) -> None:
        """Delete replies to forgotten requests."""
        for path in channel.replies.glob("*.bundle"):
            if path.stem not in channel.ledger.asked:
                path.unlink(missing_ok=True)


def serve(
    home: Home,
    shared: Path,
    config: FederationConfig,
    folder: Path,
    *,
    patience: float = 14 * DAY,
    wait: float = 0.0,
    reference_set: Sequence[Pixels] | None = None,
    prior: Path | None = None,
    progress: Progress | None = None,
) -> State:
    """Run a federation of all labs that `home` trusts, as far as possible; calling it again resumes the run.

    Raises:
        WaitingError: Labs must answer before the run can continue. All results so far are kept.
    """
    if home.config.lab is not None:
        raise InputError(f"{home.folder}: is the home of a lab; give the server's")
    if not home.trusted():
        raise InputError(f"{home.folder}: trusts no lab yet; add each lab's card with: bottlegan exchange trust")
    exchange = FolderExchange(home, shared, _name_run(folder), patience=patience, wait=wait)
    return run_federation(exchange, config, folder, reference_set=reference_set, prior=prior, progress=progress)


def _name_run(folder: Path) -> str:
    """Return the name of the run in `folder`, and give it one if it has none."""
    with keeping_private():
        make_folder(folder)
        if not (folder / RUN).exists():
            write_document(folder / RUN, RunName(run=secrets.token_hex(16)))
    return read_document(RunName, folder / RUN).run
