"""`python containers/sbom.py OUT`: a bill of materials (CycloneDX 1.6, JSON) of what requirements.lock pins."""

import hashlib
import json
import re
import sys
import uuid
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)$", re.MULTILINE)


def list_materials(lock: str, version: str) -> dict[str, object]:
    """Return the document for a lock file's text; the same text gives the same document."""
    found = [(re.sub(r"[-_.]+", "-", name).lower(), pinned) for name, pinned in PINNED.findall(lock)]
    packages = [f"pkg:pypi/{name}@{pinned}" for name, pinned in found]
    own = f"pkg:pypi/bottlegan@{version}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.UUID(hashlib.sha256((own + lock).encode()).hexdigest()[:32], version=4)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "bottlegan",
                "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "purl": own,
            }
        },
        "components": [
            {"type": "library", "bom-ref": package, "name": name, "version": pinned, "purl": package}
            for (name, pinned), package in zip(found, packages, strict=True)
        ],
        "dependencies": [{"ref": own, "dependsOn": packages}, *({"ref": package} for package in packages)],
    }


def main(out: Path) -> None:
    """Write the document of this repository."""
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    version = re.search(r'^__version__ = "(.+)"', (ROOT / "src/bottlegan/__init__.py").read_text("utf-8"), re.MULTILINE)
    if version is None:
        raise SystemExit("src/bottlegan/__init__.py holds no version")
    out.write_text(json.dumps(list_materials(lock, version[1]), indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
