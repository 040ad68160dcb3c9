"""The tensors of a model and their shapes. They follow from its document, before anything else is read."""

from bottlegan.models.config import GeneratorConfig
from bottlegan.models.document import ModelDocument
from bottlegan.models.encoder import FEATURES, OPINIONS, READINGS, SUMMARIES

Shapes = dict[str, tuple[int, ...]]

FINDER_WIDTH = 32


def list_shapes(document: ModelDocument) -> Shapes:
    """Return the shape of each tensor of the model that a document describes."""
    config, styles = document.model, len(document.styles)
    if config.generator.kind != "pixel":
        return _ask_torch(document)
    shapes: Shapes = {
        "codes.table": (styles, config.code_size),
        "reference.stains": (2, 3),
        "reference.maps": (2, 4, 3),
    }
    match config.paradigm:
        case "many-one-many":
            generators = {"normalizer": config.code_size, "restainer": config.code_size}
        case "many-many":
            generators, shapes["reference_code"] = {"generator": config.code_size}, (config.code_size,)
        case "many-one":
            generators = {"generator": config.code_size + 1}
        case "many-one-one":
            generators = {f"{way}.{row}": 1 for way in ("normalizers", "restainers") for row in range(styles)}
    for name, size in generators.items():
        shapes |= _under(name, list_generator(config.generator, size))
    for index, width in enumerate(document.encoders):
        shapes |= _under(f"encoders.{index}", list_encoder(width))
    return shapes


def list_generator(config: GeneratorConfig, code_size: int) -> Shapes:
    """Return the shapes of a generator of pixels."""
    shapes: Shapes = {}
    mapped = code_size
    if config.mapping and code_size:
        mapped = config.mapping
        shapes |= _layer("mapping.0", mapped, code_size) | _layer("mapping.2", mapped, mapped)
    for index in range(config.depth):
        shapes |= _convolution(f"convolutions.{index}", config.width, config.width if index else 3)
        shapes |= _layer(f"modulations.{index}.affine", 2 * config.width, mapped)
    if config.depth:
        shapes |= _convolution("last", 3, config.width)
    return shapes | (_layer("linear", 12, code_size) if config.skip else {})


def list_encoder(width: int) -> Shapes:
    """Return the shapes of an encoder."""
    shapes: Shapes = {"basis": (3, 3)}
    for index, sizes in {
        0: (FINDER_WIDTH, FEATURES["finder"]),
        2: (FINDER_WIDTH, FINDER_WIDTH),
        4: (1, FINDER_WIDTH),
    }.items():
        shapes |= _layer(f"finder.layers.{index}", *sizes)
    for part, summary in SUMMARIES.items():
        layers = {
            "pixel.0": (width, FEATURES[part]),
            "pixel.2": (width, width),
            "whole.0": (2 * width, 2 * width + summary),
            "whole.2": (2 * width, 2 * width),
            "opinion": (OPINIONS, 2 * width),
            "change": (12, 2 * width),
            "context": (width, 2 * width),
            "mixed": (width, width),
            "hidden": (width, width),
            "amounts": (READINGS, width),
        }
        for name, sizes in layers.items():
            shapes |= _layer(f"{part}.{name}", *sizes)
    return shapes


def _layer(name: str, after: int, before: int) -> Shapes:
    return {f"{name}.weight": (after, before), f"{name}.bias": (after,)}


def _convolution(name: str, after: int, before: int) -> Shapes:
    return {f"{name}.weight": (after, before, 1, 1), f"{name}.bias": (after,)}


def _under(name: str, shapes: Shapes) -> Shapes:
    return {f"{name}.{key}": shape for key, shape in shapes.items()}


def _ask_torch(document: ModelDocument) -> Shapes:
    """Return the shapes of a model whose generators only torch can run anyway."""
    from bottlegan.models.files import build_empty  # noqa: PLC0415 - it imports torch

    return {name: tuple(tensor.shape) for name, tensor in build_empty(document).state_dict().items()}
