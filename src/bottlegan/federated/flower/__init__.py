"""Flower: messages, apps, strategies and simulation. Nothing outside of this package imports it."""

import os

# Both report their use to their makers unless told otherwise, which no hospital has asked for. They read this when they
# are imported.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
