"""Options of a run as dataclasses, and the recipes that come with the package."""
