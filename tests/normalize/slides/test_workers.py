"""Folders of slides in several real processes, which are started, killed and interrupted."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PosixPath
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from bottlegan.cli.main import app
from bottlegan.core.errors import InputError, MissingError
from bottlegan.core.progress import Item, Silent, Unit
from bottlegan.imaging.files import Pixels, write_image
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.config import GeneratorConfig, ModelConfig
from bottlegan.models.files import save_model
from bottlegan.models.paradigms import build_model
from bottlegan.normalize.choice import MapChoice
from bottlegan.normalize.slides.folder import Outcome, Pair, describe_request, map_slide_folder
from bottlegan.normalize.slides.one import SlideOptions
from bottlegan.normalize.slides.ray import run_on_ray
from bottlegan.normalize.slides.workers import TRIES, run_in_processes
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES

tifffile = pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
pytest.importorskip("simplejpeg", reason="needs pip install 'bottlegan[slides]'")
BOTTLEGAN = Path(sys.executable).parent / "bottlegan"
SECONDS = 120.0
"""Longest wait on a busy machine."""


class Watching(Silent):
    """Counts tracked items, and the processes that run meanwhile."""

    def __init__(self) -> None:
        self.tracked: list[tuple[str, int | None]] = []
        self.items = self.most = 0

    def track(
        self, items: Iterable[Item], label: str, total: int | None = None, unit: Unit | None = None
    ) -> Iterator[Item]:
        self.tracked.append((label, total))
        for item in items:
            self.items += 1
            self.most = max(self.most, len(multiprocessing.active_children()))
            yield item


class Deadly(PosixPath):
    """A slide that kills the processes that get it, as the system does when memory runs out."""

    deaths: int
    sent: int

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Any, ...]]:
        self.sent += 1
        return (signal.raise_signal, (signal.SIGKILL,)) if self.sent <= self.deaths else (Path, (str(self),))


def deadly(path: Path, deaths: int) -> Deadly:
    slide = Deadly(path)
    slide.deaths, slide.sent = deaths, 0
    return slide


def write(path: Path, levels: Pixels) -> Path:
    with tifffile.TiffWriter(path) as file:
        form = {"tile": (128, 128), "photometric": "rgb", "metadata": None, "compression": "jpeg"}
        file.write(levels, **form)
        file.write(levels[::2, ::2], subfiletype=1, **form)
    return path


def spoil(path: Path) -> None:
    """Make one tile unreadable."""
    with tifffile.TiffFile(path) as file:
        offset, length = file.pages[0].dataoffsets[1], file.pages[0].databytecounts[1]
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\x55" * length)


@pytest.fixture(scope="module")
def choice(tmp_path_factory: pytest.TempPathFactory) -> MapChoice:
    random = torch.Generator().manual_seed(0)
    model = build_model(ModelConfig(code_size=3, generator=GeneratorConfig(width=4, depth=1, mapping=3)), "ab", random)
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_model(model, path)
    return MapChoice(path, "a")


@pytest.fixture(scope="module")
def slides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of four slides: one is not a slide, and one has an unreadable tile."""
    folder = tmp_path_factory.mktemp("slides")
    for index, name in enumerate("acd"):
        tissue = draw_tissue(4, index, 300).concentration[None]
        write(folder / f"{name}.tiff", from_batch(render(tissue, LABORATORIES[index]))[0])
    spoil(folder / "c.tiff")
    (folder / "b.svs").write_text("no slide")
    return folder


@pytest.fixture(scope="module")
def alone(slides: Path, choice: MapChoice, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Outcome]]:
    """The results of one process."""
    target = tmp_path_factory.mktemp("alone")
    return target, map_slide_folder(slides, target, choice, SlideOptions())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def told(outcome: Outcome) -> tuple[object, ...]:
    """The part of a result that does not depend on the run."""
    broken = [] if outcome.result is None else outcome.result.broken
    return outcome.source, outcome.state, outcome.error, [(part.region, str(part.error)) for part in broken]


