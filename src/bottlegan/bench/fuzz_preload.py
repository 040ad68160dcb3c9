"""What every case of the fuzz campaign would import: done once, in the process that all of them are forked from."""

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
