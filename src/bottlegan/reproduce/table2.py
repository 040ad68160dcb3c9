"""Table 2: how well each method normalizes 240 styles to one stain and restains them, under the same conditions.

Each row learns the styles of one half of the patches with the reference patches of the other half, and vice versa. It
is scored against the truth, which no method sees. All trained rows take the same number of steps with the same number
of pixels. The table is written after every row, and an interrupted run is resumed after its last row.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from bottlegan.core.errors import InputError
from bottlegan.core.files import make_folder
from bottlegan.core.progress import Progress, Silent
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.metrics.fid import frechet_distance
from bottlegan.metrics.image import mean_squared_error, psnr, ssim
from bottlegan.metrics.structure import monotonicity, nuclei_swapped
from bottlegan.models.files import load_model, save_model
from bottlegan.models.paradigms import StyleModel
from bottlegan.models.weights import read_document
from bottlegan.reproduce.classical import attempt, fit_robust, has_torchstain, prepare_torchstain
from bottlegan.reproduce.paired import Half, Scale, load_halves
from bottlegan.reproduce.table2_files import (
    Row,
    StyleScore,
    Table2,
    find_commit,
    open_table,
    summarize,
    write_table,
)
from bottlegan.stain.macenko import DensityMap, Route
from bottlegan.training.adversarial import LAB
from bottlegan.training.gan import PRESETS, TrainConfig, train

FEW = 6
"""Number of styles in the Many-One-One row, which trains two generators per style."""
ILL_CONDITIONED = 50.0
"""Condition number above which inverting a closed-form map would amplify noise too much."""


@dataclass(frozen=True)
class Table2Options:
    """The options that all rows share."""

    scale: Scale
    seed: int
    out: Path
    progress: Progress


@dataclass(frozen=True)
class Maps:
    """A method's maps of images (1, 3, H, W), for the styles of one half, by name."""

    normalize: Callable[[str, Tensor], Tensor | None]
    """Returns None if the method fails."""
    restain: Callable[[str, Tensor], Tensor] | None
    parameters: int = 0
    seconds: float = 0.0
    """Training time in an earlier run."""


@dataclass(frozen=True)
class StainMethod:
    """A row of the table."""

    key: str
    name: str
    build: Callable[[Table2Options, Half], Maps]
    styles: int | None = None
    """Number of styles, if not all."""
    missing: Callable[[], bool] = lambda: False
    """Whether it needs a package that is not installed."""


def run_table2(
    scale: Scale, out: Path, data: Path | None = None, seed: int = 0, progress: Progress | None = None
) -> Table2:
    """Make the table, and write it to `out` as `table2.md`, `table2.csv` and `table2.json` after every row.

    Rows that `table2.json` already holds are kept. The BottleGAN models are saved beside it, one per half.
    """
    make_folder(out)
    setting = Table2Options(scale, seed, out, progress or Silent())
    halves = load_halves(scale, data, seed, setting.progress)
    table = open_table(out, scale, seed, sum(len(half.names) for half in halves), data)
    missing = [method for method in METHODS if method.key not in {row.key for row in table.rows if row.styles}]
    degenerate = frozenset[str]().union(*(find_degenerate(half, setting.progress) for half in halves if missing))
    for method in missing:
        row = make_row(method, setting, halves, degenerate)
        rows = {other.key: other for other in table.rows} | {row.key: row}
        table = replace(table, rows=tuple(rows[m.key] for m in METHODS if m.key in rows))
        write_table(table, out)
        setting.progress.event("row", method=row.method, mse=row.mse_mean, seconds=row.seconds)
    return table


def find_degenerate(half: Half, progress: Progress) -> frozenset[str]:
    """Return the styles whose two stains no closed form can separate without amplifying noise too much."""
    fit = fit_robust(half.pool_images())
    styled = progress.track(list(zip(half.names, half.styled, strict=True)), "diagnosing styles", len(half.names))
    diagnoses = [(name, fit(to_batch(levels)[0]).diagnoses[0]) for name, levels in styled]
    return frozenset(n for n, d in diagnoses if d.route != Route.STAINS or d.condition > ILL_CONDITIONED)


