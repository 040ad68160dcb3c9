import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from bottlegan.core.errors import ImageError, InputError, MissingError
from bottlegan.imaging import files
from bottlegan.imaging.files import FORMATS, read_image, read_mask, write_image
from bottlegan.imaging.tensors import from_batch, to_batch

RANDOM = np.random.default_rng(0)
PICTURE = RANDOM.integers(0, 256, (20, 30, 3), dtype=np.uint8)


def png(width: int, height: int, bits: int, kind: int, rows: bytes) -> bytes:
    """Build a PNG that Pillow cannot write; kind 0 is gray, 2 is RGB."""

    def chunk(tag: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body))

    header = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def png_of_16_bits(values: np.ndarray) -> bytes:
    height, width, channels = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return png(width, height, 16, 2 if channels == 3 else 0, rows)


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_what_is_written_can_be_read(tmp_path: Path, suffix: str) -> None:
    smooth = np.kron(PICTURE[::5, ::5], np.ones((8, 8, 1), dtype=np.uint8))
    path = tmp_path / f"émoji 🔬{suffix}"
    write_image(path, smooth)
    difference = np.abs(read_image(path).astype(int) - smooth)
    assert difference.mean() < 3 if "jp" in suffix else difference.max() == 0
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", [".bmp", ".txt", ""])
def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(InputError, match="unknown image format"):
        write_image(tmp_path / f"out{suffix}", PICTURE)
    assert not list(tmp_path.iterdir())


def test_sixteen_bits_are_scaled(tmp_path: Path) -> None:
    deep = RANDOM.integers(0, 65536, (6, 5, 3)).astype(np.uint16)
    deep[0, 0], deep[0, 1] = 0, 65535
    tifffile.imwrite(tmp_path / "deep.tif", deep, photometric="rgb")
    (tmp_path / "deep.png").write_bytes(png_of_16_bits(deep))
    for name in ("deep.tif", "deep.png"):
        levels = read_image(tmp_path / name)
        assert np.abs(levels - deep / 257).max() <= 1
        assert levels[0, 0].tolist() == [0, 0, 0]
        assert levels[0, 1].tolist() == [255, 255, 255]


def test_alpha_is_flattened_on_white(tmp_path: Path) -> None:
    layered = np.dstack([np.zeros((2, 3, 3), np.uint8), np.array([[0, 255, 128]] * 2, np.uint8)])
    Image.fromarray(layered).save(tmp_path / "layer.png")
    assert read_image(tmp_path / "layer.png")[0].tolist() == [[255] * 3, [0] * 3, [127] * 3]
    palette = Image.fromarray(PICTURE).quantize(8)
    palette.save(tmp_path / "palette.png", transparency=palette.getpixel((0, 0)))
    assert read_image(tmp_path / "palette.png")[0, 0].tolist() == [255] * 3


def test_a_palette_becomes_its_colors(tmp_path: Path) -> None:
    Image.fromarray(PICTURE).quantize(256).save(tmp_path / "palette.png")
    assert np.abs(read_image(tmp_path / "palette.png").astype(int) - PICTURE).mean() < 30


def test_a_photo_is_turned_upright(tmp_path: Path) -> None:
    image = Image.fromarray(PICTURE)
    exif = image.getexif()
    exif[0x0112] = 6  # orientation: turned by 90 degrees
    image.save(tmp_path / "turned.png", exif=exif)
    assert (read_image(tmp_path / "turned.png") == np.rot90(PICTURE, -1)).all()


def grayscale(path: Path) -> None:
    Image.fromarray(PICTURE[..., 0]).save(path)


def gray_with_alpha(path: Path) -> None:
    Image.new("LA", (4, 4)).save(path)


def deep_grayscale(path: Path) -> None:
    path.write_bytes(png_of_16_bits(np.zeros((4, 4, 1))))


def one_bit(path: Path) -> None:
    Image.new("1", (4, 4)).save(path)


def cmyk(path: Path) -> None:
    Image.new("CMYK", (4, 4)).save(path, format="JPEG")


