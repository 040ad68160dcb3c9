"""The cases of the fuzz campaign: damaged files, odd paths, absurd arguments, broken TOML, strange environments.

A case is a command and the damage done to a small sandbox before it runs. Cases are drawn from a seed, so a failed case
can be repeated. None would take long if the command accepted it.
"""

import os
import shutil
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.random import Generator

from bottlegan.core.seeding import numpy_stream
from bottlegan.imaging.files import write_image, write_values
from bottlegan.models.document import PRIOR
from bottlegan.models.weights import read_weights, write_weights

FAMILIES = ("files", "paths", "arguments", "settings", "environment")
SIDE = 48

TRAIN = "steps = 1\nwarm_steps = 1\nbatch = 2\npixels = 16\ncheck_every = 1\n[model]\ncode_size = 8\n"
DEMO = "labs = 2\npatches = 2\nreference = 2\nsize = 96\nrounds = 1\n"
SIMULATE = "[labs]\ncount = 2\npatches = 2\nsize = 96\n"
WRONG = "no_such_key = 1\n"
"""Makes a file of settings invalid whatever its other content, for commands that would take long."""

VALUES = (
    "-1",
    "0",
    "1",
    "1e-9",
    "1e300",
    "nan",
    "inf",
    "true",
    "10" * 20,
    '"x"',
    '""',
    "[]",
    "[1, 2]",
    "{}",
    "1979-05-27",
)
WORDS = (
    "",
    " ",
    "-",
    "--",
    "-1",
    "0",
    "1",
    "999999999999999999999",
    "nan",
    "1e400",
    "x" * 300,
    "a/b",
    "../..",
    "\\",
    "ä",
    "🙂",
)
ODD_PATHS = ("", ".", "..", "/proc/", "/dev/null", "/dev/full", "fifo", "loop", "lab", "lab/a.png", "no/such/folder/x")
ENDINGS = ("", ".png", ".tiff", ".safetensors", ".cube", ".json", ".toml", ".svs", ".dcm", ".gz", ".PNG")


@dataclass(frozen=True)
class Case:
    """One command, the damage to its sandbox, and its environment."""

    family: str
    arguments: tuple[str, ...]
    damage: Callable[[Path], None] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    most_bytes: int | None = None
    """Largest file that the command may write, as on a full disk."""

    def __str__(self) -> str:
        """Return the command as a user would type it."""
        shown = " ".join(
            repr(word) if not word.isprintable() or " " in word or not word else word for word in self.arguments
        )
        extra = f" with {self.environment}" if self.environment else ""
        limit = "" if self.most_bytes is None else f" with files of at most {self.most_bytes} bytes"
        return f"bottlegan {shown[:300]}{extra}{limit}"


def make_sandbox(folder: Path) -> None:
    """Fill a folder with one file of each kind that commands read."""
    random = numpy_stream(0, "sandbox")
    for place in ("lab", "truth", "labs/one", "labs/two", "ref"):
        (folder / place).mkdir(parents=True)
        for name in "ab":
            write_image(folder / place / f"{name}.png", random.integers(90, 240, (SIDE, SIDE, 3), dtype=np.uint8))
    write_values(folder / "lab" / "a_mask.png", np.ones((SIDE, SIDE), np.uint8))
    for ending in (".jpg", ".webp", ".tiff"):
        write_image(folder / f"image{ending}", random.integers(90, 240, (SIDE, SIDE, 3), dtype=np.uint8))
    prior = read_weights(PRIOR)
    code = np.zeros(prior.document.model.code_size, np.float32)
    write_weights(prior.without_encoders().with_styles({"one": code, "two": code}), folder / "model.safetensors")
    for name, text in {"train": TRAIN, "demo": DEMO, "simulate": SIMULATE}.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    (folder / "log.jsonl").write_text('{"kind": "a", "previous": "' + "0" * 64 + '"}\n', encoding="utf-8")
    (folder / "table.cube").write_text("LUT_3D_SIZE 2\n" + "0 0 0\n" * 8, encoding="utf-8")
    (folder / "loop").symlink_to("loop")
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "fifo")


