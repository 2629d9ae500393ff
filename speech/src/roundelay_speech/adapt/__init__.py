"""Adaptation to speakers: transforms of their features, and vectors that describe them."""
