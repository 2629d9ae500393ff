"""A file for each command of the laboratory."""
