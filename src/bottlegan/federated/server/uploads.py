"""The uploads of phase 1. They stay on the server's disk, so nobody is asked again when labs join or leave."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from bottlegan.core.errors import DamagedError, InputError, ModelFileError
from bottlegan.core.files import make_folder
from bottlegan.core.stamp import BLANK
from bottlegan.core.stamp import KEY as CHECKSUM
from bottlegan.core.state import read_state, write_state
from bottlegan.federated.protocol.phase1 import CODE, STYLE
from bottlegan.federated.protocol.validation import find_fault, printable
from bottlegan.models.document import check_name

MOST_BYTES = 2**26
"""Largest size of an upload, far more than the widest generators need."""


class UploadStore:
    """The uploads of all clients on the server's disk, one safetensors file each."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`, which is created when needed."""
        self.folder = folder

    def put(self, name: str, arrays: Mapping[str, Tensor]) -> None:
        """Store a client's upload atomically, replacing any earlier one."""
        path = self._path(name)
        if fault := _find_own_fault(arrays):
            raise InputError(f"the upload of {name}: {fault}; let the client upload again")
        metadata = json.dumps({CHECKSUM: BLANK, STYLE: name})
        content = save({key: tensor.detach().cpu().contiguous() for key, tensor in arrays.items()}, {STYLE: metadata})
        make_folder(self.folder)
        write_state(path, content)

    def remove(self, name: str) -> None:
        """Delete the upload of a client."""
        path = self._path(name)
        if not path.exists():
            raise InputError(
                f"{self.folder}: holds no upload of {name}; there are: {', '.join(self.names()) or 'none'}"
            )
        path.unlink()

    def names(self) -> list[str]:
        """Return the names of clients with an upload, sorted."""
        return sorted(self._read_name(path) for path in self._files())

    def read_all(self) -> dict[str, dict[str, Tensor]]:
        """Return all uploads by client, sorted, float32 and finite; `assemble` checks their shapes."""
        read = {self._read_name(path): self._read(path) for path in self._files()}
        return dict(sorted(read.items()))

    def _files(self) -> list[Path]:
        # Files that begin with a dot were being written when the machine went down.
        return [path for path in self.folder.glob("*.safetensors") if not path.name.startswith(".")]

    def _path(self, name: str) -> Path:
        """Return the path of a client's upload: readable, and unique even if file names ignore case."""
        check_name(name)
        readable = re.sub(r"[^A-Za-z0-9-]", "_", name)[:40]
        return self.folder / f"{readable}.{hashlib.sha256(name.encode()).hexdigest()[:12]}.safetensors"

    def _read_name(self, path: Path) -> str:
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                name = str(json.loads((file.metadata() or {}).get(STYLE, "{}")).get(STYLE, ""))
            if self._path(name) == path:
                return name
        except InputError:
            pass  # not a valid name
        except (SafetensorError, OSError, ValueError, AttributeError) as error:
            raise _broken(path, f"not a whole upload ({error})") from None
        raise _broken(path, "is not named after the client in it")

    def _read(self, path: Path) -> dict[str, Tensor]:
        if path.stat().st_size > MOST_BYTES:
            raise _broken(path, f"has {path.stat().st_size} bytes, at most {MOST_BYTES} are read")
        try:
            arrays = load(read_state(path))
        except DamagedError:
            raise _broken(path, "is damaged: its checksum does not match") from None
        if fault := _find_own_fault(arrays):
            raise _broken(path, fault)
        return arrays


def _find_own_fault(arrays: Mapping[str, Tensor]) -> str | None:
    """Return what is wrong with an upload, apart from its shapes."""
    if CODE not in arrays:
        return "there is no style code in it"
    return find_fault(arrays, {name: tuple(tensor.shape) for name, tensor in arrays.items()})


def _broken(path: Path, fault: str) -> ModelFileError:
    return ModelFileError(f"{path}: {printable(fault)}; delete it, and let the client upload again")