def draw_cases(count: int, seed: int = 0, first: int = 0) -> Iterator[Case]:
    """Yield `count` cases, starting at number `first`; the families take turns."""
    makers = (draw_file, draw_path, draw_arguments, draw_settings, draw_environment)
    for index in range(first, first + count):
        yield makers[index % len(makers)](numpy_stream(seed, "fuzz", index))


READERS = (
    ("lab/a.png", ("normalize", "lab/a.png", "out.png")),
    ("lab/a.png", ("normalize", "lab", "out")),
    ("lab/a.png", ("normalize", "lab", "out", "--each")),
    ("lab/a.png", ("evaluate", "lab", "truth", "--json", "out.json")),
    ("lab/a.png", ("onboard", "lab", "--name", "new", "--out", "out.safetensors")),
    ("lab/a.png", ("info", "lab/a.png")),
    ("lab/a_mask.png", ("normalize", "lab", "out")),
    ("image.jpg", ("normalize", "image.jpg", "out.png")),
    ("image.webp", ("normalize", "image.webp", "out.png")),
    ("image.tiff", ("normalize", "image.tiff", "out.png")),
    ("image.tiff", ("info", "image.tiff")),
    ("model.safetensors", ("info", "model.safetensors")),
    ("model.safetensors", ("normalize", "lab", "out", "--model", "model.safetensors", "--style", "one")),
    (
        "model.safetensors",
        ("lut", "--model", "model.safetensors", "--style", "one", "--size", "17", "--out", "out.cube"),
    ),
    ("model.safetensors", ("predict", "model.safetensors", "lab", "out")),
    ("table.cube", ("lut", "--model", "model.safetensors", "--style", "one", "--check", "table.cube")),
    ("log.jsonl", ("audit", "log.jsonl")),
    ("truth/b.png", ("evaluate", "lab", "truth")),
)
"""Files, each with a command that reads it."""


def draw_file(random: Generator) -> Case:
    """Return a command that reads a damaged file."""
    name, arguments = READERS[random.integers(len(READERS))]
    seed = int(random.integers(2**31))
    return Case("files", arguments, lambda folder: damage_file(folder / name, numpy_stream(seed, "damage")))


def damage_file(path: Path, random: Generator) -> None:
    """Change a file in one of many ways."""
    data = bytearray(path.read_bytes())
    place = int(random.integers(len(data)))
    match int(random.integers(9)):
        case 0:
            data = data[:place]
        case 1:
            data[place : place + 8] = bytes(8)
        case 2:
            data[place : place + 4] = b"\xff\xff\xff\xff"
        case 3:
            data[place:place] = random.bytes(16)
        case 4:
            for k in random.integers(len(data), size=20):
                data[k] ^= 1 << int(random.integers(8))
        case 5:
            data = bytearray(random.bytes(len(data)))
        case 6:
            data = bytearray()
        case 7:
            data = data[: max(8, place // 8)] + data[-max(8, place // 8) :]
        case _:
            path.unlink()
            replace_file(path, int(random.integers(4)))
            return
    path.write_bytes(data)


def replace_file(path: Path, kind: int) -> None:
    """Replace a file by something that is not a file."""
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        path.symlink_to(path.name)
    elif kind == 2 and hasattr(os, "mkfifo"):
        os.mkfifo(path)
    elif kind == 3:
        path.symlink_to("/dev/zero")


WRITERS = (
    ("normalize", "lab/a.png"),
    ("normalize", "lab"),
    ("normalize", "lab", "--style", "one", "--model", "model.safetensors"),
    ("restain", "lab", "--style", "one", "--model", "model.safetensors"),
    ("evaluate", "lab", "truth", "--json"),
    ("onboard", "lab", "--name", "new", "--out"),
    ("lut", "--model", "model.safetensors", "--style", "one", "--size", "17", "--out"),
    ("export", "--model", "model.safetensors", "--style", "one", "--qupath"),
    ("synth", "lab", "--patches", "1", "--size", "64"),
    ("demo", "--set", "no_such_key=1", "--out"),
    ("drift", "labs", "--style", "one", "--out"),
    ("reproduce", "table2", "--out"),
    ("deploy", "init", "--host", "localhost", "--set", "no_such_key=1"),
    ("exchange", "init", "--server"),
)
"""Commands that lack only the path to write to."""


def draw_path(random: Generator) -> Case:
    """Return a command with an odd path to write to, or to read from."""
    path = draw_odd_path(random)
    if random.random() < 0.7:
        return Case("paths", (*WRITERS[random.integers(len(WRITERS))], path))
    command = ("normalize", "onboard", "info", "audit", "evaluate", "remove", "drift", "train", "simulate", "predict")
    more = {
        "normalize": ("out.png",),
        "onboard": ("--name", "n", "--out", "out.safetensors"),
        "evaluate": ("truth",),
        "remove": ("lab",),
        "drift": ("--style", "one", "--out", "out"),
        "train": ("--reference", "ref", "--config", "train.toml", "--out", "out.safetensors"),
        "simulate": ("--out", "out", "--set", "no_such_key=1"),
        "predict": ("lab", "out"),
    }
    name = command[random.integers(len(command))]
    return Case("paths", (name, path, *more.get(name, ())))


def draw_odd_path(random: Generator) -> str:
    """Return a path that somebody might type by mistake or on purpose."""
    kind = int(random.integers(5))
    if kind == 0:
        return "".join(
            random.choice(list(string.printable + "äß🙂"), size=int(random.integers(1, 20))).tolist()
        ).replace("\0", "")
    if kind == 1:
        return "n" * int(random.choice([200, 250, 256, 300, 5000])) + str(random.choice(ENDINGS))
    return str(random.choice(ODD_PATHS)) + str(random.choice(ENDINGS))


OPTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "normalize": (
        ("lab", "out"),
        ("--model", "--style", "--to", "--like", "--seed", "--level", "--region", "--quality", "--format", "--workers"),
    ),
    "restain": (("lab", "out"), ("--model", "--style", "--level", "--region", "--quality", "--format")),
    "onboard": (("lab",), ("--name", "--out", "--model", "--seed")),
    "lut": ((), ("--style", "--model", "--direction", "--size", "--out", "--check")),
    "export": ((), ("--style", "--model", "--direction", "--onnx", "--qupath")),
    "evaluate": (("lab", "truth"), ("--json", "--inception")),
    "drift": (("labs",), ("--style", "--out", "--model", "--baseline")),
    "info": (("lab/a.png",), ("--level",)),
    "audit": (("log.jsonl",), ("--head",)),
    "predict": (("model.safetensors", "lab", "out"), ("--model", "--style", "--level", "--seed", "--allow")),
    "synth": (("slide", "out.png"), ("--size", "--seed", "--style-seed", "--quality")),
    "train": (
        ("labs", "--reference", "nowhere"),
        ("--out", "--preset", "--config", "--seed", "--device", "--steps", "--set"),
    ),
    "train-prior": (("--set", "no_such_key=1"), ("--out", "--config", "--seed")),
    "demo": (("--set", "no_such_key=1"), ("--out", "--config", "--seed")),
    "reproduce": (("table1", "--data", "nowhere"), ("--out", "--seed", "--jobs", "--scale-x")),
    "simulate": (("simulate.toml", "--set", "no_such_key=1"), ("--out", "--engine")),
    "exchange": (("status",), ("--name",)),
    "no-such-command": ((), ("--out",)),
}
"""Commands with their arguments, and the options that get odd values. Slow commands always lack something."""


def draw_arguments(random: Generator) -> Case:
    """Return a command with odd values for some of its options."""
    name = str(random.choice(list(OPTIONS)))
    first, options = OPTIONS[name]
    chosen = random.choice(options, size=int(random.integers(1, min(4, len(options)) + 1)), replace=False)
    pool = (*WORDS, *ODD_PATHS, "lab", "one", "model.safetensors", "train.toml", "out.cube", "0,0,9,9", "normalize")
    words = [word for option in chosen.tolist() for word in (option, pool[random.integers(len(pool))])]
    if random.random() < 0.2:
        words.append(pool[random.integers(len(pool))])
    return Case("arguments", (name, *first, *words))


def draw_settings(random: Generator) -> Case:
    """Return a command that reads settings. One value, or the whole file, is odd."""
    name = ("train", "demo", "simulate")[random.integers(3)]
    text = {"train": TRAIN, "demo": DEMO, "simulate": SIMULATE}[name]
    lines = text.splitlines()
    keys = [k for k, line in enumerate(lines) if "=" in line]
    value = VALUES[random.integers(len(VALUES))]
    row = keys[random.integers(len(keys))]
    lines[row] = f"{lines[row].split('=')[0]}= {value}"
    match int(random.integers(6)):
        case 0:
            text = "\n".join([*lines, lines[row]])
        case 1:
            text = "a = " + "[" * 3000 + "]" * 3000
        case 2:
            text = random.bytes(60).decode("latin-1")
        case 3:
            text = "\ufeff" + "\n".join(lines)
        case _:
            text = "\n".join(lines)
    if name != "train" or random.random() < 0.5:
        text = f"{WRONG}{text}" if random.random() < 0.5 or name != "train" else text
    out = {
        "train": ("labs", "--reference", "ref", "--out", "out.safetensors"),
        "demo": ("--out", "out"),
        "simulate": ("--out", "out"),
    }
    file = f"{name}.toml"
    arguments = (name, file, *out[name]) if name == "simulate" else (name, "--config", file, *out[name])
    if random.random() < 0.3:
        key = lines[row].split("=")[0].strip()
        arguments = (
            *arguments,
            "--set",
            str(random.choice([f"{key}={value}", key, "=", f"{key}.x=1", f"model.{key}={value}"])),
        )
    return Case("settings", arguments, lambda folder: _write(folder / file, text))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="replace")


