"""What server and clients share: requests and replies, common settings, and validation."""
