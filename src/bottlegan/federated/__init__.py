"""Federated learning in rooms: `protocol`, `client` and `server`, and what carries them: `flower` and `deploy`."""
