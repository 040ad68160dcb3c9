"""Normalize a folder in a PyTorch DataLoader.

Fit one normalizer for the lab before training. Each image then takes the lab's one map, in the loader, as uint8:
that is fast and gives the same bits on every machine. More workers are fine, because a normalizer can be pickled.
"""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bottlegan import Normalizer
from bottlegan.simulation.lab_folder import draw_lab, write_lab


class NormalizedFolder(Dataset[Tensor]):
    """Images of one lab, in the reference stain."""

    def __init__(self, folder: Path) -> None:
        """Fit the lab's style to some of its images."""
        self.files = sorted(folder.glob("*.png"))
        self.normalizer = Normalizer.fit(folder)
        if self.normalizer.refused:
            raise SystemExit(f"{folder}: {self.normalizer.diagnosis.reason}")

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        """Return an image (3, H, W) of floats in [0, 1]."""
        image = np.array(Image.open(self.files[index]).convert("RGB"))
        return torch.from_numpy(self.normalizer(image)).permute(2, 0, 1) / 255


if __name__ == "__main__":
    lab = Path("example-output/dataloader/lab-3")  # put your own folder here
    if not lab.exists():
        lab.parent.mkdir(parents=True, exist_ok=True)
        write_lab(lab, patches=8, size=192, seed=3, style=draw_lab(3))

    dataset = NormalizedFolder(lab)
    print("verdict:", dataset.normalizer.diagnosis.verdict)
    for batch in DataLoader(dataset, batch_size=4, num_workers=0):
        print("batch", tuple(batch.shape), "mean color", [round(value, 3) for value in batch.mean((0, 2, 3)).tolist()])
