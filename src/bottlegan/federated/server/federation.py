"""A whole federation on the server: phase 1, then phase 2. Every federation runs this; only the exchange differs."""

from collections.abc import Sequence
from pathlib import Path

from bottlegan import __version__
from bottlegan.core.errors import InputError
from bottlegan.core.files import keeping_private, make_folder, replacing
from bottlegan.core.progress import EventLog, Progress, Silent
from bottlegan.core.state import read_document, write_document
from bottlegan.federated.protocol.exchange import Exchange
from bottlegan.federated.server.config import FederationConfig, check_enough_labs, check_usable_styles
from bottlegan.federated.server.folder import (
    BEGUN,
    CONFIG,
    FINISHED,
    LOG,
    OWN_PRIOR,
    REMOVED,
    UPLOADS,
    find_prior,
    holds_run,
    logging_to,
)
from bottlegan.federated.server.members import Members, read_members, write_members
from bottlegan.federated.server.phase1 import run_phase1
from bottlegan.federated.server.phase2 import run_phase2
from bottlegan.federated.server.rounds import State, begin
from bottlegan.federated.server.styles import assemble_styles
from bottlegan.federated.server.uploads import UploadStore
from bottlegan.imaging.files import Pixels
from bottlegan.models.document import PRIOR
from bottlegan.models.weights import read_weights


def run_federation(
    exchange: Exchange,
    config: FederationConfig,
    folder: Path,
    *,
    reference_set: Sequence[Pixels] | None = None,
    prior: Path | None = None,
    progress: Progress | None = None,
    label: str = "rounds",
) -> State:
    """Run or resume both phases, and write the result to `folder`.

    Args:
        exchange: Reaches the clients.
        config: The settings; to resume a run, they must be the same as before.
        folder: The folder of the run, which only its owner can read.
        reference_set: The public reference set C, which phase 1 needs unless its method is `code`.
        prior: The model file that styles are fitted to, which is sent to the labs; by default the shipped one.
        progress: Where to report progress. Events are also appended to the log in `folder`.
        label: Name of the rounds in the progress.
    """
    if (most := exchange.most()) is not None:
        check_enough_labs(config, most)
    check_usable_styles(config)
    begin(config)  # refuse a network that cannot be built before asking anybody for anything
    with keeping_private():
        keep_prior(folder, prior)
        keep_config(folder, config)
        with logging_to(folder, progress) as events:
            events.event(BEGUN, version=__version__, rounds=config.phase2.rounds)
            roster = run_phase1(exchange, config, folder, reference_set=reference_set, progress=events)
            state = run_phase2(
                exchange, config, folder, roster, reference_set=reference_set, progress=events, label=label
            )
            events.event(FINISHED)
    return state


def keep_config(folder: Path, config: FederationConfig) -> None:
    """Write the configuration to `folder`; an existing one must be the same."""
    make_folder(folder)
    if holds_run(folder) and read_document(FederationConfig, folder / CONFIG) != config:
        raise InputError(f"{folder}: holds a run of another configuration or seed; choose another folder, or remove it")
    write_document(folder / CONFIG, config)


def keep_prior(folder: Path, prior: Path | None) -> None:
    """Copy the federation's own prior to `folder`; an existing run must have the same one."""
    content = None if prior is None else prior.read_bytes()
    if holds_run(folder) and content != (find_prior(folder).read_bytes() if find_prior(folder) != PRIOR else None):
        raise InputError(f"{folder}: holds a run of another prior; choose another folder, or remove it")
    if prior is not None and content is not None:
        read_weights(prior)
        make_folder(folder)
        with replacing(folder / OWN_PRIOR, durable=True) as temporary:
            temporary.write_bytes(content)


def remove_client(folder: Path, name: str, *, reference_set: Sequence[Pixels] | None = None) -> None:
    """Remove a client, its upload and its style from the federation in `folder`, which must not be running.

    The client is not asked again, even if it is still connected. The others get the new styles when the run resumes.
    """
    members = read_members(folder)
    if name not in members.clients:
        names = ", ".join(sorted(members.clients)) or "none"
        raise InputError(f"{folder}: has no client called {name}; there are: {names}")
    with keeping_private(), EventLog(folder / LOG) as log:
        kept = {other: member for other, member in members.clients.items() if other != name}
        write_members(folder, Members(clients=kept, removed=(*members.removed, name)))
        uploads = UploadStore(folder / UPLOADS)
        if name in uploads.names():
            uploads.remove(name)
        assemble_styles(folder, read_document(FederationConfig, folder / CONFIG), reference_set, Silent())
        log.event(REMOVED, client=name)
