"""Labs onboarded for training, which goes on with torch from where their maps are."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from bottlegan.core.progress import Progress, Silent
from bottlegan.imaging.files import Pixels
from bottlegan.models.reference_stain import ReferenceStain
from bottlegan.onboarding.fit import find_maps, shipped_encoders
from bottlegan.stain.affine import AffineMap, StyleMaps, join_maps


def onboard_all(
    labs: Mapping[str, Sequence[Pixels]], reference: ReferenceStain, progress: Progress | None = None
) -> StyleMaps:
    """Return the maps of several labs, given as RGB levels (H, W, 3) by name, to and from a reference stain."""
    encoders, stain = shipped_encoders(), reference.cpu().style_maps()
    tracked = (progress or Silent()).track(labs.values(), "onboarding labs", len(labs))
    found = [to_torch(find_maps(images, encoders)[0]).relative_to(stain) for images in tracked]
    return StyleMaps(*(join_maps([maps[way] for maps in found]) for way in (0, 1)))


def describe_reference(images: Sequence[Pixels]) -> ReferenceStain:
    """Return the stain of a reference set, given as RGB levels (H, W, 3), by onboarding it as a lab."""
    encoders = shipped_encoders()
    maps = to_torch(find_maps(images, encoders)[0])
    return ReferenceStain.of(torch.from_numpy(np.array(encoders[0]["basis"][:2])) @ maps.restain.matrix[0], maps)


def to_torch(maps: StyleMaps) -> StyleMaps:
    """Return maps of numpy as maps of torch."""
    ways = (AffineMap(torch.from_numpy(way.matrix), torch.from_numpy(way.bias)) for way in maps)
    return StyleMaps(*ways)
