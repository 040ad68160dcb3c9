"""`bottlegan simulate`: a federation on one machine."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from bottlegan.cli.options import SetOption, check_paths, load_settings
from bottlegan.cli.progress import TerminalProgress
from bottlegan.core.errors import InputError


def simulate(
    config: Annotated[
        Path,
        typer.Argument(
            help="TOML file with the federation and its labs, such as configs/simulate.toml.", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the run and its results.", show_default=False)],
    changes: SetOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    engine: Annotated[
        Literal["flower", "local"] | None,
        typer.Option(
            help="flower: several processes, as in a deployment. local: one lab after another, in this process.",
            show_default="flower, where its simulation engine is installed",
        ),
    ] = None,
) -> None:
    """Train one network over many labs on this machine: phase 1, then the rounds of phase 2.

    Each lab is a folder with a lab.toml. If the settings name none, labs are simulated.

    Example: bottlegan simulate configs/simulate.toml --out run
    """
    from bottlegan.federated.server.folder import HISTORY, NETWORK, SCORES, holds_run
    from bottlegan.federated.simulation import SimulationConfig, prepare_labs, run_local

    settings = load_settings(SimulationConfig, config, changes)
    if holds_run(out) and not resume:
        raise InputError(f"{out}: holds a run already; give --resume to continue it, or choose another folder")
    prior = None if settings.labs.prior is None else config.parent / settings.labs.prior
    check_paths(prior)
    progress = TerminalProgress()
    labs, reference_set = prepare_labs(config, settings, out, progress)
    federation = settings.federation
    if federation.start is not None:
        federation = replace(federation, start=config.parent / federation.start)
    if (engine or ("flower" if find_spec("ray") else "local")) == "flower":
        from bottlegan.federated.flower.simulation import run as run_flower

        run_flower(labs, federation, out, reference_set=reference_set, prior=prior, progress=progress)
    else:
        run_local(labs, federation, out, reference_set=reference_set, prior=prior, progress=progress)
    typer.echo((out / SCORES).read_text(encoding="utf-8"))
    typer.echo(f"Wrote {out / NETWORK}, {out / HISTORY} and {out / SCORES}.")
    typer.echo(f"Try: bottlegan predict {out / NETWORK} IMAGES predicted/")
