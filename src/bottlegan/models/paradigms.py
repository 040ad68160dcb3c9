"""Combinations of generators that map any style to the reference stain, and the reference stain to any style.

| paradigm | normalize(x, e) | restain(c, e) |
| --- | --- | --- |
| many-one-many: BottleGAN | G_n(x given e) | G_r(c given e) |
| many-many: one generator, told the target (as StarGAN) | G(x given e_ref) | G(c given e) |
| many-one: one generator for both directions | G(x given e, there) | G(c given e, back) |
| many-one-one: a pair of generators for each style (as StainGAN) | G_n^e(x) | G_r^e(c) |
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from bottlegan.core.errors import ModelFileError
from bottlegan.models.config import GeneratorConfig, ModelConfig, Paradigm
from bottlegan.models.pixel import PixelGenerator
from bottlegan.models.published import PublishedGenerator
from bottlegan.models.reference_stain import ReferenceStain
from bottlegan.models.style_codes import StyleCodes
from bottlegan.models.unet import UNetGenerator


class StyleModel(nn.Module, ABC):
    """A network that normalizes and restains, and the codes of the styles it knows."""

    def __init__(self, config: ModelConfig, codes: StyleCodes) -> None:
        """Keep what all paradigms share."""
        super().__init__()
        self.config, self.codes, self.reference = config, codes, ReferenceStain()

    @abstractmethod
    def normalize(self, images: Tensor, code: Tensor) -> Tensor:
        """Return images (N, 3, H, W) in the reference stain, for the codes (N, K) of their styles or one code (K,)."""

    @abstractmethod
    def restain(self, images: Tensor, code: Tensor) -> Tensor:
        """Return reference-stained images (N, 3, H, W) in the styles of the codes (N, K) or of one code (K,)."""

    def save(self, path: str | Path) -> None:
        """Write the model to a `.safetensors` file. `models.files.save_model` also takes a training record."""
        from bottlegan.models.files import save_model  # noqa: PLC0415 - files.py builds the models defined here

        save_model(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read and check a model of this paradigm, or of any paradigm if called on `StyleModel`."""
        from bottlegan.models.files import load_model  # noqa: PLC0415 - files.py builds the models defined here

        model = load_model(Path(path))
        if not isinstance(model, cls):
            raise ModelFileError(
                f"{path}: holds a {model.config.paradigm} model, not a {cls.__name__}; "
                f"load it with {type(model).__name__}.load"
            )
        return model

    def generator_parameters(self) -> int:
        """Return the number of parameters of all generators, without the codes and the encoders."""
        others = ("codes.", "encoders.")
        return sum(p.numel() for name, p in self.named_parameters() if not name.startswith(others))


class BottleGAN(StyleModel):
    """Many-One-Many: two generators, both conditioned on the style."""

    encoders: nn.ModuleList
    """Encoders that onboard labs together. A model without any uses those of the shipped prior."""

    def __init__(self, config: ModelConfig, codes: StyleCodes) -> None:
        """Build both generators for these codes."""
        super().__init__(config, codes)
        self.normalizer = build_generator(config.generator, config.code_size)
        self.restainer = build_generator(config.generator, config.code_size)
        self.encoders = nn.ModuleList()

    def normalize(self, images: Tensor, code: Tensor) -> Tensor:
        """Return images in the reference stain."""
        return self.normalizer(images, _for_each(images, code))

    def restain(self, images: Tensor, code: Tensor) -> Tensor:
        """Return images in the code's style."""
        return self.restainer(images, _for_each(images, code))


