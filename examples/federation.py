"""A federation of three labs, with a network of your own.

Three labs stain differently. Two have labels, one has images only. Each writes a `lab.toml` that says where its
images are; the federation is another TOML file. The labs train one network, in one process here, and the same files
configure a real deployment. The network is that of [own_network.py](own_network.md), which every lab has to allow.
"""

import json
from pathlib import Path

from bottlegan.cli.main import app
from bottlegan.simulation.lab_folder import draw_lab, write_lab

LAB = """
images = ["images"]
{labeled}
test = "images"
factories = ["own_network:build"]
"""
FEDERATION = """
seed = 0
[labs]
folder = "labs"
[phase2]
mode = "normalize"
rounds = 6
[phase2.network]
factory = "own_network:build"
arguments = { width = 8 }
multiple = 1
[phase2.task]
classes = ["other", "epithelium"]
micrometers = 1.0
[phase2.training]
steps = 10
crop = 64
learning_rate = 0.02
[rounds]
least = 2
evaluate_every = 3
"""


def write_labs(folder: Path) -> None:
    """Write three labs, each in its own style; put your own images and masks here."""
    for index, name in enumerate(("graz", "uppsala", "porto")):
        (folder / name).mkdir(parents=True)
        write_lab(folder / name / "images", patches=3, size=128, seed=index, style=draw_lab(index), masks=True)
        labeled = 'labeled = "images"' if name != "porto" else "# no labels: it contributes its style"
        (folder / name / "lab.toml").write_text(LAB.format(labeled=labeled), encoding="utf-8")


if __name__ == "__main__":
    work = Path("example-output/federation")
    if not work.exists():
        write_labs(work / "labs")
        (work / "federation.toml").write_text(FEDERATION, encoding="utf-8")

    # In a shell: bottlegan simulate federation.toml --out run --engine local [--resume]
    run = ["--resume"] if (work / "run").exists() else []
    app(
        ["simulate", f"{work}/federation.toml", "--out", f"{work}/run", "--engine", "local", *run],
        standalone_mode=False,
    )
    history = json.loads((work / "run" / "history.json").read_text(encoding="utf-8"))
    print(len(history["rounds"]), "rounds")
