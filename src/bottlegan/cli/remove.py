"""`bottlegan remove`: remove a lab from a federation."""

from pathlib import Path
from typing import Annotated

import typer


def remove(
    run: Annotated[
        Path, typer.Argument(help="Folder of the run, which must not be in progress: run/.", show_default=False)
    ],
    lab: Annotated[str, typer.Argument(help="Name of the lab to remove.", show_default=False)],
    reference: Annotated[
        Path | None,
        typer.Option(help="Folder with the public reference set. Required unless phase1.method is code."),
    ] = None,
) -> None:
    """Remove a lab from a federation: delete its upload and its style, and never ask it again.

    Weights that were trained with the lab keep its influence. Only training again without it removes that.

    Example: bottlegan remove run uppsala
    """
    from bottlegan.core.errors import MissingError
    from bottlegan.core.state import read_document
    from bottlegan.data.patches import list_patches
    from bottlegan.federated.server.federation import remove_client
    from bottlegan.federated.server.folder import HISTORY, holds_run
    from bottlegan.federated.server.history import History

    if not holds_run(run):
        raise MissingError(f"{run}: holds no run of a federation; give the folder of a run")
    public = None if reference is None else [patch.read_image() for patch in list_patches(reference)]
    remove_client(run, lab, reference_set=public)
    typer.echo(f"{lab} is removed from {run}: its upload and its style are deleted, and it is not asked again.")
    history = read_document(History, run / HISTORY) if (run / HISTORY).exists() else History()
    rounds = sum(lab in entry.trained for entry in history.rounds)
    if rounds:
        typer.echo(
            f"It trained in {rounds} of {len(history.rounds)} rounds. The weights keep its influence. "
            "To remove that, train again without it in another folder."
        )
    typer.echo("Its key still works. Revoke it with bottlegan deploy revoke or bottlegan exchange revoke.")
