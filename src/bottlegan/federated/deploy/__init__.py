"""All that a consortium needs to start a federation of real labs."""
