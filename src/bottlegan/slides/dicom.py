"""Pyramids as DICOM whole slides: a folder with one file per level, whose frames are the unchanged JPEG tiles.

Nothing is decoded, so the pixels equal those of the TIFF to the last bit, and the same TIFF gives the same bytes. DICOM
requires more information than a TIFF has. Attributes that may be empty are empty, above all the patient. The others say
"unknown", or hold a placeholder that a comment beside them explains.
"""

import hashlib
import os
import struct
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bottlegan.core.errors import ImageError, InputError, MissingError
from bottlegan.core.files import replacing_folder
from bottlegan.slides.bigtiff import CENTIMETER, CENTIMETERS, JPEG, YCBCR
from bottlegan.slides.grid import Size, halve_sizes
from bottlegan.slides.tiled import import_tifffile

if TYPE_CHECKING:
    from pydicom import Dataset

NAME = "bottlegan"
UNKNOWN = "unknown"
DATE, TIME = "19700101", "000000"
"""Placeholders for dates that DICOM requires but that are unknown. The files say that dates were removed."""
DEPTH = 1.0
"""Depth of focus in micrometers. DICOM requires more than 0, and no TIFF states it."""
LONGEST = 10240
"""Most characters of a comment."""
LAST_OFFSET = 2**32 - 1
"""Largest byte offset that DICOM's basic offset table can hold."""

ITEM, DELIMITER, PIXELS = (0xFFFE, 0xE000), (0xFFFE, 0xE0DD), (0x7FE0, 0x0010)  # tags
HEAD = 8  # bytes of an item before its data: tag and length
OPEN = 0xFFFFFFFF  # the length of items that end with a delimiter


@dataclass(frozen=True)
class Level:
    """A level of a pyramid, and the positions of its tiles."""

    index: int
    size: Size
    tile: Size
    offsets: Sequence[int]
    lengths: Sequence[int]


@dataclass(frozen=True)
class Pyramid:
    """A pyramid in a TIFF that BottleGAN wrote."""

    path: Path
    levels: Sequence[Level]
    mpp: tuple[float, float]
    description: str
    digest: str
    """The hash of the whole file."""

    def make_uid(self, role: str) -> str:
        """Return a globally unique id of a part of this pyramid. It is the same each time."""
        return f"2.25.{uuid.uuid5(uuid.NAMESPACE_OID, f'{NAME} {version(NAME)} {self.digest} {role}').int}"


