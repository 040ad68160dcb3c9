from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from bottlegan.cli.main import app
from bottlegan.core.errors import InputError, MissingError
from bottlegan.data.patches import list_patches
from bottlegan.imaging.files import read_image, read_mask
from bottlegan.imaging.tensors import to_batch
from bottlegan.simulation.lab_folder import draw_lab, write_lab
from bottlegan.simulation.styles import unmix
from bottlegan.simulation.tissue import draw_tissue


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_slide_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("simplejpeg", reason="needs pip install 'bottlegan[slides]'")
    openslide = pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
    target = tmp_path / "slide.tiff"
    result = run("synth", "slide", target, "--size", 300, "--seed", 1, "--style-seed", 7, "--quality", 70)
    assert result.exit_code == 0, result.output
    assert f"Wrote {target}, 300 x 300 px in the style of lab-7" in result.output
    assert f"Try: bottlegan normalize {target} normalized.tiff" in result.output
    with openslide.OpenSlide(target) as file:
        assert file.dimensions == (300, 300)
        assert '"software": "bottlegan' in file.properties["tiff.ImageDescription"]


def test_a_slide_that_cannot_be_drawn(tmp_path: Path) -> None:
    result = run("synth", "slide", tmp_path / "slide.tiff", "--size", 100)
    assert isinstance(result.exception, InputError)
    assert "\n" not in str(result.exception)


def test_a_lab_is_read_back_as_it_was_drawn(tmp_path: Path) -> None:
    folder = tmp_path / "lab-2"
    result = run("synth", "lab", folder, "--patches", 3, "--size", 96, "--masks", "--seed", 2)
    assert result.exit_code == 0, result.output
    assert f"Wrote {folder}, 3 patch(es) with masks in the style of lab-2" in result.output
    assert f"bottlegan normalize {folder} normalized" in result.output
    patches = list_patches(folder)
    assert [patch.name for patch in patches] == ["patch-000", "patch-001", "patch-002"]
    for index, patch in enumerate(patches):
        tissue = draw_tissue(2, index, 96)
        assert np.array_equal(read_mask(patch.mask), tissue.epithelium.numpy())
        seen = unmix(to_batch(patch.read_image()), draw_lab(2))[0]
        assert (seen - tissue.concentration).abs().median() < 0.05
    assert list(tmp_path.iterdir()) == [folder]


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        write_lab(tmp_path / name, 1, 64, seed, draw_lab(5))
    first, same, other = ((tmp_path / name / "patch-000.png").read_bytes() for name in "abc")
    assert first == same
    assert first != other


def test_a_style_can_be_that_of_another_lab(tmp_path: Path) -> None:
    assert run("synth", "lab", tmp_path / "own", "--patches", 1, "--size", 64).exit_code == 0
    assert run("synth", "lab", tmp_path / "other", "--patches", 1, "--size", 64, "--style-seed", 9).exit_code == 0
    tissue = draw_tissue(0, 0, 64).concentration
    for name, lab in (("own", 0), ("other", 9)):
        seen = unmix(to_batch(read_image(tmp_path / name / "patch-000.png")), draw_lab(lab))[0]
        assert (seen - tissue).abs().median() < 0.05
    assert not list((tmp_path / "own").glob("*_mask*"))
    assert draw_lab(0).hematoxylin != draw_lab(9).hematoxylin


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty, and nothing in it is overwritten"):
        write_lab(tmp_path, 1, 64, 0, draw_lab(0))
    with pytest.raises(InputError, match="is a file"):
        write_lab(tmp_path / "kept.txt", 1, 64, 0, draw_lab(0))
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    write_lab(tmp_path / "lab", 1, 64, 0, draw_lab(0))
    assert [path.name for path in (tmp_path / "lab").iterdir()] == ["patch-000.png"]
    assert (tmp_path / "lab").stat().st_mode & 0o077 == _plain_folder(tmp_path / "plain").stat().st_mode & 0o077


def _plain_folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize(
    ("patches", "size", "said"), [(0, 64, "ask for 1 to"), (1, 63, "ask for 64 to"), (1, 10**6, "ask for 64 to")]
)
def test_labs_that_cannot_be_drawn(patches: int, size: int, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        write_lab(tmp_path / "lab", patches, size, 0, draw_lab(0))
    assert not list(tmp_path.iterdir())


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        assert list(tmp_path.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr("bottlegan.simulation.lab_folder.write_image", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_lab(tmp_path / "lab", 1, 64, 0, draw_lab(0))
    assert not list(tmp_path.iterdir())


def test_the_folder_above_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no such folder to write lab to; create it first"):
        write_lab(tmp_path / "nowhere" / "lab", 1, 64, 0, draw_lab(0))


@pytest.mark.parametrize("command", ["slide", "lab"])
def test_help_has_an_example(command: str) -> None:
    assert f"Example: bottlegan synth {command}" in run("synth", command, "--help").output
