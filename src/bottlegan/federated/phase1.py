"""Phase 1 of the federation: every client uploads once what its style is, and the server makes one model of all.

There are two kinds of upload. `generators`, the paper's: a client trains a BottleGAN of its own between its images and
the reference set, and the server distills all of these to one. `code`: all have the same frozen prior, a client fits
only its code to it, and the global model is the prior with all codes. No pixel leaves a client either way. Uploads are
kept, so nobody is asked again when another client joins or leaves.
"""

import copy
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bottlegan.config import document
from bottlegan.errors import ConfigError, InputError, ModelFileError
from bottlegan.federated.validation import find_fault, printable
from bottlegan.files import make_folder, replacing
from bottlegan.imaging.files import Levels
from bottlegan.models.document import PRIOR, check_name
from bottlegan.models.files import to_weights
from bottlegan.models.paradigms import BottleGAN, build_model
from bottlegan.models.style_codes import StyleCodes
from bottlegan.models.weights import read_weights
from bottlegan.onboarding.fit import onboard
from bottlegan.progress import Progress
from bottlegan.training.distill import DistillConfig, as_bottlegan, distill
from bottlegan.training.gan import TrainConfig, train

Upload = Literal["generators", "code"]

CODE = "code"
"""The tensor of an upload that holds the client's style code."""
STYLE = "client"
"""What a client calls its only style until the server gives it the client's name."""
MOST_BYTES = 2**26
"""Of an upload, far more than the widest generators take."""


@document
class Phase1Config:
    """How the clients' styles become one model."""

    upload: Upload = "code"
    # The map that onboarding finds is in the model before step 0, and the warm start has nothing left to learn.
    train: TrainConfig = TrainConfig(steps=10, warm_steps=10, check_every=10)
    """What a client trains, if it uploads generators."""
    distill: DistillConfig = DistillConfig()
    """What the server makes of these."""

    def __post_init__(self) -> None:
        """Check that there are generators to upload."""
        if self.train.model.paradigm != "many-one-many":
            raise ConfigError("a client trains a BottleGAN; set `train.model.paradigm` to many-one-many")


@dataclass(frozen=True)
class Contribution:
    """What a client uploads, and what it should know before it does."""

    arrays: dict[str, Tensor]
    verdict: str
    """One of `onboarding.verdict.Verdict`: whether the images look like stained tissue."""


def contribute(
    images: Sequence[Levels],
    config: Phase1Config,
    *,
    reference_set: Sequence[Levels] | None,
    prior: BottleGAN | None,
    seed: int,
    progress: Progress | None = None,
) -> Contribution:
    """Return what a client uploads; the same arguments give the same bytes.

    Args:
        images: Of the client, RGB levels (H, W, 3), unlabeled.
        config: What to upload.
        reference_set: RGB levels of the public images; only needed to train generators.
        prior: The network that codes are fitted to; by default the one shipped in the package.
        seed: Of all random choices.
        progress: Where to report progress.
    """
    # Generators have no verdict of their own, and the one on a code is about the images.
    fitted = onboard(images, read_weights(PRIOR) if prior is None else to_weights(prior))
    verdict = fitted.diagnosis.verdict.value
    if config.upload == "code":
        return Contribution({CODE: torch.from_numpy(fitted.code.copy())}, verdict)
    public = _need_reference(reference_set)
    model = as_bottlegan(train({STYLE: images}, public, config.train, seed, progress=progress))
    return Contribution(to_arrays(model), verdict)


def expected_shapes(config: Phase1Config, prior: BottleGAN | None) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of all tensors of a valid upload, which are float32 and finite."""
    if config.upload == "code":
        return {CODE: ((prior or BottleGAN.load(PRIOR)).codes.size,)}
    return {name: tuple(tensor.shape) for name, tensor in to_arrays(_new_teacher(config)).items()}


def assemble(
    contributions: Mapping[str, dict[str, Tensor]],
    config: Phase1Config,
    *,
    reference_set: Sequence[Levels] | None,
    prior: BottleGAN | None,
    seed: int,
    progress: Progress | None = None,
) -> BottleGAN:
    """Return the global model with the style of each client, by name; the order of the uploads does not matter.

    Args:
        contributions: What each client has uploaded.
        config: What that is.
        reference_set: RGB levels (H, W, 3) of the public images; only needed to distill generators.
        prior: The network that codes were fitted to; by default the one shipped in the package.
        seed: Of all random choices.
        progress: Where to report progress.
    """
    shapes = expected_shapes(config, prior)
    for name, arrays in contributions.items():
        if fault := find_fault(arrays, shapes):
            raise InputError(f"the upload of {name}: {fault}; let the client upload again with the current settings")
    names = sorted(contributions)
    if config.upload == "code":
        return gather_codes({name: contributions[name][CODE] for name in names}, prior or BottleGAN.load(PRIOR))
    teachers = {name: from_arrays(contributions[name], config) for name in names}
    return distill(teachers, _need_reference(reference_set), config.distill, seed, progress)


def gather_codes(codes: Mapping[str, Tensor], prior: BottleGAN) -> BottleGAN:
    """Return a copy of the prior that knows exactly these styles."""
    model = copy.deepcopy(prior)
    model.codes = StyleCodes([], prior.codes.size, torch.Generator())
    for name, code in codes.items():
        model.codes.add(name, code)
    return model.eval()


def to_arrays(model: BottleGAN) -> dict[str, Tensor]:
    """Return both generators and the only code of a client's model; what it knows of the reference set is public."""
    parts = {"normalizer": model.normalizer, "restainer": model.restainer}
    generators = {
        f"{part}.{name}": tensor.detach().cpu().clone()
        for part, generator in parts.items()
        for name, tensor in generator.state_dict().items()
    }
    return {**generators, CODE: model.codes.table.detach().cpu()[0].clone()}


