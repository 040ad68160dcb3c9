"""Networks of phase 2: any network that a function builds, ours, MONAI's, or that of a user's own package.

A factory is named `package.module:function` and called with keyword arguments from a configuration. This runs code, so
it must be one of our factories, or the user must allow it. The arguments may come from elsewhere, so nothing is
allocated beyond a budget, and the network is tried before it is used.
"""

import importlib
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bottlegan.core.config import document
from bottlegan.core.errors import ConfigError
from bottlegan.core.task import Task
from bottlegan.models.paradigms import drawing_from

Scalar = bool | int | float | str
Argument = Scalar | list[Scalar] | list[list[Scalar]] | dict[str, Scalar]
Weights = dict[str, Tensor]

OWN = {"segmentation": "bottlegan.models.segmenter:unet", "classification": "bottlegan.models.segmenter:classifier"}
"""Our own factories, which need no permission."""
MULTIPLE = 32
"""For custom segmentation networks, sides of images are padded to a multiple of this."""
BUDGET = 2**29
"""Most numbers of a new network: 2 GiB."""
SLACK = 2**22
"""Additional numbers that building a network may take: constants, and weights that are made twice."""
MOST_TENSORS = 100_000


@document
class NetworkConfig:
    """The choice of a network: its factory and arguments."""

    factory: str = ""
    """`package.module:function`; by default, our own factory for the task."""
    arguments: dict[str, Argument] | None = None
    """Keyword arguments of the factory. If it takes `classes` and none is given, it gets their number."""
    multiple: int | None = None
    """Sides of images are padded to a multiple of this; by default 32 for custom segmentation networks."""

    def __post_init__(self) -> None:
        """Check the name."""
        module, colon, name = self.factory.partition(":")
        if self.factory and not (colon and name.isidentifier() and all(p.isidentifier() for p in module.split("."))):
            raise ConfigError(f"network: factory must be `package.module:function`, got {self.factory[:80]!r}")
        if self.multiple is not None and not 1 <= self.multiple <= 512:
            raise ConfigError(f"network: multiple must be 1 to 512, got {self.multiple}")


def name_factory(config: NetworkConfig, task: Task) -> str:
    """Return the name of the configured factory, or of our own for the task."""
    return config.factory or OWN[task.kind]


def check_allowed(config: NetworkConfig, task: Task, allowed: Collection[str], remedy: str) -> None:
    """Refuse a factory that is neither our own nor allowed."""
    factory = name_factory(config, task)
    if factory not in OWN.values() and factory not in allowed:
        raise ConfigError(f"the network's factory {factory} is not allowed here; {remedy}")


class Built(NamedTuple):
    """A tested network, and how to use it."""

    network: nn.Module
    multiple: int
    """Sides of images are padded to a multiple of this."""

    def __call__(self, images: Tensor) -> Tensor:
        """Return logits (N, K, H, W) or (N, K) of images (N, 3, H, W); K is at least 2."""
        return to_classes(forward(self.network, images, self.multiple))


def build_network(
    config: NetworkConfig, task: Task, random: torch.Generator, *, crop: int, budget: int = BUDGET, tried: bool = True
) -> Built:
    """Return a new network with weights drawn from `random`, tried on an image of `crop` x `crop` pixels.

    Args:
        config: Its factory must be allowed: see `check_allowed`.
        task: The task of the network.
        random: Generator of its weights.
        crop: Side of the images that it is trained on.
        budget: Most numbers that it may have.
        tried: Whether to try it. This is not necessary if the same network was tried before.
    """
    factory = name_factory(config, task)
    make, arguments = find_factory(factory), dict(config.arguments or {})
    if "classes" not in arguments and _takes(make, "classes"):
        arguments["classes"] = task.count
    try:
        with drawing_from(random), _Budget(factory, budget + SLACK):
            network = make(**arguments)
    except ConfigError:
        raise
    # Code that ends the process would end the server's.
    except (Exception, SystemExit) as error:
        raise ConfigError(f"network: {factory} fails with these arguments ({_brief(error)})") from None
    if not isinstance(network, nn.Module):
        raise ConfigError(f"network: {factory} returns a {type(network).__name__}; it must return a torch nn.Module")
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ConfigError(f"network: {factory} returns a network without weights to train; use another factory")
    own = factory in OWN.values() or task.kind == "classification"
    built = Built(network, config.multiple or (1 if own else MULTIPLE))
    if tried:
        _try(built, factory, task, crop)
    return built


