"""Corpora in Kaldi's and lhotse's form, and as matrices."""
