"""Packed models: a trained model as one folder that needs nothing else (docs/packing.md)."""
