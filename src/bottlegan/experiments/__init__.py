"""Runs that end in a table, a figure or a report."""