def test_two_processes_do_what_one_does_and_skip_what_is_done(
    slides: Path, choice: MapChoice, alone: tuple[Path, list[Outcome]], tmp_path: Path
) -> None:
    progress = Watching()
    done = (alone[0] / "a.tiff").read_bytes()
    (tmp_path / "a.tiff").write_bytes(done)
    outcomes = map_slide_folder(slides, tmp_path, choice, SlideOptions(), run=run_in_processes(2), progress=progress)
    assert contents(tmp_path) == contents(alone[0])
    assert [each.state for each in outcomes] == ["was there", "failed", "written", "written"]
    assert [told(each) for each in outcomes[1:]] == [told(each) for each in alone[1][1:]]
    assert len(outcomes[2].result.broken) == 1  # type: ignore[union-attr]
    assert progress.tracked == [("slides", 4)]
    assert (progress.items, progress.most) == (4, 2)
    assert not multiprocessing.active_children()


def test_a_worker_that_dies_takes_one_slide_with_it_at_most(
    slides: Path, choice: MapChoice, alone: tuple[Path, list[Outcome]], tmp_path: Path
) -> None:
    always, once = deadly(slides / "a.tiff", TRIES), deadly(slides / "c.tiff", 1)
    pairs = [Pair(path, tmp_path / path.name) for path in (always, once, slides / "d.tiff")]
    options = SlideOptions(request=describe_request(choice, SlideOptions()))
    outcomes = {each.source.name: each for each in run_in_processes(2)(pairs, choice, options, Silent())}
    assert {name: each.state for name, each in outcomes.items()} == {
        "a.tiff": "failed",
        "c.tiff": "written",
        "d.tiff": "written",
    }
    assert outcomes["a.tiff"].error.startswith(f"{slides / 'a.tiff'}: all 2 workers that tried it died")
    assert "\n" not in outcomes["a.tiff"].error
    assert (always.sent, once.sent) == (2, 2)
    expected = contents(alone[0])
    del expected["a.tiff"]
    assert contents(tmp_path) == expected


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two slides that take seconds."""
    folder = tmp_path_factory.mktemp("large")
    noise = np.random.default_rng(0).integers(0, 256, (512, 512, 3), dtype=np.uint8)
    write(folder / "a.tiff", np.tile(noise, (12, 12, 1)))
    (folder / "b.tiff").symlink_to(folder / "a.tiff")
    return folder


@pytest.mark.parametrize("end", ["interrupted early", "interrupted", "killed"])
def test_a_run_that_ends_early_leaves_no_process_and_no_file(
    large: Path, choice: MapChoice, tmp_path: Path, end: str
) -> None:
    """By Ctrl-C, which a terminal sends to all processes, or by a signal that kills only the first process."""
    target = tmp_path / "out"
    words = [BOTTLEGAN, "normalize", large, target, "--model", choice.model, "--style", "a", "--workers", "2"]

    def heed() -> None:  # shells start background jobs with Ctrl-C ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    first = subprocess.Popen(words, **pipes, text=True, start_new_session=True, preexec_fn=heed)  # noqa: PLW1509
    try:
        wait_for("the folder", target.is_dir)
        if end == "interrupted early":
            time.sleep(1)  # its processes exist, and import their modules
        else:
            wait_for("a slide", lambda: any(target.iterdir()))
        if end == "killed":
            first.kill()
        else:
            os.killpg(first.pid, signal.SIGINT)
        said, _ = first.communicate(timeout=SECONDS)
        wait_for("the workers to end", lambda: not is_there(first.pid))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGKILL)
    assert first.returncode != 0, said
    assert "Traceback" not in said
    assert not list(target.iterdir())


def wait_for(what: str, happened: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < end, f"waited too long for {what}"
        time.sleep(0.02)


def is_there(group: int) -> bool:
    """Whether any process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


FIT = """
import sys
from bottlegan.normalize.normalizer import Normalizer
print(Normalizer.fit(sys.argv[1]).code.tolist())
"""


