"""Closed-form maps, refined: what `stain.macenko` finds, moved until the colors are those of similar tissue.

Macenko's method looks at the ends of the color distribution. Where a scanner cuts those off, the middle still tells:
a normalized image should have the colors of the reference images with the most similar tissue. Only six numbers may
move, a 2x2 matrix and an offset of the two concentrations, and they are held near where they were: one image is not
enough to trust it with more.
"""

import torch
from torch import Tensor

from bottlegan.losses import profile_distance
from bottlegan.progress import Progress
from bottlegan.stain.density import BLACK, to_density
from bottlegan.stain.macenko import DensityMap, Reference
from bottlegan.training.samples import ColorProfile, Images, match_content

STEPS = 60
RATE = 0.01
PULL = 0.3  # toward the closed-form map, per squared unit of the six numbers
SAMPLE = 1024  # pixels of each image
MATCHES = 8  # reference images of similar tissue that an image is compared with


def refine_maps(maps: DensityMap, styled: Images, reference: Reference, pool: Tensor, progress: Progress) -> DensityMap:
    """Return the maps, one a style, refined on pixels of styled images against those (M, 3, 1, P) of reference ones."""
    images, styles = styled.pool[..., :SAMPLE].cpu(), styled.styles
    profile = ColorProfile(reference)
    references = profile(pool.cpu())
    stains = (reference.matrix * reference.strength[:, None]).float()
    unmix = torch.linalg.pinv(stains)
    started = maps.matrix.float(), maps.bias.float()
    density = to_density(images).flatten(2).transpose(1, 2)
    matches = match_content(profile(maps.choose(styles)(images)), references, MATCHES)
    moved = torch.zeros(len(maps.matrix), 6, requires_grad=True)
    optimizer = torch.optim.Adam([moved], RATE)
    for _ in progress.track(range(STEPS), "refining the closed-form maps", STEPS):
        matrix, bias = compose(*started, moved, stains, unmix)
        mapped = (density @ matrix[styles] + bias[styles][:, None]).clamp(0, BLACK)
        distance = profile_distance(profile.of_density(mapped), references, matches)
        loss = distance.sum() + PULL * moved.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    matrix, bias = compose(*started, moved.detach(), stains, unmix)
    return DensityMap(matrix, bias, maps.diagnoses)


def compose(matrix: Tensor, bias: Tensor, moved: Tensor, stains: Tensor, unmix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maps (S, 3, 3) and (S, 3), followed by c -> c (1 + T) + b in concentrations; `moved` is T and b."""
    change = torch.eye(3) + unmix @ moved[:, :4].reshape(-1, 2, 2) @ stains
    return matrix @ change, (bias[:, None] @ change)[:, 0] + moved[:, 4:] @ stains
