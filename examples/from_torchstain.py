"""From torchstain, in five lines.

torchstain is fitted to one reference image and analyzes every image again. BottleGAN is fitted to the lab that
images come from, needs no reference image, and then takes one map for all of them. A blank tile is no special case.

Needs `pip install torchstain` for the first half.
"""

import numpy as np
from torchstain.numpy.normalizers import NumpyMacenkoNormalizer

from bottlegan import Normalizer
from bottlegan.imaging.tensors import from_batch
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES, REFERENCE

if __name__ == "__main__":
    tissues = [draw_tissue(seed=1, index=index, size=192).concentration[None] for index in range(4)]
    images = [from_batch(render(tissue, LABORATORIES[5]))[0] for tissue in tissues]  # your lab's
    reference = from_batch(render(tissues[0], REFERENCE))[0]  # the stain that you want

    # Before: torchstain.
    old = NumpyMacenkoNormalizer()
    old.fit(reference)
    before = [old.normalize(image, stains=False)[0] for image in images]

    # After: BottleGAN, in five lines.
    normalizer = Normalizer.fit(images)
    after = [normalizer(image) for image in images]  # to the reference stain that is shipped
    there = normalizer.like(reference)  # or to the stain of your reference image
    as_before = [there(image) for image in images]
    normalizer.save("lab.safetensors")  # for next time: Normalizer.load("lab.safetensors")

    blank = np.full((64, 64, 3), 250, np.uint8)
    print("verdict:", normalizer.diagnosis.verdict)
    print("mean colors:", *(np.mean(shown, axis=(0, 1, 2)).round() for shown in (images, before, after, as_before)))
    print("a blank tile becomes", normalizer(blank)[0, 0])
