"""A lab's side of the federation: how it answers each request. Contains no network code.

In a deployment each request starts a new process, so the lab's state folder holds everything that must survive between
two requests. Only a `Reply` leaves the lab: weights, a style, sums and counts.
"""

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from bottlegan.core.config import Document, document, load, parse
from bottlegan.core.errors import DamagedError, FederationError, InputError
from bottlegan.core.files import keeping_private, make_folder, replacing
from bottlegan.core.progress import EventLog, Json
from bottlegan.core.state import read_document, write_document
from bottlegan.federated.client.holdings import Holdings, LabConfig, open_holdings
from bottlegan.federated.client.kept_images import KeptImages
from bottlegan.federated.client.own_layers import OwnLayers
from bottlegan.federated.client.private import Private
from bottlegan.federated.client.staining import Stain, Staining, keep, read_styles, stain_with
from bottlegan.federated.client.training import Lab, score_lab, train_message
from bottlegan.federated.protocol.exchange import (
    CLASS,
    LABELED,
    LOSS,
    TEST,
    TEST_CLASS,
    UNLABELED,
    VERDICT,
    VERDICTS,
    Kind,
    RefusalError,
    Reply,
    Request,
)
from bottlegan.federated.protocol.handshake import (
    HANDSHAKE,
    PRIOR_CONTENT,
    digest_file,
    find_difference,
    from_text,
    introduce,
    to_tensor,
)
from bottlegan.federated.protocol.phase2 import TALLY, Phase2Config, load_network
from bottlegan.federated.protocol.privacy import LABS, PRIVACY, PrivacyConfig, to_row
from bottlegan.federated.protocol.secure import NAMES, PARTNERS, TRAINED, read_names
from bottlegan.models.document import PRIOR
from bottlegan.models.networks import check_allowed, list_normalization, name_factory
from bottlegan.models.weights import ModelWeights, read_weights
from bottlegan.onboarding.verdict import Verdict
from bottlegan.training.task import check_crops, count_classes

Value = TypeVar("Value", bool, int, float, str)
console = logging.getLogger(__name__)


@document
class Membership:
    """A lab's part in a federation."""

    client: str
    """Name of the lab there, and of its style."""
    prior: str = ""
    """SHA-256 of the federation's own prior; empty if it uses the shipped one."""


def open_client(path: Path) -> "Client":
    """Return the client of the lab that the TOML file `path` describes."""
    config = load(LabConfig, path)
    return Client(open_holdings(config, path.parent), path.parent / config.state)


