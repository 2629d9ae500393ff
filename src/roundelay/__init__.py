"""Roundelay: distributed training of acoustic models, from recorded speech to word error rate."""

__version__ = "0.1.0"
