"""Federated learning: what clients and server do, and what carries it."""

import os

# Both report their use to their makers unless told otherwise, which no hospital has asked for. They read this when they
# are imported, and nothing outside of this package imports them.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