class Client:
    """One lab."""

    def __init__(self, holdings: Holdings, state: Path, stain: Stain = stain_with) -> None:
        """Set up a lab from its holdings, the folder for its state, and how it handles stain."""
        self.holdings, self.state, self.stain = holdings, state, stain
        with keeping_private():
            make_folder(state)
        self._membership, self._phase1 = state / "membership.json", state / "phase1"
        self._sent_prior, self._styles = state / "prior.safetensors", state / "styles.safetensors"
        self._log, self._errors = state / "lab.jsonl", state / "errors.jsonl"
        self.layers = OwnLayers(state / "own_layers.safetensors")
        self.private = Private(state, holdings.demands)
        self._opened: tuple[object, Lab] | None = None

    def answer(self, request: Request) -> Reply:
        """Return what the server asks for, or raise a `FederationError` that reveals nothing about the lab's files.

        Everything sent is logged in `lab.jsonl` in the state folder, which may be shown to others. Errors are logged in
        full in `errors.jsonl` beside it, which may name a patient's file.
        """
        with keeping_private():
            return self._answer_logged(request)

    def _answer_logged(self, request: Request) -> Reply:
        try:
            reply = self._answer(request)
            sizes: dict[str, Json] = {name: tensor.nbytes for name, tensor in reply.arrays.items()}
            self._record(self._log, "reply", request=request.kind, bytes=sizes, numbers=dict(reply.numbers))
        except RefusalError as error:
            failure: FederationError = RefusalError(error.reason)
            self._tell(request, "refusal", error.__cause__ or error, failure)
        except Exception as error:
            # The error's text may name a patient's file.
            failure = FederationError(f"{request.kind} ended with {type(error).__name__}; see the lab's own log")
            self._tell(request, "failure", error, failure)
        else:
            return reply
        # Raised outside the handler, so that the original error does not become its context.
        raise failure

    def _answer(self, request: Request) -> Reply:
        answers: dict[Kind, Callable[[Request], Reply]] = {
            "join": self.join,
            "contribute": self.contribute,
            "styles": self.take_styles,
            "keys": self.make_keys,
            "shares": self.share_secrets,
            "train": self.train,
            "unmask": self.unmask,
            "evaluate": self.evaluate,
        }
        return answers[request.kind](request)

    def join(self, request: Request) -> Reply:
        """Start over under the name that the server gives, and check that all images can be read and trained on.

        Before that, check that server and lab run compatible versions.
        """
        config = _read(request, Phase2Config)
        self.private.check(_read_privacy(request))
        self.take_prior(request)
        self.check_allowed(config)
        with _refusing("the network's factory fails in this lab; see the lab's own log"):
            own = introduce(config, self.prior)
        if fault := find_difference(own, from_text(_get(request, HANDSHAKE, str))):
            raise RefusalError(fault)
        sent = digest_file(self._sent_prior) if self._sent_prior.exists() else ""
        write_document(self._membership, Membership(client=_get(request, "client", str), prior=sent))
        self.layers.forget()
        images = self.holdings.images()
        with _refusing("its labeled images cannot be used for these classes; the lab's own log names the file"):
            labeled, test = self.holdings.labeled(config.task), self.holdings.test(config.task)
        with _refusing(None):
            check_crops(
                [sample.image for sample in labeled] + (list(images) if config.fixmatch.enabled else []),
                config.training.crop,
            )
        counts = {f"{CLASS}{k}": count for k, count in enumerate(count_classes(labeled, config.task))}
        counts |= {f"{TEST_CLASS}{k}": count for k, count in enumerate(count_classes(test, config.task))}
        numbers = {LABELED: len(labeled), UNLABELED: len(images), TEST: len(test), **counts}
        return Reply({HANDSHAKE: to_tensor(own)}, dict(numbers))

    def take_prior(self, request: Request) -> None:
        """Keep the federation's own prior, if it has one and the file is a valid model."""
        self._sent_prior.unlink(missing_ok=True)
        if (content := request.arrays.get(PRIOR_CONTENT)) is not None:
            with replacing(self._sent_prior, durable=True) as temporary:
                temporary.write_bytes(content.numpy().tobytes())
                read_weights(temporary)

    def check_allowed(self, config: Phase2Config) -> None:
        """Refuse a network that the lab does not allow, and classes other than the lab's."""
        own, classes = self.holdings.classes, ", ".join(config.task.classes)
        if own is not None and own != config.task.classes:
            raise RefusalError(
                f"its lab.toml has other classes than the federation's {classes}; make them the same, in the same order"
            ) from InputError(f"the classes are {', '.join(own)} in lab.toml, and {classes} in the federation")
        factory = name_factory(config.network, config.task)
        with _refusing(None):
            check_allowed(
                config.network, config.task, self.holdings.factories, f'add "{factory}" to `factories` in the lab.toml'
            )

    def contribute(self, request: Request) -> Reply:
        """Return the lab's style as the server needs it."""
        from bottlegan.federated.client.style import contribute  # noqa: PLC0415 - asked for once, and slow to import
        from bottlegan.federated.protocol.phase1 import CODE, Phase1Config  # noqa: PLC0415

        config = _read(request, Phase1Config)
        with EventLog(self._log) as log:
            contribution = contribute(
                self.holdings.images(),
                config,
                reference_set=self.holdings.reference_set(),
                prior=self.read_prior(),
                seed=_get(request, "seed", int),
                kept=self._phase1,
                progress=log,
            )
        arrays = contribution.arrays
        if config.code_noise:
            arrays = {CODE: self.private.blur(arrays[CODE], config.code_noise)}
        return Reply(arrays, {VERDICT: VERDICTS.index(Verdict(contribution.verdict))})

    def take_styles(self, request: Request) -> Reply:
        """Keep the global BottleGAN, if the file is valid and holds the lab's style."""
        with replacing(self._styles, durable=True) as temporary:
            temporary.write_bytes(request.arrays["model"].numpy().tobytes())
            read_weights(temporary).code(self.name)
        # The server has the upload, and will not ask for it again.
        shutil.rmtree(self._phase1, ignore_errors=True)
        return Reply()

    def make_keys(self, request: Request) -> Reply:
        """Draw new secrets for a round of secure aggregation, and return their public part."""
        self.private.check(_read_privacy(request))
        return self.private.begin()

    def share_secrets(self, request: Request) -> Reply:
        """Return, sealed, what the other labs need if this one drops out."""
        return self.private.share(request, self.name, read_names(_get(request, NAMES, str)))

    def unmask(self, request: Request) -> Reply:
        """Return this lab's shares of the masks that still have to be removed from the sum."""
        return self.private.reveal(request, self.name, read_names(_get(request, TRAINED, str)))

    def train(self, request: Request) -> Reply:
        """Return the weights after the lab's steps of a round or, in a private round, a private update."""
        config, number, privacy = _read(request, Phase2Config), _get(request, "round", int), _read_privacy(request)
        self.private.check(privacy)
        own = self.layers.before(number) if config.local_normalization else {}
        trained = train_message(
            self.open_lab(config), {**request.arrays, **own}, config, number, _get(request, "seed", int)
        )
        kept: frozenset[str] = frozenset()
        if config.local_normalization:
            kept = list_normalization(load_network(request.arrays, config).network)
            self.layers.save(number, own, {name: trained.weights[name] for name in kept})
        if not privacy.active:
            return Reply(trained.weights, {LOSS: trained.loss})
        row = to_row(trained.weights, request.arrays, kept)
        partners = read_names(_get(request, PARTNERS, str)) if privacy.secure else []
        return self.private.release(row, privacy, _get(request, LABS, int), self.name, partners)

    def evaluate(self, request: Request) -> Reply:
        """Return the sums from which the scores on the lab's test images are computed."""
        config = _read(request, Phase2Config)
        own = self.layers.after(_get(request, "round", int)) if config.local_normalization else {}
        return Reply({TALLY: score_lab(self.open_lab(config), {**request.arrays, **own}, config)})

    def open_lab(self, config: Phase2Config) -> Lab:
        """Return the lab with prepared images, cached until the configuration or the styles change."""
        stained = config.mode != "plain"
        key = (config, self._membership.read_bytes(), self._styles.stat().st_mtime_ns if stained else 0)
        if self._opened is None or self._opened[0] != key:
            styles = read_styles(self._styles) if stained else None
            labeled = self.holdings.labeled(config.task)
            unlabeled = self.holdings.images() if config.fixmatch.enabled else []
            staining, kept = self.keep(self.stain(config, styles, self.name))
            self._opened = (key, Lab(self.name, labeled, unlabeled, self.holdings.test(config.task), staining))
            kept.forget_others()
        return self._opened[1]

    def keep(self, staining: Staining) -> tuple[Staining, KeptImages]:
        """Return the same staining with a cache on disk for prepared images."""
        kept = KeptImages(self.state / "normalized", staining.digest)
        if not staining.digest:
            return staining, kept
        prepare, present = (
            change if change is keep else kept.through(change) for change in (staining.prepare, staining.present)
        )
        return replace(staining, prepare=prepare, present=present), kept

    @property
    def name(self) -> str:
        """Name of the lab in the federation, and of its style."""
        return read_document(Membership, self._membership).client

    @property
    def prior(self) -> Path:
        """The model file that styles are fitted to: the federation's own, or the shipped one."""
        return self._sent_prior if self._sent_prior.exists() else PRIOR

    def read_prior(self) -> ModelWeights:
        """Return the model that styles are fitted to, which must not have changed since the lab joined."""
        wanted = read_document(Membership, self._membership).prior
        if wanted and digest_file(self._sent_prior) != wanted:
            raise DamagedError(f"{self._sent_prior}: is damaged; remove the lab from the run and let it join again")
        return read_weights(self.prior)

    def _tell(self, request: Request, kind: str, error: BaseException, summary: FederationError) -> None:
        """Log what the server is told, and log the full error, which stays in the lab."""
        console.error("%s: %s", request.kind, " ".join(str(error).split()))
        self._record(self._log, kind, request=request.kind, said=str(summary))
        self._record(self._errors, kind, request=request.kind, error=type(error).__name__, text=str(error))

    def _record(self, path: Path, kind: str, **fields: Json) -> None:
        # A full disk must not keep the lab from reporting a failure.
        with suppress(OSError), EventLog(path) as log:
            log.event(kind, **fields)


@contextmanager
def _refusing(text: str | None) -> Iterator[None]:
    """Turn an input error into a refusal with this text; None keeps the error's own, if that reveals nothing."""
    try:
        yield
    except InputError as error:
        raise RefusalError(text or str(error)) from error


def _get(request: Request, name: str, kind: type[Value]) -> Value:
    """Return a setting of a request, which must exist and have this type."""
    value = request.settings.get(name)
    if not isinstance(value, kind):
        raise InputError(f"setting {name} of a {request.kind} request must be a {kind.__name__}, got {value!r}")
    return value


def _read(request: Request, cls: type[Document], name: str = "config") -> Document:
    """Return the configuration in a request."""
    try:
        values = json.loads(_get(request, name, str))
    except ValueError as error:
        raise InputError(f"the {name} of a {request.kind} request is not JSON ({error})") from None
    return parse(cls, values, f"the {name} of a {request.kind} request")


def _read_privacy(request: Request) -> PrivacyConfig:
    """Return the privacy settings of a round; without any, the round is not private."""
    return _read(request, PrivacyConfig, PRIVACY) if PRIVACY in request.settings else PrivacyConfig()
