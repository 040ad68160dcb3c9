"""Hostile files: mangled files of every kind, and small files that claim huge contents."""

import json
import multiprocessing
import resource
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from bottlegan.bench.attacks.replies import mangle
from bottlegan.bench.attacks.row import Row
from bottlegan.bench.attacks.world import draw_small_world
from bottlegan.core.config import load, to_toml, to_values
from bottlegan.core.errors import BottleGANError
from bottlegan.core.progress import Progress
from bottlegan.core.task import Task
from bottlegan.federated.client.holdings import LabConfig
from bottlegan.federated.protocol.phase2 import initial_weights
from bottlegan.federated.server.config import FederationConfig
from bottlegan.imaging.files import read_image, read_values, write_image
from bottlegan.models.document import NETWORK_KEY, PRIOR
from bottlegan.models.network_file import NetworkDocument, digest_weights, load_network, save_network
from bottlegan.models.networks import NetworkConfig
from bottlegan.models.weights import read_weights

SECONDS, MEGABYTES = 20, 1000
"""Longest time and most memory to read a file."""
SIDE = 12_000
"""Side in pixels of an image of a few hundred kilobytes."""

READERS: Mapping[str, Callable[[Path], object]] = {
    "network.safetensors": load_network,
    "model.safetensors": read_weights,
    "federation.toml": lambda path: load(FederationConfig, path),
    "lab.toml": lambda path: load(LabConfig, path),
    "image.png": read_image,
    "image.jpg": read_image,
    "image.tif": read_image,
    "mask.png": read_values,
}


def read_hostile_files(folder: Path, progress: Progress, count: int = 800) -> list[Row]:
    """Return the effect of hostile files on a process that reads them: tracebacks, hangs, memory."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_read_all, args=(folder, count, theirs))
    process.start()
    theirs.close()
    rows = []
    for label in progress.track(("mangled files", "files that claim too much"), "hostile files", 2):
        try:
            read, failures, megabytes = ours.recv()
        except EOFError:
            read, failures, megabytes = 0, ["the process died"], 0.0
        held = not failures and megabytes < MEGABYTES
        first = f", such as {failures[0]}" if failures else ""
        result = f"{len(failures)} of {read} end in a traceback or hang{first}; {megabytes:.0f} MB at most"
        rows.append(Row("files", label, held, result))
    process.join()
    return rows


def _read_all(folder: Path, count: int, answer: "multiprocessing.connection.Connection") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGALRM, _give_up)
    for files in (list_mangled(folder, count), list_claiming(folder)):
        read, failures = 0, []
        for path, reader in files:
            read += 1
            if failure := _try(path, reader):
                failures.append(failure)
        answer.send((read, failures, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def _try(path: Path, reader: Callable[[Path], object]) -> str | None:
    """Return how reading a file fails, unless it fails with one of our errors in one line."""
    signal.alarm(SECONDS)
    try:
        reader(path)
    except BottleGANError as error:
        return f"{path.name}: several lines" if "\n" in str(error) else None
    except BaseException as error:
        return f"{path.name}: {type(error).__name__}"
    finally:
        signal.alarm(0)
    return None


def _give_up(signal_number: int, frame: object) -> None:
    raise TimeoutError


def list_mangled(folder: Path, count: int) -> Iterator[tuple[Path, Callable[[Path], object]]]:
    """Yield `count` files of every kind with changed, missing or added bytes, each with its reader."""
    write_good_files(folder)
    random, names = np.random.default_rng(0), list(READERS)
    contents = {name: (folder / name).read_bytes() for name in names}
    for number in range(count):
        name = names[number % len(names)]
        path = folder / f"mangled-{name}"
        path.write_bytes(mangle(contents[name], random))
        yield path, READERS[name]


def list_claiming(folder: Path) -> Iterator[tuple[Path, Callable[[Path], object]]]:
    """Yield small files that would become large, deep or endless, each with its reader."""
    for name in ("bomb.png", "bomb.tif"):
        Image.new("RGBA", (SIDE, SIDE), (200, 100, 150, 128)).save(folder / name, compression="tiff_deflate")
        yield folder / name, read_image
        yield folder / name, read_values
    texts = {
        "deep.toml": "a = " + "[" * 50_000 + "]" * 50_000,
        "dotted.toml": "[" + ".".join("a" * 5000) + "]",
        "deep.json": "[" * 100_000 + "]" * 100_000,
        "digits.toml": "seed = " + "9" * 100_000,
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        yield folder / name, READERS["federation.toml"]
    for arguments in ({"width": 4096}, {"width": 100_000, "depth": 6}, {"width": 64, "classes": 10**9}):
        write_claiming_network(folder / "claims.safetensors", arguments)
        yield folder / "claims.safetensors", load_network


def write_good_files(folder: Path) -> None:
    """Write one valid file of each kind."""
    world = draw_small_world()
    patch = world.labs[0].test[0]
    document = NetworkDocument(
        task=Task(), network=world.phase2.network, crop=32, mode="plain", scores={}, weights="0" * 64, record={}
    )
    save_network(folder / "network.safetensors", initial_weights(world.phase2, 0), document)
    (folder / "model.safetensors").write_bytes(PRIOR.read_bytes())
    (folder / "federation.toml").write_text(to_toml(FederationConfig()))
    (folder / "lab.toml").write_text(to_toml(LabConfig(images=(Path("images"),))))
    for name in ("image.png", "image.jpg", "image.tif"):
        write_image(folder / name, patch.image)
    write_image(folder / "mask.png", np.repeat(patch.truth[..., None], 3, axis=2))


def write_claiming_network(path: Path, arguments: dict[str, int]) -> None:
    """Write a network of one kilobyte whose document claims a huge network."""
    weights = {"head.bias": torch.zeros(4)}
    claims = NetworkDocument(
        task=Task(),
        network=NetworkConfig(arguments=dict(arguments)),
        crop=4096,
        mode="plain",
        scores={},
        weights=digest_weights(weights),
        record={},
    )
    path.write_bytes(save(weights, {NETWORK_KEY: json.dumps(to_values(claims))}))
