"""The kinds of models and their forms. The networks are elsewhere, because they need torch."""

from typing import Annotated, Literal

from pydantic import Field

from bottlegan.core.config import document
from bottlegan.core.errors import ConfigError

Statistics = Literal["frozen", "instance"]
Paradigm = Literal["many-one-many", "many-many", "many-one", "many-one-one"]

KNOWN_CODES = 4.0
"""Codes are clipped to this size before hidden layers; codes have about unit variance."""


@document
class GeneratorConfig:
    """The form of a generator."""

    kind: Literal["pixel", "unet", "published"] = "pixel"
    """`published`: as in the authors' code, with instance norm in every layer and no skip."""
    width: Annotated[int, Field(ge=1, le=4096)] = 32
    """Channels of the hidden layers."""
    depth: Annotated[int, Field(ge=0, le=16)] = 2
    """Number of hidden layers; with 0 the generator is only the linear map."""
    statistics: Statistics = "frozen"
    """`instance`: normalize each layer by the image's own statistics, as in the paper. `frozen`: do not."""
    skip: bool = True
    """Whether to add a linear map of densities to the layers."""
    mapping: Annotated[int, Field(ge=0, le=4096)] = 64
    """Width of the small network between code and layers; 0 for none."""

    def __post_init__(self) -> None:
        """Check that the form is possible."""
        if self.kind == "published" and (self.skip or self.statistics != "instance" or not self.mapping):
            raise ConfigError("a published generator has no `skip`, instance `statistics`, and a `mapping`")
        if self.depth == 0 and not (self.skip and self.kind == "pixel"):
            raise ConfigError("a generator without hidden layers is its linear map; set `skip`, or a larger `depth`")


@document
class ModelConfig:
    """The kind of a model."""

    paradigm: Paradigm = "many-one-many"
    code_size: Annotated[int, Field(ge=1, le=4096)] = 32
    """Number of values in a style code. The shipped prior has 24, which hold a style's two affine maps exactly."""
    generator: GeneratorConfig = GeneratorConfig()
