"""The global BottleGAN, made from all uploads."""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from bottlegan.core.config import to_json
from bottlegan.core.errors import InputError, MissingError, ModelFileError
from bottlegan.core.progress import Progress
from bottlegan.federated.protocol.phase1 import CODE, Phase1Config, expected_shapes, from_arrays, need_reference
from bottlegan.federated.protocol.validation import find_fault
from bottlegan.federated.server.config import FederationConfig
from bottlegan.federated.server.folder import DAMAGED, DISTILLING, STYLES, UPLOADS, find_prior
from bottlegan.federated.server.uploads import UploadStore
from bottlegan.imaging.files import Pixels
from bottlegan.models.document import one_line
from bottlegan.models.files import to_weights
from bottlegan.models.weights import ModelWeights, read_weights, write_weights
from bottlegan.training.checkpoint import name_checkpoint
from bottlegan.training.distill import distill


def assemble_styles(
    folder: Path, config: FederationConfig, reference_set: Sequence[Pixels] | None, progress: Progress
) -> str | None:
    """Make the global BottleGAN from all uploads in `folder`, unless it is up to date; return its digest."""
    path, uploads = folder / STYLES, UploadStore(folder / UPLOADS)
    names = uploads.names()
    if not names:
        path.unlink(missing_ok=True)
        return None
    if _read_names(path, progress) != names:
        prior = read_weights(find_prior(folder))
        model = assemble(
            uploads.read_all(),
            config.phase1,
            reference_set=reference_set,
            prior=prior,
            seed=config.seed,
            kept=folder / DISTILLING,
            progress=progress,
        )
        record: dict[str, str | int | float] = {"seed": config.seed, "clients": len(names)}
        with_record = replace(model.document, record=record, reference=prior.document.reference)
        write_weights(replace(model, document=with_record), path)
        shutil.rmtree(folder / DISTILLING, ignore_errors=True)
        progress.event("styles", clients=list(names))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_names(path: Path, progress: Progress) -> list[str] | None:
    """Return the names of a model's styles; None if the model is missing or damaged and must be made again."""
    try:
        return sorted(read_weights(path).document.styles)
    except MissingError:
        return None
    except ModelFileError as error:
        progress.event(DAMAGED, text=f"{one_line(str(error).partition(';')[0])}; it is made again from the uploads")
        return None


def assemble(
    contributions: Mapping[str, dict[str, Tensor]],
    config: Phase1Config,
    *,
    reference_set: Sequence[Pixels] | None,
    prior: ModelWeights,
    seed: int,
    kept: Path | None = None,
    progress: Progress | None = None,
) -> ModelWeights:
    """Return the global model with each client's style; the order of the uploads does not matter.

    Args:
        contributions: The uploads by client.
        config: The settings of phase 1.
        reference_set: The public images, uint8 (H, W, 3); only needed to distill generators.
        prior: The network that codes were fitted to.
        seed: Seed of all random choices.
        kept: Folder for checkpoints, from which interrupted training is resumed.
        progress: Where to report progress.
    """
    shapes = expected_shapes(config, prior.document)
    for name, arrays in contributions.items():
        if fault := find_fault(arrays, shapes):
            raise InputError(f"the upload of {name}: {fault}; let the client upload again with the current settings")
    names = sorted(contributions)
    if config.method == "code":
        return prior.with_styles({name: contributions[name][CODE].numpy() for name in names})
    teachers = {name: from_arrays(contributions[name], config) for name in names}
    public = need_reference(reference_set)
    uploaded = [tensor.numpy() for name in names for tensor in contributions[name].values()]
    checkpoint = name_checkpoint(kept, to_json(config), seed, uploaded, public)
    return to_weights(distill(teachers, public, config.server, seed, progress=progress, checkpoint=checkpoint))
