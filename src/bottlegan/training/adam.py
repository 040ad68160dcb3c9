"""Adam, through torch's own function. Creating torch's optimizer class would import its whole compiler.

That takes more than a second, and a deployed lab starts a new process for each message.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim.adam import adam


class Adam:
    """The same as `torch.optim.Adam` with its defaults, bit for bit."""

    def __init__(self, parameters: Iterable[Tensor], learning_rate: float) -> None:
        """Optimize these parameters."""
        self.parameters, self.learning_rate = list(parameters), learning_rate
        self._means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._squares = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._steps = [torch.tensor(0.0) for _ in self.parameters]

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        rows = [row for row, each in enumerate(self.parameters) if each.grad is not None]
        adam(
            [self.parameters[row] for row in rows],
            [grad for row in rows if (grad := self.parameters[row].grad) is not None],
            [self._means[row] for row in rows],
            [self._squares[row] for row in rows],
            [],
            [self._steps[row] for row in rows],
            foreach=False,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.learning_rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )
