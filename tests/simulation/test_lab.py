from collections.abc import Callable

import numpy as np
import pytest

from bottlegan.simulation import lab as labs
from bottlegan.simulation.lab import (
    DRAWN,
    PATCHES,
    SHOWN,
    SimulatedLab,
    choose_tissue,
    draw_lab,
    draw_labs,
    fold_colorants,
    show_something_else,
)
from bottlegan.simulation.organs import BLOOD, COLORANTS, EOSIN, HEMATOXYLIN, PIGMENT, SALMON, VIOLET, Patch, draw_patch
from bottlegan.simulation.physics import to_reference

FEW = 12


@pytest.fixture(scope="module")
def tissues() -> list[Patch]:
    return [draw_patch(3, index, DRAWN) for index in range(12)]


@pytest.fixture(scope="module")
def drawn(tissues: list[Patch]) -> list[SimulatedLab]:
    return [draw_lab(np.random.default_rng([1, index]), tissues) for index in range(40)]


def same(left: SimulatedLab, right: SimulatedLab) -> bool:
    pairs = [*zip(left.images + left.truth, right.images + right.truth, strict=True), (left.glass, right.glass)]
    return all(np.array_equal(*pair) for pair in pairs) and left.is_he == right.is_he


def test_labs_depend_on_their_names_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labs, "TISSUES", FEW)
    three, two = list(draw_labs(0, 5, 3)), list(draw_labs(0, 5, 2))
    assert [same(a, b) for a, b in zip(three, two, strict=False)] == [True, True]
    assert not same(three[0], three[1])
    assert not same(next(draw_labs(0, 6, 1)), three[0])
    assert not same(next(draw_labs(1, 5, 1)), three[0])


