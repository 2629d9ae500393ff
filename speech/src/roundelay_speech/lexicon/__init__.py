"""Pronunciations, from dictionaries and from spelling."""
