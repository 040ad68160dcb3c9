"""Slides, folders and federations in the browser: a server for this machine alone, and the page that it shows."""
