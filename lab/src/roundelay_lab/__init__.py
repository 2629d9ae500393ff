"""Experiments about strategies and papers, which no training needs."""
