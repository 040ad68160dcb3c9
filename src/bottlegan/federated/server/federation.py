"""A whole federation on the server: phase 1, then phase 2. Whoever runs one, runs this; only the exchange differs."""

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
    """Run both phases, or what is left of them, and write the result to `folder`.

    Args:
        exchange: Reaches the clients.
        config: What to do; in a folder that holds a run already, it must be the same.
        folder: Where the run is kept, for its owner's eyes only.
        reference_set: The public reference set C, which phase 1 needs unless it is of codes.
        prior: The model file that styles are fitted to, which labs are sent; by default the one that is shipped.
        progress: Where to report progress; events are also appended to the log in `folder`.
        label: What the rounds are called there.
    """
    if (most := exchange.most()) is not None:
        check_enough_labs(config, most)
    check_usable_styles(config)
    begin(config)  # a network that cannot be built is told before anybody is asked for anything
    with keeping_private():
        keep_prior(folder, prior)
        keep_config(folder, config)
        with logging_to(folder, progress) as told:
            told.event(BEGUN, version=__version__, rounds=config.phase2.rounds)
            roster = run_phase1(exchange, config, folder, reference_set=reference_set, progress=told)
            state = run_phase2(
                exchange, config, folder, roster, reference_set=reference_set, progress=told, label=label
            )
            told.event(FINISHED)
    return state


def keep_config(folder: Path, config: FederationConfig) -> None:
    """Write the configuration to `folder`; one that is there already must be the same."""
    make_folder(folder)
    if holds_run(folder) and read_document(FederationConfig, folder / CONFIG) != config:
        raise InputError(f"{folder}: holds a run of another configuration or seed; choose another folder, or remove it")
    write_document(folder / CONFIG, config)


def keep_prior(folder: Path, prior: Path | None) -> None:
    """Copy the federation's own prior to `folder`; a run that is there already must be of the same one."""
    content = None if prior is None else prior.read_bytes()
    if holds_run(folder) and content != (find_prior(folder).read_bytes() if find_prior(folder) != PRIOR else None):
        raise InputError(f"{folder}: holds a run of another prior; choose another folder, or remove it")
    if prior is not None and content is not None:
        read_weights(prior)
        make_folder(folder)
        with replacing(folder / OWN_PRIOR, durable=True) as temporary:
            temporary.write_bytes(content)


def remove_client(
    folder: Path, name: str, *, reference_set: Sequence[Pixels] | None = None, progress: Progress | None = None
) -> None:
    """Remove a client, its upload and its style from the federation in `folder`, where no run may be going on.

    It is not asked again, even if it is still connected. The other clients get the new styles when the run is resumed.
    """
    members = read_members(folder)
    if name not in members.clients:
        known = ", ".join(sorted(members.clients)) or "none"
        raise InputError(f"{folder}: has no client called {name}; there are: {known}")
    with keeping_private(), EventLog(folder / LOG) as log:
        kept = {each: member for each, member in members.clients.items() if each != name}
        write_members(folder, Members(clients=kept, removed=(*members.removed, name)))
        uploads = UploadStore(folder / UPLOADS)
        if name in uploads.names():
            uploads.remove(name)
        assemble_styles(folder, read_document(FederationConfig, folder / CONFIG), reference_set, progress or Silent())
        log.event(REMOVED, client=name)
