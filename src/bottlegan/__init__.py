"""BottleGAN: every lab's staining style, learned together without sharing a pixel."""

from typing import TYPE_CHECKING

from bottlegan.core.errors import BottleGANError, InputError

if TYPE_CHECKING:
    from bottlegan.models.paradigms import BottleGAN
    from bottlegan.normalize.normalizer import Normalizer
    from bottlegan.predict.predictor import Predictor

__all__ = ["BottleGAN", "BottleGANError", "InputError", "Normalizer", "Predictor", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import what needs torch when it is asked for, so that the command line answers at once."""
    if name == "BottleGAN":
        from bottlegan.models.paradigms import BottleGAN  # noqa: PLC0415

        return BottleGAN
    if name == "Normalizer":
        from bottlegan.normalize.normalizer import Normalizer  # noqa: PLC0415

        return Normalizer
    if name == "Predictor":
        from bottlegan.predict.predictor import Predictor  # noqa: PLC0415

        return Predictor
    raise AttributeError(f"module 'bottlegan' has no attribute {name!r}")
