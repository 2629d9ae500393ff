"""Equations of the algorithms, a file for each family."""
