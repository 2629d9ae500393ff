"""The rules of exchanges, by name: so that two hosts can agree on one without sending code.

A rule is a function of this package, or a frozen dataclass of it that is called like one; a function may be given
numbers by functools.partial. On the wire it is a name and its numbers, and nothing else is ever looked up.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from roundelay.algorithms.averaging import pair_average_
from roundelay.algorithms.continuous_momentum import Meeting
from roundelay.algorithms.delayed_nesterov import OuterReport
from roundelay.algorithms.elastic import Pull, set_centre_
from roundelay.algorithms.parameter_server import GatheredReport, Report
from roundelay.core.effects import Rule

EXACT = 1 << 53
"""The largest whole number up to which all are exact as a float, which is what vectors are multiplied by."""
RULES: dict[str, Callable[..., Any]] = {}
"""Functions, and dataclasses that make one of their numbers."""
_USES: set[tuple[Callable[..., Any], tuple[str, ...], int, bool]] = set()
"""Rules, names of their numbers, private vectors, and whether there is an age: those that are known to fit."""


def register(rule: Callable[..., Any]) -> None:
    """Let hosts exchange under `rule`, a function or a frozen dataclass. All hosts must do so, before they train."""
    RULES[rule.__qualname__] = rule


for _rule in (pair_average_, set_centre_, Pull, Report, GatheredReport, Meeting, OuterReport):
    register(_rule)


def describe(rule: Rule) -> dict[str, Any]:
    """A rule as JSON: `{"name": ..., "numbers": {...}}`.

    Raises:
        ValueError: it has no name here, or is given what is no number.
    """
    made: Any = rule
    numbers: dict[str, Any] = {}
    if isinstance(rule, partial):
        made, numbers = rule.func, dict(rule.keywords)
        if rule.args:
            raise ValueError(f"{rule} is given numbers without names")
    elif dataclasses.is_dataclass(made) and not isinstance(made, type):
        made, numbers = type(rule), {field.name: getattr(rule, field.name) for field in dataclasses.fields(made)}
    name = getattr(made, "__qualname__", "")
    if RULES.get(name) is not made or (made is rule and isinstance(made, type)):
        raise ValueError(
            f"{rule!r} is not known by name, so it cannot be asked of another host: "
            "see roundelay.algorithms.rules.register"
        )
    for key, number in numbers.items():
        if not _is_number(number):
            raise ValueError(f"{name}: {key} is {number!r}, which is no finite number")
    return {"name": name, "numbers": numbers}


def find(description: Any, private: int, aged: bool) -> Rule:
    """The inverse of `describe`, for a rule that is given so many private vectors, and an age or not.

    Raises:
        ValueError: there is none.
    """
    if not isinstance(description, Mapping) or set(description) != {"name", "numbers"}:
        raise ValueError("no description of a rule")
    name, numbers = description["name"], description["numbers"]
    made = RULES.get(name) if isinstance(name, str) else None
    if made is None or not isinstance(numbers, Mapping) or not all(map(_is_number, numbers.values())):
        raise ValueError("no rule of ours")
    try:
        rule: Rule = made(**numbers) if isinstance(made, type) else partial(made, **numbers) if numbers else made
        use = made, tuple(numbers), private, aged
        if use not in _USES:
            inspect.signature(rule).bind(*[None] * (2 + private), **({"age": 0} if aged else {}))
            _USES.add(use)  # a look at a signature takes longer than the rest of a small exchange
    except TypeError as error:
        raise ValueError(f"{name} is not to be used like this") from error
    return rule


def _is_number(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) <= EXACT
    return isinstance(value, float) and math.isfinite(value)
