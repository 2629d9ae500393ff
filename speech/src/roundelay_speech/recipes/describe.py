"""Writes `options/known.json`: the options of recipes, from the dataclasses that they are.

python -m roundelay_speech.recipes.describe
"""

from pathlib import Path
from typing import Any

from roundelay.options.describe import describe_fields, names, write_known
from roundelay_speech.corpus.readers import READERS
from roundelay_speech.decode.graphs import AnyGraph
from roundelay_speech.models import ModelConfig
from roundelay_speech.objectives import AnyObjective
from roundelay_speech.recipes.recipe import Recipe
from roundelay_speech.units import AnyUnits

OPTIONS_FILE = Path(__file__).with_name("options") / "known.json"
OPEN_SETS = {
    "models": ("model", ModelConfig),
    "objectives": ("training.objective", AnyObjective),
    "graphs": ("decode.graph", AnyGraph),
    "units": ("units", AnyUnits),
}
"""Open sets of a recipe: for each its key, and the union of dataclasses that is the registry."""


def describe() -> dict[str, Any]:
    """Return the content of `options/known.json`, from the dataclasses."""
    sections: dict[str, Any] = {}
    describe_fields(Recipe, sections)
    choices = {what: {"key": key, "names": names(union)} for what, (key, union) in OPEN_SETS.items()}
    corpora = {name: reader.told for name, reader in READERS.own.items()}
    return {"sections": sections, "choices": choices, "corpora": corpora}


if __name__ == "__main__":
    write_known(OPTIONS_FILE, describe())
