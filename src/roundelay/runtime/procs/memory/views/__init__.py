"""Typed views of the arena's tables: one class a file, which owns the tables it names."""
