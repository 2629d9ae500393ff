"""Loggers: receivers of a run's records while they are written (docs/python.md)."""
