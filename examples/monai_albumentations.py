"""Normalize and restain in MONAI and Albumentations.

Both adapters take a fitted normalizer. `RandRestaind` and `RandomRestain` give each image the style of another lab,
which makes a network robust to stain. They expect images in the reference stain, so they come after normalizing.
Randomness is the library's own: seed it there.

Needs `pip install 'bottlegan[adapters]'`.
"""

import albumentations
import numpy as np
import torch
from monai.transforms import Compose, EnsureTyped, RandFlipd

from bottlegan import Normalizer
from bottlegan.imaging.tensors import from_batch
from bottlegan.normalize.adapters import NormalizeStain, NormalizeStaind, RandomRestain, RandRestaind
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES

if __name__ == "__main__":
    # The same tissue, as three laboratories stain it. Put images of your own labs here.
    tissue = draw_tissue(seed=0, index=0, size=192)
    images = [from_batch(render(tissue.concentration[None], LABORATORIES[i]))[0] for i in (1, 5, 7)]
    mask = tissue.epithelium.numpy().astype(np.uint8)
    labs = [Normalizer.fit(image, name=f"lab-{i}") for i, image in enumerate(images)]

    # MONAI: dictionaries of arrays (C, H, W). The mask is flipped along, and not restained.
    monai_pipeline = Compose(
        [
            NormalizeStaind("image", labs[0]),
            RandRestaind("image", labs, prob=0.8),
            RandFlipd(["image", "mask"], prob=0.5),
            EnsureTyped(["image", "mask"]),
        ]
    ).set_random_state(seed=0)
    sample = monai_pipeline({"image": images[0].transpose(2, 0, 1), "mask": mask[None]})
    print("MONAI:", tuple(sample["image"].shape), torch.as_tensor(sample["image"]).dtype)

    # Albumentations: arrays (H, W, C) of uint8.
    albumentations_pipeline = albumentations.Compose(
        [NormalizeStain(labs[0]), RandomRestain(labs, p=0.8), albumentations.HorizontalFlip(p=0.5)], seed=0
    )
    shown = albumentations_pipeline(image=images[0], mask=mask)
    print("Albumentations:", shown["image"].shape, shown["image"].dtype)
