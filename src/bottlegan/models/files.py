"""A model as one `.safetensors` file: its tensors, and a JSON document that describes them.

`models.weights` checks the content of a file, without torch, before any of it becomes a model.
"""

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import torch
from torch import nn

from bottlegan.models.document import FORMAT, ModelDocument, Record
from bottlegan.models.paradigms import PARADIGMS, BottleGAN, StyleModel
from bottlegan.models.style_codes import StyleCodes
from bottlegan.models.style_encoder import StyleEncoder
from bottlegan.models.weights import ModelWeights, read_weights, round_encoders, write_weights
from bottlegan.stain.style import Style


def save_model(
    model: StyleModel, path: Path, record: Record = MappingProxyType({}), reference: Style | None = None
) -> None:
    """Write a model to `path`, whole or not at all. The same arguments give the same bytes.

    Args:
        model: A model with finite float32 weights. Its mode and device do not matter.
        path: The file to write; an existing file is replaced.
        record: How the model was trained: names with strings or finite numbers.
        reference: The reference stain that the model normalizes to, if known.
    """
    weights = to_weights(model)
    write_weights(replace(weights, document=replace(weights.document, record=dict(record), reference=reference)), path)


def encoder_widths(model: StyleModel) -> tuple[int, ...]:
    """Return the widths of a model's encoders."""
    encoders = model.encoders if isinstance(model, BottleGAN) else ()
    return tuple(encoder.width for encoder in encoders if isinstance(encoder, StyleEncoder))


def load_model(path: Path) -> StyleModel:
    """Read a model, in evaluation mode on the CPU. It maps colors exactly like the model that was saved."""
    return to_model(read_weights(path))


def to_model(weights: ModelWeights) -> StyleModel:
    """Return the model with these weights, in evaluation mode on the CPU."""
    model = build_empty(weights.document)
    tensors = {name: torch.from_numpy(array.copy()) for name, array in weights.arrays.items()}
    model.load_state_dict(tensors, strict=True, assign=True)
    return model.eval()


def to_weights(model: StyleModel) -> ModelWeights:
    """Return a copy of the weights of a model."""
    arrays = {name: tensor.detach().cpu().numpy().copy() for name, tensor in model.state_dict().items()}
    document = ModelDocument(
        format=FORMAT, model=model.config, styles=tuple(model.codes.names), encoders=encoder_widths(model), record={}
    )
    return ModelWeights(document, round_encoders(arrays))


def build_empty(document: ModelDocument) -> StyleModel:
    """Return a model of the form that a document describes, with uninitialized tensors."""
    # Not on the meta device: for that, torch would import all of its compiler.
    codes = StyleCodes([], document.model.code_size, torch.Generator())
    with torch.device("meta"):
        codes.names = list(document.styles)
        codes.table = nn.Parameter(torch.empty(len(document.styles), document.model.code_size))
        model = PARADIGMS[document.model.paradigm](document.model, codes)
        if isinstance(model, BottleGAN):
            model.encoders.extend(StyleEncoder(torch.empty(2, 3), width) for width in document.encoders)
    return model
