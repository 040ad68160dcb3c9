from pathlib import Path

import numpy as np
import pytest

from bottlegan.core.errors import InputError, MissingError
from bottlegan.imaging.files import write_image
from bottlegan.models.document import PRIOR
from bottlegan.normalize.choice import ChosenMap, MakeMap, MapChoice, RefusedError, Source
from bottlegan.normalize.slides.folder import map_slide_folder, pair_slides
from bottlegan.normalize.slides.one import SlideOptions
from bottlegan.slides.reader import OpenedSlide, list_slides

tifffile = pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
pytest.importorskip("simplejpeg", reason="needs pip install 'bottlegan[slides]'")
OPTIONS = SlideOptions()


class Given(MapChoice):
    """Finds maps in the way that it is told to."""

    make: MakeMap

    def prepare(self) -> MakeMap:
        return self.make


def choose(make: MakeMap) -> MapChoice:
    choice = Given(PRIOR)
    object.__setattr__(choice, "make", make)
    return choice


def invert(_: Source) -> ChosenMap:
    return ChosenMap(lambda levels: 255 - levels, {"style": "inverted"})


INVERTED = choose(invert)


def write(path: Path) -> Path:
    """Write a slide of two levels."""
    levels = np.full((96, 96, 3), 150, np.uint8)
    form = {"tile": (64, 64), "photometric": "rgb", "metadata": None, "compression": "jpeg"}
    with tifffile.TiffWriter(path) as file:
        file.write(levels, **form)
        file.write(levels[::2, ::2], subfiletype=1, **form)
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with two slides, what only looks like one, and what does not."""
    folder = tmp_path / "in"
    (folder / "folder.tiff").mkdir(parents=True)
    for name in ("zebra.tif", "b.SVS", ".hidden.tiff", "._b.svs", "notes.txt", "Thumbs.db"):
        (folder / name).touch()
    write(folder / "a.b.TIFF")
    return folder


def test_slides_are_paired_by_name_and_nothing_else_is(source: Path, tmp_path: Path) -> None:
    for number in range(30, 0, -1):
        (source / f"m{number:02}.tiff").touch()
    pairs = pair_slides(source, tmp_path / "out", SlideOptions())
    names = ["a.b", "b", *(f"m{number:02}" for number in range(1, 31)), "zebra"]
    assert [each.target for each in pairs] == [tmp_path / "out" / f"{name}.tiff" for name in names]
    assert [each.source.name for each in pairs][:2] == ["a.b.TIFF", "b.SVS"]
    assert pair_slides(source, tmp_path, SlideOptions(kind="ome"))[0].target.name == "a.b.ome.tiff"


def test_a_plain_image_is_not_listed_as_a_slide(source: Path) -> None:
    write_image(source / "plain.tif", np.full((32, 32, 3), 150, np.uint8))
    assert [each.name for each in list_slides(source)] == ["a.b.TIFF", "b.SVS"]


def test_names_that_differ_only_in_their_ending_collide(source: Path, tmp_path: Path) -> None:
    (source / "b.tiff").touch()
    with pytest.raises(InputError, match=r"b\.SVS and b\.tiff would both become b\.tiff; rename one"):
        pair_slides(source, tmp_path / "out", SlideOptions())


def test_what_cannot_be_read_is_not_fitted_to(source: Path, tmp_path: Path) -> None:
    asked: list[str] = []

    def make(slide: Source) -> ChosenMap:
        assert isinstance(slide, OpenedSlide)
        asked.append(slide.path.name)
        return ChosenMap(lambda levels: levels, {"style": "same"})

    outcomes = map_slide_folder(source, tmp_path / "out", choose(make), SlideOptions())
    assert [each.state for each in outcomes] == ["written", "failed", "failed"]
    assert asked == ["a.b.TIFF"]
    assert outcomes[0].result is not None
    assert outcomes[0].result.note == {"style": "same"}
    assert "b.SVS" in outcomes[1].error
    assert map_slide_folder(source, tmp_path / "out", choose(make), SlideOptions())[0].state == "was there"
    assert asked == ["a.b.TIFF"]


def test_an_error_of_ours_is_not_hidden(source: Path, tmp_path: Path) -> None:
    def make(_: Source) -> ChosenMap:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        map_slide_folder(source, tmp_path / "out", choose(make), SlideOptions())


def test_a_folder_is_not_mapped_onto_itself_by_any_name(source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(source)
    for target in (source, tmp_path / "link"):
        with pytest.raises(InputError, match="is an input"):
            map_slide_folder(source, target, MapChoice(PRIOR), SlideOptions())


def test_where_there_is_no_slide_no_folder_is_made(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(MissingError, match="holds no slide"):
        map_slide_folder(tmp_path, tmp_path / "out", MapChoice(PRIOR), SlideOptions())
    assert not (tmp_path / "out").exists()


def test_a_style_that_is_not_known_is_told_before_a_folder_is_made(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no style called gone; known are: none"):
        map_slide_folder(source, tmp_path / "out", MapChoice(PRIOR, "gone"), SlideOptions())
    assert not (tmp_path / "out").exists()


def test_a_slide_that_is_refused_is_named_and_the_others_are_written(source: Path, tmp_path: Path) -> None:
    write(source / "c.tiff")

    def make(slide: Source) -> ChosenMap:
        assert isinstance(slide, OpenedSlide)
        if slide.path.name == "c.tiff":
            raise RefusedError(f"{slide.path}: refused: no tissue")
        return invert(slide)

    outcomes = {each.source.name: each for each in map_slide_folder(source, tmp_path / "out", choose(make), OPTIONS)}
    assert outcomes["a.b.TIFF"].state == "written"
    assert (outcomes["c.tiff"].state, outcomes["c.tiff"].error) == (
        "failed",
        f"{source / 'c.tiff'}: refused: no tissue",
    )
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["a.b.tiff"]


def test_a_folder_goes_on_after_a_broken_slide_and_skips_what_is_done(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "new" / "out"
    source.mkdir()
    write(source / "a.tiff")
    (source / "b.svs").write_text("no slide")
    (source / "c.tiff").write_bytes((source / "a.tiff").read_bytes()[:500])
    write(source / "d.tiff")
    (source / "notes.txt").touch()
    outcomes = map_slide_folder(source, target, INVERTED, SlideOptions())
    assert [each.state for each in outcomes] == ["written", "failed", "failed", "written"]
    assert "b.svs: is not a slide" in outcomes[1].error
    assert "c.tiff" in outcomes[2].error
    assert sorted(each.name for each in target.iterdir()) == ["a.tiff", "d.tiff"]
    (target / "d.tiff").unlink()
    time = (target / "a.tiff").stat().st_mtime_ns
    states = [each.state for each in map_slide_folder(source, target, INVERTED, SlideOptions())]
    assert states == ["was there", "failed", "failed", "written"]
    assert (target / "a.tiff").stat().st_mtime_ns == time


def test_two_slides_of_one_name_or_none_at_all_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="holds no slide"):
        map_slide_folder(tmp_path, tmp_path / "out", INVERTED, SlideOptions())
    for name in ("a.svs", "a.ndpi"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"a\.ndpi and a\.svs would both become a\.ome\.tiff"):
        map_slide_folder(tmp_path, tmp_path / "out", INVERTED, SlideOptions(kind="ome"))
    with pytest.raises(InputError, match="is an input"):
        map_slide_folder(tmp_path, tmp_path, INVERTED, SlideOptions())
    assert not (tmp_path / "out").exists()
