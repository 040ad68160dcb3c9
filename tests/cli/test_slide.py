import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from bottlegan.cli.main import app
from bottlegan.core.errors import InputError
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.config import GeneratorConfig, ModelConfig
from bottlegan.models.files import save_model
from bottlegan.models.paradigms import build_model
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES

tifffile = pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
openslide = pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
pytest.importorskip("simplejpeg", reason="needs pip install 'bottlegan[slides]'")


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def write(path: Path, levels: Pixels, **options: object) -> Path:
    form = {"tile": (128, 128), "photometric": "rgb", "metadata": None, "compression": "jpeg", **options}
    with tifffile.TiffWriter(path) as file:
        file.write(levels, **form)
        file.write(levels[::2, ::2], subfiletype=1, **form)
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a slide, unusable slides, and a model that knows two styles."""
    root = tmp_path_factory.mktemp("cli")
    tissue = from_batch(render(draw_tissue(4, 0, 320).concentration[None], LABORATORIES[5]))[0]
    write(root / "slide.tiff", tissue, resolution=(1e4, 1e4), resolutionunit="CENTIMETER")
    write(root / "no-mpp.tiff", tissue)
    write(root / "deep.tiff", tissue.astype(np.uint16), compression="zlib")
    write(root / "gray.tiff", tissue[..., 0], photometric="minisblack")
    whole = (root / "slide.tiff").read_bytes()
    (root / "cut.tiff").write_bytes(whole[: len(whole) // 2])
    (root / "text.svs").write_text("no slide")
    (root / "words.tiff").write_text("no slide")
    random = torch.Generator().manual_seed(0)
    model = build_model(ModelConfig(code_size=3, generator=GeneratorConfig(width=4, depth=1, mapping=3)), "ab", random)
    save_model(model, root / "model.safetensors")
    return root


def test_a_slide_is_normalized_and_restained(root: Path, tmp_path: Path) -> None:
    known = ("--model", root / "model.safetensors", "--style", "a")
    for command, name, options in (
        ("normalize", "fitted.tiff", ()),
        ("normalize", "known.ome.tif", known),
        ("normalize", "there.tiff", (*known, "--to", "b", "--quality", 80)),
        ("restain", "part.tiff", (*known, "--level", 1, "--region", "10,20,100,50", "--format", "ome")),
    ):
        done = run(command, root / "slide.tiff", tmp_path / name, *options)
        assert done.exit_code == 0, done.output
        assert f"Wrote {tmp_path / name}: 0." in done.stdout
        assert "MP/s" in done.stdout
    with openslide.OpenSlide(tmp_path / "fitted.tiff") as slide:
        assert slide.level_dimensions == ((320, 320), (160, 160), (80, 80))
        assert '"verdict": ' in slide.properties["tiff.ImageDescription"]
    for name, shape in (("known.ome.tif", (320, 320, 3)), ("part.tiff", (50, 100, 3))):
        with tifffile.TiffFile(tmp_path / name) as file:
            assert file.is_ome
            assert file.pages[0].shape == shape
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "fitted.tiff",
        "known.ome.tif",
        "part.tiff",
        "there.tiff",
    ]


def test_a_slide_without_a_size_of_pixels_is_mapped_all_the_same(root: Path, tmp_path: Path) -> None:
    words = ("--model", root / "model.safetensors", "--style", "a")
    assert run("normalize", root / "no-mpp.tiff", tmp_path / "out.tiff", *words).exit_code == 0
    with openslide.OpenSlide(tmp_path / "out.tiff") as slide:
        assert "openslide.mpp-x" not in slide.properties


def test_a_folder_ends_with_a_summary(root: Path, tmp_path: Path) -> None:
    words = ("normalize", root, tmp_path / "out", "--model", root / "model.safetensors", "--style", "b")
    done = run(*words)
    assert done.exit_code == 2
    for line in ("slide.tiff   written", "text.svs     failed", "deep.tiff    failed", "cut.tiff     failed"):
        assert line in done.stdout
    assert f"2 of 7 slides are in {tmp_path / 'out'}." in done.stdout
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["no-mpp.tiff", "slide.tiff"]
    assert "slide.tiff   was there" in run(*words).stdout


def test_info_says_what_a_slide_is_like(root: Path) -> None:
    told = run("info", root / "slide.tiff").stdout
    for words in (
        "generic-tiff, JPEG",
        "1 x 1 micrometers",
        "color profile  none",
        "level 1        160 x 160 px, 1 : 2, tiles of 128 x 128 px, decoded directly",
    ):
        assert words in told
    assert "pixel          unknown" in run("info", root / "no-mpp.tiff").stdout


@pytest.mark.parametrize(
    ("source", "target", "options", "message"),
    [
        ("gone.svs", "out.tiff", (), "no such file"),
        ("text.svs", "out.tiff", (), "is not a slide"),
        ("words.tiff", "out.tiff", (), "is not an image"),
        ("words.tiff", "out.tiff", ("--quality", 80), "is not an image"),
        ("cut.tiff", "out.tiff", (), "truncated or damaged"),
        ("deep.tiff", "out.tiff", (), "16 bits a channel"),
        ("gray.tiff", "out.tiff", (), "is grayscale"),
        ("slide.tiff", "out.svs", (), "written as TIFF"),
        ("slide.tiff", "gone/out.tiff", (), "no such folder"),
        ("slide.tiff", "out.tiff", ("--style", "c"), "no style called c; known are: a, b"),
        ("slide.tiff", "out.tiff", ("--level", 7), "has no level 7"),
        ("slide.tiff", "out.tiff", ("--region", "1,2,3"), "is not X,Y,WIDTH,HEIGHT"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    root: Path, tmp_path: Path, source: str, target: str, options: tuple[object, ...], message: str
) -> None:
    style = () if "--style" in options else ("--style", "a")
    words = ("--model", root / "model.safetensors", *style, *options)
    done = run("normalize", root / source, tmp_path / target, *words)
    assert isinstance(done.exception, InputError)  # for which the command ends with status 2
    assert message in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_the_input_is_never_overwritten(root: Path) -> None:
    words = ("--model", root / "model.safetensors", "--style", "a")
    done = run("normalize", root / "slide.tiff", root / "slide.tiff", *words)
    assert "is an input" in str(done.exception)


def test_an_image_can_become_a_pyramid(root: Path, tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "strips.tif", np.full((100, 700, 3), 200, np.uint8), photometric="rgb")
    words = ("--model", root / "model.safetensors", "--style", "a", "--format", "tiff")
    assert run("normalize", tmp_path / "strips.tif", tmp_path / "out.tiff", *words).exit_code == 0
    with openslide.OpenSlide(tmp_path / "out.tiff") as slide:
        assert slide.level_dimensions == ((700, 100), (350, 50))


def test_a_slide_becomes_dicom(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("pydicom", reason="needs pip install 'bottlegan[dicom]'")
    known = ("--model", root / "model.safetensors", "--style", "a", "--everything")
    for name, options in (("flat.tiff", ()), ("folder", ("--format", "dicom"))):
        result = run("normalize", root / "slide.tiff", tmp_path / name, *known, *options)
        assert result.exit_code == 0, result.output
    with openslide.OpenSlide(tmp_path / "folder" / "level-0.dcm") as dicom:
        assert dicom.properties["openslide.vendor"] == "dicom"
        assert float(dicom.properties["openslide.mpp-x"]) == pytest.approx(1.0)
        size, shown = dicom.level_dimensions, dicom.read_region((0, 0), 0, dicom.dimensions)
    with openslide.OpenSlide(tmp_path / "flat.tiff") as flat:
        assert flat.level_dimensions == size
        assert (np.asarray(flat.read_region((0, 0), 0, flat.dimensions)) == np.asarray(shown)).all()
    again = run("normalize", root / "slide.tiff", tmp_path / "folder", *known, "--format", "dicom")
    assert isinstance(again.exception, InputError)
    assert "exists already; name a new folder" in str(again.exception)
    unsized = run("normalize", root / "no-mpp.tiff", tmp_path / "other", *known, "--format", "dicom")
    assert "DICOM needs the size of a pixel" in str(unsized.exception)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["flat.tiff", "folder"]


def test_a_folder_of_slides_becomes_folders_of_dicom(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("pydicom", reason="needs pip install 'bottlegan[dicom]'")
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "a.tiff").write_bytes((root / "slide.tiff").read_bytes())
    options = ("--model", root / "model.safetensors", "--style", "a", "--format", "dicom")
    for state in ("written", "was there"):
        result = run("restain", source, target, *options)
        assert result.exit_code == 0, result.output
        assert state in result.output
    assert sorted(each.name for each in (target / "a").iterdir()) == ["level-0.dcm", "level-1.dcm", "level-2.dcm"]


@pytest.mark.parametrize("kind", ["tiff", "dicom"])
def test_a_disk_that_is_full_is_said_in_one_line_and_nothing_is_left(root: Path, tmp_path: Path, kind: str) -> None:
    if kind == "dicom":
        pytest.importorskip("pydicom", reason="needs pip install 'bottlegan[dicom]'")
    words = ["normalize", root / "slide.tiff", tmp_path / "out.tiff", "--model", root / "model.safetensors"]
    command = [sys.executable, "-c", "from bottlegan.cli.main import main; main()", *map(str, words), "--style", "a"]

    def limit() -> None:  # the limit on file size acts like a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = subprocess.run([*command, "--format", kind], preexec_fn=limit, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert (
        f"{tmp_path / 'out.tiff'}: cannot be written (File too large); choose another place, or make room"
        in (done.stderr.strip().splitlines()[-1])
    )
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("length", [16, 2_000, -1_000])
def test_a_truncated_slide_is_said_in_one_line(root: Path, tmp_path: Path, length: int) -> None:
    source, target = tmp_path / "cut.tiff", tmp_path / "out.tiff"
    result = run("normalize", root / "slide.tiff", tmp_path / "whole.tiff", "--quality", 50)
    assert result.exit_code == 0, result.output
    source.write_bytes((tmp_path / "whole.tiff").read_bytes()[:length])
    for words in (("normalize", source, target), ("normalize", source, target, "--level", 0), ("info", source)):
        failed = run(*words)
        assert isinstance(failed.exception, InputError)
        assert str(failed.exception).startswith(f"{source}: is truncated or damaged")
        assert "\n" not in str(failed.exception)
    assert not target.exists()
