"""The recipe that a run directory keeps, read again: from any working directory, and where run and data have moved.

`recipe.yaml` holds paths as they were given. `place.json` beside it (see run_directory) says where the run directory
and the working directory were then. A path is looked for, in this order, where a relative one leads

1. seen from the run directory, as it was then: run and data were moved, or copied, together;
2. in the working directory of then: the command runs elsewhere, or the run alone was moved;

and an absolute one the other way round. A run of an earlier version has no place.json: its relative paths are looked
for in the working directory, then in the folders above the run directory.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from roundelay.core.configure import build, read_yaml
from roundelay.core.errors import UserError
from roundelay.core.folders import RECIPE, check_run
from roundelay.run_directory import Origin, read_origin
from roundelay_speech.recipes.known import apply_overrides
from roundelay_speech.recipes.recipe import Recipe, as_it_was, complete

NEEDED = ("corpus", "alignment")
_OTHERS = ("init.model", "decode.arpa", "decode.rescore", "decode.lexicon", "decode.graph.units", "decode.text")


def kept_recipe(exp: Path, overrides: Sequence[str] = (), corpus: Path | None = None) -> Recipe:
    """Return the recipe of the run in `exp`, with paths that hold here and now; overrides name paths seen from here.

    Args:
        corpus: stands for the run's own where that is not found.

    Raises:
        UserError: not a run directory; its corpus or alignment is not found (names all places looked at); an override
            that is none.
    """
    mapping = read_kept(exp)
    try:
        unaligned = build(Recipe, mapping).unaligned  # before overrides, so that an error is known to be the file's
    except UserError as error:
        raise UserError(f"{exp / RECIPE}: {error}") from None
    origin = read_origin(exp)
    for holder, key in _paths(mapping):
        instead = corpus if key == "corpus" else None
        needed = key in NEEDED and not (key == "alignment" and unaligned)
        holder[key] = str(_found(exp, origin, Path(str(holder[key])), key, instead, needed=needed))
    apply_overrides(mapping, overrides)
    return build(Recipe, mapping)


def read_kept(exp: Path) -> dict[str, Any]:
    """Return the mapping in the run's recipe.yaml, as it is written there.

    Raises:
        UserError: not a run directory.
    """
    check_run(exp)
    return as_it_was(read_yaml(exp / RECIPE))


def with_kept_order(recipe: Recipe, exp: Path) -> Recipe:
    """Return the recipe with the order of an epoch that the run in `exp` has, where it leaves the order to the corpus:
    so that the two can be compared without looking at the corpus.

    Raises:
        UserError: not a run directory.
    """
    if recipe.training.order != "auto":
        return recipe
    order = as_it_was(read_kept(exp))["training"]["order"]
    return replace(recipe, training=replace(recipe.training, order=order))


def completed(mapping: dict[str, Any], exp: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """Return a kept recipe with all options of today, and the paths of `asked` where they lead to the same places."""
    whole, origin = complete(mapping), read_origin(exp)
    given = {key: holder[key] for holder, key in _paths(asked)}
    for holder, key in _paths(whole):
        if origin is not None and key in given and holder[key] is not None:
            here = _candidates(exp, origin, Path(holder[key]))
            wanted = os.path.realpath(os.path.expanduser(given[key]))
            same = next((path for path in here if os.path.realpath(path) == wanted), None)
            # The same words may mean another place by now, seen from another folder.
            holder[key] = given[key] if same is not None else str(_seen_from_here(here[0]))
    return whole


def _paths(mapping: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield (mapping or list, key or position) of every path in a recipe."""
    for where in (*NEEDED, *_OTHERS):
        *sections, key = where.split(".")
        holder: Any = mapping
        for section in sections:
            holder = holder.get(section) if isinstance(holder, dict) else None
        if isinstance(holder, dict) and isinstance(holder.get(key), str):
            yield holder, key
        elif isinstance(holder, dict) and isinstance(holder.get(key), list | tuple):
            holder[key] = list(holder[key])
            yield from ((holder[key], i) for i in range(len(holder[key])))


def _candidates(exp: Path, origin: Origin | None, given: Path) -> list[Path]:
    """Return places that a path of the recipe may lead to, the likeliest first."""
    given = given.expanduser()
    if origin is None:
        if given.is_absolute():
            return [given]
        return [given, *(above / given for above in Path(os.path.realpath(exp)).parents)]
    absolute = origin.working_directory / given
    moved = Path(os.path.normpath(Path(os.path.realpath(exp)) / os.path.relpath(absolute, origin.run)))
    return [absolute, moved] if given.is_absolute() else [moved, absolute]


def _found(exp: Path, origin: Origin | None, given: Path, key: object, instead: Path | None, *, needed: bool) -> Path:
    candidates = list(dict.fromkeys(_candidates(exp, origin, given)))
    there = next((path for path in candidates if path.exists()), None)
    if there is None and instead is not None:
        return instead
    if there is None and needed:
        looked = " nor ".join(str(path) for path in candidates[:3])
        raise UserError(
            f"{exp}: its {key}, `{given}` in its recipe, is not found: neither {looked} is there. Run and {key} can be "
            f"moved together; if only one was, write the {key}'s place into {exp / RECIPE}"
            f"{', or decode with --corpus DIR' if key == 'corpus' else ''}."
        )
    path = there or candidates[0]
    return given if os.path.realpath(given.expanduser()) == os.path.realpath(path) else _seen_from_here(path)


def _seen_from_here(path: Path) -> Path:
    relative = os.path.relpath(path)
    return path if relative.startswith(os.path.join(os.pardir, os.pardir)) else Path(relative)
