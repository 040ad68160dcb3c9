import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner, Result

from bottlegan.cli.main import app
from bottlegan.colormap.ink import weigh_ink
from bottlegan.colormap.levels import DENSITY
from bottlegan.core.errors import InputError, MissingError
from bottlegan.imaging.files import Pixels, read_image, write_image
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.models.code_maps import encode_maps
from bottlegan.models.config import GeneratorConfig, ModelConfig
from bottlegan.models.files import save_model
from bottlegan.models.freeze import describe_ink
from bottlegan.models.paradigms import BottleGAN, build_model
from bottlegan.normalize.choice import MapChoice
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.onboarding.verdict import Verdict
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.affine import both_ways
from bottlegan.stain.style import LABORATORIES, Style
from bottlegan.training.prior import true_maps

SIZE = 192
BLANK = np.full((64, 64, 3), 240, np.uint8)
GREEN = np.array([[[20, 120, 60]]], np.uint8)
GLASS = {"a": (232, 236, 240), "b": (244, 240, 234)}
ODD = Style(name="odd", hematoxylin=(1.2, 1.0, 0.3), eosin=(0.1, 0.4, 0.9), offset=(0.02, 0.06))
STYLES = {"a": LABORATORIES[4], "b": LABORATORIES[6]}


def show(tissue: Tensor, style: Style, glass: tuple[int, int, int]) -> list[Pixels]:
    """Return tissue in a style on tinted glass, which is bare on the left."""
    images = []
    for image in from_batch(render(tissue, style)):
        shown = np.rint(image * (np.array(glass) / 255)).astype(np.uint8)
        shown[:, : SIZE // 4] = glass
        images.append(shown)
    return images


@pytest.fixture(scope="module")
def tissue() -> Tensor:
    return torch.stack([draw_tissue(seed=14, index=index, size=SIZE).concentration for index in range(4)])


@pytest.fixture(scope="module")
def images(tissue: Tensor) -> dict[str, list[Pixels]]:
    """The same tissue in both labs."""
    return {name: show(tissue, STYLES[name], GLASS[name]) for name in "ab"}


@pytest.fixture(scope="module")
def labs(images: dict[str, list[Pixels]], plain_prior: BottleGAN) -> dict[str, Normalizer]:
    """Each normalizer is fitted to different tissue."""
    return {
        "a": Normalizer.fit(images["a"][:2], model=plain_prior, name="a"),
        "b": Normalizer.fit(images["b"][2:], model=plain_prior, name="b"),
    }


@pytest.fixture(scope="module")
def there(labs: dict[str, Normalizer]) -> Normalizer:
    return labs["a"].like(labs["b"])


def far_apart(left: Pixels, right: Pixels) -> float:
    return float(np.sqrt(np.mean((left.astype(float) - right) ** 2)))


def test_one_labs_images_become_like_the_others(
    there: Normalizer, images: dict[str, list[Pixels]], labs: dict[str, Normalizer]
) -> None:
    for mine, other in zip(images["a"], images["b"], strict=True):
        assert far_apart(there(mine), other) < 0.5 * far_apart(mine, other)
        assert far_apart(there.restain(other), mine) < 0.5 * far_apart(mine, other)
    assert (there.name, there.diagnosis) == ("a", labs["a"].diagnosis)


def test_one_labs_glass_becomes_the_others_glass(there: Normalizer) -> None:
    mine, other = (np.array([[GLASS[name]]], np.uint8) for name in "ab")
    assert np.abs(there(mine).astype(int) - other).max() <= 2
    assert np.abs(there.restain(other).astype(int) - mine).max() <= 2


def test_it_goes_through_the_reference_stain(
    there: Normalizer, labs: dict[str, Normalizer], images: dict[str, list[Pixels]]
) -> None:
    batch = to_batch(images["a"][0])
    apart = there(batch) - labs["b"].restain(labs["a"](batch))
    assert apart.abs().mean() < 1 / 255  # except for clipped colors
    batch = to_batch(images["b"][0])
    assert (there.restain(batch) - labs["a"].restain(labs["b"](batch))).abs().mean() < 1 / 255


def test_like_itself_is_nearly_nothing(labs: dict[str, Normalizer], images: dict[str, list[Pixels]]) -> None:
    for name, lab in labs.items():
        same = lab.like(lab)
        for image in images[name]:
            assert far_apart(same(image), image) < 3
            assert far_apart(same.restain(image), image) < 3


def test_images_of_the_other_lab_do_as_well_as_its_normalizer(
    labs: dict[str, Normalizer], images: dict[str, list[Pixels]], plain_prior: BottleGAN, tmp_path: Path
) -> None:
    """Also if they are files, and with the encoder of the model itself."""
    given = images["b"][2:]
    expected = labs["a"].like(Normalizer.fit(given, model=plain_prior)).code
    for index, image in enumerate(given):
        write_image(tmp_path / f"{index}.png", image)
    for other in (given, tmp_path):
        np.testing.assert_allclose(labs["a"].like(other).code, expected, rtol=1e-5, atol=1e-5)


def test_both_normalizers_stay_as_they_are(labs: dict[str, Normalizer], images: dict[str, list[Pixels]]) -> None:
    before = {name: lab.code.copy() for name, lab in labs.items()}
    mapped = labs["a"](images["a"][0])
    other = labs["a"].like(labs["b"])
    other(images["a"][0])
    assert all(np.array_equal(lab.code, before[name]) for name, lab in labs.items())
    assert np.array_equal(labs["a"](images["a"][0]), mapped)
    stains = "reference.stains"
    assert not np.array_equal(other.model.arrays[stains], labs["a"].model.arrays[stains])
    assert np.array_equal(labs["b"].model.arrays[stains], labs["a"].model.arrays[stains])


def test_a_file_gives_it_back(there: Normalizer, images: dict[str, list[Pixels]], tmp_path: Path) -> None:
    there.save(tmp_path / "there.safetensors")
    loaded = Normalizer.load(tmp_path / "there.safetensors")
    inked = images["a"][0].copy()
    inked[:8, :8] = GREEN
    for ours, theirs in (
        (loaded, there),
        (loaded.restain, there.restain),
        (loaded.uncertainty, there.uncertainty),
    ):
        assert np.array_equal(ours(inked), theirs(inked))
        assert torch.equal(ours(to_batch(inked)), theirs(to_batch(inked)))
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "there.safetensors").read_bytes()


