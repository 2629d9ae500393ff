"""The rules of exchanges, by name: so that two hosts can agree on one without sending code.

A rule is a function of this package, or a frozen dataclass of it that is called like one; a function may be given
numbers by functools.partial. On the wire it is a name and its numbers, and nothing else is ever looked up.

A *report* is a rule of a learner's exchange with the centre that knows of the learner's row and of its one private
vector their difference alone, and leaves both as copies of the centre, or as they were. So it travels as one vector,
the vectors beside the centre stay there, and the centre comes back, or nothing.
"""

import dataclasses
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from roundelay.algorithms.averaging import pair_average_, share_average_
from roundelay.algorithms.continuous_momentum import Meeting
from roundelay.algorithms.delayed_nesterov import OuterReport
from roundelay.algorithms.elastic import Pull, set_centre_
from roundelay.algorithms.outer_momentum import OuterMeeting
from roundelay.algorithms.parameter_server import GatheredReport, Report
from roundelay.algorithms.quorum import give_
from roundelay.core.effects import Rule

EXACT = 1 << 53
"""Whole numbers up to this one are exact as float32, by which vectors are multiplied."""
RULES: dict[str, Callable[..., Any]] = {}
"""Rules by name: functions, and dataclasses whose objects are functions with numbers of their own."""
REPORTS: dict[str, bool] = {}
"""Reports by name; True for one that leaves row and private vector as copies of the centre."""
_USES: set[tuple[Callable[..., Any], tuple[str, ...], int, bool, bool]] = set()
"""Combinations known to fit: a rule, names of its numbers, its private vectors, and whether it takes an age and a
share."""


@dataclass(frozen=True)
class StrategyRule(ABC):
    """A rule that needs its strategy, which all hosts of a run have; fields besides `strategy` are numbers that
    travel."""

    opens: ClassVar[bool] = False
    """True if a learner begins a segment by this rule, and may come to gatherings from then on."""
    strategy: Any

    @classmethod
    @abstractmethod
    def is_of(cls, strategy: Any) -> bool:
        """Return True if this rule belongs to `strategy`."""


def register(rule: Callable[..., Any], report: bool = False, returns: bool = True) -> None:
    """Register `rule`, a function or a frozen dataclass, so that hosts can exchange under it. Each host must do so
    before it trains.

    Args:
        report: True if the rule reports to the centre.
        returns: True if such a report leaves row and private vector as copies of the centre.
    """
    RULES[rule.__qualname__] = rule
    if report:
        REPORTS[rule.__qualname__] = returns


for _rule in (pair_average_, share_average_, set_centre_, Pull, Meeting, OuterMeeting):
    register(_rule)
for _report in (Report, GatheredReport, OuterReport):
    register(_report, report=True)
register(give_, report=True, returns=False)


def describe(rule: Rule) -> dict[str, Any]:
    """Return a rule as JSON: `{"name": ..., "numbers": {...}}`.

    Raises:
        ValueError: `rule` is not registered, or one of its values is no number.
    """
    made: Any = rule
    numbers: dict[str, Any] = {}
    if isinstance(rule, partial):
        made, numbers = rule.func, dict(rule.keywords)
        if rule.args:
            raise ValueError(f"{rule} is given numbers without names")
    elif dataclasses.is_dataclass(made) and not isinstance(made, type):
        made, numbers = type(rule), {field.name: getattr(rule, field.name) for field in dataclasses.fields(made)}
        if isinstance(made, type) and issubclass(made, StrategyRule):
            del numbers["strategy"]
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


def find(description: Any, private: int, aged: bool, strategy: Any = None, weighed: bool = False) -> Rule:
    """Return the rule of a `description` from `describe`. It must take `private` vectors besides the two rows, and an
    age if `aged`.

    Args:
        strategy: the run's, for rules that need one.
        weighed: True if the rule is given a share.

    Raises:
        ValueError: there is no such rule, or it takes other values.
    """
    if not isinstance(description, Mapping) or set(description) != {"name", "numbers"}:
        raise ValueError("a description of a rule has a name and numbers, and nothing else")
    name, numbers = description["name"], description["numbers"]
    made = RULES.get(name) if isinstance(name, str) else None
    if made is None or not isinstance(numbers, Mapping) or not all(map(_is_number, numbers.values())):
        raise ValueError("no rule is registered by this name, or its numbers are not finite")
    own: dict[str, Any] = {}
    if isinstance(made, type) and issubclass(made, StrategyRule):
        if "strategy" in numbers or not made.is_of(strategy):
            raise ValueError(f"{name} is not a rule of the run's strategy")
        own["strategy"] = strategy
    try:
        rule: Rule = made(**own, **numbers) if isinstance(made, type) else partial(made, **numbers) if numbers else made
        use = made, tuple(numbers), private, aged, weighed
        if use not in _USES:
            told = {**({"age": 0} if aged else {}), **({"share": 0.5} if weighed else {})}
            inspect.signature(rule).bind(*[None] * (2 + private), **told)
            _USES.add(use)  # a look at a signature takes longer than the rest of a small exchange
    except TypeError as error:
        raise ValueError(f"{name} does not take these arguments") from error
    return rule


def _is_number(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) <= EXACT
    return isinstance(value, float) and math.isfinite(value)
