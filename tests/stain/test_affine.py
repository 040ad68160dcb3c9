import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bottlegan.stain.affine import AffineMap, StyleMaps, both_ways, join_maps
from bottlegan.stain.density import map_images, to_density, to_rgb

SEEDS = st.integers(0, 2**32 - 1)
COUNTS = st.integers(1, 4)
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def draw_maps(random: torch.Generator, count: int) -> AffineMap:
    """Return float64 maps that stretch every direction by a factor between one half and two."""
    turns = [torch.linalg.qr(torch.randn(count, 3, 3, generator=random, dtype=torch.float64)).Q for _ in range(2)]
    stretch = 0.5 + 1.5 * torch.rand(count, 3, generator=random, dtype=torch.float64)
    matrix = turns[0] @ torch.diag_embed(stretch) @ turns[1]
    return AffineMap(matrix, torch.randn(count, 3, generator=random, dtype=torch.float64))


def draw_density(random: torch.Generator, count: int) -> Tensor:
    return 3 * torch.rand(count, 7, 3, generator=random, dtype=torch.float64)


def assert_same(left: AffineMap, right: AffineMap) -> None:
    torch.testing.assert_close(left.matrix, right.matrix, **CLOSE)
    torch.testing.assert_close(left.bias, right.bias, **CLOSE)


def identity(count: int) -> AffineMap:
    return AffineMap(torch.eye(3, dtype=torch.float64).repeat(count, 1, 1), torch.zeros(count, 3, dtype=torch.float64))


@given(SEEDS, COUNTS)
def test_each_set_is_mapped_by_its_own_map_as_a_row_vector(seed: int, count: int) -> None:
    random = torch.Generator().manual_seed(seed)
    maps, density = draw_maps(random, count), draw_density(random, count)
    mapped = maps(density)
    for row in range(count):
        for x, y in zip(density[row], mapped[row], strict=True):
            torch.testing.assert_close(y, maps.matrix[row].T @ x + maps.bias[row], **CLOSE)


@given(SEEDS, COUNTS)
def test_then_is_one_map_after_the_other(seed: int, count: int) -> None:
    random = torch.Generator().manual_seed(seed)
    first, second = draw_maps(random, count), draw_maps(random, count)
    density = draw_density(random, count)
    torch.testing.assert_close(first.then(second)(density), second(first(density)), **CLOSE)


@given(SEEDS, COUNTS)
def test_one_map_serves_before_or_after_many(seed: int, count: int) -> None:
    random = torch.Generator().manual_seed(seed)
    many, one, density = draw_maps(random, count), draw_maps(random, 1), draw_density(random, count)
    torch.testing.assert_close(many.then(one)(density), one(many(density)), **CLOSE)
    torch.testing.assert_close(one.then(many)(density), many(one(density)), **CLOSE)


@given(SEEDS, COUNTS)
def test_how_maps_are_grouped_does_not_matter(seed: int, count: int) -> None:
    random = torch.Generator().manual_seed(seed)
    a, b, c = (draw_maps(random, count) for _ in range(3))
    assert_same(a.then(b).then(c), a.then(b.then(c)))


@given(SEEDS, COUNTS)
def test_there_and_back_is_nothing(seed: int, count: int) -> None:
    random = torch.Generator().manual_seed(seed)
    a, b = draw_maps(random, count), draw_maps(random, count)
    assert_same(a.then(a.inverse()), identity(count))
    assert_same(a.inverse().then(a), identity(count))
    assert_same(a.inverse().inverse(), a)
    assert_same(a.then(b).inverse(), b.inverse().then(a.inverse()))


@given(SEEDS, COUNTS)
def test_a_style_relative_to_itself_needs_no_map(seed: int, count: int) -> None:
    maps = both_ways(draw_maps(torch.Generator().manual_seed(seed), count))
    relative = maps.relative_to(maps)
    assert_same(relative.normalize, identity(count))
    assert_same(relative.restain, identity(count))


@given(SEEDS, COUNTS, st.booleans())
def test_another_reference_stain_is_reached_through_the_first(seed: int, count: int, one: bool) -> None:
    """Even if the two maps are not inverses of each other."""
    random = torch.Generator().manual_seed(seed)
    lab = StyleMaps(draw_maps(random, count), draw_maps(random, count))
    other = StyleMaps(*(draw_maps(random, 1 if one else count) for _ in range(2)))
    relative, density = lab.relative_to(other), draw_density(random, count)
    torch.testing.assert_close(relative.normalize(density), other.restain(lab.normalize(density)), **CLOSE)
    torch.testing.assert_close(relative.restain(density), lab.restain(other.normalize(density)), **CLOSE)


@given(SEEDS, COUNTS)
def test_two_labs_relative_to_each_other_undo_each_other(seed: int, count: int) -> None:
    random = torch.Generator().manual_seed(seed)
    a, b = (both_ways(draw_maps(random, count)) for _ in range(2))
    assert_same(a.relative_to(b).normalize, b.relative_to(a).restain)
    assert_same(a.relative_to(b).normalize.then(b.relative_to(a).normalize), identity(count))


def test_the_reference_stain_itself_changes_no_style() -> None:
    random = torch.Generator().manual_seed(0)
    lab, same = both_ways(draw_maps(random, 3)), both_ways(identity(1))
    for way, other in zip(lab.relative_to(same), lab, strict=True):
        assert_same(way, other)


def test_images_are_mapped_pixel_by_pixel_by_their_own_or_by_one_map() -> None:
    random = torch.Generator().manual_seed(0)
    images = torch.rand(3, 3, 4, 5, generator=random)
    for maps in (draw_maps(random, 3), draw_maps(random, 1)):
        mapped = map_images(maps, images)
        assert mapped.dtype == torch.float32
        density = to_density(images.double()).flatten(2).transpose(1, 2)
        expected = to_rgb(maps(density)).transpose(1, 2).reshape(images.shape)
        torch.testing.assert_close(mapped, expected.float(), rtol=0, atol=1e-5)


def test_rows_are_chosen_and_joined_again() -> None:
    maps = draw_maps(torch.Generator().manual_seed(0), 4)
    chosen = maps.choose(torch.tensor([2, 0, 2]))
    assert torch.equal(chosen.matrix, maps.matrix[[2, 0, 2]])
    assert torch.equal(chosen.bias, maps.bias[[2, 0, 2]])
    both = both_ways(maps).choose(torch.tensor([3]))
    assert_same(both.normalize.then(both.restain), identity(1))
    joined = join_maps([maps.choose(torch.tensor([row])) for row in range(4)])
    assert torch.equal(joined.matrix, maps.matrix)
    assert torch.equal(joined.bias, maps.bias)