def test_a_refused_target_is_an_error_unless_it_was_forced(labs: dict[str, Normalizer], plain_prior: BottleGAN) -> None:
    blank = Normalizer.fit(BLANK, model=plain_prior)
    assert blank.diagnosis is not None
    assert blank.diagnosis.verdict == Verdict.REFUSED
    for target in (blank, BLANK):
        with pytest.raises(InputError, match=r"the target style is refused: no tissue found.*;"):
            labs["a"].like(target)
    forced = Normalizer.fit(BLANK, model=plain_prior, force=True)
    assert np.isfinite(labs["a"].like(forced).code).all()


def test_a_refused_lab_stays_as_it_is(labs: dict[str, Normalizer], plain_prior: BottleGAN) -> None:
    blank = Normalizer.fit(BLANK, model=plain_prior).like(labs["b"])
    assert blank.refused
    assert np.array_equal(blank(BLANK), BLANK)


def test_a_network_without_linear_layers_is_refused() -> None:
    generator = GeneratorConfig(width=4, depth=1, mapping=3, skip=False)
    bare = build_model(ModelConfig(code_size=3, generator=generator), ("a", "b"), torch.Generator().manual_seed(0))
    assert isinstance(bare, BottleGAN)
    one, two = Normalizer.all_of(bare)
    with pytest.raises(InputError, match="no linear layer"):
        one.like(two)


