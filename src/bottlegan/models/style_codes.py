"""Style codes: one trainable vector per staining style, by name."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bottlegan.core.errors import InputError, list_names
from bottlegan.models.document import check_name


class StyleCodes(nn.Module):
    """The paper's E: a table of codes (N, size), one row per named style."""

    def __init__(self, names: Sequence[str], size: int, random: torch.Generator) -> None:
        """Draw a code for each style from N(0, 1)."""
        super().__init__()
        if len(set(names)) < len(names):
            raise InputError("two styles have the same name; names must differ")
        for name in names:
            check_name(name)
        self.names = list(names)
        self.table = nn.Parameter(torch.randn(len(names), size, generator=random))

    @property
    def size(self) -> int:
        """The length of a code."""
        return self.table.shape[1]

    def __len__(self) -> int:
        """Return the number of styles."""
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        """Return whether there is a style of this name."""
        return name in self.names

    def __getitem__(self, name: str) -> Tensor:
        """Return the code (size,) of a style."""
        return self.table[self.index(name)]

    def index(self, name: str) -> int:
        """Return the row of a style."""
        if name not in self.names:
            raise InputError(f"there is no style called {name}; known are: {list_names(self.names) or 'none'}")
        return self.names.index(name)

    def add(self, name: str, code: Tensor | NDArray[np.float32]) -> None:
        """Add a style without touching the others."""
        code = torch.as_tensor(code)
        check_name(name)
        if name in self.names:
            raise InputError(f"there is a style called {name} already; rename or remove it first")
        if code.shape != (self.size,):
            raise InputError(f"a code must have {self.size} numbers, got shape {tuple(code.shape)}")
        self.names.append(name)
        self._replace(torch.cat([self.table.detach(), code.detach()[None].to(self.table)]))

    def remove(self, name: str) -> None:
        """Remove a style without touching the others."""
        row = self.index(name)
        del self.names[row]
        self._replace(torch.cat([self.table.detach()[:row], self.table.detach()[row + 1 :]]))

    def rename(self, old: str, new: str) -> None:
        """Give a style another name."""
        check_name(new)
        if new != old and new in self.names:
            raise InputError(f"there is a style called {new} already; names must differ")
        self.names[self.index(old)] = new

    def _replace(self, table: Tensor) -> None:
        # Frozen codes stay frozen; a new parameter would be trainable.
        self.table = nn.Parameter(table, requires_grad=self.table.requires_grad)


def add_noise(codes: Tensor, scale: float, random: torch.Generator) -> Tensor:
    """Return codes (N, size) with Gaussian noise, so that codes between styles have meaning, too."""
    return codes + scale * torch.randn(codes.shape, generator=random, device=random.device).to(codes)
