import pytest

from bottlegan.core.errors import BottleGANError, ConfigError, ImageError, InputError, MissingError, ModelFileError


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (InputError, ValueError),
        (MissingError, FileNotFoundError),
        (ImageError, ValueError),
        (ConfigError, ValueError),
        (ModelFileError, ValueError),
    ],
)
def test_each_error_is_ours_and_the_builtin_that_callers_expect(
    error: type[BottleGANError], builtin: type[Exception]
) -> None:
    with pytest.raises(builtin, match="what is wrong"):
        raise error("what is wrong")
    assert issubclass(error, InputError)
    assert str(error("what is wrong")) == "what is wrong"
