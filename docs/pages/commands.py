"""The page of all commands, from the command line itself."""

import inspect
import re
from collections.abc import Iterator

import click
import typer

from bottlegan.cli.main import app
from pages.text import make_cell, make_code, make_table


def make_page() -> str:
    """Return the page."""
    root = typer.main.get_command(app)
    parts = [_render(path, command) for path, command in list_commands(root)]
    return f"# Commands\n\n{_INTRODUCTION}\n\n" + "".join(parts)


_INTRODUCTION = """Made from the command line itself; `bottlegan COMMAND --help` says the same. Every command ends
with status 0 when it is done, 2 for bad usage or input, with one line that says what to do, and 1 for a fault.
Results go to the files you name, progress and warnings to the standard error."""


def list_commands(command: click.Command, path: str = "bottlegan") -> Iterator[tuple[str, click.Command]]:
    """Yield every command below one that can be run, with how it is called."""
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            if not child.hidden:
                yield from list_commands(child, f"{path} {name}")
    else:
        yield path, command


def _render(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    arguments = [each for each in shown if isinstance(each, click.Argument)]
    options = [each for each in shown if isinstance(each, click.Option)]
    text = f"## {path}\n\n```text\n{usage}\n```\n\n{_render_help(command.help or '')}"
    if arguments:
        rows = [(make_code(each.human_readable_name), _read_help(each)) for each in arguments]
        text += make_table(("argument", "what it is"), rows)
    if options:
        text += make_table(("option", "default", "what it does"), [_make_row(each, context) for each in options])
    return text


def _render_help(text: str) -> str:
    """Return a command's help, with its examples as code."""
    out = []
    for block in inspect.cleandoc(text).replace("\b\n", "").replace("\f", "").split("\n\n"):
        if re.match("Examples?:", block):
            out.append(f"```sh\n{re.sub('^ *(Examples?:)? *', '', block, flags=re.M).strip()}\n```")
        else:
            out.append(block.replace("<", "&lt;"))
    return "\n\n".join(out) + "\n\n"


def _make_row(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    names = ", ".join(make_code(name) for name in [*option.opts, *option.secondary_opts])
    if not option.is_flag:
        names += f" {make_code(option.make_metavar(context).removesuffix(' RANGE'))}"
    return names, _read_default(option), _read_help(option)


def _read_default(option: click.Option) -> str:
    if isinstance(option.show_default, str):
        return make_cell(option.show_default)
    if option.required:
        return "must be given"
    if option.default is None or option.is_flag or callable(option.default):
        return ""
    return make_code(str(getattr(option.default, "value", option.default)))


def _read_help(parameter: click.Parameter) -> str:
    return make_cell(getattr(parameter, "help", None) or "")
