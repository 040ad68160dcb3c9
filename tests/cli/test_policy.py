"""One policy for images and slides: what is refused, what stays unchanged, and which options have no effect."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from torch import Tensor

from bottlegan.cli import main as cli
from bottlegan.imaging.files import Pixels, read_image, write_image
from bottlegan.imaging.tensors import from_batch
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES

tifffile = pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
pytest.importorskip("simplejpeg", reason="needs pip install 'bottlegan[slides]'")
GREEN = (20, 120, 60)
REFUSED = "refused: the colors are not those of hematoxylin and eosin"


class Ended(NamedTuple):
    """How a command ended, and its output."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The part of the output that concerns the input."""
        return [line for line in self.err.splitlines() if line.startswith("bottlegan: ")]


Run = Callable[[str], Ended]


def write_slide(path: Path, levels: Pixels) -> None:
    form = {"tile": (128, 128), "photometric": "rgb", "metadata": None, "compression": "zlib"}
    with tifffile.TiffWriter(path) as file:
        file.write(levels, resolution=(1e4, 1e4), resolutionunit="CENTIMETER", **form)
        file.write(levels[::2, ::2], subfiletype=1, **form)


@pytest.fixture(scope="module")
def tissue() -> Pixels:
    """H&E with a stroke of a pen on it."""
    concentration: Tensor = draw_tissue(4, 0, 320).concentration[None]
    levels = from_batch(render(concentration, LABORATORIES[5]))[0].copy()
    levels[100:104, 50:100] = GREEN
    return levels


@pytest.fixture(scope="module")
def root(tissue: Pixels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same pictures as images and as slides, a folder of each, and models of a good and of a refused style."""
    root = tmp_path_factory.mktemp("policy")
    noise = np.random.default_rng(0).integers(0, 9, (320, 320, 3), dtype=np.uint8)
    for folder in ("images", "slides", "noise"):
        (root / folder).mkdir()
    for name, levels in (("noise", noise), ("tissue", tissue)):
        write_image(root / "images" / f"{name}.png", levels)
        write_slide(root / "slides" / f"{name}.tiff", levels)
    write_image(root / "noise" / "a.png", noise)
    Normalizer.fit(tissue, name="a").save(root / "m.safetensors")
    Normalizer.fit(noise, name="a").save(root / "refused.safetensors")
    return root


@pytest.fixture
def run(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in the folder; the word OUT in it stands for the output."""

    def start(words: str) -> Ended:
        monkeypatch.chdir(root)
        monkeypatch.setattr(sys, "argv", ["bottlegan", *words.replace("OUT", str(tmp_path / "out")).split()])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return Ended(int(caught.value.code or 0), *capsys.readouterr())

    return start


@pytest.mark.parametrize(
    ("words", "source"),
    [
        ("normalize images/noise.png OUT.png", "images/noise.png"),
        ("normalize slides/noise.tiff OUT.tiff", "slides/noise.tiff"),
        ("normalize images/noise.png OUT.tiff --format tiff", "images/noise.png"),
        ("normalize noise OUT", "noise"),
    ],
)
def test_what_is_refused_is_not_written_and_said_in_one_line(run: Run, words: str, source: str, tmp_path: Path) -> None:
    ended = run(words)
    assert ended.status == 2
    (line,) = ended.lines
    assert line.startswith(f"bottlegan: {source}: {REFUSED}")
    assert line.endswith("nothing was written; add --force to write it anyway")
    assert not list(tmp_path.iterdir())
    assert run(f"{words} --force").status == 0
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("words", "named", "written"),
    [
        ("normalize images OUT --each", "images/noise.png", "tissue.png"),
        ("normalize slides OUT", "slides/noise.tiff", "tissue.tiff"),
    ],
)
def test_of_several_only_those_that_are_refused_are_left_out(
    run: Run,
    words: str,
    named: str,
    written: str,
    tmp_path: Path,
) -> None:
    ended = run(words)
    assert ended.status == 2
    assert f"{named}: {REFUSED}" in ended.out + ended.err
    assert "Traceback" not in ended.err
    assert [each.name for each in (tmp_path / "out").iterdir()] == [written]