def test_batches_share_no_tissue(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def watch(seed: int, index: int, size: int) -> Patch:
        asked.append(index)
        amounts, glass = np.zeros((COLORANTS, size, size), np.float32), np.ones((size, size), bool)
        return Patch(amounts, glass, amounts[0], 0.0, prostate=False)

    monkeypatch.setattr(labs, "draw_patch", watch)
    for batch in range(3):
        next(draw_labs(0, batch, 1))
    assert len(set(asked)) == len(asked) == 3 * labs.TISSUES


def test_a_lab_shows_patches_and_the_truth_of_each(drawn: list[SimulatedLab]) -> None:
    for lab in drawn:
        assert len(lab.images) == len(lab.truth) == len(lab.glass) == PATCHES
        for levels in (*lab.images, *lab.truth):
            assert (levels.dtype, levels.shape) == (np.uint8, (SHOWN, SHOWN, 3))
        assert lab.glass.shape == (PATCHES, SHOWN, SHOWN)
        assert lab.is_he or not lab.is_physical


def test_two_thirds_are_physical_and_a_few_are_not_stained_with_both(drawn: list[SimulatedLab]) -> None:
    physical, he = (np.mean([getattr(lab, name) for lab in drawn]) for name in ("is_physical", "is_he"))
    assert 0.45 < physical < 0.8
    assert 0.8 < he < 1


def test_glass_is_white_in_truth_and_the_brightest_of_a_lab(drawn: list[SimulatedLab]) -> None:
    seen = 0
    for lab in drawn:
        truth, images = np.stack(lab.truth), np.stack(lab.images)
        if not lab.is_he or lab.glass.mean() < 0.02:
            continue
        seen += 1
        assert np.median(truth[lab.glass]) >= 240
        assert np.median(images[lab.glass]) >= np.median(images[~lab.glass])
    assert seen > 10


def test_the_truth_is_aligned_with_what_is_shown(drawn: list[SimulatedLab]) -> None:
    for lab in drawn:
        if lab.is_physical:
            darkness = [np.stack(each).astype(float).mean(3).ravel() for each in (lab.images, lab.truth)]
            assert np.corrcoef(*darkness)[0, 1] > 0.6


@pytest.mark.parametrize(
    ("physical", "artificial", "flags"),
    [(1.0, 0.0, (True, True)), (0.0, 1.0, (True, False)), (0.0, 0.0, (False, False))],
)
def test_what_is_not_he_is_flagged(
    physical: float, artificial: float, flags: tuple[bool, bool], tissues: list[Patch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labs, "PHYSICAL", physical)
    monkeypatch.setattr(labs, "ARTIFICIAL", artificial)
    for index in range(12):
        lab = draw_lab(np.random.default_rng(index), tissues)
        assert (lab.is_he, lab.is_physical) == flags


class Choosing:
    """Random numbers, but for the kind of what is no H&E."""

    def __init__(self, kind: str) -> None:
        self._kind, self._random = kind, np.random.default_rng(0)

    def __getattr__(self, name: str) -> Callable[..., object]:
        return getattr(self._random, name)

    def choice(self, options: object, *rest: object, **shares: object) -> object:
        if isinstance(options, list) and "photograph" in options:
            return self._kind
        return self._random.choice(options, *rest, **shares)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["brown", "one stain", "gray", "dark", "photograph", "pen"])
def test_each_kind_that_is_not_he_looks_like_it(kind: str, tissues: list[Patch]) -> None:
    amounts, glass, _ = choose_tissue(np.random.default_rng(2), tissues)
    images, bare = show_something_else(Choosing(kind), amounts, glass)  # type: ignore[arg-type]
    shown = np.stack(images).astype(int)
    assert shown.shape == (PATCHES, SHOWN, SHOWN, 3)
    assert np.array_equal(bare, np.zeros_like(glass) if kind in ("dark", "photograph", "pen") else glass)
    assert shown.std() > 5
    if kind == "gray":
        assert (np.ptp(shown, axis=3) == 0).all()
    if kind == "dark":
        assert shown[glass].mean() < 100
    if kind == "pen":
        assert (shown.min(3) > 215).mean() > 0.1, "strokes are on glass"
        assert (shown.min(3) < 160).mean() > 0.1


def mark_tissues(count: int, prostate: int) -> list[Patch]:
    """Return tissues that are known by their amounts, and as rich in nuclei as their number says; some of one organ."""
    glass = np.zeros((DRAWN, DRAWN), bool)
    return [
        Patch(amounts, glass, amounts[0], row / count, prostate=row % 5 < prostate)
        for row in range(count)
        for amounts in [np.full((COLORANTS, DRAWN, DRAWN), row, np.float32)]
    ]


def test_the_first_half_may_be_rich_or_poor_in_nuclei_and_the_other_is_as_tissue_comes() -> None:
    tissues = mark_tissues(30, prostate=0)
    kinds, others = {"poor": 0, "rich": 0, "any": 0}, []
    for seed in range(60):
        amounts, *_ = choose_tissue(np.random.default_rng(seed), tissues)
        rows = amounts[:, 0, 0, 0]
        first = rows[: PATCHES // 2]
        kinds["poor" if (first < 10).all() else "rich" if (first >= 20).all() else "any"] += 1
        others.extend(rows[PATCHES // 2 :])
    assert min(kinds.values()) > 8
    assert np.mean(others) == pytest.approx(14.5, abs=2)


def test_some_labs_see_one_organ_only() -> None:
    tissues, only = mark_tissues(30, prostate=1), 0
    for seed in range(60):
        amounts, *_ = choose_tissue(np.random.default_rng(seed), tissues)
        only += (amounts[:, 0, 0, 0] % 5 == 0).all()
    assert 5 < only < 30


def test_glass_and_nuclei_are_turned_and_mirrored_with_their_tissue() -> None:
    random = np.random.default_rng(0)
    tissues = []
    for row in range(6):
        glass = random.random((DRAWN, DRAWN)) < 0.3
        amounts = np.where(glass, 0, 1 + row).astype(np.float32)[None].repeat(COLORANTS, 0)
        nuclear = ((random.random((DRAWN, DRAWN)) < 0.5) & ~glass).astype(np.float32)
        amounts[EOSIN] += nuclear
        tissues.append(Patch(amounts, glass, nuclear, row / 6, prostate=False))
    shown = set()
    for seed in range(5):
        amounts, glass, nuclear = choose_tissue(np.random.default_rng(seed), tissues)
        assert np.array_equal(amounts[:, 0] == 0, glass)
        assert np.array_equal(amounts[:, EOSIN] > amounts[:, 0], nuclear)
        shown |= {part.tobytes() for part in glass}
    assert len(shown) == 5 * PATCHES, "no part is shown twice in the same way"


def test_artificial_styles_know_only_two_stains() -> None:
    amounts = np.random.default_rng(0).random((2, COLORANTS, 4, 4), np.float32)
    folded = fold_colorants(amounts)
    assert not folded[:, BLOOD:].any()
    assert (folded[:, HEMATOXYLIN] >= amounts[:, HEMATOXYLIN]).all()
    assert (folded[:, EOSIN] >= amounts[:, EOSIN]).all()
    without = amounts.copy()
    without[:, [BLOOD, PIGMENT, VIOLET, SALMON]] = 0
    np.testing.assert_array_equal(fold_colorants(without)[:, :2], amounts[:, :2])


def test_the_truth_of_an_artificial_style_knows_only_two_stains_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labs, "PHYSICAL", 0.0)
    monkeypatch.setattr(labs, "ARTIFICIAL", 1.0)
    monkeypatch.setattr(labs, "RESTAINED", 0.0)
    amounts = np.full((COLORANTS, DRAWN, DRAWN), 0.4, np.float32)
    tissues = [Patch(amounts, np.zeros((DRAWN, DRAWN), bool), amounts[0], 0.0, prostate=False)] * 3
    lab = draw_lab(np.random.default_rng(0), tissues)
    expected = np.rint(255 * to_reference(fold_colorants(amounts[None, :, :1, :1])))[0, :, 0, 0]
    assert (np.stack(lab.truth) == expected).all()
