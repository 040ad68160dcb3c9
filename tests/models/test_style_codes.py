import pytest
import torch
from torch import Tensor

from bottlegan.core.errors import InputError
from bottlegan.models.style_codes import StyleCodes, add_noise


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(codes: StyleCodes) -> dict[str, bytes]:
    return {name: codes[name].detach().numpy().tobytes() for name in codes.names}


def test_codes_are_drawn_from_the_given_stream() -> None:
    codes, again, other = (StyleCodes([f"lab-{i}" for i in range(400)], 25, stream(seed)) for seed in (1, 1, 2))
    assert torch.equal(codes.table, again.table)
    assert not torch.equal(codes.table, other.table)
    assert codes.table.mean().item() == pytest.approx(0, abs=0.05)
    assert codes.table.std().item() == pytest.approx(1, abs=0.05)
    assert (len(codes), codes.size) == (400, 25)


def test_a_style_is_found_by_name() -> None:
    codes = StyleCodes(["a", "b"], 4, stream())
    assert torch.equal(codes["b"], codes.table[1])
    assert "b" in codes
    assert "c" not in codes


def test_adding_leaves_the_others_as_they_are() -> None:
    codes = StyleCodes(["a", "b", "c"], 5, stream())
    before = rows(codes)
    codes.add("d", torch.arange(5.0))
    assert codes.names == ["a", "b", "c", "d"]
    assert {name: row for name, row in rows(codes).items() if name != "d"} == before
    assert codes["d"].tolist() == [0, 1, 2, 3, 4]
    assert codes.table.requires_grad


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_removing_leaves_the_others_as_they_are(name: str) -> None:
    codes = StyleCodes(["a", "b", "c"], 5, stream())
    before = rows(codes)
    codes.remove(name)
    assert rows(codes) == {other: row for other, row in before.items() if other != name}
    assert codes.table.shape == (2, 5)


def test_renaming_changes_no_code_and_no_order() -> None:
    codes = StyleCodes(["a", "b", "c"], 5, stream())
    before = list(rows(codes).values())
    codes.rename("b", "z")
    codes.rename("a", "a")
    assert codes.names == ["a", "z", "c"]
    assert list(rows(codes).values()) == before


def test_frozen_codes_stay_frozen() -> None:
    codes = StyleCodes(["a", "b"], 3, stream())
    codes.requires_grad_(False)
    codes.add("c", torch.zeros(3))
    codes.remove("a")
    assert not codes.table.requires_grad


def test_a_gradient_reaches_the_code_that_was_used_and_no_other() -> None:
    codes = StyleCodes(["a", "b", "c"], 3, stream())
    codes["b"].sum().backward()
    assert codes.table.grad is not None
    assert codes.table.grad.tolist() == [[0] * 3, [1] * 3, [0] * 3]


def test_an_unknown_style_names_the_known_ones() -> None:
    codes = StyleCodes([f"lab-{i}" for i in range(8)], 2, stream())
    for use in (codes.__getitem__, codes.index, codes.remove, lambda name: codes.rename(name, "new")):
        with pytest.raises(InputError, match=r"no style called nowhere; known are: lab-0, lab-1, .*, lab-7$"):
            use("nowhere")
    codes.add("lab-8", torch.zeros(2))
    with pytest.raises(InputError, match=r"lab-7, \.\.\.$"):
        codes["nowhere"]
    with pytest.raises(InputError, match="known are: none"):
        StyleCodes([], 2, stream())["nowhere"]


def test_names_must_differ() -> None:
    with pytest.raises(InputError, match="same name"):
        StyleCodes(["a", "b", "a"], 2, stream())
    codes = StyleCodes(["a", "b"], 2, stream())
    with pytest.raises(InputError, match="called a already"):
        codes.add("a", torch.zeros(2))
    with pytest.raises(InputError, match="called a already"):
        codes.rename("b", "a")
    assert codes.names == ["a", "b"]


@pytest.mark.parametrize(
    "name",
    ["", "  ", "a\nb", "a\x1b[31m", "a/b", "a\\b", "..", ".", "x" * 201, "right\u202eleft"],
    ids=["empty", "blank", "newline", "escape", "slash", "backslash", "parent", "here", "long", "override"],
)
def test_names_that_no_file_or_terminal_should_see_are_refused(name: str) -> None:
    codes = StyleCodes(["a"], 2, stream())
    for use in (
        lambda: StyleCodes([name], 2, stream()),
        lambda: codes.add(name, torch.zeros(2)),
        lambda: codes.rename("a", name),
    ):
        with pytest.raises(InputError, match="a style cannot be called") as error:
            use()
        assert str(error.value).isprintable()
    assert codes.names == ["a"]
    codes.rename("a", "Köln, 2. Labor")


@pytest.mark.parametrize("code", [torch.zeros(3), torch.zeros(1, 2), torch.zeros(())])
def test_a_code_of_another_shape_is_refused(code: Tensor) -> None:
    codes = StyleCodes(["a"], 2, stream())
    with pytest.raises(InputError, match="must have 2 numbers"):
        codes.add("b", code)
    assert codes.names == ["a"]


def test_noise_has_the_wanted_scale_and_stream() -> None:
    codes = torch.zeros(300, 40, dtype=torch.float64)
    noisy = add_noise(codes, 0.5, stream())
    assert noisy.std().item() == pytest.approx(0.5, rel=0.03)
    assert noisy.dtype == codes.dtype
    assert torch.equal(noisy, add_noise(codes, 0.5, stream()))
    assert torch.equal(add_noise(noisy, 0, stream()), noisy)
