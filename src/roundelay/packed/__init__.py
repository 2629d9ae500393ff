"""Trained models that leave the house: one folder each, that needs nothing else (docs/packing.md)."""