def convert_to_dicom(source: Path, folder: Path) -> None:
    """Write the pyramid `source`, a flat TIFF from `writing_pyramid`, to a new folder, whole or not at all.

    The description of the TIFF becomes the image comments. The colors are declared as sRGB, because viewers show a TIFF
    without a profile that way. Tiles of glass, which the TIFF stores once, are repeated: DICOM cannot share them.
    """
    pyramid = read_pyramid(source)
    check_folder(folder)
    with replacing_folder(folder) as temporary:
        for level in pyramid.levels:
            _write_level(temporary / f"level-{level.index}.dcm", pyramid, level)


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written, before any work is done."""
    _import_pydicom()
    if os.path.lexists(folder):
        raise InputError(f"{folder}: exists already; name a new folder for the DICOM files, or remove this one")
    if not folder.parent.is_dir():
        raise MissingError(f"{folder.parent}: there is no such folder to write {folder.name} to; create it first")


def read_pyramid(path: Path) -> Pyramid:
    """Return the tiles and the description of a pyramid; refuse files that BottleGAN did not write."""
    tifffile = import_tifffile()
    try:
        with path.open("rb") as data:
            digest = hashlib.file_digest(data, "sha256").hexdigest()
        with tifffile.TiffFile(path) as file:
            pages = list(file.pages)
            levels = [_find_tiles(index, page) for index, page in enumerate(pages) if _is_direct(page)]
            mpp, description = _find_mpp(pages[0]), pages[0].description
    except FileNotFoundError:
        raise MissingError(f"{path}: there is no such file; give a pyramid that bottlegan wrote") from None
    except (OSError, tifffile.TiffFileError, ValueError, IndexError, KeyError) as error:
        raise ImageError(f"{path}: is truncated or damaged ({error}); make it again") from None
    sizes = [level.size for level in levels]
    if len(levels) != len(pages) or sizes != halve_sizes(sizes[0], levels[0].tile):
        raise ImageError(f"{path}: is not a flat pyramid of JPEG tiles written by bottlegan; write it as TIFF, not OME")
    if mpp is None:
        raise InputError(f"{path}: DICOM needs the size of a pixel, which this TIFF lacks; give one that has it")
    return Pyramid(path, levels, mpp, description, digest)


def describe_level(pyramid: Pyramid, level: Level) -> "Dataset":
    """Return all DICOM attributes of a level except its pixels."""
    # All in mm. The spacing doubles exactly at each level, although sizes are rounded up.
    spacing = [mpp * 2**level.index / 1000 for mpp in pyramid.mpp]
    width, height = (mpp * side / 1000 for mpp, side in zip(pyramid.mpp, pyramid.levels[0].size, strict=True))
    kind = ["DERIVED", "PRIMARY", "VOLUME", "RESAMPLED" if level.index else "NONE"]
    ratio = level.size.width * level.size.height * 3 / sum(level.lengths)
    return _fill(
        # the patient, and the study
        PatientName="",
        PatientID="",
        PatientBirthDate="",
        PatientSex="",
        StudyInstanceUID=pyramid.make_uid("study"),
        StudyID="",
        StudyDate="",
        StudyTime="",
        AccessionNumber="",
        ReferringPhysicianName="",
        LongitudinalTemporalInformationModified="REMOVED",
        AcquisitionDateTime=DATE + TIME,
        ContentDate=DATE,
        ContentTime=TIME,
        # the series and its device
        Modality="SM",
        SeriesInstanceUID=pyramid.make_uid("series"),
        SeriesNumber=1,
        InstanceNumber=level.index + 1,
        PyramidUID=pyramid.make_uid("pyramid"),
        Manufacturer=NAME,
        ManufacturerModelName=NAME,
        DeviceSerialNumber=UNKNOWN,
        SoftwareVersions=version(NAME),
        # the glass
        ContainerIdentifier=UNKNOWN,
        IssuerOfTheContainerIdentifierSequence=[],
        ContainerTypeCodeSequence=[_code("433466003", "SCT", "Microscope slide")],
        AcquisitionContextSequence=[],
        SpecimenDescriptionSequence=[
            _fill(
                SpecimenIdentifier=UNKNOWN,
                SpecimenUID=pyramid.make_uid("specimen"),
                IssuerOfTheSpecimenIdentifierSequence=[],
                SpecimenPreparationSequence=[],
            )
        ],
        # the position on the glass is unknown: the corner, upright as slides are shown
        FrameOfReferenceUID=pyramid.make_uid("frame of reference"),
        PositionReferenceIndicator="SLIDE_CORNER",
        ImageOrientationSlide=[0, -1, 0, -1, 0, 0],
        TotalPixelMatrixOriginSequence=[
            _fill(
                XOffsetInSlideCoordinateSystem=_decimal(height),
                YOffsetInSlideCoordinateSystem=_decimal(width),
                ZOffsetInSlideCoordinateSystem=0,
            )
        ],
        ImagedVolumeWidth=width,
        ImagedVolumeHeight=height,
        ImagedVolumeDepth=DEPTH,
        # the optical path
        FocusMethod="AUTO",
        ExtendedDepthOfField="NO",
        NumberOfOpticalPaths=1,
        TotalPixelMatrixFocalPlanes=1,
        OpticalPathSequence=[
            _fill(
                OpticalPathIdentifier="1",
                IlluminationTypeCodeSequence=[_code("111744", "DCM", "Brightfield illumination")],
                IlluminationColorCodeSequence=[_code("414298005", "SCT", "Full Spectrum")],
                ICCProfile=make_profile(),
                ColorSpace="SRGB",
            )
        ],
        # the image
        SOPClassUID="1.2.840.10008.5.1.4.1.1.77.1.6",  # VL Whole Slide Microscopy Image Storage
        SOPInstanceUID=pyramid.make_uid(f"level {level.index}"),
        ImageType=kind,
        DerivationDescription=f"Colors mapped by {NAME}; the image comments say how",
        ImageComments=pyramid.description[:LONGEST],
        VolumetricProperties="VOLUME",
        SpecimenLabelInImage="NO",
        BurnedInAnnotation="NO",
        DimensionOrganizationType="TILED_FULL",
        DimensionOrganizationSequence=[_fill(DimensionOrganizationUID=pyramid.make_uid("dimensions"))],
        SharedFunctionalGroupsSequence=[
            _fill(
                PixelMeasuresSequence=[
                    _fill(
                        PixelSpacing=[_decimal(spacing[1]), _decimal(spacing[0])],  # down, then across
                        SliceThickness=_decimal(DEPTH / 1000),
                    )
                ],
                WholeSlideMicroscopyImageFrameTypeSequence=[_fill(FrameType=kind)],
            )
        ],
        TotalPixelMatrixColumns=level.size.width,
        TotalPixelMatrixRows=level.size.height,
        Columns=level.tile.width,
        Rows=level.tile.height,
        NumberOfFrames=len(level.lengths),
        SamplesPerPixel=3,
        PhotometricInterpretation="YBR_FULL_422",  # DICOM's name for any JPEG here, also for 4:4:4
        PlanarConfiguration=0,
        BitsAllocated=8,
        BitsStored=8,
        HighBit=7,
        PixelRepresentation=0,
        LossyImageCompression="01",
        LossyImageCompressionRatio=_decimal(round(ratio, 2)),
        LossyImageCompressionMethod="ISO_10918_1",
    )


def make_profile() -> bytes:
    """Return the color profile of sRGB, with a fixed date instead of today's."""
    from PIL import ImageCms  # noqa: PLC0415 - only asked for when there is DICOM to write

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return profile[:24] + struct.pack(">6H", 1970, 1, 1, 0, 0, 0) + profile[36:]