QUICK = (
    ("normalize", "lab", "out"),
    ("normalize", "lab/a.png", "out.png", "--style", "one", "--model", "model.safetensors"),
    ("evaluate", "lab", "truth", "--json", "out.json"),
    ("onboard", "lab", "--name", "new", "--out", "out.safetensors", "--force"),
    ("lut", "--model", "model.safetensors", "--style", "one", "--size", "17", "--out", "out.cube"),
    ("info", "model.safetensors"),
    ("audit", "log.jsonl"),
    ("normalize", "--help"),
    ("reproduce", "table2", "--out", "out"),
    ("synth", "lab", "out", "--patches", "1", "--size", "64"),
)
ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {"PYTHONIOENCODING": "latin-1"},
    {"PYTHONIOENCODING": "ascii"},
    {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"},
    {"COLUMNS": "1"},
    {"COLUMNS": "0"},
    {"COLUMNS": "many"},
    {"COLUMNS": "1000000"},
    {"TERM": "dumb"},
    {"TERM": ""},
    {"FORCE_COLOR": "1"},
    {"NO_COLOR": "1"},
    {"HOME": "/no/such/folder"},
    {"TMPDIR": "/no/such/folder"},
    {"BOTTLEGAN_PESO": "/no/such/folder"},
    {"BOTTLEGAN_PESO": ""},
    {"PATH": ""},
)


def draw_environment(random: Generator) -> Case:
    """Return an ordinary command in a strange environment, or on a full disk."""
    arguments = QUICK[random.integers(len(QUICK))]
    if random.random() < 0.4:
        return Case("environment", arguments, most_bytes=int(random.choice([2000, 5000, 20_000])))
    chosen = random.choice(len(ENVIRONMENTS), size=2, replace=False)
    return Case("environment", arguments, environment=ENVIRONMENTS[chosen[0]] | ENVIRONMENTS[chosen[1]])


def copy_sandbox(source: Path, target: Path) -> None:
    """Copy a sandbox with its links and pipes."""
    target.mkdir()
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_symlink():
            place.symlink_to(path.readlink())
        elif path.is_dir():
            place.mkdir()
        elif path.is_file():
            shutil.copyfile(path, place)
        elif hasattr(os, "mkfifo"):
            os.mkfifo(place)
