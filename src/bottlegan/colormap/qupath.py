"""A script for QuPath, which maps the open image by a coarse table of colors.

QuPath is not run by any test here. What the script takes from it is in the documentation of its versions 0.5 and 0.6:
https://qupath.github.io/javadoc/docs
"""

import json
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

SIZE = 65
"""Colors along each side of the table: a third as far off as 33, and still read in about a second."""


def make_script(cube: Path, title: str, version: str) -> str:
    """Return a script, in Groovy, that maps images by a table.

    Args:
        cube: The table's file.
        title: What mapped images are called.
        version: Of this package.
    """
    # A program, not a page: what a user named is quoted as the language wants it.
    environment = Environment(  # noqa: S701
        loader=PackageLoader("bottlegan.colormap"), undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.filters["quoted"] = quote
    values = {"version": version, "cube": str(cube.absolute()), "title": title}
    return environment.get_template("qupath.groovy.j2").render(values)


def quote(text: str) -> str:
    """Return text as a literal of Groovy: that of JSON, but Groovy would take what follows a dollar for a program."""
    return json.dumps(text).replace("$", "\\$")