@pytest.fixture(scope="module")
def exact(plain_prior: BottleGAN, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows, as they truly are, lab a and a target whose stains are far from the reference stain's."""
    model = copy.deepcopy(plain_prior)
    for name, style in (("a", STYLES["a"]), ("odd", ODD)):
        model.codes.add(name, encode_maps(model, both_ways(true_maps([style])))[0])
    path = tmp_path_factory.mktemp("exact") / "m.safetensors"
    save_model(model, path)
    return path


def test_what_is_ink_does_not_depend_on_where_it_goes(exact: Path, tissue: Tensor) -> None:
    colors = np.unique(from_batch(render(tissue[:1], STYLES["a"]))[0].reshape(-1, 3), axis=0)
    for target in (None, "odd"):
        mapped, whole = (
            lab if target is None else lab.like(Normalizer.load(exact, target))
            for lab in (Normalizer.load(exact, "a", everything=everything) for everything in (False, True))
        )
        assert np.array_equal(mapped(GREEN), GREEN)
        assert not np.array_equal(whole(GREEN), GREEN)
        assert np.array_equal(mapped(colors[None]), whole(colors[None])), "tissue is no ink"


def test_what_is_ink_does_not_depend_on_the_glass_of_where_it_goes(labs: dict[str, Normalizer]) -> None:
    lab, colors = labs["a"], np.random.default_rng(0).integers(0, 256, (20_000, 3), np.uint8)
    plain, moved = (describe_ink(each.model, each.code, "normalize") for each in (lab, lab.like(labs["b"])))
    assert plain is not None
    assert moved is not None
    assert np.abs(moved.glass - plain.glass).max() < 0.005
    assert np.abs(weigh_ink(DENSITY[colors], moved) - weigh_ink(DENSITY[colors], plain)).max() < 0.2
    back = describe_ink(lab.like(labs["b"]).model, lab.like(labs["b"]).code, "restain")
    assert back is not None
    theirs = labs["b"].restain(np.full((1, 1, 3), 255, np.uint8))[0, 0]
    assert np.abs(back.glass - DENSITY[theirs]).max() < 0.005, "on the way back it is the other lab's glass"


def test_how_little_a_color_is_trusted_hardly_depends_on_where_it_goes(exact: Path, tissue: Tensor) -> None:
    lab, odd = (Normalizer.load(exact, name) for name in ("a", "odd"))
    (image,) = from_batch(render(tissue[:1], STYLES["a"]))
    inked = image.copy()
    inked[:8, :8] = GREEN
    before, after = (each.uncertainty(inked) for each in (lab, lab.like(odd)))
    assert np.median(after) < 2 * np.median(before), "tissue is not taken for ink"
    assert after[:8, :8].min() > 2 * np.median(after)


def test_the_map_of_a_slide_says_that_it_goes_elsewhere(root: Path) -> None:
    plain, moved = (MapChoice(root / "m.safetensors", like=like).prepare()(root / "a") for like in (None, root / "b"))
    assert moved.note["like"] == "images of another lab", "and not which, by whose name patients may be known"
    assert "like" not in plain.note
    images = [Normalizer.fit(root / name, model=root / "m.safetensors") for name in "ab"]
    colors = np.array([GLASS["a"], (150, 80, 140), (210, 140, 190)], np.uint8)
    assert np.array_equal(moved.convert(colors[None]), images[0].like(images[1])(colors[None]))


@pytest.fixture(scope="module")
def root(images: dict[str, list[Pixels]], plain_prior: BottleGAN, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders a and b of images, a blank image, and a model that knows style c."""
    root = tmp_path_factory.mktemp("like")
    for name, shown in images.items():
        (root / name).mkdir()
        for index, image in enumerate(shown):
            write_image(root / name / f"{index}.png", image)
    write_image(root / "blank.png", BLANK)
    Normalizer.fit(images["b"], model=plain_prior, name="c").save(root / "known.safetensors")
    save_model(plain_prior, root / "m.safetensors")
    return root


def run(root: Path, *words: object) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in ("normalize", *words, "--model", root / "m.safetensors")])
    assert result.exit_code == 0 or isinstance(result.exception, InputError), result.output
    return result


@pytest.mark.parametrize("target", ["b", "b/2.png"])
def test_the_command_takes_a_folder_or_an_image_to_be_like(target: str, root: Path, tmp_path: Path) -> None:
    run(root, root / "a", tmp_path / "out", "--like", root / target)
    expected = Normalizer.fit(root / "a", model=root / "m.safetensors").like(
        Normalizer.fit(root / target, model=root / "m.safetensors")
    )
    for file in sorted((root / "a").iterdir()):
        assert np.array_equal(read_image(tmp_path / "out" / file.name), expected(read_image(file)))


def test_the_command_goes_there_from_one_image_from_each_and_from_a_known_style(root: Path, tmp_path: Path) -> None:
    image = root / "a" / "1.png"
    like = ("--like", root / "b")
    run(root, image, tmp_path / "one.png", *like)
    run(root, root / "a", tmp_path / "each", "--each", *like)
    assert np.array_equal(read_image(tmp_path / "one.png"), read_image(tmp_path / "each" / "1.png"))
    known = ("--style", "c", "--model", root / "known.safetensors")
    words = ["normalize", root / "b" / "0.png", tmp_path / "same.png", *known, *like]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    assert read_image(tmp_path / "same.png").shape == (SIZE, SIZE, 3)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (("--like", "b", "--to", "c"), InputError, "--to and --like both name the target style; give one"),
        (("--like", "blank.png"), InputError, "blank.png: cannot be the target style: no tissue found"),
        (("--like", "gone.png"), MissingError, "gone.png: there is no such file"),
    ],
)
@pytest.mark.parametrize("slide", [False, True])
def test_what_nothing_can_be_like_is_one_line_and_nothing_is_written(
    options: tuple[str, ...],
    kind: type[Exception],
    message: str,
    slide: bool,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(root)
    if slide:
        pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
    words = ("a/0.png", tmp_path / "out.tiff", "--format", "tiff") if slide else ("a", tmp_path / "out")
    result = run(root, *words, *options)
    assert isinstance(result.exception, kind)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_a_slide_becomes_like_the_images(root: Path, images: dict[str, list[Pixels]], tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
    pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
    pytest.importorskip("simplejpeg", reason="needs pip install 'bottlegan[slides]'")
    levels = np.vstack([np.hstack(images["a"][:2]), np.hstack(images["a"][2:])])
    truth = np.vstack([np.hstack(images["b"][:2]), np.hstack(images["b"][2:])])
    form = {"tile": (128, 128), "photometric": "rgb", "metadata": None, "compression": "zlib"}
    with tifffile.TiffWriter(tmp_path / "slide.tiff") as file:
        file.write(levels, resolution=(1e4, 1e4), resolutionunit="CENTIMETER", **form)
        file.write(levels[::2, ::2], subfiletype=1, **form)
    result = run(root, tmp_path / "slide.tiff", tmp_path / "out.tiff", "--like", root / "b", "--quality", 95)
    assert result.exit_code == 0
    with tifffile.TiffFile(tmp_path / "out.tiff") as written:
        shown = written.pages[0].asarray()
        assert '"like": "images of another lab"' in written.pages[0].description
    assert far_apart(shown, truth) < 0.5 * far_apart(levels, truth)
