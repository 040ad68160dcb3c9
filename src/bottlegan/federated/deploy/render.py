"""Renders commands, settings and pages from templates."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from bottlegan.core.files import write_text


def render(template: str, path: Path, values: dict[str, Any]) -> None:
    """Render a template with values to `path`; a script is made executable."""
    # No HTML escapes, because these are scripts and Markdown. All values have been checked.
    environment = Environment(  # noqa: S701
        loader=PackageLoader("bottlegan.federated.deploy"), undefined=StrictUndefined, keep_trailing_newline=True
    )
    write_text(path, environment.get_template(f"{template}.j2").render(values))
    if path.suffix == ".sh":
        path.chmod(0o700)
