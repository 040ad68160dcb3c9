"""The methods compared on real labs: ours, the peers, and doing nothing, all fitted to the images of one lab.

The peers need an image to aim at. It is procedural tissue in the reference stain, so that no method has seen a real
image. torchstain estimates the stain of each image that it maps anew, so fitting it to a lab does nothing.
"""

import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from skimage.color import lab2rgb, rgb2lab

from bottlegan.bench.normalize import MapPixels, Peer, peer_torchstain
from bottlegan.core.errors import InputError
from bottlegan.data.real import read_whole
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import REFERENCE

NOTHING, OURS = "nothing", "ours"
COMMAND = [sys.executable, "-c", "from bottlegan.cli.main import main; main()", "normalize", "--force"]
TISSUES, SIDE = 4, 512
"""Number of patches in the target image of peers, and their side in pixels."""


@dataclass(frozen=True)
class Opinion:
    """A method's opinion of its own fit."""

    verdict: str
    reason: str
    expected_error: float | None
    """Expected error in levels."""
    gain: float | None
    """Ratio of the output's noise to the input's, in density."""


@dataclass(frozen=True)
class Fitted:
    """A method that was fitted to the images of one lab."""

    convert: MapPixels
    """Maps an image; may fail with a RuntimeError, ValueError or IndexError."""
    opinion: Opinion | None = None


Given = Pixels | Path
Fit = Callable[[Sequence[Given]], Fitted]
"""Fits a method to images of one lab: RGB levels (H, W, 3), uint8, or a slide's file."""


@dataclass(frozen=True)
class LabMethod:
    """One row of the table."""

    fit: Fit
    learns: bool = True
    """Whether fitting uses the images."""
    write_slide: Callable[[Path], Pixels] | None = None
    """Returns a slide as users get it, (H, W, 3), if that differs from the map of its pixels."""


def list_methods(model: Path | None = None) -> dict[str, LabMethod | str]:
    """Return all rows by name. For a peer that cannot be used, return the reason instead.

    Args:
        model: The model file for our fits; by default the one shipped in the package.
    """
    reference = draw_reference()
    methods: dict[str, LabMethod | str] = {
        NOTHING: LabMethod(lambda images: Fitted(lambda image: image), learns=False),
        OURS: LabMethod(fit_ours(model), write_slide=partial(write_slide, model=model)),
        "Reinhard, pooled moments": LabMethod(fit_moments(reference)),
    }
    peers = {
        "torchstain Reinhard": peer_torchstain("Reinhard"),
        "torchstain Macenko": peer_torchstain("Macenko", stains=False),
    }
    for name, peer in peers.items():
        try:
            methods[name] = aim(peer, reference)
        except ImportError as error:
            methods[name] = str(error)
    return methods


def draw_reference() -> Pixels:
    """Return procedural tissue (H, W, 3) in the reference stain, the target of peers."""
    drawn = [render(draw_tissue(0, index, SIDE).concentration[None], REFERENCE) for index in range(TISSUES)]
    return np.hstack([from_batch(image)[0] for image in drawn])


def fit_ours(model: Path | None) -> Fit:
    """Return a function that onboards a lab."""

    def fit(images: Sequence[Given]) -> Fitted:
        normalizer = Normalizer.fit(images, model=model)
        diagnosis = normalizer.diagnosis
        if diagnosis is None:
            return Fitted(normalizer)
        verdict, expected, gain = (
            str(diagnosis.verdict),
            getattr(diagnosis, "expected_error", None),
            getattr(diagnosis, "gain", None),
        )
        return Fitted(normalizer, Opinion(verdict, diagnosis.reason, _finite(expected), _finite(gain)))

    return fit


def write_slide(path: Path, model: Path | None = None) -> Pixels:
    """Return a slide (H, W, 3) as written by `bottlegan normalize`, even if it is refused."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "normalized.tiff")
        words = [*COMMAND, str(path), str(target), *([] if model is None else ["--model", str(model)])]
        done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - a command of ours
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise InputError(f"{path}: cannot be normalized ({last}); try `bottlegan normalize` with it")
        return read_whole(target)


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and np.isfinite(value) else None


def fit_moments(reference: Pixels) -> Fit:
    """Return a function that gives all of a lab's images together the reference's mean and deviation in CIE Lab."""
    center, spread = measure_moments([reference])

    def fit(images: Sequence[Given]) -> Fitted:
        mean, deviation = measure_moments([read_whole(each) if isinstance(each, Path) else each for each in images])
        scale = spread / np.maximum(deviation, 1e-3)
        return Fitted(lambda image: _to_levels((rgb2lab(image) - mean) * scale + center))

    return fit


def measure_moments(images: Sequence[Pixels]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean (3,) and standard deviation (3,) in CIE Lab over all pixels of the images."""
    pixels = [rgb2lab(image).reshape(-1, 3) for image in images]
    count = sum(len(colors) for colors in pixels)
    mean = np.sum([colors.sum(0) for colors in pixels], axis=0) / count
    return mean, np.sqrt(np.sum([((colors - mean) ** 2).sum(0) for colors in pixels], axis=0) / count)


def _to_levels(colors: NDArray[np.float64]) -> Pixels:
    with warnings.catch_warnings():
        # Colors outside sRGB are clipped, and the warning says no more than that.
        warnings.filterwarnings("ignore", message="Conversion from CIE-LAB")
        return np.rint(np.clip(lab2rgb(colors), 0, 1) * 255).astype(np.uint8)


def aim(peer: Peer, reference: Pixels) -> LabMethod:
    """Return another package's normalizer, which uses only the image that it maps."""
    convert = peer(reference)
    return LabMethod(lambda images: Fitted(lambda image: convert(image.copy())), learns=False)  # torch wants to write


def apply(fitted: Fitted, image: Pixels) -> tuple[Pixels, bool]:
    """Return the mapped image and whether mapping worked. If it failed, the image is unchanged."""
    try:
        return fitted.convert(image), True
    except (RuntimeError, ValueError, IndexError):
        return image, False
