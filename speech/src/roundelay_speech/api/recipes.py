"""Recipes from Python: by name or file, with overrides as a mapping or as the command line writes them."""

from pathlib import Path

from roundelay.core.configure import Overrides, texts
from roundelay_speech.recipes.known import check_recipe
from roundelay_speech.recipes.recipe import Recipe
from roundelay_speech.recipes.recipe import load_recipe as read


def load_recipe(source: str | Path | Recipe, overrides: Overrides = ()) -> Recipe:
    """Load the recipe in file `source`, or the packaged one of that name, with overrides; a `Recipe` is itself.

    Raises:
        UserError: no such recipe; an option that is unknown or has a wrong value (names the dotted key); overrides of a
            `Recipe`, which `dataclasses.replace` changes.
    """
    given = texts(overrides)
    if isinstance(source, Recipe):
        if given:
            raise TypeError("overrides are for recipes by name or file; change a Recipe by dataclasses.replace.")
        return source
    check_recipe(str(source), given)
    return read(str(source), given)
