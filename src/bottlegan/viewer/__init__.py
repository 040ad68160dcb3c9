"""Slides, folders and federations in the browser: a server that only this machine can reach, and its pages."""
