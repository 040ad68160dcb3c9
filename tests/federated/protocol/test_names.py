import pytest

from bottlegan.core.errors import InputError
from bottlegan.federated.protocol.names import check_lab


@pytest.mark.parametrize("name", ["a", "lab-3", "7_uppsala", "A" * 63])
def test_words_are_names(name: str) -> None:
    check_lab(name)


@pytest.mark.parametrize("name", ["", "-lab", "_lab", "a b", "a/b", "..", "köln", "lab\n", "a;b", "$HOME", "A" * 64])
def test_what_a_shell_or_a_file_system_could_misread_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="cannot be called") as error:
        check_lab(name)
    assert str(error.value).isprintable()
