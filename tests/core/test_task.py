import pytest

from bottlegan.core.config import parse
from bottlegan.core.errors import ConfigError
from bottlegan.core.task import Task, list_classes


def test_the_default_is_epithelium_or_not() -> None:
    assert Task().classes == ("other", "epithelium")
    assert Task().ids == (0, 1)


def test_ids_leave_out_what_is_ignored() -> None:
    three = ("a", "b", "c")
    assert Task(classes=three, ignore=0).ids == (1, 2, 3)
    assert Task(classes=three, ignore=1).ids == (0, 2, 3)
    assert Task(classes=three, ignore=255).ids == (0, 1, 2)
    assert list_classes(three, (1, 2, 3)) == "1 a, 2 b, 3 c"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"classes": ["one"]}, "2 to 64 names, got 1"),
        ({"classes": ["a", "a"]}, "the same name"),
        ({"classes": ["a", ""]}, "cannot be called"),
        ({"classes": ["a", "../b"]}, "cannot be called"),
        ({"classes": [f"c{k}" for k in range(65)]}, "got 65"),
        ({"ignore": -1}, "ignore must be"),
        ({"kind": "classification", "ignore": 3}, "leave it out"),
        ({"micrometers": 0.0}, "micrometers must be"),
        ({"kind": "detection"}, "kind"),
    ],
)
def test_what_cannot_be_a_task_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(Task, values, "f.toml")
