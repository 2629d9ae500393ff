"""Loggers: whoever is told what a run writes down, while it is written (docs/python.md)."""
