"""A trained network as one `.safetensors` file: its tensors, and a JSON document that says what it is and needs.

A file may come from anywhere, so nothing in it is trusted. The document is checked first. A factory that nobody allowed
is not called, and an allowed one may take no more memory than the tensors in the file.
"""

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bottlegan.core.config import document, parse, to_values
from bottlegan.core.errors import ConfigError, InputError, MissingError, ModelFileError
from bottlegan.core.files import replacing
from bottlegan.core.stamp import BLANK, stamp
from bottlegan.core.stamp import KEY as CHECKSUM
from bottlegan.core.task import Task
from bottlegan.models.document import MAX_TEXT, NETWORK_KEY, check_whole, one_line
from bottlegan.models.networks import Built, NetworkConfig, Weights, build_network, check_allowed, load_weights
from bottlegan.models.weights import ENCODERS, ModelWeights

Mode = Literal["plain", "normalize", "restain"]
FORMAT = 1
LARGEST_CROP = 4096
TRIED = 512
"""Largest side of the image that a network from a file is tried on. The crop size in the file may be anything."""
COLDEST, HOTTEST = 0.05, 20.0
"""Range of temperatures that a file may have."""
DIGEST = 64  # hexadecimal digits of a SHA-256
ENOUGH = 0.5
"""Least share of a network's tensors that a file must have to be a starting point."""


@document
class NetworkDocument:
    """The description of a network in its file."""

    format: int = FORMAT
    task: Task
    network: NetworkConfig
    crop: int
    """Side of the crops that it was trained on."""
    mode: Mode
    """In mode `normalize` it needs images in the reference stain; otherwise any stain."""
    model: str = ""
    """Hash of the model that normalizes its images (see `digest_model`); empty if it needs none."""
    temperature: float = 1.0
    """Logits are divided by this to calibrate the probabilities."""
    scores: dict[str, float]
    """Scores over all labs' test images at temperature 1, if it was scored."""
    weights: str
    """Hash of its tensors."""
    record: dict[str, str | int | float]
    """How it was trained."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.format != FORMAT:
            raise ConfigError(f"written by another BottleGAN (format {self.format}, this one reads {FORMAT}); upgrade")
        if not 1 <= self.crop <= LARGEST_CROP or not COLDEST <= self.temperature <= HOTTEST:
            raise ConfigError(f"crop must be 1 to {LARGEST_CROP}, temperature {COLDEST} to {HOTTEST}")
        if len(self.weights) != DIGEST or len(self.model) not in (0, DIGEST):
            raise ConfigError("weights and model must be SHA-256 hashes")
        if not all(map(math.isfinite, self.scores.values())):
            raise ConfigError("scores must be finite")


def save_network(path: Path, weights: Mapping[str, Tensor], document: NetworkDocument) -> None:
    """Write a network to `path`, whole or not at all. The same arguments give the same bytes.

    Args:
        path: The file to write; an existing file is replaced.
        weights: Its tensors, as they are exchanged.
        document: Its description. The hash of its tensors is set here.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    _check_tensors(tensors, path)
    values = {CHECKSUM: BLANK, **to_values(replace(document, weights=digest_weights(tensors)))}
    text = json.dumps(values, sort_keys=True, allow_nan=False)
    with replacing(path, durable=True) as temporary:
        temporary.write_bytes(stamp(save(tensors, {NETWORK_KEY: text})))


def read_network_document(path: Path) -> NetworkDocument:
    """Read the description in a network's file, checked, without its tensors."""
    with _open(path) as file:
        document = _read_document(file, path)
        check_whole(file.metadata()[NETWORK_KEY], path)
    return document