def text(path: Path) -> None:
    path.write_text("not an image")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def other_format(path: Path) -> None:
    Image.fromarray(PICTURE).save(path, format="GIF")


def truncated(kind: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        Image.fromarray(RANDOM.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path, format=kind)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])

    write.__name__ = f"truncated {kind}"
    return write


def bomb(path: Path) -> None:
    path.write_bytes(png(100_000, 100_000, 8, 2, b""))


def small_bomb(path: Path) -> None:
    path.write_bytes(png(10_001, 10_001, 8, 2, b""))  # a size that Pillow itself accepts


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (grayscale, "is grayscale"),
        (gray_with_alpha, "is grayscale"),
        (deep_grayscale, "is grayscale"),
        (one_bit, "is grayscale"),
        (cmyk, "is CMYK.*convert it to RGB"),
        (text, "is not an image"),
        (empty, "is not an image"),
        (other_format, "is not an image"),
        (truncated("PNG"), "truncated or damaged"),
        (truncated("JPEG"), "truncated or damaged"),
        (truncated("WEBP"), "truncated or damaged|is not an image"),
        (truncated("TIFF"), "truncated or damaged|is not an image"),
        (bomb, "too large"),
        (small_bomb, "too large to be read whole .the limit is 100 megapixels"),
        (lambda path: path.mkdir(), "is a folder"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_cannot_be_used_is_named_in_one_line(tmp_path: Path, make: Callable[[Path], None], message: str) -> None:
    path = tmp_path / "patch.png"
    make(path)
    with pytest.raises(ImageError, match=message) as caught:
        read_image(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_strips_change_no_pixel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = RANDOM.integers(0, 256, (23, 9, 4), dtype=np.uint8)
    Image.fromarray(layer).save(tmp_path / "alpha.png")
    Image.fromarray(layer[..., 0]).convert("P").convert("RGB").quantize(8).save(
        tmp_path / "palette.png", transparency=1
    )
    for name in ("alpha.png", "palette.png"):
        whole = read_image(tmp_path / name)
        with monkeypatch.context() as patch:
            patch.setattr(files, "STRIP_PIXELS", 20)
            np.testing.assert_array_equal(read_image(tmp_path / name), whole)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"gone\.png"):
        read_image(tmp_path / "gone.png")


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image(tmp_path / "locked.png", PICTURE)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Image, "open", refuse)  # root, who runs tests in containers, may read anything
    with pytest.raises(ImageError, match=r"locked\.png: may not be read; check its permissions"):
        read_image(tmp_path / "locked.png")


@pytest.mark.parametrize("value", [1, 255])
@pytest.mark.parametrize("mode", ["1", "L", "RGB"])
def test_masks_of_all_kinds_are_read(tmp_path: Path, value: int, mode: str) -> None:
    truth = RANDOM.random((9, 7)) < 0.5
    levels = truth * np.uint8(255 if mode == "1" else value)
    Image.fromarray(levels).convert(mode).save(tmp_path / "mask.png")
    assert (read_mask(tmp_path / "mask.png") == truth).all()


@pytest.mark.parametrize("values", [[0, 1, 2], [1, 2]])
def test_a_mask_of_other_values_is_refused(tmp_path: Path, values: list[int]) -> None:
    Image.fromarray(np.array([values], np.uint8)).save(tmp_path / "mask.png")
    with pytest.raises(ImageError, match="not a mask of two values"):
        read_mask(tmp_path / "mask.png")


def test_a_color_image_is_no_mask(tmp_path: Path) -> None:
    write_image(tmp_path / "mask.png", PICTURE)
    with pytest.raises(ImageError, match="color image"):
        read_mask(tmp_path / "mask.png")


@pytest.mark.parametrize("shape", [(1, 1, 3), (3, 5, 3)])
def test_batches_hold_the_same_levels(shape: tuple[int, int, int]) -> None:
    levels = RANDOM.integers(0, 256, shape, dtype=np.uint8)
    batch = to_batch(levels)
    assert batch.shape == (1, 3, *shape[:2])
    assert (from_batch(batch)[0] == levels).all()
