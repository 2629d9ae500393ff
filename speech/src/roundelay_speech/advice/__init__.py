"""Recipes, timed for `roundelay advise --probe` and `roundelay train --strategy auto`."""
