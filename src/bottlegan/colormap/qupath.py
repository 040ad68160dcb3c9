"""A script for QuPath that maps the open image by a coarse table of colors.

No test here runs QuPath. The script follows the documentation of versions 0.5 and 0.6:
https://qupath.github.io/javadoc/docs
"""

import json
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

SIZE = 65
"""Colors along each side of the table: a third of the error of 33, and still read in about a second."""


def make_script(cube: Path, title: str, version: str) -> str:
    """Return a Groovy script that maps images by a table.

    Args:
        cube: The table's file.
        title: Title of the mapped images.
        version: Version of this package.
    """
    # The output is a program, not a web page: names that users chose are quoted as Groovy requires.
    environment = Environment(  # noqa: S701
        loader=PackageLoader("bottlegan.colormap"), undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.filters["quoted"] = quote
    values = {"version": version, "cube": str(cube.absolute()), "title": title}
    return environment.get_template("qupath.groovy.j2").render(values)


def quote(text: str) -> str:
    """Return text as a Groovy literal: a JSON literal with dollars escaped, because Groovy evaluates them."""
    return json.dumps(text).replace("$", "\\$")
