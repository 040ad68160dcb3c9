"""A lab's half of the federation: what it answers to each request, out of its own files. Free of any network code.

Nothing is kept between two requests but in the lab's state folder, because in a deployment each request starts a new
process. What leaves the lab is a `Reply`: weights, a style, sums and counts.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from bottlegan.config import Document, document, load, parse, to_json
from bottlegan.data.lab import read_lab
from bottlegan.data.patches import list_patches
from bottlegan.errors import FederationError, InputError
from bottlegan.federated.exchange import Reply, Request
from bottlegan.federated.own_layers import OwnLayers
from bottlegan.federated.phase1 import Phase1Config, contribute
from bottlegan.federated.phase2 import Lab, Phase2Config, score_lab, stain_with, train_round
from bottlegan.files import make_folder, replacing, write_text
from bottlegan.imaging.files import Levels
from bottlegan.models.files import load_model
from bottlegan.models.paradigms import BottleGAN
from bottlegan.onboarding.verdict import Verdict
from bottlegan.progress import EventLog, Json
from bottlegan.training.segmentation import Labeled

LABELED, UNLABELED, TEST, VERDICT = "labeled", "unlabeled", "test", "verdict"
"""Numbers in a reply: how many images there are of each kind, and which of VERDICTS is that on the lab's style."""
VERDICTS = tuple(Verdict)

Setting = TypeVar("Setting", bool, int, float, str)


@document
class LabConfig:
    """Where a lab's files are. Paths are relative to the folder of this document, which never leaves the lab."""

    images: tuple[Path, ...]
    """Image files, folders or slides, for the lab's style and FixMatch; at most 32 images of them are read."""
    labeled: Path | None = None
    """Folder of patches to train on, with their masks beside them."""
    test: Path | None = None
    """Folder of patches to score on, with their masks beside them."""
    reference: Path | None = None
    """Folder with the public reference set, which upload = "generators" needs."""
    state: Path = Path("state")
    """Folder for what the lab keeps from one request to the next."""


@document
class Membership:
    """What a lab is called in the federation that it takes part in."""

    client: str
    style: str = ""
    """Its style in the model that it was given; empty before that."""


def open_client(path: Path) -> "Client":
    """Return the client of the lab whose configuration is in the TOML file `path`."""
    return Client(load(LabConfig, path), path.parent)