def _write_level(path: Path, pyramid: Pyramid, level: Level) -> None:
    """Write a file: first the attributes of a level, by pydicom, then its frames one by one, to save memory."""
    from pydicom.dataset import FileMetaDataset  # noqa: PLC0415 - optional, so only asked for when there is DICOM
    from pydicom.uid import JPEGBaseline8Bit  # noqa: PLC0415 - the same

    dataset = describe_level(pyramid, level)
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = JPEGBaseline8Bit
    padded = [length + length % 2 for length in level.lengths]
    *offsets, _ = accumulate((HEAD + length for length in padded), initial=0)
    table = b""
    if offsets[-1] <= LAST_OFFSET:
        table = struct.pack(f"<{len(offsets)}I", *offsets)
    else:
        dataset.ExtendedOffsetTable = struct.pack(f"<{len(offsets)}Q", *offsets)
        dataset.ExtendedOffsetTableLengths = struct.pack(f"<{len(padded)}Q", *padded)
    header = BytesIO()  # because pydicom hides errors of the disk
    dataset.save_as(header, enforce_file_format=True)
    with path.open("wb", buffering=2**20) as file:
        file.write(header.getvalue())
        file.write(struct.pack("<HH2sHI", *PIXELS, b"OB", 0, OPEN))
        file.write(struct.pack("<HHI", *ITEM, len(table)) + table)
        for data in _read_tiles(pyramid.path, level):
            file.write(struct.pack("<HHI", *ITEM, len(data) + len(data) % 2) + data + bytes(len(data) % 2))
        file.write(struct.pack("<HHI", *DELIMITER, 0))


def _read_tiles(path: Path, level: Level) -> Iterator[bytes]:
    # Reading errors are reported for the TIFF; writing errors belong to the folder.
    try:
        with path.open("rb") as file:
            for offset, length in zip(level.offsets, level.lengths, strict=True):
                file.seek(offset)
                data = file.read(length)
                if len(data) != length:
                    raise ImageError(f"{path}: is truncated: level {level.index} lacks tiles; make it again")
                yield data
    except OSError as error:
        raise ImageError(f"{path}: cannot be read ({error.strerror}); make it again") from None


def _is_direct(page: Any) -> bool:
    """Return whether all tiles of a page exist and are complete JPEGs without shared tables."""
    form = (page.compression, page.photometric, page.bitspersample, page.samplesperpixel, page.planarconfig)
    return bool(page.is_tiled and form == (JPEG, YCBCR, 8, 3, 1) and not page.jpegtables and all(page.databytecounts))


def _find_tiles(index: int, page: Any) -> Level:
    size, tile = Size(page.imagewidth, page.imagelength), Size(page.tilewidth, page.tilelength)
    return Level(index, size, tile, page.dataoffsets, page.databytecounts)


def _find_mpp(page: Any) -> tuple[float, float] | None:
    """Return the micrometers per pixel, across and down, if the page states them."""
    tags = page.tags
    if "XResolution" not in tags or page.resolutionunit != CENTIMETER:
        return None
    across, down = (tags[name].value for name in ("XResolution", "YResolution"))
    return CENTIMETERS * across[1] / across[0], CENTIMETERS * down[1] / down[0]


def _fill(**values: Any) -> "Dataset":
    from pydicom import Dataset  # noqa: PLC0415 - optional, so only asked for when there is DICOM

    dataset = Dataset()
    for keyword, value in values.items():
        setattr(dataset, keyword, value)
    return dataset


def _code(value: str, scheme: str, meaning: str) -> "Dataset":
    return _fill(CodeValue=value, CodingSchemeDesignator=scheme, CodeMeaning=meaning)


def _decimal(value: float) -> str:
    return f"{value:.9g}"  # DICOM allows 16 characters


def _import_pydicom() -> None:
    try:
        import pydicom  # noqa: F401, PLC0415 - optional, so only asked for when there is DICOM
    except ImportError:
        raise MissingError("writing DICOM needs pydicom: pip install 'bottlegan[dicom]'") from None
