import torch
from torch import Tensor

from bottlegan.models.reference_colors import ReferenceColors
from bottlegan.progress import Silent
from bottlegan.slides.image import from_batch
from bottlegan.stain.macenko import DensityMap, Diagnosis, Reference, Route, join
from bottlegan.stain.simulate import REFERENCE, render
from bottlegan.training.refine import STEPS, compose, refine_maps
from bottlegan.training.samples import ColorProfile, collect

CPU = torch.device("cpu")


def test_a_wrong_strength_is_moved_toward_that_of_similar_tissue(content: Tensor, reference: Reference) -> None:
    levels = from_batch(render(content, REFERENCE))
    public = collect({"reference": levels[:4]}, 16, 0, CPU)
    styled = collect({"lab": levels[2:4]}, 16, 1, CPU)
    wrong = DensityMap(1.1 * torch.eye(3)[None], torch.zeros(1, 3), (Diagnosis(Route.STAINS, "", 1, 30, 1, 1),))
    colors = ReferenceColors.of(reference, ColorProfile(reference)(public.pool))
    refined, distance = refine_maps(join([wrong]), styled.pool, styled.styles, colors, Silent())
    assert distance.shape == (2,)
    image = render(content[2:4], REFERENCE)
    before, after = ((fitted(image) - image).square().mean() for fitted in (wrong, refined))
    assert after < 0.3 * before


def test_no_movement_is_no_change() -> None:
    matrix, bias = torch.rand(2, 3, 3), torch.rand(2, 3)
    stains = torch.tensor([[1.4, 1.9, 1.0], [0.05, 0.9, 0.6]])
    unmix = torch.linalg.pinv(stains)
    same = compose(matrix, bias, torch.zeros(2, 6), stains, unmix)
    torch.testing.assert_close(same, (matrix, bias))


def test_a_movement_is_what_it_says_in_concentrations() -> None:
    stains = torch.tensor([[1.4, 1.9, 1.0], [0.05, 0.9, 0.6]])
    unmix = torch.linalg.pinv(stains)
    moved = torch.tensor([[0.1, 0.0, 0.0, -0.2, 0.03, 0.04]])
    matrix, bias = compose(torch.eye(3)[None], torch.zeros(1, 3), moved, stains, unmix)
    concentration = torch.tensor([[0.5, 1.0]])
    mapped = (concentration @ stains @ matrix[0] + bias[0]) @ unmix
    torch.testing.assert_close(mapped, torch.tensor([[0.5 * 1.1 + 0.03, 1.0 * 0.8 + 0.04]]))


def test_it_ends_where_nothing_is_left_to_gain(content: Tensor, reference: Reference) -> None:
    """The colors are those of the reference images already."""
    public = collect({"reference": from_batch(render(content[:4], REFERENCE))}, 16, 0, CPU)
    colors = ReferenceColors.of(reference, ColorProfile(reference)(public.pool[..., :1024])[:1])
    right = DensityMap(torch.eye(3)[None], torch.zeros(1, 3), (Diagnosis(Route.STAINS, "", 1, 30, 1, 1),))
    taken: list[int] = []

    class Counting(Silent):
        def track(self, items, label, total=None):
            for item in items:
                taken.append(item)
                yield item

    refine_maps(right, public.pool[:1], torch.tensor([0]), colors, Counting())
    assert 1 < len(taken) < STEPS
