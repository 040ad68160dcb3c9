"""What kinds of models there are: their forms, without the networks, for which torch would have to be imported."""

from typing import Annotated, Literal

from pydantic import Field

from bottlegan.core.config import document
from bottlegan.core.errors import ConfigError

Statistics = Literal["frozen", "instance"]
Paradigm = Literal["many-one-many", "many-many", "many-one", "many-one-one"]

KNOWN_CODES = 4.0
"""Largest number of a code that hidden layers see; codes have about unit variance."""


@document
class GeneratorConfig:
    """The form of a generator."""

    kind: Literal["pixel", "unet", "published"] = "pixel"
    """`published`: as the authors' code has it, with norm by the image's own statistics in every layer, and no skip."""
    width: Annotated[int, Field(ge=1, le=4096)] = 32
    """Channels of the hidden layers."""
    depth: Annotated[int, Field(ge=0, le=16)] = 2
    """Hidden layers; with 0 of them the generator is the linear map alone."""
    statistics: Statistics = "frozen"
    """`instance`: normalize each layer by the image's own statistics, as in the paper; `frozen`: do not."""
    skip: bool = True
    """Whether there is a linear map of densities beside the layers."""
    mapping: Annotated[int, Field(ge=0, le=4096)] = 64
    """Width of the small network between code and layers; 0 for none."""

    def __post_init__(self) -> None:
        """Check that something is left of it."""
        if self.kind == "published" and (self.skip or self.statistics != "instance" or not self.mapping):
            raise ConfigError("a published generator has no `skip`, instance `statistics`, and a `mapping`")
        if self.depth == 0 and not (self.skip and self.kind == "pixel"):
            raise ConfigError("a generator without hidden layers is its linear map; set `skip`, or a larger `depth`")


@document
class ModelConfig:
    """What kind of model it is."""

    paradigm: Paradigm = "many-one-many"
    code_size: Annotated[int, Field(ge=1, le=4096)] = 32
    generator: GeneratorConfig = GeneratorConfig()
