import pytest
import torch

from bottlegan.core.errors import InputError
from bottlegan.models.reference_stain import ReferenceStain
from bottlegan.simulation.styles import stain_densities
from bottlegan.stain.affine import AffineMap, StyleMaps, both_ways
from bottlegan.stain.style import LABORATORIES, REFERENCE


def draw_maps() -> StyleMaps:
    random = torch.Generator().manual_seed(0)
    matrix = torch.eye(3) + 0.2 * torch.randn(1, 3, 3, generator=random)
    return both_ways(AffineMap(matrix, torch.rand(1, 3, generator=random)))


def test_at_first_nothing_is_known_and_no_style_can_be_learned() -> None:
    stain = ReferenceStain()
    assert not stain.known
    assert torch.equal(stain.directions, torch.zeros(2, 3))
    with pytest.raises(InputError, match="has no data on its reference set"):
        stain.style_maps()


def test_it_is_thirty_numbers_that_a_file_holds() -> None:
    kept = ReferenceStain.of(stain_densities(LABORATORIES[2]), draw_maps())
    assert sum(tensor.numel() for tensor in kept.state_dict().values()) == 30
    assert {tensor.dtype for tensor in kept.state_dict().values()} == {torch.float32}
    assert not list(kept.parameters()), "nothing of it is trained"
    again = ReferenceStain()
    again.load_state_dict(kept.state_dict())
    assert again.known
    for ours, theirs in zip(again.style_maps(), draw_maps(), strict=True):
        torch.testing.assert_close(ours.matrix, theirs.matrix)
        torch.testing.assert_close(ours.bias, theirs.bias)
    torch.testing.assert_close(again.stains, stain_densities(LABORATORIES[2]).float())


def test_without_maps_it_is_the_stain_that_the_encoder_knows() -> None:
    for maps in ReferenceStain.of(stain_densities(REFERENCE)).style_maps():
        assert torch.equal(maps.matrix[0], torch.eye(3))
        assert not maps.bias.any()


def test_directions_have_unit_length() -> None:
    stain = ReferenceStain.of(stain_densities(REFERENCE))
    torch.testing.assert_close(stain.directions.norm(dim=1), torch.ones(2))
    torch.testing.assert_close(stain.directions * stain.stains.norm(dim=1, keepdim=True), stain.stains)


def test_what_it_was_made_from_may_change_later() -> None:
    stains, maps = stain_densities(REFERENCE).float(), draw_maps()
    kept = ReferenceStain.of(stains, maps)
    before = [tensor.clone() for tensor in kept.state_dict().values()]
    stains.zero_()
    maps.normalize.matrix.zero_()
    assert all(torch.equal(a, b) for a, b in zip(kept.state_dict().values(), before, strict=True))
