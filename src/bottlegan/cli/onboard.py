"""`bottlegan onboard` adds a lab in seconds; `bottlegan train-prior` trains the network that makes this possible."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bottlegan.cli.options import (
    ConfigOption,
    ModelOption,
    SetOption,
    check_model_path,
    check_paths,
    find_model,
    load_settings,
)
from bottlegan.cli.progress import TerminalProgress
from bottlegan.cli.slides import shows_slides
from bottlegan.core.errors import InputError
from bottlegan.core.files import check_apart
from bottlegan.core.progress import EventLog


def onboard(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT...", help="Images, a folder (lab-7/*.png) or a slide, all of ONE lab.", show_default=False
        ),
    ],
    name: Annotated[str, typer.Option(help="Name for the lab's style.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Model file to write, ending in .safetensors.", show_default=False)],
    model: ModelOption = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed for choosing the tiles that a slide's style is fitted to.", show_default="0"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Add the style even if it is refused.")] = False,
) -> None:
    """Learn the style of one more lab from a few of its images, without labels. The other styles stay unchanged.

    Example: bottlegan onboard lab-7/ --name lab-7 --out model.safetensors
    """
    check_paths(*sources, model)
    check_model_path(out)
    check_apart([out], [*sources, model])
    if seed is not None and not any(map(shows_slides, sources)):
        raise InputError("--seed chooses the tiles of a slide to fit, but there is no slide; leave it out")
    from bottlegan.data.lab import scan_lab
    from bottlegan.models.document import check_name
    from bottlegan.models.weights import read_weights, write_weights
    from bottlegan.normalize.record import write_diagnosis
    from bottlegan.onboarding.fit import onboard as fit
    from bottlegan.onboarding.verdict import Verdict

    check_name(name)
    file = find_model(model)
    base = read_weights(file)
    document, styles = base.document, {style: base.code(style) for style in base.document.styles}
    if document.model.paradigm != "many-one-many":
        raise InputError(f"{file}: is a {document.model.paradigm} model; a style can only be added to a BottleGAN")
    if name in styles:
        raise InputError(f"{file}: has a style called {name} already; choose another --name")
    lab = scan_lab(sources, seed or 0)
    for error in lab.skipped:
        typer.echo(f"skipped: {error}", err=True)
    fitted = fit(lab.images, base)
    diagnosis = fitted.diagnosis
    if diagnosis.verdict == Verdict.REFUSED and not force:
        raise InputError(f"{sources[0]}: refused: {diagnosis.reason}; give other images, or --force")
    verdict = f"{diagnosis.verdict}: {diagnosis.reason}"
    latest = {**write_diagnosis(diagnosis), "style": name, "forced": int(force)}
    model_now = base.with_styles({**styles, name: fitted.code})
    record = {**document.record, **latest, f"verdict on {name}": verdict}
    write_weights(replace(model_now, document=replace(model_now.document, record=record)), out)
    typer.echo(f"{name}: {verdict}")
    typer.echo(f"Wrote {out} with {len(styles) + 1} style(s); {name} takes {fitted.code.nbytes} bytes.")


def train_prior(
    out: Annotated[Path, typer.Option(help="Model file to write, ending in .safetensors.", show_default=False)],
    config: ConfigOption = None,
    changes: SetOption = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
) -> None:
    """Train the shipped model again on simulated labs: the network for any style, and the encoders that onboard labs.

    Example: bottlegan train-prior --out prior.safetensors
    """
    check_model_path(out)
    log_file = out.with_suffix(".jsonl")
    check_paths(config)
    check_apart([out, log_file], [config])
    from bottlegan.models.files import save_model
    from bottlegan.stain.style import REFERENCE
    from bottlegan.training.prior import PriorConfig
    from bottlegan.training.prior import train_prior as run

    chosen = load_settings(PriorConfig, config, changes)
    with EventLog(log_file) as log:
        model = run(chosen, seed, TerminalProgress(log))
    save_model(
        model,
        out,
        {"seed": seed, "steps": chosen.steps, "labs": f"{chosen.encoders * chosen.labs}, simulated"},
        REFERENCE,
    )
    typer.echo(f"Wrote {out}, {out.stat().st_size} bytes.")
