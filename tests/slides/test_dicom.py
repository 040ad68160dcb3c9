import errno
import json
import os
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from bottlegan.core.errors import ImageError, InputError, MissingError
from bottlegan.slides import dicom
from bottlegan.slides.dicom import Level, convert_to_dicom
from bottlegan.slides.grid import Size
from bottlegan.slides.stream import stream_pyramid
from bottlegan.slides.writer import Form, Format, writing_pyramid

pydicom = pytest.importorskip("pydicom", reason="needs pip install 'bottlegan[dicom]'")
tifffile = pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
openslide = pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
pytest.importorskip("simplejpeg", reason="needs pip install 'bottlegan[slides]'")

NOTE = {"style": "Köln <&> 🔬 \\", "source": "a.svs"}
MPP = (0.2527, 0.5)


def write(
    path: Path,
    width: int = 301,
    height: int = 187,
    mpp: tuple[float, float] | None = MPP,
    kind: Format = "tiff",
) -> Path:
    """Write a pyramid of noise that is white at the bottom."""
    levels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    levels[100:] = 255
    with writing_pyramid(path, Form(Size(width, height), Size(64, 48), mpp, kind=kind), NOTE) as writer:
        grid = writer.grids[0]
        stream_pyramid(lambda places: [levels[grid[at].within(grid.region)] for at in places], writer, 2)
    return path


def read_frames(path: Path) -> list[bytes]:
    dataset = pydicom.dcmread(path)
    tables = None
    if "ExtendedOffsetTable" in dataset:
        tables = (dataset.ExtendedOffsetTable, dataset.ExtendedOffsetTableLengths)
    count = dataset.NumberOfFrames
    return list(pydicom.encaps.generate_frames(dataset.PixelData, number_of_frames=count, extended_offsets=tables))


def read_tiles(path: Path, level: int) -> list[bytes]:
    with tifffile.TiffFile(path) as file:
        page = file.pages[level]
        return [
            path.read_bytes()[offset : offset + length]
            for offset, length in zip(page.dataoffsets, page.databytecounts, strict=True)
        ]


@pytest.mark.parametrize(("width", "height"), [(1, 1), (64, 48), (65, 48), (301, 187), (40, 500)])
@pytest.mark.parametrize("last_offset", [dicom.LAST_OFFSET, -1])
def test_openslide_shows_every_level_exactly_as_in_the_tiff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int, height: int, last_offset: int
) -> None:
    monkeypatch.setattr(dicom, "LAST_OFFSET", last_offset)  # -1: treats all files as too large for the basic table
    source, folder = write(tmp_path / "a.tiff", width, height), tmp_path / "Köln 🔬"
    convert_to_dicom(source, folder)
    assert openslide.OpenSlide.detect_format(folder / "level-0.dcm") == "dicom"
    with openslide.OpenSlide(source) as before, openslide.OpenSlide(folder / "level-0.dcm") as after:
        assert after.level_dimensions == before.level_dimensions
        for level, size in enumerate(before.level_dimensions):
            shown = [np.asarray(slide.read_region((0, 0), level, size)) for slide in (before, after)]
            assert (shown[0] == shown[1]).all()
        assert float(after.properties["openslide.mpp-x"]) == pytest.approx(MPP[0], rel=1e-6)
        assert float(after.properties["openslide.mpp-y"]) == pytest.approx(MPP[1], rel=1e-6)
        assert json.loads(after.properties["dicom.ImageComments"]) == NOTE
        assert after.color_profile is not None
        assert len(list(folder.iterdir())) == before.level_count


@pytest.mark.parametrize("last_offset", [dicom.LAST_OFFSET, -1])
def test_frames_are_the_tiles_and_found_by_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_offset: int
) -> None:
    monkeypatch.setattr(dicom, "LAST_OFFSET", last_offset)
    source, folder = write(tmp_path / "a.tiff"), tmp_path / "out"
    convert_to_dicom(source, folder)
    odd = 0
    for level in range(4):
        tiles = read_tiles(source, level)
        odd += sum(len(tile) % 2 for tile in tiles)
        padded = [tile + bytes(len(tile) % 2) for tile in tiles]
        path = folder / f"level-{level}.dcm"
        assert read_frames(path) == padded
        dataset, place = pydicom.dcmread(path), 0
        offsets = pydicom.encaps.parse_basic_offsets(dataset.PixelData)
        if last_offset < 0:
            assert not offsets
            offsets = list(struct.unpack(f"<{len(tiles)}Q", dataset.ExtendedOffsetTable))
        for tile, offset in zip(padded, offsets, strict=True):
            assert offset == place
            place += 8 + len(tile)
    assert odd  # otherwise padding was not tested


