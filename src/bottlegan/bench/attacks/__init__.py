"""An attack campaign on our own federation, which anybody can rerun; one file per kind of attack."""
