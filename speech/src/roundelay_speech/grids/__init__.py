"""Grids over a recipe: `roundelay compare`, `roundelay scaling` of recipes, and speakers left out in turn."""
