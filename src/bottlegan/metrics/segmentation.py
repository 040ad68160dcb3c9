"""How good a segmentation is: IOU of the epithelium class, and all scores of the paper's Table 1 at once."""

import torch
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryJaccardIndex

from bottlegan.errors import InputError
from bottlegan.metrics.calibration import ExpectedCalibrationError, PixelNLL


class EpitheliumIOU(BinaryJaccardIndex):
    """Intersection over union of the epithelium class, over all pixels of all batches.

    Where epithelium is neither predicted nor true in any pixel, there is no union; prediction and truth agree then, so
    the IOU is 1.
    """

    def __init__(self) -> None:
        """Start with no pixel."""
        # The checks of torchmetrics sort every pixel to find two values; `check_segmentation` is enough.
        super().__init__(zero_division=1, validate_args=False)

    def update(self, logits: Tensor, truth: Tensor) -> None:
        """Add the pixels of a batch of logits and of a 0/1 truth of the same shape."""
        # Not the logits: torchmetrics takes floats for probabilities whenever a batch of them lies in [0, 1].
        super().update((logits > 0).long(), truth.long())


def check_segmentation(logits: Tensor, truth: Tensor) -> None:
    """Raise `InputError` unless `logits` are finite floats and `truth` is 0 or 1 everywhere, of the same shape."""
    if logits.shape != truth.shape:
        raise InputError(f"logits are {tuple(logits.shape)} but the truth is {tuple(truth.shape)}; give one per pixel")
    if not logits.is_floating_point():
        raise InputError(f"expected logits as floats, got {logits.dtype}; give what the network says, not its classes")
    if not bool(logits.isfinite().all()):
        raise InputError("expected finite logits, got NaN or infinity; the training has probably diverged")
    if not bool(((truth == 0) | (truth == 1)).all()):
        raise InputError("expected a truth of 0 and 1 only; map the classes of the mask to epithelium or not")


class SegmentationScores:
    """IOU, ECE and NLL of a segmentation, over all pixels of all batches since the last `reset`."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        """Start with no pixel; `device` is where the logits will be."""
        self._metrics = MetricCollection(
            {"iou": EpitheliumIOU(), "ece": ExpectedCalibrationError(), "nll": PixelNLL()}, compute_groups=False
        ).to(device)
        self._pixels = 0

    def update(self, logits: Tensor, truth: Tensor) -> None:
        """Add the pixels of a batch.

        Args:
            logits: Finite logits of the epithelium class, of any shape.
            truth: 1 where there is epithelium, 0 elsewhere, of any type and the same shape.
        """
        check_segmentation(logits, truth)
        self._metrics.update(logits, truth)
        self._pixels += logits.numel()

    def compute(self) -> dict[str, float]:
        """Return `iou` and `ece` in [0, 1] and `nll` (nats per pixel), all finite; `InputError` without a pixel."""
        if self._pixels == 0:
            raise InputError("there is no pixel to score; is the labeled set empty?")
        return {name: value.item() for name, value in self._metrics.compute().items()}

    def reset(self) -> None:
        """Forget all pixels."""
        self._metrics.reset()
        self._pixels = 0
