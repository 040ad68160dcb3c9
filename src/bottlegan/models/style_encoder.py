"""The encoder of onboarding as a module: its weights, for torch to train."""

import torch
from torch import Tensor, nn

from bottlegan.models import encoder
from bottlegan.models.encoder import FEATURES, OPINIONS, READINGS, SUMMARIES, Look, Sight


class StyleEncoder(nn.Module):
    """From pixels of a lab to the maps of its style. `models.encoder` describes the computation."""

    basis: Tensor
    """(3, 3): densities of strong hematoxylin, of strong eosin, and of a direction that is neither."""

    def __init__(self, stains: Tensor, width: int = 64) -> None:
        """Build it for a reference stain whose strong hematoxylin and eosin have the densities (2, 3)."""
        super().__init__()
        self.width = width
        normal = torch.linalg.cross(stains[0], stains[1])
        self.register_buffer("basis", torch.cat([stains, 0.5 * normal[None] / normal.norm()]).float())
        self.finder = GlassFinder()
        self.first = Reader(FEATURES["first"], SUMMARIES["first"], width)
        self.further = Reader(FEATURES["further"], SUMMARIES["further"], width)

    def weights(self) -> dict[str, Tensor]:
        """Return all weights by their names."""
        return dict(self.named_parameters()) | dict(self.named_buffers())

    def forward(self, sight: Sight, every: int = 1) -> list[Look]:
        """Return the encoder's estimates after each look; the last is the best."""
        return encoder.look(self.weights(), sight, every)

    def find_glass(self, density: Tensor, roughness: Tensor) -> Tensor:
        """Return logits (B, P) of which pixels (B, P, VIEWS, 3) and (B, P) are bare glass."""
        return encoder.find_glass(self.weights(), density, roughness)


class Reader(nn.Module):
    """The weights of one look."""

    def __init__(self, features: int, summary: int, width: int) -> None:
        """Start with weights that leave the guesses unchanged."""
        super().__init__()
        self.pixel = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.whole = nn.Sequential(
            nn.Linear(2 * width + summary, 2 * width), nn.ReLU(), nn.Linear(2 * width, 2 * width), nn.ReLU()
        )
        self.opinion = nn.Linear(2 * width, OPINIONS)
        self.change = nn.Linear(2 * width, 12)
        self.context = nn.Linear(2 * width, width)
        self.mixed = nn.Linear(width, width)
        self.hidden = nn.Linear(width, width)
        self.amounts = nn.Linear(width, READINGS)
        for layer in (self.opinion, self.change, self.amounts):
            nn.init.normal_(layer.weight, std=1e-3)
            nn.init.zeros_(layer.bias)


class GlassFinder(nn.Module):
    """The weights of the part that distinguishes glass from pale tissue."""

    def __init__(self, width: int = 32) -> None:
        """Build it."""
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FEATURES["finder"], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )


def soft_rgb(density: Tensor) -> Tensor:
    """Return intensities of densities of any shape. Values beyond white stay slightly brighter, for the gradient."""
    tamed = torch.where(density > 0, density, 0.1 * density).clamp(-0.3, 6)
    return (256 * torch.exp(-tamed) - 1) / 255
