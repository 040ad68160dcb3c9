"""Adam, by torch's own function. Its optimizer class would do, but making one imports all of torch's compiler.

That takes more than a second in every process, and in a deployed lab each message is a new one.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim.adam import adam


class Adam:
    """What `torch.optim.Adam` does with its defaults, to the bit."""

    def __init__(self, parameters: Iterable[Tensor], learning_rate: float) -> None:
        """Take the parameters to be trained."""
        self.parameters, self.learning_rate = list(parameters), learning_rate
        self._means = [torch.zeros_like(each) for each in self.parameters]
        self._squares = [torch.zeros_like(each) for each in self.parameters]
        self._steps = [torch.tensor(0.0) for _ in self.parameters]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for each in self.parameters:
            each.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Change all parameters that have a gradient."""
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
