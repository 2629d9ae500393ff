"""Corpora known by name."""
