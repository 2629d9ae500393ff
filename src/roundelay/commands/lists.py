"""Lists of everything that is found by name: list. It does not load torch."""

import argparse
from typing import TYPE_CHECKING

from roundelay.commands.base import Command
from roundelay.core.errors import UserError
from roundelay.terminal import console, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roundelay.recipes.known import Option


WHAT = {
    "strategies": "who talks to whom and when (`--strategy`), with their options",
    "topologies": "graphs of learners that strategies take",
    "models": "networks (`model.name`), with their options",
    "objectives": "losses (`training.objective`)",
    "graphs": "decoding graphs (`decode.graph`)",
    "units": "what networks without tied states tell apart (`units`)",
    "codecs": "forms in which vectors travel (`codec`)",
    "corpora": "what `roundelay prepare` knows",
    "recipes": "experiments that come with Roundelay",
    "options": "every option of a recipe, its default and the values it takes",
    "keys": "the same as options",
}


def add(command: Command) -> None:
    """Their options."""
    sub = command("list", _list, "list strategies, models, recipes and whatever has a name, or the options of a recipe")
    sub.add_argument("what", nargs="?", choices=list(WHAT), help="what to list (default: what can be listed)")
    sub.add_argument("recipe", nargs="?", help="with options: a YAML file, or a packaged recipe (default: no recipe's)")


def _list(options: argparse.Namespace) -> None:
    from roundelay.recipes.known import (
        about_recipe,
        about_strategy,
        check_mapping,
        choices,
        codecs,
        corpora,
        known_recipes,
        read_recipe,
        recipe_options,
        strategies,
        strategy_options,
        topologies,
    )

    if options.recipe is not None and options.what not in ("options", "keys"):
        raise UserError(
            f"list {options.what} takes no recipe; `roundelay list options {options.recipe}` shows its options."
        )
    if options.what is None:
        print_table(["roundelay list ...", ""], list(WHAT.items()), left=2)
    elif options.what == "recipes":
        print_table(["recipe", "about"], [(name, about_recipe(name)) for name in known_recipes()], left=2)
    elif options.what == "corpora":
        print_table(["corpus", "about"], list(corpora().items()), left=2)
    elif options.what == "codecs":
        forms = [(name, *facts) for name, facts in codecs().items()]
        print_table(["codec", "about", "bits", "largest error of an element"], forms, left=4)
    elif options.what == "topologies":
        rows = [(name, about, ", ".join(users)) for name, about, users in topologies()]
        print_table(["topology", "who talks to whom", "strategies"], rows, left=3)
    elif options.what == "strategies":
        _print_names({name: (about_strategy(name), strategy_options(name)) for name in strategies()})
    elif options.what in ("models", "objectives", "graphs", "units"):
        _print_names(choices(options.what))
    else:
        mapping = read_recipe(options.recipe) if options.recipe else {}
        if options.recipe:
            check_mapping(mapping)
        for option in recipe_options(mapping):
            console.print(_option(option), markup=False)


def _print_names(known: "Mapping[str, tuple[str, list[Option]]]") -> None:
    for name, (about, its) in known.items():
        console.print(f"{name}: {about}", markup=False)
        for option in its:
            console.print(f"    {_option(option)}", markup=False)


def _option(option: "Option") -> str:
    value = "(must be given)" if option.value is None else option.value
    return f"{option.key}={value}  {option.about} [{option.values}]"