def find_factory(factory: str) -> Callable[..., Any]:
    """Return the function named `package.module:function`. This runs its module."""
    module, _, name = factory.partition(":")
    try:
        function = getattr(importlib.import_module(module), name, None)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"network: {module} of the factory {factory} cannot be imported ({_brief(error)}); install it here, or "
            "correct its name"
        ) from None
    if not callable(function):
        raise ConfigError(f"network: {module} has no function {name}; correct the factory {factory}")
    return function


def forward(network: nn.Module, images: Tensor, multiple: int) -> Tensor:
    """Return a network's output for images (N, 3, H, W), padded with their edges to sides that it accepts."""
    height, width = images.shape[-2:]
    right, bottom = -width % multiple, -height % multiple
    if right or bottom:
        images = F.pad(images, (0, right, 0, bottom), mode="replicate")
    logits: Tensor = network(images)
    return logits[..., :height, :width] if logits.ndim == 4 else logits


def to_classes(logits: Tensor) -> Tensor:
    """Return logits (N, K, ...) of K >= 2 classes. A single logit is that of the second class; the first gets 0."""
    return torch.cat([torch.zeros_like(logits), logits], dim=1) if logits.shape[1] == 1 else logits


def exchanged(network: nn.Module) -> Weights:
    """Return the tensors that labs exchange: all except counters, such as batch norm's number of batches."""
    return {name: t.detach() for name, t in network.state_dict().items() if t.is_floating_point()}


def load_weights(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load exchanged tensors into a network. Counters stay unchanged."""
    network.load_state_dict({**network.state_dict(), **weights}, strict=True)


def list_statistics(network: nn.Module) -> frozenset[str]:
    """Return the exchanged tensors without gradients, such as batch norm's means. Servers only average them."""
    return frozenset(exchanged(network)) - {name for name, _ in network.named_parameters()}


def list_normalization(network: nn.Module) -> frozenset[str]:
    """Return the exchanged tensors of normalization layers, which FedBN keeps local."""
    kinds = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
    layers = [name for name, module in network.named_modules() if isinstance(module, kinds)]
    return frozenset(key for key in exchanged(network) if key.rpartition(".")[0] in layers)


class _Budget(TorchFunctionMode):
    """Stops a factory before it allocates more than a budget, because arguments from elsewhere may request any size."""

    def __init__(self, factory: str, numbers: int) -> None:
        super().__init__()
        self.factory, self.left, self.tensors = factory, numbers, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if numbers := _count(func, args, kwargs):
            self.left, self.tensors = self.left - numbers, self.tensors + 1
        # Only calls that make tensors are refused: on its way out, the error passes calls that restore torch's state.
        if numbers and (self.left < 0 or self.tensors > MOST_TENSORS):
            raise ConfigError(f"network: {self.factory} would build a far larger network with these arguments")
        return func(*args, **kwargs)


def _count(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return how many numbers a torch function allocates if it makes a tensor of a given size; otherwise 0."""
    size = kwargs.get("size", args[0] if args else ())
    if isinstance(size, list | tuple):
        sides = list(size)
    else:
        sides = [side for side in args if type(side) is int] if isinstance(size, int) else []
    if not sides or not all(type(side) is int for side in sides):
        return 0
    return math.prod(sides) ** (2 if func is torch.eye and len(sides) == 1 else 1)


def _takes(function: Callable[..., Any], name: str) -> bool:
    from inspect import signature  # noqa: PLC0415 - few need it

    try:
        return name in signature(function).parameters
    except (TypeError, ValueError):
        return False


@torch.no_grad()
def _try(built: Built, factory: str, task: Task, crop: int) -> None:
    """Refuse a network whose logits do not fit the task, by trying it on one image of the crop size."""
    was = built.network.training
    try:
        logits = forward(built.network.eval(), torch.zeros(1, 3, crop, crop), built.multiple)
        shape = tuple(logits.shape)
    except Exception as error:
        raise ConfigError(
            f"network: {factory} fails on an image of {crop} x {crop} px ({_brief(error)}); change its arguments or "
            "the size of crops"
        ) from None
    finally:
        built.network.train(was)
    sides = (crop, crop) if task.kind == "segmentation" else ()
    outputs = {task.count, 1} if task.count == 2 else {task.count}
    if len(shape) != 2 + len(sides) or shape[0] != 1 or shape[1] not in outputs or shape[2:] != sides:
        wanted = ", ".join(map(str, (1, task.count, *sides)))
        raise ConfigError(
            f"network: {factory} makes {shape} of an image (1, 3, {crop}, {crop}); {task.kind} of {task.count} "
            f"classes needs logits ({wanted})"
        )


def _brief(error: BaseException) -> str:
    """Return an error of foreign code, shortened to part of a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