def load_network(path: Path, allowed: Collection[str] = ()) -> tuple[Built, NetworkDocument]:
    """Read a network, in evaluation mode, and its description. Everything is checked.

    Args:
        path: The file.
        allowed: Factories that may be called besides our own, as `package.module:function`.
    """
    with _open(path) as file:
        document, text = _read_document(file, path), file.metadata()[NETWORK_KEY]
        weights: Weights = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - no dictionary
    _check_tensors(weights, path)
    if digest_weights(weights) != document.weights:
        raise ModelFileError(f"{path}: its tensors do not match their hash; copy or download it again")
    try:
        check_allowed(
            document.network, document.task, allowed, "if you trust it, allow it with --allow, or allowed= in Python"
        )
        budget = sum(tensor.numel() for tensor in weights.values())
        built = build_network(
            document.network, document.task, torch.Generator(), crop=min(document.crop, TRIED), budget=budget
        )
    except ConfigError as error:
        raise ModelFileError(one_line(f"{path}: {error}")) from None
    try:
        load_weights(built.network, weights)
    except RuntimeError as error:
        raise ModelFileError(
            one_line(f"{path}: its tensors do not match its network ({' '.join(str(error).split())})")
        ) from None
    # Last, because the other checks give clearer errors.
    check_whole(text, path)
    built.network.eval().requires_grad_(False)
    return built, document


def read_start(path: Path, weights: Mapping[str, Tensor]) -> tuple[Weights, list[str]]:
    """Return the initial tensors of a network, and the names of those that the file does not provide.

    Tensors come from the file where names and shapes match. So a pretrained network can be fine-tuned for other
    classes: its last layer is then new.

    Args:
        path: Any safetensors file with the network's tensors, from a federation or exported from elsewhere.
        weights: The network's own tensors, newly drawn.
    """
    with _open(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no dictionary
        fits = [name for name in weights if name in slices and slices[name].get_shape() == list(weights[name].shape)]
        tensors = {name: file.get_tensor(name).to(torch.float32) for name in fits}
    _check_tensors(tensors, path)
    if len(tensors) < ENOUGH * len(weights):
        raise ModelFileError(
            f"{path}: has {len(tensors)} of the network's {len(weights)} tensors; give weights of the same factory and "
            "arguments"
        )
    return {**weights, **tensors}, [name for name in weights if name not in tensors]


def digest_weights(weights: Mapping[str, Tensor]) -> str:
    """Return the hash of tensors, with their names and shapes."""
    sha = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        sha.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        sha.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


def digest_model(model: ModelWeights) -> str:
    """Return the hash of the parts of a BottleGAN that normalize images: everything except the styles it knows."""
    sha = hashlib.sha256()
    for name, array in sorted(model.arrays.items()):
        if not name.startswith(("codes.", ENCODERS)):
            sha.update(f"{name} {array.shape};".encode())
            sha.update(array.tobytes())
    return sha.hexdigest()


def _open(path: Path) -> Any:
    """Open a safetensors file. This checks that the lengths of its tensors match that of the file."""
    if not path.exists():
        raise MissingError(f"{path}: there is no such network file; check the path")
    if not path.is_file():
        raise ModelFileError(f"{path}: is not a file; give the .safetensors file of a network")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelFileError(
            one_line(f"{path}: not a whole safetensors file ({error}); it may be cut off: copy or download it again")
        ) from None


def _read_document(file: Any, path: Path) -> NetworkDocument:
    text = (file.metadata() or {}).get(NETWORK_KEY)
    if text is None:
        raise ModelFileError(f"{path}: is not a network; give one that a federation wrote, network.safetensors")
    if len(text) > MAX_TEXT:
        raise ModelFileError(f"{path}: its document has {len(text)} characters, at most {MAX_TEXT} are read")
    try:
        values = json.loads(text)
        if isinstance(values, dict):
            values.pop(CHECKSUM, None)
        return parse(NetworkDocument, values, str(path))
    except (ValueError, RecursionError) as error:
        message = error if isinstance(error, InputError) else f"{path}: its document is not JSON ({error})"
        raise ModelFileError(one_line(str(message))) from None


def _check_tensors(weights: Mapping[str, Tensor], path: Path) -> None:
    for name, tensor in weights.items():
        if tensor.dtype != torch.float32:
            raise ModelFileError(one_line(f"{path}: tensor `{name[:80]}` is {tensor.dtype}, it must be float32"))
        if not bool(tensor.isfinite().all()):
            raise ModelFileError(one_line(f"{path}: tensor `{name[:80]}` holds NaN or infinity; train it again"))
