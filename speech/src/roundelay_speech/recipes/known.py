"""Options of recipes and their types, known without loading torch or any model.

`options/known.json` is taken from the dataclasses that the options are (`python -m roundelay_speech.recipes.describe`
writes it, and a test holds it to them). `roundelay.options.known` reads it, and says why.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module, resources
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from roundelay.core.configure import build, override, read_yaml
from roundelay.core.errors import UserError
from roundelay.core.plugins import GROUPS, WithPlugins
from roundelay.core.strategy_text import did_you_mean
from roundelay.options.known import KnownOptions, Option, check_strategy

ONE_OF_TWO = (("training", "minibatch", "minibatch_per_learner"), ("init", "model", "first"))
"""Pairs of options, by section, of which a recipe has one."""
RECIPE_OPTIONS = KnownOptions("roundelay_speech.recipes")
"""The described options of recipes."""
_RECIPE = "roundelay_speech.recipes.recipe.Recipe"


def known_recipes() -> list[str]:
    """Return the names of the recipes that come with the package."""
    return sorted(
        p.name.removesuffix(".yaml") for p in resources.files(__package__).iterdir() if p.name.endswith(".yaml")
    )


def about_recipe(name: str) -> str:
    """Return the first paragraph of the comment at the top of a packaged recipe, on one line."""
    text = (resources.files(__package__) / f"{name}.yaml").read_text(encoding="utf-8")
    lines = []
    for line in text.splitlines():
        if not line.startswith("# "):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)


def read_recipe(source: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read the recipe in file `source`, or the packaged one of that name, and apply overrides `section.key=value`.

    A recipe with `base: OTHER` begins with that one, a packaged recipe or a file beside it, and gives the differences.

    Raises:
        UserError: there is no such recipe, it is not YAML, or an override is invalid.
    """
    mapping = _with_base(_file_of(source), ())
    apply_overrides(mapping, overrides)
    return mapping


def _file_of(source: str, beside: Path = Path()) -> Path:
    path = beside / source
    if not path.is_file():
        names = known_recipes()
        if source not in names:
            near = did_you_mean(source, names)
            choices = "the name of one (`roundelay list recipes`)" if near else f"one of {', '.join(names)}"
            raise UserError(f"no recipe {source!r}.{near} Give a YAML file, or {choices}.")
        path = Path(str(resources.files(__package__) / f"{source}.yaml"))
    return path


def _with_base(path: Path, begun: tuple[Path, ...]) -> dict[str, Any]:
    mapping = read_yaml(path)
    other = mapping.pop("base", None)
    if other is None:
        return mapping
    if not isinstance(other, str) or path in begun:
        raise UserError(
            f"{path}: base is {other!r}: give the name or file of another recipe, which does not need this one."
        )
    made = _merged(_with_base(_file_of(other, path.parent), (*begun, path)), mapping)
    for name, *two in ONE_OF_TWO:
        _leave_one_of_two(made.get(name), two, mapping.get(name) or ())
    return made


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `changes` in place of its own. A section of another kind (`name` or `rule`)
    replaces the whole section."""
    made = {**base}
    for key, value in changes.items():
        old = base.get(key)
        made[key] = value
        if isinstance(old, dict) and isinstance(value, dict):
            alike = all(value.get(tag, old.get(tag)) == old.get(tag) for tag in ("name", "rule"))
            made[key] = _merged(old, value) if alike else value
    return made


def apply_overrides(mapping: dict[str, Any], overrides: Sequence[str]) -> None:
    """Apply `section.key=value` from the command line. Of two options that exclude each other, the one given replaces
    the other.

    Raises:
        UserError: an override is invalid.
    """
    for assignment in overrides:
        override(mapping, assignment)
    given = {tuple(text.partition("=")[0].split(".")[:2]) for text in overrides}
    for name, *two in ONE_OF_TWO:
        _leave_one_of_two(mapping.get(name), two, {key[1] for key in given if key[0] == name and key[1:]})


def _leave_one_of_two(section: object, two: Sequence[str], given: Collection[str]) -> None:
    """Drop from `section` the one of `two` exclusive options that the other, which was given, replaces."""
    for one, other in (two, two[::-1]):
        chosen = one in given and other not in given
        if chosen and isinstance(section, dict) and section.get(one) is not None:
            section.pop(other, None)


def check_recipe(source: str, overrides: Sequence[str] = ()) -> None:
    """Check the names and types in a recipe, its strategy's included. `recipe.load_recipe` checks whether values fit
    together.

    Raises:
        UserError: as `read_recipe`; an option is unknown or missing, or a value has the wrong type; names the dotted
            key.
    """
    check_mapping(read_recipe(source, overrides))


def check_overrides(overrides: Sequence[str]) -> None:
    """Check overrides of a recipe that is read later, as `check_recipe`.

    Raises:
        UserError: as `check_recipe`.
    """
    mapping: dict[str, Any] = {"name": "", "corpus": "", "alignment": ""}
    apply_overrides(mapping, overrides)
    check_mapping(mapping)


def check_mapping(mapping: Mapping[str, Any]) -> None:
    """Check the options of a recipe, as `check_recipe`."""
    build(RECIPE_OPTIONS.sections[_RECIPE], mapping)
    training = mapping.get("training") or {}
    check_strategy(training.get("strategy", "sgd"), training.get("options") or {})


def corpora() -> Mapping[str, str]:
    """Return the corpora that `roundelay prepare` knows, by name, with a sentence on each; those of other packages are
    loaded for theirs."""

    def told(found: EntryPoint) -> str:
        return str(import_module("roundelay_speech.corpus.readers").READERS[found.name].told)  # by name: it loads torch

    return WithPlugins("corpora", RECIPE_OPTIONS.known["corpora"], told)


def choices(what: str) -> dict[str, tuple[str, list[Option]]]:
    """Return everything in an open set of a recipe, by name: a sentence on it, and its options with their plain names
    as keys. `what` is models, objectives, graphs or units."""
    found, section = {}, RECIPE_OPTIONS.known["choices"][what]
    entries = section["names"] if what not in GROUPS else WithPlugins(what, section["names"], RECIPE_OPTIONS.of_plugin)
    for name, entry in entries.items():
        key = section["key"]
        options = [
            dataclasses.replace(option, key=option.key.removeprefix(f"{key}."))
            for option in RECIPE_OPTIONS.options(entry["section"], {}, key)
        ]
        found[name] = (str(entry["about"]), options[1:])  # the first is the name itself
    return found


def explained(name: str) -> str:
    """Return the description of an option of the section `training`."""
    return str(RECIPE_OPTIONS.fields("roundelay_speech.recipes.recipe.Training")[name]["about"])


def recipe_schema() -> dict[str, Any]:
    """Return a JSON Schema of recipes, by which editors complete and check them."""
    schema = RECIPE_OPTIONS.schema(_RECIPE)
    schema["$defs"][_RECIPE]["properties"]["base"] = {
        "type": "string",
        "description": "recipe that this one begins with",
    }
    return schema


def recipe_options(mapping: Mapping[str, Any] | None = None) -> list[Option]:
    """Return all options of a recipe in order, with the values they have in `mapping` or else by default.

    Of a section that may be one of several (model, optimizer, schedule), the options of the one that `mapping` has.
    """
    return [*RECIPE_OPTIONS.options(_RECIPE, mapping or {}, "")]
