"""The imports of all fuzz cases, done once in the process that the cases are forked from."""

from importlib import import_module

for name in (
    "bottlegan.cli.main",
    "bottlegan.federated.simulation",
    "bottlegan.normalize.choice",
    "bottlegan.normalize.folder",
    "bottlegan.quality.drift_report",
    "bottlegan.quality.evaluate",
    "bottlegan.reproduce.table2",
    "bottlegan.simulation.lab_folder",
    "bottlegan.training.gan",
):
    import_module(name)
