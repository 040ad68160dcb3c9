"""Ours beside the peers, one file a question."""
