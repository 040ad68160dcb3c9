"""An attack campaign on our own federation, one file for each kind of attack, so that anybody can rerun it."""
