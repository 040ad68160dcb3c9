import json
import subprocess
import sys
import uuid
from pathlib import Path

from bottlegan import __version__

ROOT = Path(__file__).parents[3]


def test_every_pinned_package_is_in_the_bill_of_materials_and_nothing_else(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "containers" / "sbom.py", tmp_path / "sbom.json"], check=True)
    said = json.loads((tmp_path / "sbom.json").read_text())
    assert (said["bomFormat"], said["specVersion"]) == ("CycloneDX", "1.6")
    assert uuid.UUID(said["serialNumber"].removeprefix("urn:uuid:")).version == 4
    assert said["metadata"]["component"]["version"] == __version__

    lock = (ROOT / "requirements.lock").read_text()
    pinned = {line for line in lock.splitlines() if line and not line.lstrip().startswith("#")}
    assert {f"{each['name']}=={each['version']}" for each in said["components"]} == pinned
    references = [each["bom-ref"] for each in said["components"]]
    assert len(set(references)) == len(references) > 100
    first, *others = said["dependencies"]
    assert first["dependsOn"] == references == [each["ref"] for each in others]
    assert all(each["purl"] == f"pkg:pypi/{each['name']}@{each['version']}" for each in said["components"])
