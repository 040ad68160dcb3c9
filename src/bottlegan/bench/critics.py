"""Do critics improve on the encoder where it leaves room? Pairs of physical labs, with bent tone curves.

`python -m bottlegan.bench.critics --pairs 5 --out results` goes on with what is missing there.

The maps between two labs begin as the encoder has them, but as trainable networks: an affine map of densities and a
residual of hidden layers. Each trial then trains both against critics and the cycle, on the patches that the encoder
saw, too. The error is that of `physical_labs`: on further patches, which both labs show. Trials differ in what critics
see, and in what may change. There are two ways to stop: after the last step, or at the step, the start included, that
is best by a criterion without pairs. It compares colors class by class of tissue, so that it is not fooled by how
much of each a patch has.
"""

import argparse
import json
import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bottlegan.bench.normalize import MapPixels
from bottlegan.bench.physical_labs import (
    AS_THEY_COME,
    OPPOSITE,
    LabPair,
    draw_pair,
    draw_pool,
    fit_paired,
    measure_error,
)
from bottlegan.core.files import make_folder, write_text
from bottlegan.core.progress import Silent
from bottlegan.core.seeding import torch_stream
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.losses import critic_loss, cycle_loss, deception_loss
from bottlegan.models.document import PRIOR
from bottlegan.models.paradigms import BottleGAN, drawing_from
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.reproduce.table2_files import find_commit
from bottlegan.simulation.styles import unmix
from bottlegan.stain.density import to_density, to_rgb
from bottlegan.stain.style import REFERENCE

SEED = 0
HIDDEN, WIDTH = 16, 16
"""Width of the residual's two hidden layers, and of a critic's first one."""
BEGINNING, PIXELS = 400, 4096
"""Steps in which the maps learn what the encoder has found, and the pixels of each."""
STEPS, LOOK = 100, 25
"""Steps of a trial, and how often it is looked at."""
RATE = 1e-3
CROP = 64
CHOICE = 8
"""Crops that the one of the most similar tissue is chosen from, for each crop of a step."""
CLASSES = 3
"""Glass, nuclei, and other tissue."""
QUANTILES = torch.linspace(0.02, 0.98, 25)
ENOUGH = 200
"""Least pixels of a class to compare."""


@dataclass(frozen=True)
class Trial:
    """What critics see, and what may change."""

    weight: float = 1.0
    """Of the critics, relative to the cycle."""
    residual: bool = False
    """Whether only the residual changes."""
    told: bool = False
    """Whether critics are told which class of tissue each pixel is of."""
    matched: bool = False
    """Whether crops of the other lab are chosen to show similar tissue."""
    crops: int = 8
    """Of a step."""


TRIALS = {
    "cycle alone": Trial(weight=0.0),
    "critics": Trial(),
    "critics of a tenth of the weight": Trial(weight=0.1),
    "critics, residual only": Trial(residual=True),
    "critics told the tissue": Trial(told=True),
    "critics told the tissue, residual only": Trial(told=True, residual=True),
    "crops of matched tissue": Trial(matched=True),
    "crops of matched tissue, residual only": Trial(matched=True, residual=True),
    "crops of matched tissue, residual only, four times as many": Trial(matched=True, residual=True, crops=32),
}


class TrainableMap(nn.Module):
    """An affine map of densities, plus a residual; both see one pixel."""

    def __init__(self) -> None:
        """Build it with a residual of zero."""
        super().__init__()
        self.affine = nn.Linear(3, 3)
        self.residual = nn.Sequential(
            nn.Linear(3, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 3)
        )
        for parameter in self.residual[-1].parameters():
            nn.init.zeros_(parameter)

    def forward(self, images: Tensor) -> Tensor:
        """Return images (N, 3, H, W) in [0, 1]."""
        return self.pixels(images.movedim(1, -1)).movedim(-1, 1)

    def pixels(self, colors: Tensor) -> Tensor:
        """Return colors (..., 3) in [0, 1]."""
        density = to_density(colors)
        return to_rgb(self.affine(density) + self.residual(density))


class TissueCritic(nn.Module):
    """A small PatchGAN of densities which may be told the tissue."""

    def __init__(self, told: bool) -> None:
        """Build the layers."""
        super().__init__()
        widths = [3 + CLASSES * told, WIDTH, 2 * WIDTH, 4 * WIDTH]
        layers = [nn.Conv2d(a, b, 4, stride=2, padding=1) for a, b in pairwise(widths)]
        self.layers = nn.ModuleList([*layers, nn.Conv2d(4 * WIDTH, 4 * WIDTH, 1)])
        self.last, self.told = nn.Conv2d(4 * WIDTH, 1, 1), told

    def forward(self, images: Tensor, tissue: Tensor) -> Tensor:
        """Return scores (N, 1, h, w) of images (N, 3, H, W), given the classes (N, CLASSES, H, W) of their pixels."""
        hidden = to_density(images)
        if self.told:
            hidden = torch.cat([hidden, tissue], dim=1)
        for layer in self.layers:
            hidden = F.leaky_relu(layer(hidden), 0.2)
        return self.last(hidden)