def from_arrays(arrays: Mapping[str, Tensor], config: Phase1Config) -> BottleGAN:
    """Return the model that a client has uploaded, given tensors of the expected names and shapes."""
    model = _new_teacher(config)
    for part, generator in (("normalizer", model.normalizer), ("restainer", model.restainer)):
        generator.load_state_dict({name: arrays[f"{part}.{name}"] for name in generator.state_dict()})
    with torch.no_grad():
        model.codes.table.copy_(arrays[CODE][None])
    return model.eval()


def _new_teacher(config: Phase1Config) -> BottleGAN:
    """Return a client's model, to be filled."""
    return as_bottlegan(build_model(config.train.model, [STYLE], torch.Generator()))


def _need_reference(reference_set: Sequence[Levels] | None) -> Sequence[Levels]:
    if not reference_set:
        raise InputError("generators cannot be trained without a reference set; give its folder, or upload codes")
    return reference_set


class UploadStore:
    """The uploads of all clients on the server's disk, one safetensors file each."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`, which is made when there is something to store."""
        self.folder = folder

    def put(self, name: str, arrays: Mapping[str, Tensor]) -> None:
        """Store the upload of a client, whole or not at all, instead of any earlier one."""
        path = self._path(name)
        if fault := _find_own_fault(arrays):
            raise InputError(f"the upload of {name}: {fault}; let the client upload again")
        content = save({key: tensor.detach().cpu().contiguous() for key, tensor in arrays.items()}, {STYLE: name})
        make_folder(self.folder)
        with replacing(path) as temporary:
            temporary.write_bytes(content)

    def remove(self, name: str) -> None:
        """Delete the upload of a client."""
        path = self._path(name)
        if not path.exists():
            raise InputError(
                f"{self.folder}: holds no upload of {name}; there are: {', '.join(self.names()) or 'none'}"
            )
        path.unlink()

    def names(self) -> list[str]:
        """Return the clients whose uploads are here, sorted."""
        return sorted(self._read_name(path) for path in self._files())

    def read_all(self) -> dict[str, dict[str, Tensor]]:
        """Return all uploads by client, sorted, float32 and finite; `assemble` knows what shapes they must have."""
        read = {self._read_name(path): self._read(path) for path in self._files()}
        return dict(sorted(read.items()))

    def _files(self) -> list[Path]:
        # What begins with a dot was being written when the machine went down.
        return [path for path in self.folder.glob("*.safetensors") if not path.name.startswith(".")]

    def _path(self, name: str) -> Path:
        """Return where a client's upload is: readable, and different for names that a file system takes for one."""
        check_name(name)
        readable = re.sub(r"[^A-Za-z0-9-]", "_", name)[:40]
        return self.folder / f"{readable}.{hashlib.sha256(name.encode()).hexdigest()[:12]}.safetensors"

    def _read_name(self, path: Path) -> str:
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                name = (file.metadata() or {}).get(STYLE, "")
            if self._path(name) == path:
                return name
        except InputError:
            pass  # no name that anybody can have
        except (SafetensorError, OSError) as error:
            raise _broken(path, f"not a whole safetensors file ({error})") from None
        raise _broken(path, "is not named after the client in it")

    def _read(self, path: Path) -> dict[str, Tensor]:
        if path.stat().st_size > MOST_BYTES:
            raise _broken(path, f"has {path.stat().st_size} bytes, at most {MOST_BYTES} are read")
        with safe_open(path, framework="pt", device="cpu") as file:
            # Cloned, because what is read is a view of the file, which others may change.
            arrays = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - no dictionary
        if fault := _find_own_fault(arrays):
            raise _broken(path, fault)
        return arrays


def _find_own_fault(arrays: Mapping[str, Tensor]) -> str | None:
    """Return what is wrong with an upload whatever shapes it should have."""
    if CODE not in arrays:
        return "there is no style code in it"
    return find_fault(arrays, {name: tuple(tensor.shape) for name, tensor in arrays.items()})


def _broken(path: Path, fault: str) -> ModelFileError:
    return ModelFileError(f"{path}: {printable(fault)}; delete it, and let the client upload again")