class Client:
    """One lab."""

    def __init__(self, config: LabConfig, folder: Path) -> None:
        """Take the configuration, and the folder that its paths are relative to."""
        self.config, self.folder = config, folder
        self.state = folder / config.state
        make_folder(self.state)
        self.layers = OwnLayers(self.state / "own_layers.safetensors")
        self._opened: tuple[object, Lab] | None = None

    def answer(self, request: Request) -> Reply:
        """Return what the server asks for, or raise a `FederationError` that tells nothing of the lab's files.

        What went wrong in full, and what was sent to whom, is in `lab.jsonl` in the state folder.
        """
        try:
            reply = self._answer(request)
            sizes: dict[str, Json] = {name: tensor.nbytes for name, tensor in reply.arrays.items()}
            self._record("reply", request=request.kind, bytes=sizes, numbers=dict(reply.numbers))
        except Exception as error:
            # Its text may name a patient's file.
            self._record("failure", request=request.kind, error=type(error).__name__, text=str(error))
            failure = FederationError(f"{request.kind} ended with {type(error).__name__}; the lab's own log says why")
        else:
            return reply
        # Outside of the handler, so that the error is not its context either.
        raise failure

    def _answer(self, request: Request) -> Reply:
        match request.kind:
            case "join":
                return self.join(request)
            case "contribute":
                return self.contribute(request)
            case "styles":
                return self.take_styles(request)
            case "train":
                return self.train(request)
            case "evaluate":
                return self.evaluate(request)

    def join(self, request: Request) -> Reply:
        """Begin anew under the name that the server gives; reading all images, see that they can be read."""
        write_text(self._membership, to_json(Membership(client=_get(request, "client", str))))
        self.layers.forget()
        counts = {LABELED: self.read_labeled(self.config.labeled), TEST: self.read_labeled(self.config.test)}
        return Reply(numbers={**{name: len(found) for name, found in counts.items()}, UNLABELED: len(self.read())})

    def contribute(self, request: Request) -> Reply:
        """Return what the server needs to know of the lab's style."""
        config = _read(request, Phase1Config)
        public = self.config.reference
        reference_set = None if public is None else [p.read_image() for p in list_patches(self.folder / public)]
        with EventLog(self._log) as log:
            found = contribute(
                self.read(),
                config,
                reference_set=reference_set,
                prior=None,
                seed=_get(request, "seed", int),
                progress=log,
            )
        return Reply(found.arrays, {VERDICT: VERDICTS.index(Verdict(found.verdict))})

    def take_styles(self, request: Request) -> Reply:
        """Keep the global BottleGAN, if it is a whole one that knows the lab's style."""
        style = _get(request, "style", str)
        membership = load(Membership, self._membership)
        with replacing(self._styles) as temporary:
            temporary.write_bytes(request.arrays["model"].numpy().tobytes())
            load_model(temporary).codes.index(style)
        write_text(self._membership, to_json(Membership(client=membership.client, style=style)))
        return Reply()

    def train(self, request: Request) -> Reply:
        """Return the weights after the lab's steps of a round."""
        config, number = _read(request, Phase2Config), _get(request, "round", int)
        lab = self.open_lab(config)
        own = self.layers.before(number) if config.local_normalization else {}
        lab.own_layers = own
        trained = train_round(lab, request.arrays, config, number, _get(request, "seed", int))
        if config.local_normalization:
            self.layers.save(number, own, lab.own_layers)
        return Reply(trained)

    def evaluate(self, request: Request) -> Reply:
        """Return the sums that the scores on the lab's test images are computed from."""
        config = _read(request, Phase2Config)
        lab = self.open_lab(config)
        lab.own_layers = self.layers.after(_get(request, "round", int)) if config.local_normalization else {}
        return Reply({"tally": score_lab(lab, request.arrays, config)})

    def open_lab(self, config: Phase2Config) -> Lab:
        """Return the lab with its images prepared, as before if neither the configuration nor the styles changed."""
        stained = config.mode != "plain"
        key = (config, self._membership.read_bytes(), self._styles.stat().st_mtime_ns if stained else 0)
        if self._opened is None or self._opened[0] != key:
            member = load(Membership, self._membership)
            model = BottleGAN.load(self._styles) if stained else None
            labeled = self.read_labeled(self.config.labeled)
            lab = Lab(
                member.client,
                labeled,
                self.read() if config.fixmatch.enabled and not labeled else [],
                self.read_labeled(self.config.test),
                stain_with(config, model, member.style or None),
            )
            self._opened = (key, lab)
        return self._opened[1]

    def read(self) -> list[Levels]:
        """Return the lab's images, labeled or not."""
        return read_lab([self.folder / source for source in self.config.images])

    def read_labeled(self, folder: Path | None) -> list[Labeled]:
        """Return the patches in a folder and their masks; without a folder, none."""
        if folder is None:
            return []
        return [Labeled(patch.read_image(), patch.read_mask()) for patch in list_patches(self.folder / folder)]

    @property
    def _log(self) -> Path:
        return self.state / "lab.jsonl"

    @property
    def _membership(self) -> Path:
        return self.state / "membership.json"

    @property
    def _styles(self) -> Path:
        return self.state / "styles.safetensors"

    def _record(self, kind: str, **fields: Json) -> None:
        # A disk that is full must not keep the lab from saying that something failed.
        with suppress(OSError), EventLog(self._log) as log:
            log.event(kind, **fields)


def _get(request: Request, name: str, kind: type[Setting]) -> Setting:
    """Return a setting of a request, which must be there and of this type."""
    value = request.settings.get(name)
    if not isinstance(value, kind):
        raise InputError(f"setting {name} of a {request.kind} request must be a {kind.__name__}, got {value!r}")
    return value


def _read(request: Request, cls: type[Document]) -> Document:
    """Return the configuration in a request."""
    try:
        values = json.loads(_get(request, "config", str))
    except ValueError as error:
        raise InputError(f"the configuration of a {request.kind} request is not JSON ({error})") from None
    return parse(cls, values, f"the configuration of a {request.kind} request")