class ManyToMany(StyleModel):
    """Many-Many: one generator, conditioned on the target style. The reference stain has a code, too."""

    def __init__(self, config: ModelConfig, codes: StyleCodes) -> None:
        """Build the generator for these codes."""
        super().__init__(config, codes)
        self.generator = build_generator(config.generator, config.code_size)
        self.reference_code = nn.Parameter(torch.zeros(config.code_size))

    def normalize(self, images: Tensor, code: Tensor) -> Tensor:
        """Return images in the reference stain. The generator must recognize their style by itself."""
        return self.generator(images, _for_each(images, self.reference_code))

    def restain(self, images: Tensor, code: Tensor) -> Tensor:
        """Return images in the code's style."""
        return self.generator(images, _for_each(images, code))


class ManyToOne(StyleModel):
    """Many-One: one generator for both directions, conditioned on the style and the direction."""

    def __init__(self, config: ModelConfig, codes: StyleCodes) -> None:
        """Build the generator for these codes."""
        super().__init__(config, codes)
        self.generator = build_generator(config.generator, config.code_size + 1)

    def normalize(self, images: Tensor, code: Tensor) -> Tensor:
        """Return images in the reference stain."""
        return self.generator(images, _with_direction(_for_each(images, code), 1.0))

    def restain(self, images: Tensor, code: Tensor) -> Tensor:
        """Return images in the code's style."""
        return self.generator(images, _with_direction(_for_each(images, code), -1.0))


class OneToOne(StyleModel):
    """Many-One-One: a separate pair of generators for each style. A code only selects the pair."""

    def __init__(self, config: ModelConfig, codes: StyleCodes) -> None:
        """Build the pairs. The codes become rows of the unit matrix and are not trained."""
        super().__init__(config, codes)
        codes.table = nn.Parameter(torch.eye(len(codes), config.code_size), requires_grad=False)
        self.normalizers = nn.ModuleList(build_generator(config.generator, 1) for _ in codes.names)
        self.restainers = nn.ModuleList(build_generator(config.generator, 1) for _ in codes.names)

    def normalize(self, images: Tensor, code: Tensor) -> Tensor:
        """Return images in the reference stain."""
        return self._each(self.normalizers, images, _for_each(images, code))

    def restain(self, images: Tensor, code: Tensor) -> Tensor:
        """Return images in the code's style."""
        return self._each(self.restainers, images, _for_each(images, code))

    def _each(self, generators: nn.ModuleList, images: Tensor, code: Tensor) -> Tensor:
        constant = code.new_ones(1, 1)  # not 0: no gradient would pass, and the weights after it would never be trained
        rows = code.argmax(dim=1).tolist()
        return torch.cat([generators[row](image[None], constant) for row, image in zip(rows, images, strict=True)])


PARADIGMS: dict[Paradigm, type[StyleModel]] = {
    "many-one-many": BottleGAN,
    "many-many": ManyToMany,
    "many-one": ManyToOne,
    "many-one-one": OneToOne,
}


def build_model(config: ModelConfig, names: Sequence[str], random: torch.Generator) -> StyleModel:
    """Return a new model for the styles `names`, with weights drawn from `random`."""
    if config.paradigm == "many-one-one":
        config = ModelConfig(paradigm=config.paradigm, code_size=len(names), generator=config.generator)
    with drawing_from(random):
        return PARADIGMS[config.paradigm](config, StyleCodes(names, config.code_size, random))


@contextmanager
def drawing_from(random: torch.Generator) -> Iterator[None]:
    """Initialize layers from `random`. torch uses its global generator, whose state is restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, because that also seeds the generators of all GPUs.
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=random)))
        yield


def build_generator(config: GeneratorConfig, code_size: int) -> nn.Module:
    """Return a new generator."""
    match config.kind:
        case "unet":
            return UNetGenerator(config, code_size)
        case "published":
            return PublishedGenerator(config, code_size)
        case "pixel":
            return PixelGenerator(config, code_size)


def _for_each(images: Tensor, code: Tensor) -> Tensor:
    """Return one code (N, K) per image."""
    return code.expand(len(images), -1)


def _with_direction(code: Tensor, sign: float) -> Tensor:
    return torch.cat([code, code.new_full((len(code), 1), sign)], dim=1)
