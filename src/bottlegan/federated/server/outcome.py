"""What comes of a federation: the segmentation network as a file, and its scores as a table."""

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from bottlegan.config import document, parse, to_values
from bottlegan.errors import ModelFileError
from bottlegan.federated.protocol.phase2 import Phase2Config, Weights
from bottlegan.federated.protocol.validation import find_fault, printable
from bottlegan.federated.server.history import History
from bottlegan.files import replacing
from bottlegan.models.segmenter import Segmenter

KEY = "segmenter"
LARGEST_WIDTH = 4096
"""More than any network of ours has, and less than would exhaust a machine before its tensors are compared."""


@document
class SegmenterDocument:
    """What a segmenter's file says of it."""

    config: Phase2Config
    """How it was trained; in mode normalize it wants images in the reference stain."""
    scores: dict[str, float]
    """IOU, ECE and NLL over all clients' test images, where the last round was scored."""


def save_segmenter(path: Path, weights: Weights, config: Phase2Config, history: History) -> None:
    """Write the network to `path`, whole or not at all, with its configuration and last scores."""
    said = SegmenterDocument(config=config, scores=history.rounds[-1].scores if history.rounds else {})
    text = json.dumps(to_values(said), sort_keys=True, allow_nan=False)
    tensors = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata={KEY: text})


def load_segmenter(path: Path) -> tuple[Segmenter, SegmenterDocument]:
    """Read a network, in evaluation mode, and what its file says of it; all of it is checked."""
    remedy = "give one that a federation wrote"
    try:
        with safe_open(path, framework="pt") as file:
            values = json.loads((file.metadata() or {}).get(KEY, "null"))
            weights = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - no dictionary
    except (SafetensorError, ValueError, OSError) as error:
        raise ModelFileError(f"{path}: is not a segmenter ({printable(str(error))}); {remedy}") from None
    if not isinstance(values, dict):
        raise ModelFileError(f"{path}: is not a segmenter; {remedy}")
    said = parse(SegmenterDocument, values, str(path))
    if said.config.segmenter.width > LARGEST_WIDTH:
        raise ModelFileError(f"{path}: a segmenter may be {LARGEST_WIDTH} wide, not {said.config.segmenter.width}")
    network = Segmenter(said.config.segmenter)
    fault = find_fault(weights, {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()})
    if fault is not None:
        raise ModelFileError(f"{path}: {fault}; {remedy}")
    network.load_state_dict(weights, strict=True)
    return network.eval(), said


def format_scores(history: History) -> str:
    """Return the last scores as text, client by client, and those of all pixels together."""
    scored = next((record for record in reversed(history.rounds) if record.scores), None)
    if scored is None:
        return "No client has test images, so nothing was scored.\n"
    rows = [*sorted(scored.each.items()), ("all", scored.scores)]
    wide = max(len("client"), *(len(name) for name, _ in rows))
    lines = [f"After round {scored.number}:", "", f"{'client':<{wide}}    IOU    ECE    NLL"]
    lines += [f"{name:<{wide}}  {each['iou']:.3f}  {each['ece']:.3f}  {each['nll']:.3f}" for name, each in rows]
    return "\n".join(lines) + "\n"