def make_row(method: StainMethod, setting: Table2Options, halves: Sequence[Half], degenerate: frozenset[str]) -> Row:
    """Build a method for each half, score it on all patches of that half, and summarize."""
    if method.missing():
        note = "not installed; run `pip install 'bottlegan[bench]'`"
        return Row(key=method.key, method=method.name, note=note, commit=find_commit(), each={})
    commit = find_commit()
    scores: dict[str, StyleScore] = {}
    outputs: list[Pixels] = []
    failures, parameters, seconds = 0, 0, 0.0
    for whole in halves:
        half = whole if method.styles is None else whole.first(method.styles // len(halves))
        started = time.perf_counter()
        maps = method.build(setting, half)
        seconds += time.perf_counter() - started + maps.seconds
        parameters = max(parameters, maps.parameters)
        patches = list(zip(half.names, half.styled, half.truths, strict=True))
        for name, styled, truth in setting.progress.track(patches, f"scoring {method.name} {half.label}", len(patches)):
            image, target = to_batch(styled), to_batch(truth)
            started = time.perf_counter()
            output = maps.normalize(name, image)
            seconds += time.perf_counter() - started
            failures += output is None
            output = image if output is None else output
            scores[name] = score(maps, name, (image, target, output), name in degenerate)
            outputs += from_batch(output)
    truths = [levels for half in halves for levels in half.truths]
    notes = [f"on {len(scores)} styles only"] * (len(scores) < len(truths))
    notes += [f"failed on {failures} styles, which count as unchanged"] * (failures > 0)
    row = summarize(
        Row(key=method.key, method=method.name, note="; ".join(notes), commit=commit, styles=len(scores), each=scores)
    )
    row = replace(row, parameters=parameters, seconds=seconds)
    if len(outputs) < len(truths):
        return row  # a Fréchet distance of fewer images is not comparable
    distance = frechet_distance((to_batch(levels) for levels in outputs), (to_batch(levels) for levels in truths))
    return replace(row, fid=distance.value)


@torch.no_grad()
def score(maps: Maps, name: str, images: tuple[Tensor, Tensor, Tensor], degenerate: bool) -> StyleScore:
    """Return the scores of one patch, given in its own stain, in the reference stain, and normalized."""
    image, target, output = images
    restained = maps.restain and maps.restain(name, target)
    cycled = maps.restain and maps.restain(name, output)
    return StyleScore(
        mse=mean_squared_error(output, target).item(),
        psnr=psnr(output, target).item(),
        ssim=ssim(output, target).item(),
        turned=nuclei_swapped(output, target).item(),
        monotonic=monotonicity(output, target).item(),
        restain_mse=None if restained is None else mean_squared_error(restained, image).item(),
        cycle_mse=None if cycled is None else mean_squared_error(cycled, image).item(),
        degenerate=degenerate,
    )


def build_identity(setting: Table2Options, half: Half) -> Maps:
    """Return images unchanged."""
    return Maps(lambda _, image: image, lambda _, image: image)


def build_robust(setting: Table2Options, half: Half) -> Maps:
    """Fit our robust Macenko to each patch."""
    fit = fit_robust(half.pool_images())
    fitted: dict[str, DensityMap] = {}

    def normalize(name: str, image: Tensor) -> Tensor:
        fitted[name] = fit(image[0])
        return fitted[name](image)

    return Maps(normalize, lambda name, image: fitted[name].inverse()(image))


def build_torchstain(kind: Literal["Macenko", "Reinhard"]) -> Callable[[Table2Options, Half], Maps]:
    """Fit torchstain to the pool. It cannot restain."""

    def build(setting: Table2Options, half: Half) -> Maps:
        normalizer = prepare_torchstain(kind)(half.pool_images())

        def normalize(name: str, image: Tensor) -> Tensor | None:
            output = attempt(normalizer, image[0])
            return None if output is None else output[None]

        return Maps(normalize, None)

    return build


def build_trained(key: str) -> Callable[[Table2Options, Half], Maps]:
    """Train a model, or load the one that an earlier run has saved."""

    def build(setting: Table2Options, half: Half) -> Maps:
        model, seconds = obtain_model(key, setting, half)

        def normalize(name: str, image: Tensor) -> Tensor:
            with torch.no_grad():
                return model.normalize(image, model.codes[name])

        return Maps(
            normalize,
            lambda name, image: model.restain(image, model.codes[name]),
            model.generator_parameters(),
            seconds,
        )

    return build


def obtain_model(key: str, setting: Table2Options, half: Half) -> tuple[StyleModel, float]:
    """Return a model of the styles of one half, and its training seconds if an earlier run has trained it.

    BottleGAN's models are saved, because Figure 2 needs them.
    """
    path = setting.out / f"{key}-{half.label}.safetensors"
    run = {"scale": setting.scale, "seed": setting.seed, "half": half.label}
    if path.exists():
        saved = read_document(path)
        if {name: saved.record.get(name) for name in run} != run or saved.styles != half.names:
            raise InputError(f"{path}: is of another scale, seed or data; choose another --out")
        return load_model(path), float(saved.record.get("seconds", 0.0))
    started = time.perf_counter()
    labs = {name: [levels] for name, levels in zip(half.names, half.styled, strict=True)}
    checkpoint = path.with_suffix(".checkpoint")
    config = plan(key, setting.scale)
    model = train(labs, half.pool, config, setting.seed, progress=setting.progress, checkpoint=checkpoint)
    if key == "bottlegan":
        save_model(model, path, {**run, "steps": config.steps, "seconds": time.perf_counter() - started})
    checkpoint.unlink(missing_ok=True)
    return model, 0.0


def plan(key: str, scale: Scale) -> TrainConfig:
    """Return the settings of the row `key`. Rows with the same start differ only in the model.

    `warm-...`: learns the maps that onboarding finds, but does not begin at them. `cold-...`: trains with critics and
    without any map. `bottlegan`: trains like `bottlegan train`, which begins at the maps.
    """
    begin, _, form = key.partition("-")
    config = COLD if begin == "cold" else replace(PRESETS["default"], begin_at_maps=begin != "warm")
    match scale:
        case "smoke":
            warm = 4 if config.warm_steps else 0
            config = replace(config, steps=6, warm_steps=warm, check_every=3, batch=8, pixels=512, crop=32)
        case "paper":
            steps = PRESETS["paper"].steps
            # The warm start keeps its share, and no row stops early.
            warm = config.warm_steps * steps // config.steps
            config = replace(config, steps=steps, warm_steps=warm, patience=PRESETS["paper"].patience)
    if begin != "cold":
        # Generators that look beyond the pixel need crops, with as many pixels in total.
        config = replace(config, crops=config.batch * config.pixels // config.crop**2)
    model = config.model
    match form:
        case "unet":
            model = replace(model, generator=replace(model.generator, kind="unet", width=16, depth=2))
        case "many-many":
            # It gets no source style, so it must see the style in the image.
            model = replace(model, paradigm=form, generator=replace(model.generator, statistics="instance"))
        case "many-one" | "many-one-one":
            model = replace(model, paradigm=form)
    return replace(config, model=model)


def _no_torchstain() -> bool:
    return not has_torchstain()


COLD = replace(LAB["cpu"], steps=2000, check_every=100)
"""More steps than in a lab, because a critic sees each of 120 styles less often."""
FORMS = {
    "bottlegan": "BottleGAN",
    "many-one": "Many-One",
    "many-many": "Many-Many",
    "many-one-one": "Many-One-One",
    "unet": "BottleGAN with a U-Net generator",
}
METHODS = (
    StainMethod("identity", "nothing (identity)", build_identity),
    StainMethod("robust-macenko", "robust Macenko (ours)", build_robust),
    StainMethod("bottlegan", "BottleGAN, which begins at the maps", build_trained("bottlegan")),
    StainMethod("torchstain-macenko", "torchstain Macenko", build_torchstain("Macenko"), missing=_no_torchstain),
    StainMethod("torchstain-reinhard", "torchstain Reinhard", build_torchstain("Reinhard"), missing=_no_torchstain),
    *(
        StainMethod(
            f"{start}-{form}",
            f"{name}, {conditions}",
            build_trained(f"{start}-{form}"),
            styles=FEW if form == "many-one-one" else None,
        )
        for start, conditions in (("warm", "from equal starts"), ("cold", "cold, with critics"))
        for form, name in FORMS.items()
    ),
)