def test_where_each_is_refused_no_folder_is_made(run: Run, tmp_path: Path) -> None:
    ended = run("normalize noise OUT --each")
    assert ended.status == 2
    assert "0 of " in ended.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        "normalize images/tissue.png OUT.png --style a",
        "normalize slides/tissue.tiff OUT.tiff --style a",
        "normalize slides OUT --style a",
        "normalize images/tissue.png OUT.png --to a",
        "restain images/tissue.png OUT.png --style a",
        "restain slides/tissue.tiff OUT.tiff --style a",
        "lut --style a --out OUT.cube",
    ],
)
def test_a_style_that_was_refused_stays_so_in_its_file(run: Run, words: str, tmp_path: Path) -> None:
    ended = run(f"{words} --model refused.safetensors")
    assert ended.status == 2
    (line,) = ended.lines
    assert "style a is refused" in line
    assert not list(tmp_path.iterdir())
    assert run(f"{words} --model m.safetensors").status == 0


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("normalize", ""),
        ("normalize", " --model m.safetensors --style a"),
        ("restain", " --model m.safetensors --style a"),
    ],
)
def test_pen_is_left_as_it_is_in_images_and_slides_unless_everything_is_to_be_mapped(
    run: Run,
    command: str,
    options: str,
    tissue: Pixels,
    tmp_path: Path,
) -> None:
    pen = (tissue == GREEN).all(2)
    for everything in ("", " --everything"):
        assert run(f"{command} images/tissue.png OUT.png{options}{everything}").status == 0
        assert run(f"{command} slides/tissue.tiff OUT.tiff --quality 100{options}{everything}").status == 0
        image, slide = read_image(tmp_path / "out.png"), tifffile.imread(tmp_path / "out.tiff")
        inside = np.zeros_like(pen)
        inside[101:103, 56:96] = True  # away from pixels that JPEG mixes with others
        for shown, off in ((image, 0), (slide, 12)):
            moved = np.abs(shown.astype(int) - tissue).max(2)
            assert (moved[inside].max() <= off) == (not everything)
            assert moved[~pen].mean() > 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("normalize images OUT --style a --each", "--each and --force apply when a style is fitted"),
        ("normalize images OUT --style a --force", "--each and --force apply when a style is fitted"),
        ("normalize slides/tissue.tiff OUT.tiff --style a --force", "--each and --force apply when a style is fitted"),
        ("normalize images/tissue.png OUT.png --each", "--each is for a folder of images"),
        ("normalize slides/tissue.tiff OUT.tiff --each", "--each is for a folder of images"),
        ("normalize slides OUT --each", "--each is for a folder of images"),
        ("normalize images OUT --each --quality 80", "leave out the options for slides: --level, --region, --quality"),
        ("normalize images/tissue.png OUT.png --seed 1", "--seed chooses the tiles of a slide"),
        ("normalize images OUT --seed 0", "--seed chooses the tiles of a slide"),
        ("normalize images OUT --each --seed 1", "--seed chooses the tiles of a slide"),
        ("normalize slides/tissue.tiff OUT.tiff --style a --seed 1", "--seed chooses the tiles of a slide"),
        ("normalize slides OUT --style a --seed 1", "--seed chooses the tiles of a slide"),
        ("normalize images OUT --like images/tissue.png --seed 1", "--seed chooses the tiles of a slide"),
        ("normalize images OUT --to a --like images", "--to and --like both name the target style"),
        ("normalize slides/tissue.tiff OUT.tiff --workers 2", "leave out --workers"),
        ("restain slides/tissue.tiff OUT.tiff --style a --ray auto", "leave out --workers and --ray"),
        ("restain slides OUT --style a --workers 2 --ray auto", "--workers uses processes of this machine, --ray"),
    ],
)
def test_an_option_that_does_nothing_is_an_error_that_names_it(
    run: Run,
    words: str,
    message: str,
    tmp_path: Path,
) -> None:
    ended = run(f"{words} --model m.safetensors")
    assert ended.status == 2
    (line,) = ended.lines
    assert message in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        "normalize slides/tissue.tiff OUT.tiff --seed 3",
        "normalize images/tissue.png OUT.png --like slides/tissue.tiff --seed 3",
        "normalize slides/tissue.tiff OUT.tiff --style a --like slides/tissue.tiff --seed 3",
    ],
)
def test_a_seed_is_welcome_where_a_slide_is_fitted_to(run: Run, words: str) -> None:
    assert run(f"{words} --model m.safetensors").status == 0


@pytest.mark.parametrize(
    ("words", "gone"),
    [
        ("normalize gone.png OUT.png --each", "gone.png"),
        ("normalize images OUT --like gone.tiff --seed 1", "gone.tiff"),
        ("normalize images OUT --model gone.safetensors", "gone.safetensors"),
        ("restain gone.tiff OUT.tiff --style a", "gone.tiff"),
        ("info gone.svs", "gone.svs"),
    ],
)
def test_what_is_not_there_is_told_first(run: Run, words: str, gone: str, tmp_path: Path) -> None:
    ended = run(words)
    assert ended.status == 2
    assert ended.lines == [f"bottlegan: {gone}: there is no such file or folder; check the path"]
    assert not list(tmp_path.iterdir())


def test_more_options_that_do_nothing_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "images").mkdir()
    write_image(tmp_path / "images" / "a.png", np.full((8, 8, 3), 255, np.uint8))
    given, out = str(tmp_path / "images"), str(tmp_path / "out")
    wishes = {
        "--seed": ["onboard", given, "--name", "x", "--seed", "1", "--out", f"{out}.safetensors"],
        "--workers": ["normalize", given, out, "--workers", "2"],
        "--size": ["lut", "--size", "17", "--check", "x.cube"],
    }
    for option, words in wishes.items():
        monkeypatch.setattr("sys.argv", ["bottlegan", *words])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert stopped.value.code == 2
        assert option in capsys.readouterr().err
    assert not Path(out).exists()
