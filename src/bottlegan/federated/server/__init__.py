"""The server's side of the federation: `run_phase1`, then `run_phase2`. Contains no network code."""