def test_what_is_fitted_does_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    image = from_batch(render(draw_tissue(4, 0, 512).concentration[None], LABORATORIES[5]))[0]
    write_image(tmp_path / "tissue.png", image)
    codes = []
    for threads in ("1", "2"):
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        words = [sys.executable, "-c", FIT, str(tmp_path / "tissue.png")]
        codes.append(json.loads(subprocess.run(words, env=environment, capture_output=True, check=True).stdout))
    np.testing.assert_allclose(*codes, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("a.tiff", ("--workers", "2"), "a.tiff: is not a folder; leave out --workers"),
        ("a.tiff", ("--ray", "auto"), "a.tiff: is not a folder; leave out --workers"),
        ("", ("--workers", "2", "--ray", "auto"), "give one of them"),
        ("", ("--workers", "2", "--style", "c"), "no style called c; known are: a, b"),
        ("", ("--ray", "127.0.0.1:1"), "127.0.0.1:1: there is no usable Ray cluster"),
        ("", ("--ray", "nonsense"), "start one with `ray start --head`"),
    ],
)
@pytest.mark.parametrize("command", ["normalize", "restain"])
def test_what_cannot_be_run_is_refused_in_one_line(
    slides: Path, choice: MapChoice, tmp_path: Path, command: str, source: str, options: tuple[str, ...], message: str
) -> None:
    words = [command, slides / source, tmp_path / "out.tiff", "--model", choice.model, "--style", "a", *options]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not (tmp_path / "out.tiff").is_file()


def test_without_ray_it_is_said_how_to_install_it(
    slides: Path, choice: MapChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingError, match=r"pip install 'bottlegan\[federated\]'"):
        map_slide_folder(slides, tmp_path, choice, SlideOptions(), run=run_on_ray("auto"))


CLUSTER = """
import sys, ray
from ray.cluster_utils import Cluster
share = {"num_cpus": 1, "object_store_memory": 80_000_000}
# Not 127.0.0.1, of which Ray makes the machine's own address.
cluster = Cluster(True, head_node_args={**share, "node_ip_address": "127.0.0.2", "include_dashboard": False})
cluster.add_node(**share, node_ip_address="127.0.0.3")
print(cluster.address, flush=True)
sys.stdin.readline()
ray.init(cluster.address, log_to_driver=False)
print(sum(node["Alive"] for node in ray.nodes()))
print(*sorted({each["pid"] for each in ray.timeline() if "map_in_worker" in each["name"]}), sep=", ", flush=True)
ray.shutdown()
cluster.shutdown()
"""
"""A cluster of two nodes. When it ends, it reports how many are left, and which of them mapped slides."""


@pytest.mark.slow
def test_two_nodes_of_a_ray_cluster_do_what_one_process_does(
    slides: Path, choice: MapChoice, alone: tuple[Path, list[Outcome]], tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="needs pip install 'bottlegan[federated]'")
    # It holds sockets, whose names must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as temporary:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": temporary,
            "RAY_task_events_report_interval_ms": "50",  # otherwise a worker's last report may be lost
        }
        cluster = subprocess.Popen(
            [sys.executable, "-c", CLUSTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )
        try:
            address = cluster.stdout.readline().strip()  # type: ignore[union-attr]
            words = [BOTTLEGAN, "normalize", slides.name, tmp_path, "--model", choice.model, "--style", "a"]
            done = subprocess.run(
                [*words, "--ray", address],
                cwd=slides.parent,
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            said, _ = cluster.communicate("end\n", timeout=SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(cluster.pid, signal.SIGKILL)
            cluster.wait(10)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "b.svs   failed" in done.stdout
    assert "3 of 4 slides are in" in done.stdout
    assert contents(tmp_path) == contents(alone[0])
    alive, took_part = said.splitlines()
    assert alive == "2"
    assert took_part in ("127.0.0.2", "127.0.0.3", "127.0.0.2, 127.0.0.3")  # a late node may find all work done
