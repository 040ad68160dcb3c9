import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bottlegan.core.config import parse, to_values
from bottlegan.core.seeding import numpy_stream, torch_stream
from bottlegan.simulation.styles import render, stain_densities, unmix
from bottlegan.stain.style import LABORATORIES, LABS, PAPER, REFERENCE, Style, Variety, draw_style

WILD = Variety(matrix_noise=3, strength_spread=0.5, pixel_noise=0.1)
VARIETIES = {"paper": PAPER, "labs": LABS, "wild": WILD}


@given(st.integers(0, 1000), st.sampled_from(sorted(VARIETIES)))
def test_a_drawn_style_is_physical_and_a_document(seed: int, variety: str) -> None:
    style = draw_style(numpy_stream(seed, "style"), "lab", VARIETIES[variety])
    stains = stain_densities(style)
    assert (stains >= 0).all()
    assert (stains.norm(dim=1) > 0.05).all() or variety == "wild"
    assert all(0.5 < level <= 1 for level in style.white)
    assert parse(Style, json.loads(json.dumps(to_values(style))), "style") == style


def test_the_same_stream_draws_the_same_style() -> None:
    first, again, other = (draw_style(numpy_stream(seed, "style"), "lab", LABS) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("style", LABORATORIES, ids=lambda style: style.name)
def test_unmixing_finds_what_was_rendered(style: Style) -> None:
    concentration = torch.rand(2, 2, 8, 8, generator=torch_stream(0, "c"), dtype=torch.float64)
    torch.testing.assert_close(unmix(render(concentration, style), style), concentration, rtol=0, atol=0.1)
    bright = 0.3 * concentration  # nothing is clipped at black
    torch.testing.assert_close(unmix(render(bright, style), style), bright)


def test_unmixing_undoes_the_scanner() -> None:
    style = Style(name="x", hematoxylin=(1.0, 1.2, 0.6), eosin=(0.1, 0.9, 0.5), white=(0.9, 0.95, 0.85), gamma=1.2)
    concentration = torch.rand(1, 2, 8, 8, generator=torch_stream(0, "c"), dtype=torch.float64)
    torch.testing.assert_close(unmix(render(concentration, style), style), concentration)


def test_bare_glass_has_the_scanners_white() -> None:
    style = Style(name="x", hematoxylin=(1, 1, 1), eosin=(0, 1, 0), white=(0.9, 0.8, 0.7), gamma=0.8, pixel_noise=0.1)
    glass = render(torch.zeros(1, 2, 2, 2), style, torch_stream(0, "noise"))
    torch.testing.assert_close(glass, torch.tensor(style.white)[None, :, None, None].expand(1, 3, 2, 2))


def test_gamma_darkens_midtones() -> None:
    gray: Tensor = torch.full((1, 2, 1, 1), 0.3)
    plain = Style(name="x", hematoxylin=(1, 1, 1), eosin=(1, 1, 1))
    steep = Style(name="x", hematoxylin=(1, 1, 1), eosin=(1, 1, 1), gamma=1.5)
    torch.testing.assert_close(render(gray, steep), render(gray, plain) ** 1.5)


def test_noise_comes_only_from_the_given_stream(content: Tensor) -> None:
    style = Style(name="x", hematoxylin=REFERENCE.hematoxylin, eosin=REFERENCE.eosin, pixel_noise=0.05)
    clean = render(content[:1], style)
    noisy = render(content[:1], style, torch_stream(0, "noise"))
    assert torch.equal(noisy, render(content[:1], style, torch_stream(0, "noise")))
    assert not torch.equal(noisy, clean)
    assert (noisy - clean).abs().mean() < 0.03
