"""A call of `bottlegan view`: its slides, and the target stains."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, NamedTuple

from bottlegan.colormap.table import Convert
from bottlegan.core.errors import InputError, MissingError
from bottlegan.imaging.files import FORMATS, MASK_ENDING, Pixels
from bottlegan.models.document import PRIOR
from bottlegan.models.weights import ModelWeights, read_weights
from bottlegan.normalize.choice import MapChoice, aim, fit_target, need_color_map
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.slides.reader import SLIDES, Slide, list_files
from bottlegan.viewer.pyramid import Shelf
from bottlegan.viewer.shown import ShownSlide

if TYPE_CHECKING:
    from bottlegan.viewer.prediction import SlideNetwork

REFERENCE, LIKE, STYLE, SLIDE = "reference", "like", "style", "slide"
PATIENCE = 2.0
"""Seconds that fits wait for the first tile to be shown."""
MAPS = 6
"""Number of maps to keep; each may grow to 64 MB."""


@dataclass(frozen=True)
class Settings:
    """The options of the command line."""

    model: Path = PRIOR
    style: str | None = None
    """Style of the slides, if the model knows it. Otherwise it is fitted to each."""
    like: Path | None = None
    """Images of a lab whose style is a target."""
    network: Path | None = None
    """Network whose predictions are shown."""
    allowed: tuple[str, ...] = ()
    """Custom network factories that may run."""
    folder: Path = field(default_factory=Path.cwd)
    """Folder where whole slides are written."""


class Target(NamedTuple):
    """A stain that slides can be brought to."""

    key: str
    label: str


class Session:
    """Open slides and their maps. Safe to use from any number of threads."""

    def __init__(
        self,
        slides: Sequence[ShownSlide],
        settings: Settings,
        model: ModelWeights,
        network: "SlideNetwork | None" = None,
    ) -> None:
        """Show these slides and, if there is a network, its predictions."""
        self.slides, self.settings, self.model, self.network = slides, settings, model, network
        self.looked_at = Event()
        """Whether the first tile was shown."""
        self._lock, self._like_lock = Lock(), Lock()
        self._like: Normalizer | None = None
        self._make = lru_cache(maxsize=MAPS)(self._make_map)

    def list_targets(self) -> list[Target]:
        """Return the target stains: the reference, the labs that the model knows, and the other slides."""
        targets = [Target(REFERENCE, "Reference stain")]
        if self.settings.like is not None:
            targets.append(Target(LIKE, f"Like {self.settings.like.name}"))
        targets += [Target(f"{STYLE}:{name}", name) for name in self.model.document.styles]
        if len(self.slides) > 1:
            targets += [Target(f"{SLIDE}:{i}", f"Like {slide.path.name}") for i, slide in enumerate(self.slides)]
        return targets

    def find_map(self, number: int, target: str, *, forced: bool = False) -> Convert:
        """Return the map of a slide's colors to a target."""
        with self._lock:  # made only once
            return self._make(number, target, forced)

    def draw_after(self, number: int, target: str, *, forced: bool = False) -> Pixels:
        """Return a small picture of a whole slide, mapped to a target, without keeping a table of its colors."""
        slide = self.slides[number]
        return self._aim(slide.normalizer(forced=forced, remembers=False), target)(slide.draw_thumbnail())

    def choose(self, target: str, *, forced: bool = False) -> MapChoice:
        """Return the command line's choice of a map for a target, for writing a whole slide."""
        settings, (kind, _, name) = self.settings, target.partition(":")
        to = name if kind == STYLE else None
        like = self.slides[self._find(name)].path if kind == SLIDE else settings.like if kind == LIKE else None
        return MapChoice(settings.model, settings.style, to, like=like, force=forced)

    def _make_map(self, number: int, target: str, forced: bool) -> Convert:
        return self._aim(self.slides[number].normalizer(forced=forced), target)

    def _aim(self, normalizer: Normalizer, target: str) -> Convert:
        kind, _, name = target.partition(":")
        match kind:
            case "reference":
                return aim(normalizer, None, None)
            case "like" if self.settings.like is not None:
                return aim(normalizer, self._fit_like(self.settings.like), None)
            case "style":
                return aim(normalizer, None, Normalizer.load(self.settings.model, name))
            case "slide":
                return aim(normalizer, self.slides[self._find(name)].normalizer(), None)
        raise InputError(f"there is no target stain {target}")

    def _fit_like(self, like: Path) -> Normalizer:
        with self._like_lock:
            self._like = self._like or fit_target(like, self.model, 0)
            return self._like

    def _find(self, name: str) -> int:
        if not name.isdecimal() or int(name) >= len(self.slides):
            raise InputError(f"there is no slide {name}")
        return int(name)


@contextmanager
def open_session(sources: Sequence[Path], settings: Settings) -> Iterator[Session]:
    """Open slides, images as slides, or folders of either, and start fitting a style to each."""
    need_color_map(MapChoice(settings.model))
    model, shelf = read_weights(settings.model), Shelf()
    normalizer = None if settings.style is None else Normalizer.load(settings.model, settings.style)

    def fit(slide: Slide) -> Normalizer:
        return normalizer or Normalizer.fit(slide, model=model)

    paths = [path for source in sources for path in (list_shown(source) if source.is_dir() else [source])]
    slides = [ShownSlide(path, shelf, fit) for path in paths]
    for slide in slides:
        if slide.path in sources:  # a named slide must open; for those of a folder, the page reports failures
            _ = slide.pyramid
    with ThreadPoolExecutor(1, "fit") as pool, ExitStack() as stack:
        stack.callback(shelf.close)
        stack.callback(pool.shutdown, cancel_futures=True)
        session = Session(slides, settings, model, _open_network(settings))
        pool.submit(slides[0].draw_picture)  # while the browser opens the page
        pool.submit(session.looked_at.wait, PATIENCE)  # the first pixels have priority
        for slide in slides:
            pool.submit(lambda shown: shown.finding, slide)
        yield session
        session.looked_at.set()


def _open_network(settings: Settings) -> "SlideNetwork | None":
    if settings.network is None:
        return None
    from bottlegan.viewer.prediction import SlideNetwork  # noqa: PLC0415 - torch, which slides alone do not need

    return SlideNetwork(settings.network, settings.allowed)


def list_shown(folder: Path) -> list[Path]:
    """Return the slides and images in a folder, by name, without masks."""
    images = [file for file in list_files(folder) if file.suffix.lower() in SLIDES | set(FORMATS)]
    shown = [file for file in images if not file.stem.endswith(MASK_ENDING)]
    if not shown:
        raise MissingError(f"{folder}: holds no slide and no image; give a folder of either, or of a run")
    return shown
