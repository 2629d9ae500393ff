"""Lists of everything that is found by name: list. It does not load torch."""

import argparse
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from roundelay.commands.base import Command, add_described
from roundelay.core.configure import about_of
from roundelay.core.errors import UserError
from roundelay.core.extras import load
from roundelay.core.files import json_text
from roundelay.terminal import console, print_table, write

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roundelay.options.known import Option


WHAT = {
    "strategies": "who talks to whom and when (`--strategy`), with their options",
    "topologies": "graphs of learners that strategies take",
    "models": "networks (`model.name`), with their options",
    "objectives": "losses (`training.objective`)",
    "graphs": "decoding graphs (`decode.graph`)",
    "units": "units of networks without tied states (`units`)",
    "codecs": "forms in which vectors travel (`codec`)",
    "corpora": "corpora that `roundelay prepare` reads",
    "exports": "formats that `roundelay export` writes",
    "loggers": "programs that draw a run's curves (`--logger`)",
    "packed": "models that come with Roundelay, for `roundelay transcribe`",
    "recipes": "experiments that come with Roundelay",
    "options": "every option of a recipe, its default and the values it takes",
    "schema": "JSON Schema of recipes, by which editors complete and check them",
}


_LIST = """
list: list strategies, models, recipes and other names, or the options of a recipe
what {kinds} ? | kind of names to list
    (default: these kinds)
--json | the list as JSON, for programs
recipe ? | with options: a YAML file, or a packaged recipe (default: no recipe's)
$ roundelay list strategies
$ roundelay list models
$ roundelay list codecs
$ roundelay list options an4
"""


def add(command: Command) -> None:
    """Add the commands of this file to the command line."""
    add_described(command, _list, _LIST, kinds=list(WHAT))


def _list(options: argparse.Namespace) -> None:
    from roundelay.options.known import about_strategy, codecs, strategies, strategy_options, topologies

    if options.recipe is not None and options.what != "options":
        raise UserError(
            f"list {options.what} takes no recipe; `roundelay list options {options.recipe}` shows its options."
        )
    show = _Listing(options.json)
    if options.what is None:
        show.table(["roundelay list ...", "what"], list(WHAT.items()))
    elif options.what == "codecs":
        forms = [(name, *facts) for name, facts in codecs().items()]
        show.table(["codec", "about", "bits", "largest error of an element"], forms)
    elif options.what == "topologies":
        rows = [(name, about, ", ".join(users)) for name, about, users in topologies()]
        show.table(["topology", "who talks to whom", "strategies"], rows)
    elif options.what == "loggers":
        from roundelay.loggers import LOGGERS

        show.table(["logger", "about"], [(name, about_of(made)) for name, made in LOGGERS.items()])
    elif options.what == "strategies":
        show.names({name: (about_strategy(name), strategy_options(name)) for name in strategies()})
    else:
        _list_of_speech(options.what, options.recipe, show)


def _list_of_speech(what: str, recipe: str | None, show: "_Listing") -> None:
    if what == "packed":
        given = load("roundelay_speech.packed.given", "speech", "list packed")
        show.table(["model", "words", "Hz", "trained on", "errors", "MB", "licence"], given.told())
        return
    known = load("roundelay_speech.recipes.known", "speech", f"list {what}")
    if what == "exports":
        formats = load("roundelay_speech.exporting", "speech", "list exports").EXPORT_FORMATS
        show.table(["format", "about"], list(formats.items()))
    elif what == "recipes":
        show.table(["recipe", "about"], [(name, known.about_recipe(name)) for name in known.known_recipes()])
    elif what == "corpora":
        show.table(["corpus", "about"], list(known.corpora().items()))
    elif what == "schema":
        write(json_text(known.recipe_schema()))
    elif what in ("models", "objectives", "graphs", "units"):
        show.names(known.choices(what))
    else:
        mapping = known.read_recipe(recipe) if recipe else {}
        if recipe:
            known.check_mapping(mapping)
        show.options(known.recipe_options(mapping))


@dataclass(frozen=True)
class _Listing:
    """A printer of lists: as tables for people, or as JSON."""

    json: bool

    def table(self, columns: "Sequence[str]", rows: "Sequence[Sequence[str]]") -> None:
        """Print rows of cells under their columns' names."""
        if self.json:
            write(json_text([dict(zip(columns, row, strict=True)) for row in rows]))
        else:
            print_table(columns, rows, left=len(columns))

    def names(self, known: "Mapping[str, tuple[str, list[Option]]]") -> None:
        """Print names, each with its sentence and its options."""
        if self.json:
            told = {name: {"about": about, "options": list(map(asdict, its))} for name, (about, its) in known.items()}
            write(json_text(told))
            return
        for name, (about, its) in known.items():
            console.print(f"{name}: {about}")
            for option in its:
                console.print(f"    {_option(option)}")

    def options(self, its: "Sequence[Option]") -> None:
        """Print options with no name above them."""
        if self.json:
            write(json_text([asdict(option) for option in its]))
            return
        for option in its:
            console.print(_option(option))


def _option(option: "Option") -> str:
    value = "(must be given)" if option.value is None else option.value
    return f"{option.key}={value}  {option.about} [{option.values}]"
