"""The server's half of the federation: `run_phase1`, then `run_phase2`. Free of any network code."""
