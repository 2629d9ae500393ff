"""From a table of results to a verdict, by the rule that the claim's file fixed."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean, median, stdev

from roundelay.core.errors import UserError
from roundelay_lab.claims.claim import Check, Claim, Rule, Selection
from roundelay_lab.claims.experiment import Row

Configuration = tuple[tuple[str, object], ...]
"""Keys of a row and their values, the seed left out."""


class Verdict(Enum):
    """Outcome of a claim."""

    SHOWN = "shown"
    REFUTED = "refuted"
    PARTLY = "partly"
    OPEN = "open"


@dataclass(frozen=True)
class Measured:
    """One number by configuration and seed; infinite where a run diverged."""

    configuration: Configuration
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over seeds."""
        return fmean(self.values)

    @property
    def sd(self) -> float | None:
        """Standard deviation over seeds; None of fewer than two, or of runs that diverged."""
        return stdev(self.values) if len(self.values) > 1 and math.isfinite(self.mean) else None


@dataclass(frozen=True)
class Checked:
    """A check, the number it is about, and whether that keeps the bound."""

    check: Check
    value: float
    holds: bool
    count: int  # configurations


@dataclass(frozen=True)
class Judgement:
    """A verdict and the checks that it rests on."""

    verdict: Verdict
    shown: tuple[Checked, ...]
    refuted: tuple[Checked, ...]


def judge(rule: Rule, rows: Sequence[Row], keys: Sequence[str]) -> Judgement:
    """The verdict on a table.

    Raises:
        UserError: a check selects nothing, or a divisor is not one row.
    """
    shown, refuted = (tuple(_check(c, rows, keys) for c in checks) for checks in (rule.shown, rule.refuted))
    verdict = Verdict.PARTLY
    if all(one.holds for one in shown):
        verdict = Verdict.SHOWN
    elif any(one.holds for one in refuted):
        verdict = Verdict.REFUTED
    return Judgement(verdict, shown, refuted)


def measured(
    rows: Sequence[Row],
    keys: Sequence[str],
    column: str,
    wanted: Selection,
    over: Selection | None = None,
    same: Sequence[str] = (),
) -> list[Measured]:
    """A column, by configuration in the order of the table; divided by that of the row selected by `over`.

    Raises:
        UserError: nothing is selected, or a divisor is not one row.
    """
    groups: dict[Configuration, list[float]] = {}
    for row in rows:
        if selects(wanted, row):
            value = number(row.get(column))
            if over is not None:
                value = _ratio(value, number(_divisor(rows, row, over, same).get(column)))
            groups.setdefault(configuration(row, keys), []).append(value)
    if not groups:
        raise UserError(f"no row has {dict(wanted)}.")
    return [Measured(one, tuple(values)) for one, values in groups.items()]


def configuration(row: Row, keys: Sequence[str]) -> Configuration:
    """A row's keys without the seed; of those it has."""
    return tuple((key, row[key]) for key in keys if row.get(key) is not None)


def selects(wanted: Selection, row: Row) -> bool:
    """True if a row has one of the wanted values of every key."""
    return all(
        row.get(key) in (value if isinstance(value, list | tuple) else (value,)) for key, value in wanted.items()
    )


def number(value: object) -> float:
    """A column's value; one that is no number diverged."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.inf


def landings(claim: Claim, before: Sequence[Row], after: Sequence[Row], keys: Sequence[str]) -> list[str]:
    """A sentence for each configuration of a rerun that does not land within the spread that the claim states."""
    found = []
    for landing in claim.landing:
        old, new = (
            {m.configuration: m.mean for m in measured(rows, keys, landing.column, {})} for rows in (before, after)
        )
        for one, was in old.items():
            now = new.get(one, math.nan)
            if landing.broken is not None and min(was, now) > landing.broken:
                continue
            if was != now and not abs(now - was) <= landing.within * abs(was):
                found.append(f"{said(one)}: {landing.column} {now:.4g}, evidence {was:.4g}")
    return found


def said(one: Configuration) -> str:
    """A configuration in words."""
    return ", ".join(f"{value}" if key == "strategy" else f"{key} {value}" for key, value in one)


def _check(check: Check, rows: Sequence[Row], keys: Sequence[str]) -> Checked:
    found = [m.mean for m in measured(rows, keys, check.column, check.rows, check.over, check.same)]
    above = check.at_least is not None
    pick: Mapping[str, Callable[[Sequence[float]], float]] = {
        "every": min if above else max,
        "any": max if above else min,
        "median": median,
    }
    value = pick[check.take](found)
    holds = value >= check.at_least if check.at_least is not None else value <= (check.at_most or 0.0)
    return Checked(check, value, holds, len(found))


def _divisor(rows: Sequence[Row], row: Row, over: Selection, same: Sequence[str]) -> Row:
    wanted = {**{key: row.get(key) for key in same}, **over}
    found = [other for other in rows if other.get("seed") == row.get("seed") and selects(wanted, other)]
    if len(found) != 1:
        raise UserError(f"{len(found)} rows have {wanted} and seed {row.get('seed')}: a divisor is one.")
    return found[0]


def _ratio(value: float, divisor: float) -> float:
    """Of two runs that diverged neither is worse."""
    if math.isinf(value):
        return 1.0 if math.isinf(divisor) else math.inf
    return value / divisor if divisor else math.inf
