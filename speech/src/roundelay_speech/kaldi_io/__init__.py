"""Kaldi's file formats: archives, tables, token streams."""
