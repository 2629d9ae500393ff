"""Transducers and the search through them, for alignment and decoding."""
