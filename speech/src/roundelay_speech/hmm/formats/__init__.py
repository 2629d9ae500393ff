"""Alignments and models as other programs' files."""