def test_levels_say_what_they_are_and_nothing_of_a_patient(tmp_path: Path) -> None:
    convert_to_dicom(write(tmp_path / "a.tiff"), tmp_path / "out")
    levels = [pydicom.dcmread(tmp_path / "out" / f"level-{level}.dcm") for level in range(4)]
    for index, level in enumerate(levels):
        assert level.SOPClassUID.name == "VL Whole Slide Microscopy Image Storage"
        assert level.SOPClassUID == level.file_meta.MediaStorageSOPClassUID
        assert level.SOPInstanceUID == level.file_meta.MediaStorageSOPInstanceUID
        assert list(level.ImageType) == ["DERIVED", "PRIMARY", "VOLUME", "RESAMPLED" if index else "NONE"]
        measures = level.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0]
        assert measures.PixelSpacing == pytest.approx([MPP[1] * 2**index / 1000, MPP[0] * 2**index / 1000], rel=1e-6)
        assert level.ImagedVolumeWidth == pytest.approx(301 * MPP[0] / 1000)
        assert level.LossyImageCompression == "01"
        assert not any(level[name].value for name in ("PatientName", "PatientID", "PatientBirthDate", "PatientSex"))
        assert level.LongitudinalTemporalInformationModified == "REMOVED"
        assert "bottlegan" in level.DerivationDescription
        assert all(uid.is_valid for uid in (level.SOPInstanceUID, level.SeriesInstanceUID, level.StudyInstanceUID))
    for shared in ("StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID", "PyramidUID"):
        assert len({level[shared].value for level in levels}) == 1
    assert len({level.SOPInstanceUID for level in levels}) == 4


def test_the_same_pyramid_gives_the_same_bytes_and_another_gives_other_names(tmp_path: Path) -> None:
    source, other = write(tmp_path / "a.tiff"), write(tmp_path / "b.tiff", mpp=(0.3, 0.3))
    for target, each in (("1", source), ("2", source), ("3", other)):
        convert_to_dicom(each, tmp_path / target)
    files = [[path.read_bytes() for path in sorted((tmp_path / target).iterdir())] for target in "123"]
    assert files[0] == files[1]
    uids = [pydicom.dcmread(tmp_path / target / "level-0.dcm").SOPInstanceUID for target in "13"]
    assert uids[0] != uids[1]
    profile = pydicom.dcmread(tmp_path / "1" / "level-0.dcm").OpticalPathSequence[0].ICCProfile
    assert profile[24:36] == struct.pack(">6H", 1970, 1, 1, 0, 0, 0)  # not today


def interrupt(path: Path, level: Level) -> Iterator[bytes]:
    yield b"12"
    raise KeyboardInterrupt


def fill_disk(path: Path, level: Level) -> Iterator[bytes]:
    """Stand in for a write that fails: it comes out of `_write_level` like one."""
    yield b"12"
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("fail", "kind", "message"),
    [
        (interrupt, KeyboardInterrupt, None),
        (fill_disk, InputError, r"out: cannot be written \(No space left on device\)"),
    ],
)
def test_what_fails_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fail: Callable[[Path, Level], Iterator[bytes]],
    kind: type[BaseException],
    message: str | None,
) -> None:
    source = write(tmp_path / "a.tiff")
    monkeypatch.setattr(dicom, "_read_tiles", fail)
    with pytest.raises(kind, match=message):
        convert_to_dicom(source, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [source]


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "a.tiff")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("folder", "a.tiff", "link"):
        with pytest.raises(InputError, match=rf"{name}: exists already; name a new folder"):
            convert_to_dicom(source, tmp_path / name)
    with pytest.raises(MissingError, match="gone: there is no such folder to write out to"):
        convert_to_dicom(source, tmp_path / "gone" / "out")
    assert not list((tmp_path / "folder").iterdir())


def test_without_a_size_of_pixels_there_is_no_dicom(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.tiff: DICOM needs the size of a pixel"):
        convert_to_dicom(write(tmp_path / "a.tiff", mpp=None), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_no_pyramid_of_ours_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "a.tiff")
    cut, noise, plain = (tmp_path / f"{name}.tiff" for name in ("cut", "noise", "plain"))
    cut.write_bytes(source.read_bytes()[:5000])
    noise.write_bytes(b"no TIFF")
    tifffile.imwrite(plain, np.zeros((100, 100, 3), np.uint8))
    for path, message in (
        (cut, "is truncated or damaged"),
        (noise, "is truncated or damaged"),
        (plain, "is not a flat pyramid"),
        (write(tmp_path / "a.ome.tiff", kind="ome"), "is not a flat pyramid"),
    ):
        with pytest.raises(ImageError, match=rf"{path.name}: {message}"):
            convert_to_dicom(path, tmp_path / "out")
    with pytest.raises(MissingError, match=r"gone\.tiff: there is no such file"):
        convert_to_dicom(tmp_path / "gone.tiff", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_pyramid_that_shrinks_meanwhile_is_named_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "a.tiff")
    pyramid = dicom.read_pyramid(source)
    source.write_bytes(source.read_bytes()[:5000])
    monkeypatch.setattr(dicom, "read_pyramid", lambda path: pyramid)
    with pytest.raises(ImageError, match=r"a\.tiff: is truncated: level 0 lacks tiles"):
        convert_to_dicom(source, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [source]


def test_without_pydicom_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "a.tiff")
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(MissingError, match=r"pip install 'bottlegan\[dicom\]'"):
        convert_to_dicom(source, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [source]
