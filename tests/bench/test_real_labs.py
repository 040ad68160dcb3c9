import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from skimage.color import rgb2lab

from bottlegan.bench import real_methods
from bottlegan.bench.real_colors import Colors, find_glass, summarize_glass
from bottlegan.bench.real_labs import bench_real_labs, read_world, time_fits
from bottlegan.bench.real_methods import Fitted, Given, LabMethod, Opinion, fit_moments, list_methods, measure_moments
from bottlegan.bench.real_pictures import Panel, draw_sheet
from bottlegan.bench.real_restained import measure_place, measure_restained
from bottlegan.bench.real_slide import measure_glass, read_glass
from bottlegan.cli import main as cli
from bottlegan.core.errors import InputError
from bottlegan.core.progress import Silent
from bottlegan.data.real import RealData, open_real_data
from bottlegan.imaging.files import Pixels, write_image

GLASS = (244, 244, 243)
LABS = {"pale": ((150, 120, 190), (240, 190, 210)), "strong": ((60, 20, 90), (200, 80, 140)), "bare": None}
"""The colors of nuclei and other tissue in each lab; the last lab has no masks of nuclei."""
SIDE = 64


def draw(nuclei: tuple[int, ...], other: tuple[int, ...]) -> tuple[Pixels, NDArray[np.bool_]]:
    """Return an image with glass on the left and tissue with one large nucleus on the right, and the nucleus's mask."""
    image = np.full((SIDE, SIDE, 3), GLASS, np.uint8)
    image[:, SIDE // 2 :] = other
    mask = np.zeros((SIDE, SIDE), bool)
    mask[20:40, 40:60] = True
    image[mask] = nuclei
    return image, mask


def put(path: Path, image: Pixels) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_image(path, image)
    return str(Path(*path.parts[-3:]))


@pytest.fixture
def data(tmp_path: Path) -> RealData:
    rows = ["image,mask,lab,what"]
    for lab, colors in LABS.items():
        image, mask = draw(*(colors or LABS["pale"] or ()))
        for name in ("1.png", "2.png"):
            file = put(tmp_path / "labs" / lab / name, image)
            shown = (
                ""
                if colors is None
                else put(tmp_path / "masks" / lab / name, np.stack([mask.astype(np.uint8)] * 3, -1))
            )
            rows.append(f"{file},{shown},{lab},drawn")
    (tmp_path / "index.csv").write_text("\n".join(rows))
    random = np.random.default_rng(0)
    for place in range(3):
        tissue = random.integers(60, 160, (32, 32, 3), dtype=np.uint8)
        for staining in range(4):
            put(tmp_path / "restained" / f"loc{place}_stain{staining}.png", tissue + np.uint8(30 * staining))
    put(tmp_path / "odd" / "blank.png", np.full((SIDE, SIDE, 3), 255, np.uint8))
    return open_real_data(tmp_path)


def always(convert: Callable[[Pixels], Pixels]) -> LabMethod:
    return LabMethod(lambda images: Fitted(convert), learns=False)


def fail(image: Pixels) -> Pixels:
    raise ValueError("no tissue")


def alike(images: Sequence[Given]) -> Fitted:
    """Give the three darkest colors of a lab the same colors everywhere: black and two grays."""
    assert all(isinstance(image, np.ndarray) for image in images)
    colors = np.unique(np.concatenate([np.asarray(image).reshape(-1, 3) for image in images]), axis=0)

    def convert(image: Pixels) -> Pixels:
        output = np.zeros_like(image)
        for rank, color in enumerate(colors[colors.sum(1).argsort()][:3]):
            output[(image == color).all(-1)] = 100 * rank
        return output

    return Fitted(convert, Opinion("good", "drawn", 1.5, None))


NOTHING = always(lambda image: image)


def test_spread_is_measured_between_labs_and_between_images(data: RealData) -> None:
    methods: dict[str, LabMethod | str] = {"nothing": NOTHING, "alike": LabMethod(alike), "absent": "not installed"}
    figures = bench_real_labs(data, methods)
    json.dumps(figures, allow_nan=False)
    assert (figures["images"], figures["labs"], figures["labs with nuclei"]) == (6, 3, 2)
    rows = figures["rows"]
    assert rows["absent"] == {"note": "not installed"}
    nothing, same = rows["nothing"], rows["alike"]
    for way in ("labs", "images"):
        found = nothing[f"spread, {way}"]
        # The distance of two points to their mean is half of the distance between them.
        pale, strong = (rgb2lab(np.array([LABS[lab]], np.uint8))[0] for lab in ("pale", "strong"))
        half = np.linalg.norm(pale - strong, axis=1) / 2
        assert found["nuclei"] == pytest.approx(half[0])
        assert found["other tissue"] == pytest.approx(half[1])
        assert found["both"] == pytest.approx(np.hypot(*half))
        assert found["contrast"] == pytest.approx(
            np.mean([np.linalg.norm(nuclei - other) for nuclei, other in (pale, strong)])
        )
        assert found["share of nothing"] == 1
        assert same[f"spread, {way}"]["share of nothing"] == pytest.approx(0, abs=1e-9)
        assert nothing[f"nuclei darker, {way}"] == same[f"nuclei darker, {way}"] == 1
    assert nothing["verdicts, images"] is None
    assert same["verdicts, labs"] == {"good": 1, "uncertain": 0, "refused": 0}
    assert same["opinions, images"]["pale/1"]["expected error"] == 1.5
    assert same["opinions, labs"].keys() == LABS.keys()
    assert same["odd"]["blank.png"]["verdict"] == "good"


def test_the_negative_makes_nuclei_lighter(data: RealData) -> None:
    rows = bench_real_labs(data, {"negative": always(lambda image: 255 - image)})["rows"]
    assert rows["negative"]["nuclei darker, labs"] == 0
    assert "share of nothing" not in rows["negative"]["spread, labs"], "without doing nothing there is no share"


def test_a_failure_is_counted_and_leaves_the_image_as_it_is(data: RealData) -> None:
    rows = bench_real_labs(data, {"nothing": NOTHING, "fails": always(fail)})["rows"]
    assert (rows["fails"]["failed, labs"], rows["nothing"]["failed, labs"]) == (6, 0)
    assert rows["fails"]["spread, labs"] == rows["nothing"]["spread, labs"]


def test_an_odd_image_that_a_method_refuses_to_read_is_told(data: RealData) -> None:
    def picky(images: Sequence[Given]) -> Fitted:
        if np.asarray(images[0]).min() == 255:
            raise InputError("the image is blank; give another")
        return Fitted(lambda image: image)

    odd = bench_real_labs(data, {"picky": LabMethod(picky)})["rows"]["picky"]["odd"]
    assert (odd["blank.png"]["verdict"], odd["blank.png"]["reason"]) == ("error", "the image is blank; give another")


def test_glass_that_turns_gray_or_pink_is_seen(data: RealData) -> None:
    def tint(image: Pixels) -> Pixels:
        return np.minimum(image, np.array([255, 210, 255], np.uint8))

    darken = always(lambda image: image - np.minimum(image, 30))
    rows = bench_real_labs(data, {"nothing": NOTHING, "dark": darken, "pink": always(tint)})["rows"]
    glass = {name: row["glass, labs"] for name, row in rows.items()}
    assert glass["nothing"]["images"] == 6
    assert (glass["nothing"]["lightness lost"], glass["nothing"]["chroma gained"]) == (0, 0)
    assert glass["dark"]["lightness lost"] > 8
    assert glass["dark"]["chroma gained"] < 0.5
    assert glass["pink"]["chroma gained"] > 10


def test_what_the_glass_of_one_image_gains_does_not_make_up_for_anothers_loss() -> None:
    def glass(lightness: float) -> Colors:
        return Colors(None, None, np.array([lightness, 0.0, 0.0]))

    found = summarize_glass([glass(90), glass(90)], [glass(86), glass(94)])
    assert found is not None
    assert (found["lightness before"], found["lightness after"], found["lightness lost"]) == (90, 90, 2)


def test_glass_is_bright_gray_flat_and_not_a_speck() -> None:
    image, _ = draw((60, 20, 90), (200, 80, 140))
    image[5:8, 50:53] = GLASS
    image[40:, : SIDE // 2] = np.random.default_rng(0).integers(200, 256, (SIDE - 40, SIDE // 2, 1), dtype=np.uint8)
    found = find_glass(rgb2lab(image))
    assert found[:36, : SIDE // 2 - 3].all()
    assert not found[:, SIDE // 2 :].any()
    assert found[44:, : SIDE // 2].mean() < 0.05
    dim = find_glass(rgb2lab(image // 2))
    assert dim[:36, : SIDE // 2 - 3].all(), "glass need not be white"


def test_stainings_that_differ_by_a_shift_are_that_far_apart() -> None:
    gray = np.random.default_rng(0).integers(90, 110, (64, 64, 1), dtype=np.uint8).repeat(3, axis=2)
    shift = rgb2lab(gray + np.uint8(40))[..., 0].mean() - rgb2lab(gray)[..., 0].mean()
    assert measure_place([gray, gray]) == 0
    assert measure_place([gray, gray + np.uint8(40)]) == pytest.approx(shift / rgb2lab(gray)[..., 0].std(), rel=0.05)
    assert measure_place([gray * 0, gray * 0]) == 0, "tiles of one color have no spread within"


def test_stainings_are_fitted_to_all_places_and_to_the_others(data: RealData) -> None:
    tiles = read_world(data, Silent()).tiles
    assert {staining for of in tiles.values() for staining in of} == {1, 2, 3}, "0 is left out"
    counts: list[int] = []

    def undo(images: Sequence[Given]) -> Fitted:
        counts.append(len(images))
        lowest = min(int(np.asarray(image).min()) for image in images)
        return Fitted(lambda image: image - np.minimum(image, lowest))

    found = measure_restained(LabMethod(undo), tiles)
    nothing = measure_restained(NOTHING, tiles)
    assert sorted(counts) == [2] * 9 + [3] * 3
    assert nothing["all places"] == nothing["other places"]
    assert nothing["all places"] > 0.5
    assert found["all places"] == pytest.approx(0, abs=1e-6)
    assert found["other places"] == pytest.approx(0, abs=0.1)


def test_a_halo_is_seen_where_the_slide_is_written_with_one(tmp_path: Path) -> None:
    image = np.full((400, 400, 3), 240, np.uint8)
    image[180:220, 180:220] = (150, 60, 120)
    image[20, 20] = 0  # dust
    write_image(tmp_path / "slide.png", image)
    glass = read_glass(tmp_path / "slide.png")
    assert glass.near[200, 160]
    assert not glass.near[200, 177]
    assert glass.far[200, 20]
    assert not glass.far[200, 100]
    assert not glass.near[20, 40], "dust is no tissue"
    haloed = image.copy()
    haloed[130:270, 130:270, 1] = np.where(image[130:270, 130:270, 1] == 240, 220, 60)
    method = LabMethod(lambda images: Fitted(lambda levels: levels), write_slide=lambda path: haloed)
    found = measure_glass(method, glass)
    assert (found["halo before"], found["halo of the map alone"]) == (0, 0)
    assert found["halo after"] == found["halo added"] == pytest.approx(20)
    assert found["noise after"] == found["noise before"] == 0


def test_pooled_moments_become_those_of_the_reference() -> None:
    random = np.random.default_rng(0)
    reference = random.integers(100, 160, (32, 32, 3), dtype=np.uint8)
    lab = [random.integers(90, 180, (32, 32, 3), dtype=np.uint8) for _ in range(2)]
    fitted = fit_moments(reference)(lab)
    mapped = measure_moments([fitted.convert(image) for image in lab])
    for wanted, found in zip(measure_moments([reference]), mapped, strict=True):
        np.testing.assert_allclose(found, wanted, atol=0.2)


def test_only_methods_that_look_at_images_are_timed(data: RealData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bottlegan.bench.real_labs.PATCHES", 2)
    world = read_world(data, Silent())
    assert time_fits(NOTHING, world) is None
    seconds = time_fits(LabMethod(alike), world)
    assert seconds is not None
    assert seconds > 0


def test_a_sheet_has_a_place_for_every_panel() -> None:
    black = np.zeros((30, 50, 3), np.uint8)
    sheet = draw_sheet([[Panel(black, "a"), Panel(black, "a long reason " * 30)], [Panel(black, "")]], side=100)
    assert (sheet[:100, :100] == 0).all()
    assert (sheet[:100, 104:204] == 0).all()
    assert (sheet[100:] == 0).all(-1).any()
    assert (sheet[sheet.shape[0] // 2 :, 104:] == 255).all()


def test_peers_that_are_not_installed_leave_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(kind: str, **options: bool) -> Callable[[Pixels], Callable[[Pixels], Pixels]]:
        def fit(reference: Pixels) -> Callable[[Pixels], Pixels]:
            raise ImportError("not installed")

        return fit

    monkeypatch.setattr(real_methods, "peer_torchstain", missing)
    monkeypatch.setattr(real_methods, "SIDE", 64)
    methods = list_methods()
    assert methods["torchstain Macenko"] == methods["torchstain Reinhard"] == "not installed"


def test_the_command_prints_tables_and_writes_json_and_pictures(
    data: RealData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torchstain")
    monkeypatch.setattr(real_methods, "SIDE", 64)
    monkeypatch.setattr(real_methods, "TISSUES", 1)
    monkeypatch.setattr(real_methods, "fit_ours", lambda model: alike)
    monkeypatch.setattr("bottlegan.bench.real_pictures.fit_ours", lambda model: alike)
    words = ["--data", data.root, "--json", tmp_path / "figures.json", "--pictures", tmp_path / "seen"]
    monkeypatch.setattr(sys, "argv", ["bottlegan", "bench", "reallabs", *map(str, words)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert not caught.value.code
    rows = json.loads((tmp_path / "figures.json").read_text())["rows"]
    peers = {"Reinhard, pooled moments", "torchstain Reinhard", "torchstain Macenko"}
    assert rows.keys() == {"nothing", "ours"} | peers
    printed = capsys.readouterr().out
    assert "6 images of 3 real labs, 2 with nuclei" in printed
    assert "blank.png" in printed
    names = sorted(path.name for path in (tmp_path / "seen").iterdir())
    assert names == ["images-1.png", "labs-1.png", "odd.png", "restained.png"]


def test_ours_tells_its_verdict(data: RealData) -> None:
    fitted = real_methods.fit_ours(None)([image.read() for image in data.labs["strong"]])
    assert fitted.opinion is not None
    assert fitted.opinion.verdict in {"good", "uncertain", "refused"}
    assert fitted.opinion.reason
    assert fitted.convert(data.images[2].read()).shape == (SIDE, SIDE, 3)


def test_a_folder_without_an_index_is_one_line_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bottlegan", "bench", "reallabs", "--data", str(tmp_path)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert "index.csv: there is no such file" in capsys.readouterr().err
