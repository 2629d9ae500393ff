"""Corpora, from files of others to a prepared corpus."""
