"""Axes of a grid as they are written: options of which several values are compared, or tuned.

    training.minibatch=256,1024,4096        three values of an option of the recipe
    strategy.period=1,5,20                  of an option of strategies, for those that have it
    model={name: blstm, layers: 2},dnn      values are YAML: brackets and quotes hold a value together
    decode.scales=[8,10,12]                 one value, a list

Needs neither strategies nor torch, so that a slip of the keyboard is named before anything is loaded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from roundelay.core.errors import UserError
from roundelay.core.strategy_text import did_you_mean, parse_strategy, split_outside_brackets
from roundelay.options.known import check_strategy, strategies

USUAL_STRATEGIES = ("ssgd", "adpsgd:random-ring")
"""Strategies that are compared with one learner alone, where none are named."""
_STRATEGY = "strategy."


@dataclass(frozen=True)
class GridAxis:
    """An option and the values of it that are compared, as YAML texts."""

    key: str  # training.minibatch, or strategy.period
    values: tuple[str, ...]

    @property
    def option(self) -> str | None:
        """Name of the strategies' option that varies; None for an option of the recipe."""
        return self.key.removeprefix(_STRATEGY) if self.key.startswith(_STRATEGY) else None


@dataclass(frozen=True)
class Axes:
    """The values given for a grid: for all trainings, to be compared, and to be tuned."""

    overrides: tuple[str, ...]  # of the recipe, for every training
    compared: tuple[GridAxis, ...]
    tuned: tuple[GridAxis, ...]

    def of(self, strategy: str) -> "Axes":
        """Return the axes that apply to `strategy`, without options whose value the strategy itself names."""
        name, written = parse_strategy(strategy)
        has = set(strategies().get(name, ())) - set(written)
        compared, tuned = (
            tuple(axis for axis in axes if axis.option is None or axis.option in has)
            for axes in (self.compared, self.tuned)
        )
        return Axes(self.overrides, compared, tuned)


Point = tuple[tuple[str, str], ...]
"""One value for each of some axes, as (key, YAML text)."""


def points(axes: Sequence[GridAxis]) -> list[Point]:
    """Return every combination of the axes' values; the first axis changes slowest."""
    return [
        tuple(zip((axis.key for axis in axes), values, strict=True)) for values in product(*(a.values for a in axes))
    ]


def recipe_part(point: Point) -> list[str]:
    """Return the overrides of the recipe among the values of a point."""
    return [f"{key}={value}" for key, value in point if not key.startswith(_STRATEGY)]


def strategy_part(point: Point) -> str:
    """Return the options of a strategy among the values of a point, as they follow its name: `,period=5`."""
    return "".join(f",{key.removeprefix(_STRATEGY)}={value}" for key, value in point if key.startswith(_STRATEGY))


def read_axes(overrides: Sequence[str], tune: Sequence[str] = ()) -> Axes:
    """Parse axes from overrides, each `section.key=value` or `section.key=value,value,...`, and from options `tune` to
    be tuned.

    Raises:
        UserError: an empty value, one value to choose from, or an axis given twice; names it.
    """
    plain, compared, tuned = [], [], []
    for text in overrides:
        key, values = _parts(text)
        if len(values) > 1 or key.startswith(_STRATEGY):
            compared.append(GridAxis(key, values))
        else:
            plain.append(f"{key}={values[0]}")
    for text in tune:
        key, values = _parts(text)
        if len(values) < 2:
            raise UserError(f"--tune {text!r}: give several different values to choose from, {key}=VALUE,VALUE.")
        tuned.append(GridAxis(key, values))
    keys = [axis.key for axis in (*compared, *tuned)]
    once = {text.partition("=")[0] for text in plain}
    if twice := next((key for key in keys if keys.count(key) > 1 or key in once), None):
        raise UserError(f"{twice} is given twice: put all its values into one {twice}=VALUE,VALUE.")
    return Axes(tuple(plain), tuple(compared), tuple(tuned))


def is_override(text: str) -> bool:
    """Return True if `text`, a word behind strategies, is an override `key=value` and not another strategy."""
    key, equals, _ = text.partition("=")
    return bool(equals) and "," not in key and ":" not in key


def check_axes(axes: Axes, given: Sequence[str], check_recipe: Callable[[Sequence[str]], None]) -> None:
    """Check names and types of recipe, strategies and every value of every axis.

    Args:
        check_recipe: checks the recipe with overrides.

    Raises:
        UserError: as `check_recipe` and `check_strategy`; or no strategy of `given` takes an option.
    """
    whole = (*axes.compared, *axes.tuned)
    for point in points([axis for axis in whole if axis.option is None]):
        check_recipe([*axes.overrides, *recipe_part(point)])
    taken: set[str] = set()
    for text in given:
        check_strategy(text)
        of = axes.of(text)
        mine = [axis for axis in (*of.compared, *of.tuned) if axis.option is not None]
        for point in points(mine):
            check_strategy(text + strategy_part(point))
        taken |= {axis.key for axis in mine}
    for axis in whole:
        if axis.option is not None and axis.key not in taken:
            there = sorted({option for text in given for option in strategies()[parse_strategy(text)[0]]})
            raise UserError(
                f"{axis.key}: none of the strategies {', '.join(given)} takes a value of it; they have the options "
                f"{', '.join(there) or '(none)'}, those aside that they name themselves."
                f"{did_you_mean(axis.option, there)}"
            )


def _parts(text: str) -> tuple[str, tuple[str, ...]]:
    key, equals, written = text.partition("=")
    if not equals or not key:
        raise UserError(f"{text!r}: write it as section.key=value or section.key=value,value.")
    values = tuple(value.strip() for value in split_outside_brackets(written))
    if values == ("",):
        raise UserError(f"{text!r}: there is no value behind the equals sign; write {key}=null where none is meant.")
    if "" in values:
        raise UserError(f"{text!r}: a value between commas is empty.")
    return key, tuple(dict.fromkeys(values))
