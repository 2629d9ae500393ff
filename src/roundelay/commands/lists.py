"""Lists of strategies, topologies, recipes and options: list. It does not load torch."""

import argparse
from typing import TYPE_CHECKING

from roundelay.commands.base import Command
from roundelay.core.errors import UserError
from roundelay.terminal import console, print_table

if TYPE_CHECKING:
    from roundelay.recipes.known import Option


def add(command: Command) -> None:
    """Their options."""
    sub = command("list", _list, "list strategies, topologies, recipes, or the options of a recipe")
    sub.add_argument("what", choices=["strategies", "topologies", "recipes", "options"], help="what to list")
    sub.add_argument("recipe", nargs="?", help="with options: a YAML file, or a packaged recipe (default: no recipe's)")


def _list(options: argparse.Namespace) -> None:
    from roundelay.recipes.known import (
        about_recipe,
        about_strategy,
        check_mapping,
        known_recipes,
        read_recipe,
        recipe_options,
        strategies,
        strategy_options,
        topologies,
    )

    if options.recipe is not None and options.what != "options":
        raise UserError(
            f"list {options.what} takes no recipe; `roundelay list options {options.recipe}` shows its options."
        )
    if options.what == "recipes":
        print_table(["recipe", "about"], [(name, about_recipe(name)) for name in known_recipes()], left=2)
    elif options.what == "topologies":
        rows = [(name, about, ", ".join(users)) for name, about, users in topologies()]
        print_table(["topology", "who talks to whom", "strategies"], rows, left=3)
    elif options.what == "strategies":
        for name in strategies():
            console.print(f"{name}: {about_strategy(name)}", markup=False)
            for option in strategy_options(name):
                console.print(f"    {_option(option)}", markup=False)
    else:
        mapping = read_recipe(options.recipe) if options.recipe else {}
        if options.recipe:
            check_mapping(mapping)
        for option in recipe_options(mapping):
            console.print(_option(option), markup=False)


def _option(option: "Option") -> str:
    value = "(must be given)" if option.value is None else option.value
    return f"{option.key}={value}  {option.about} [{option.values}]"
