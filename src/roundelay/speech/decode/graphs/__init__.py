"""Decoding graphs and the transducers that they are made of."""