@dataclass(frozen=True)
class LabView:
    """A lab's patches, as one batch, and how much each pixel is of each class of tissue, by the encoder's maps."""

    images: Tensor
    tissue: Tensor

    def crops(self, random: torch.Generator, count: int, like: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return random crops of images and classes, or those of the most similar tissue to each of `like`."""
        if like is None:
            return self._draw(random, count)
        images, tissue = self._draw(random, count * CHOICE)
        nearest = torch.cdist(like.mean((2, 3)), tissue.mean((2, 3))).argmin(1)
        return images[nearest], tissue[nearest]

    def _draw(self, random: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
        side = self.images.shape[-1] - CROP + 1
        places = [torch.randint(most, (count,), generator=random).tolist() for most in (len(self.images), side, side)]
        cut = [(row, slice(None), slice(y, y + CROP), slice(x, x + CROP)) for row, y, x in zip(*places, strict=True)]
        return torch.stack([self.images[at] for at in cut]), torch.stack([self.tissue[at] for at in cut])


@dataclass(frozen=True)
class Look:
    """How good a map is after some steps."""

    step: int
    error: float
    """Mean squared error against the truth."""
    criterion: float
    """What is known without the truth."""


def main() -> None:
    """Run all trials that are missing, and print the figures; even labs that would be refused are mapped."""
    parser = argparse.ArgumentParser(description="Train critics where the encoder leaves room.")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of labs")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of results, in which a run goes on")
    args = parser.parse_args()
    make_folder(args.out)
    path = args.out / "critics.json"
    done = json.loads(path.read_text()) if path.exists() else {}
    pool, model = draw_pool(Silent()), BottleGAN.load(PRIOR)
    for index in range(args.pairs):
        for test in (AS_THEY_COME, OPPOSITE):
            if (key := f"{test} {index}") not in done:
                done[key] = run_pair(draw_pair(pool, index, test), model, index)
                write_text(path, json.dumps(done))
    print(f"commit {find_commit()}, {STEPS} steps")
    for test in (AS_THEY_COME, OPPOSITE):
        print("\n".join([f"\n{test}", *summarize([found for key, found in done.items() if key.startswith(test)])]))


def run_pair(pair: LabPair, model: BottleGAN, index: int) -> dict[str, float | list[list[float]]]:
    """Return the errors for a pair of labs: of the encoder, the paired affine map, and all looks of each trial."""
    a, b = (Normalizer.fit(images, model=model, force=True) for images in (pair.fitted_a, pair.fitted_b))
    there = begin(pair.fitted_a, a.like(b), index)
    maps = nn.ModuleList([there, begin(pair.fitted_b, b.like(a), index)])
    labs = (view(pair.fitted_a, a), view(pair.fitted_b, b))
    found: dict[str, float | list[list[float]]] = {
        "encoder": measure_error([a.like(b)(image) for image in pair.scored_a], pair.scored_b),
        "paired affine map": measure_error([fit_paired(pair)(image) for image in pair.scored_a], pair.scored_b),
    }
    for name, trial in TRIALS.items():
        looks = train(deepcopy(maps), labs, trial, pair, index)
        found[name] = [[each.step, each.error, each.criterion] for each in looks]
    return found


def begin(images: Sequence[Pixels], wanted: MapPixels, index: int) -> TrainableMap:
    """Return a map that does to images what another one does, as nearly as it can."""
    random = torch_stream(SEED, "begin", index)
    before, after = (
        torch.cat([to_batch(image).movedim(1, -1).reshape(-1, 3) for image in group])
        for group in (images, [wanted(image) for image in images])
    )
    with drawing_from(random):
        found = TrainableMap()
    known = torch.cat([to_density(before), torch.ones(len(before), 1)], dim=1)
    solved = torch.linalg.lstsq(known, to_density(after), driver="gelsd").solution
    with torch.no_grad():
        found.affine.weight.copy_(solved[:3].T)
        found.affine.bias.copy_(solved[3])
    optimizer = torch.optim.Adam(found.parameters(), 2 * RATE)
    for step in range(BEGINNING):
        optimizer.param_groups[0]["lr"] = 2 * RATE * (1 - step / BEGINNING)
        rows = torch.randint(len(before), (PIXELS,), generator=random)
        loss = (found.pixels(before[rows]) - after[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return found


def view(images: Sequence[Pixels], normalizer: Normalizer) -> LabView:
    """Return a lab's patches with the tissue that they show, in soft classes, slightly blurred."""
    amounts = torch.cat([unmix(to_batch(normalizer(image)), REFERENCE) for image in images])
    stained = torch.sigmoid(40 * (amounts.sum(1) - 0.15))
    nuclei = stained * torch.sigmoid(15 * (amounts[:, 0] - amounts[:, 1]))
    classes = torch.stack([1 - stained, nuclei, stained - nuclei], dim=1)
    return LabView(torch.cat([to_batch(image) for image in images]), F.avg_pool2d(classes, 5, 1, 2))


def train(maps: nn.ModuleList, labs: tuple[LabView, LabView], trial: Trial, pair: LabPair, index: int) -> list[Look]:
    """Train the maps to and from the second lab, and return what came of it every so many steps."""
    random = torch_stream(SEED, "trial", index)
    with drawing_from(torch_stream(SEED, "critics", index)):
        critics = nn.ModuleList(TissueCritic(trial.told) for _ in maps)
    changing = [each for name, each in maps.named_parameters() if "residual" in name or not trial.residual]
    optimizer = torch.optim.Adam(changing, RATE, betas=(0.5, 0.99))
    critic_optimizer = torch.optim.Adam(critics.parameters(), RATE, betas=(0.5, 0.99))
    looks = [look(maps[0], labs, pair, 0)]
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = RATE * (1 + math.cos(math.pi * step / STEPS)) / 2
        (a, tissue_a) = labs[0].crops(random, trial.crops)
        (b, tissue_b) = labs[1].crops(random, trial.crops, tissue_a if trial.matched else None)
        fake_b, fake_a = maps[0](a), maps[1](b)
        loss = cycle_loss(maps[1](fake_b), a) + cycle_loss(maps[0](fake_a), b)
        if trial.weight:
            # An image keeps its tissue when it is mapped.
            duels = ((critics[0], b, tissue_b, fake_b, tissue_a), (critics[1], a, tissue_a, fake_a, tissue_b))
            judged = [
                critic_loss("lsgan", critic(real, tissue), critic(fake.detach(), other))
                for critic, real, tissue, fake, other in duels
            ]
            critic_optimizer.zero_grad()
            torch.stack(judged).sum().backward()
            critic_optimizer.step()
            for critic, _, _, fake, other in duels:
                loss = loss + trial.weight * deception_loss("lsgan", critic(fake, other))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % LOOK == 0:
            looks.append(look(maps[0], labs, pair, step + 1))
    return looks


@torch.no_grad()
def look(there: nn.Module, labs: tuple[LabView, LabView], pair: LabPair, step: int) -> Look:
    """Return how good a map to the second lab is."""
    mapped = [from_batch(there(to_batch(image)))[0] for image in pair.scored_a]
    distances = [
        (known - wanted).abs().mean().item()
        for kind in range(1, CLASSES)
        if (known := color_quantiles(there(labs[0].images), labs[0].tissue, kind)) is not None
        and (wanted := color_quantiles(labs[1].images, labs[1].tissue, kind)) is not None
    ]
    return Look(step, measure_error(mapped, pair.scored_b), fmean(distances) if distances else 0.0)


def color_quantiles(images: Tensor, tissue: Tensor, kind: int) -> Tensor | None:
    """Return quantiles (25, 3) of the densities of one class of tissue; None where there is hardly any."""
    density = to_density(images).movedim(1, -1)[tissue[:, kind] > 0.6]
    return torch.quantile(density[:: len(density) // 20_000 + 1], QUANTILES, dim=0) if len(density) >= ENOUGH else None


def summarize(found: Sequence[dict[str, float | list[list[float]]]]) -> list[str]:
    """Return the lines of a table: mean errors in ten thousandths, and how many pairs got better."""
    lines = ["| trial | last step | pairs better | chosen step | pairs better | best step, if it were known |"]
    lines.append("| --- " * 6 + "|")
    for name in found[0]:
        runs = [each[name] for each in found]
        if name not in TRIALS:
            lines.append(f"| {name} | {1e4 * fmean(run for run in runs if isinstance(run, float)):.2f} | | | | |")
            continue
        looks = [[Look(int(step), *rest) for step, *rest in run] for run in runs if isinstance(run, list)]
        last = [each[-1].error for each in looks]
        chosen = [min(each, key=lambda one: one.criterion).error for each in looks]
        best = [min(one.error for one in each) for each in looks]
        better = [sum(ours < each[0].error for ours, each in zip(some, looks, strict=True)) for some in (last, chosen)]
        numbers = f"{1e4 * fmean(last):.2f} | {better[0]} of {len(looks)} | {1e4 * fmean(chosen):.2f} | {better[1]}"
        lines.append(f"| {name} | {numbers} of {len(looks)} | {1e4 * fmean(best):.2f} |")
    return lines


if __name__ == "__main__":
    main()
