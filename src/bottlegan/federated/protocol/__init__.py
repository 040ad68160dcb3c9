"""What server and clients agree on: requests and replies, the settings that both must know, and what is believed."""
