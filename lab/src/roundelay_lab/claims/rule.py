"""From a table of results to a verdict, by the rule in the claim's file.

Every bound is asked of intervals over seeds, configuration by configuration, and pairs runs by their seed. A clause
holds if the interval lies within its bound, fails if it lies beyond, and is undecided otherwise. Where one of several
will do (`take: any`, and the clauses that refute), each is asked at its share of the level (Bonferroni), so that among
effects that are none still at most one in twenty passes.

A number of an experiment is a mean over seeds, of a column or of its ratio to that of another run of the same seed:
the part that the two share (data, order, first weights) cancels. Its bound is the mean with two standard errors, or
with as many as Student's distribution asks for where seeds are few (2.9 of three; Student 1908, Biometrika 6). So of
effects that are none, at most one in twenty keeps a bound.

Chance of a verdict under new seeds: means and spreads are drawn as the seeds leave them open (no prior knowledge:
Gelman et al., Bayesian Data Analysis, 3rd ed., sec. 3.2), then as many seeds of such an experiment, and they are
judged. All numbers of an experiment are drawn together, as its seeds moved them together; one scale is drawn for all.

Legend: N seeds; K numbers, one a configuration; D draws.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import atan, cos, pi, sin, sqrt
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_lab.claims.claim import Check, Claim, Rule, Selection
from roundelay_lab.claims.experiment import Row

LEVEL = 0.05
"""Largest chance at which a bound is met without any real effect."""
DRAWS = 4000
Array = NDArray[np.float64]


def student(t: float, freedom: int) -> float:
    """Return the probability that Student's t is below `t` (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(freedom))
    term = total = cos(angle) if freedom % 2 else 1.0
    for k in range(3 if freedom % 2 else 2, freedom - 1, 2):
        term *= cos(angle) ** 2 * (k - 1) / k
        total += term
    if freedom == 1:
        return 0.5 + angle / pi
    between = 2 / pi * (angle + sin(angle) * total) if freedom % 2 else sin(angle) * total
    return 0.5 + between / 2


@cache
def standard_errors(seeds: int, level: float = LEVEL) -> float:
    """Return how many standard errors an interval's bound is from the mean: two, or more by Student's distribution."""
    low, high = 2.0, 1e6
    if student(low, seeds - 1) >= 1 - level:
        return low
    for _ in range(200):
        middle = sqrt(low * high)
        low, high = (middle, high) if student(middle, seeds - 1) < 1 - level else (low, middle)
    return high


@dataclass(frozen=True)
class Sampled:
    """Means and standard errors of K numbers over N seeds, in each of D drawn experiments: (D, K). The measured numbers
    are one draw."""

    means: Array
    errors: Array
    seeds: int

    def bounds(self, level: float = LEVEL) -> tuple[Array, Array]:
        """Return the lower and upper bounds of intervals, each (D, K). Without seeds a number is exact; with one seed
        nothing is known of its spread."""
        if self.seeds == 0:
            return self.means, self.means
        if self.seeds == 1:
            return np.full_like(self.means, -np.inf), np.full_like(self.means, np.inf)
        with np.errstate(invalid="ignore"):
            away = np.where(self.errors > 0, standard_errors(self.seeds, level) * self.errors, 0.0)
        return self.means - away, self.means + away


def sampled(values: Array, *, seeded: bool) -> Sampled:
    """Return means and standard errors of measured values (N, K). Numbers that diverged with all seeds are infinite for
    certain; with some seeds only, nothing is known of their mean."""
    infinite = np.isinf(values)
    mixed = infinite.any(0) & ~infinite.all(0)
    finite = np.where(infinite, 0.0, values)
    count = len(values)
    errors = finite.std(0, ddof=1) / sqrt(count) if count > 1 else np.zeros(values.shape[1])
    errors = np.where(mixed, np.inf, errors)
    means = np.where(infinite.all(0), np.inf, finite.mean(0))
    return Sampled(means[None], errors[None], count if seeded else 0)


def new_seeds(values: Array, seeds: int, *, stay: bool = False) -> Sampled:
    """Draw experiments of `seeds` new seeds each, given the values measured, (N, K), and the uncertainty of their means
    and spreads; with `stay`, as if so many seeds had been measured with these means and spreads."""
    count = len(values)
    known = seeds if stay else count
    rng = stream(0, "new-seeds", str(seeds))
    now = sampled(values, seeded=True)
    spread = np.where(np.isinf(values), 0.0, values)
    spread = (spread - spread.mean(0)) / sqrt(count - 1)
    scale = np.sqrt((known - 1) / rng.chisquare(known - 1, DRAWS))[:, None]
    drawn = rng.standard_normal((DRAWS, seeds, count))
    centre = rng.standard_normal((DRAWS, count)) / sqrt(known) + drawn.mean(1)
    apart = drawn - drawn.mean(1, keepdims=True)
    covariance = np.einsum("dsi,dsj->dij", apart, apart) / (seeds - 1)
    means = now.means + scale * (centre @ spread)
    errors = scale * np.sqrt(np.einsum("ik,dij,jk->dk", spread, covariance, spread).clip(0) / seeds)
    return Sampled(means, np.where(np.isinf(now.errors), np.inf, errors), seeds)


Flags = NDArray[np.bool_]
Configuration = tuple[tuple[str, object], ...]
"""The keys of a row and their values, without the seed."""
SURE = 0.95
"""Least chance of the same verdict under new seeds, for `shown` and `refuted`."""
MORE_SEEDS = (4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)
"""Numbers of seeds that `seeds_that_decide` tries for an open claim."""


class Verdict(Enum):
    """Verdict on a claim."""

    SHOWN = "shown"
    REFUTED = "refuted"
    NOT_SHOWN = "not shown"
    OPEN = "open"


@dataclass(frozen=True)
class Measured:
    """One number by configuration and seed; infinite where a run diverged."""

    configuration: Configuration
    values: tuple[float, ...]
    seeds: tuple[int | None, ...] = ()

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return fmean(self.values)

    @property
    def sd(self) -> float | None:
        """Standard deviation over seeds; None for fewer than two seeds, or runs that diverged."""
        return stdev(self.values) if len(self.values) > 1 and math.isfinite(self.mean) else None


@dataclass(frozen=True)
class Checked:
    """A check with its measurement, that of the configuration that decides.

    value   mean of that configuration over seeds
    edge    the end of its interval that is compared with the bound
    holds   True or False, or None if intervals are on both sides of the bound
    """

    check: Check
    value: float
    edge: float
    holds: bool | None


@dataclass(frozen=True)
class Judgement:
    """A judgement of a claim: the verdict, and the checks that it rests on.

    here    the verdict by the seeds at hand; the final one is `open` if new seeds would repeat it too rarely
    chance  chance of the same verdict under as many new seeds; None: numbers do not depend on chance, or there is one
            seed
    """

    verdict: Verdict
    shown: tuple[Checked, ...] = ()
    refuted: tuple[Checked, ...] = ()
    open: tuple[Checked, ...] = ()
    here: Verdict = Verdict.OPEN
    chance: float | None = None


@dataclass(frozen=True)
class _Clause:
    """A check, its numbers (N, K), and the number of checks of which one is enough."""

    check: Check
    values: Array
    seeded: bool
    among: int = 1

    @property
    def bound(self) -> float:
        """The bound that intervals are compared with."""
        found = self.check.at_least if self.check.at_most is None else self.check.at_most
        assert found is not None
        return found

    def decided(self, one: Sampled) -> tuple[Flags, Flags]:
        """Return for each draw, (D,), True where the clause holds, and True where it fails."""
        every = self.check.take != "any"
        within = self._edge(one, LEVEL / (self.among if every else self.among * self.values.shape[1]))
        beyond = one.bounds()[1 if self.check.at_least is not None else 0]
        holds, fails = self._keeps(within), ~self._keeps(beyond)
        if every:
            return np.asarray(holds.all(1)), np.asarray(fails.any(1))
        return np.asarray(holds.any(1)), np.asarray(fails.all(1))

    def checked(self, one: Sampled) -> Checked:
        """Return the check with its measurement."""
        holds, fails = (bool(found[0]) for found in self.decided(one))
        edges = self._edge(one, LEVEL / self.among)[0]
        lowest = (self.check.at_least is not None) == (self.check.take != "any")
        place = int(edges.argmin() if lowest else edges.argmax())
        state = True if holds else False if fails else None
        return Checked(self.check, float(one.means[0, place]), float(edges[place]), state)

    def _edge(self, one: Sampled, level: float) -> Array:
        low, high = one.bounds(level)
        return low if self.check.at_least is not None else high

    def _keeps(self, edges: Array) -> Flags:
        return np.asarray(edges >= self.bound if self.check.at_least is not None else edges <= self.bound)


_Clauses = Sequence[Sequence[_Clause]]
"""Clauses that show a claim, that refute it, and that leave it open."""


def judge(rule: Rule, rows: Sequence[Row], keys: Sequence[str]) -> Judgement:
    """Return the verdict on a table by a rule.

    Raises:
        UserError: a check selects nothing, a divisor is not one row, or configurations have other seeds.
    """
    clauses = _clauses(rule, rows, keys)
    parts = [sampled(one.values, seeded=one.seeded) for one in _every(clauses)]
    now = iter(parts)
    shown, refuted, control = (tuple(one.checked(next(now)) for one in group) for group in clauses)
    here = verdict = _verdicts(clauses, parts)[0]
    if (count := _seeds(clauses)) is None:
        return Judgement(verdict, shown, refuted, control, here)
    chance = _chance(clauses, here, new_seeds(_values(clauses), count))
    if here in (Verdict.SHOWN, Verdict.REFUTED) and chance < SURE:
        verdict = Verdict.OPEN
    return Judgement(verdict, shown, refuted, control, here, chance)


def seeds_that_decide(rule: Rule, rows: Sequence[Row], keys: Sequence[str]) -> int | None:
    """Return about how many seeds would decide the verdict that a table's means suggest, if means and spreads stay.
    None: more than are tried, or no number would.

    Raises:
        UserError: as `judge`.
    """
    clauses = _clauses(rule, rows, keys)
    if (count := _seeds(clauses)) is None:
        return None
    exact = [sampled(one.values, seeded=False) for one in _every(clauses)]
    leaning = _verdicts(clauses, exact)[0]
    values = _values(clauses)
    more = (n for n in MORE_SEEDS if n > count)
    return next((n for n in more if _chance(clauses, leaning, new_seeds(values, n, stay=True)) >= SURE), None)


def _chance(clauses: _Clauses, verdict: Verdict, drawn: Sampled) -> float:
    """Return the share of drawn experiments that come to `verdict`."""
    ends = np.cumsum([one.values.shape[1] for one in _every(clauses)])[:-1]
    parts = zip(np.split(drawn.means, ends, 1), np.split(drawn.errors, ends, 1), strict=True)
    found = _verdicts(clauses, [Sampled(means, errors, drawn.seeds) for means, errors in parts])
    return float(np.mean([one is verdict for one in found]))


def _clauses(rule: Rule, rows: Sequence[Row], keys: Sequence[str]) -> _Clauses:
    groups = ((rule.shown, 1), (rule.refuted, len(rule.refuted)), (rule.open, 1))
    return [[_clause(one, rows, keys, among) for one in group] for group, among in groups]


def _every(clauses: _Clauses) -> list[_Clause]:
    return [one for group in clauses for one in group]


def _seeds(clauses: _Clauses) -> int | None:
    """Return the number of seeds of all clauses' numbers; None if there are fewer than two."""
    counts = {len(one.values) if one.seeded else 0 for one in _every(clauses)}
    if len(counts) > 1:
        raise UserError("the checks of a claim are about different numbers of seeds.")
    (count,) = counts
    return count if count > 1 else None


def _values(clauses: _Clauses) -> Array:
    return np.concatenate([one.values for one in _every(clauses)], 1)


def _clause(check: Check, rows: Sequence[Row], keys: Sequence[str], among: int) -> _Clause:
    """Return the numbers that a check compares, (seeds, configurations)."""
    found = measured(rows, keys, check.column, check.rows, check.over, check.same)
    by_seed = [dict(zip(one.seeds, one.values, strict=True)) for one in found]
    seeds = sorted(by_seed[0], key=lambda seed: (seed is None, seed))
    if any(one.keys() != by_seed[0].keys() for one in by_seed):
        raise UserError(f"check {check.says!r}: its configurations have not the same seeds.")
    values = np.array([[one[seed] for one in by_seed] for seed in seeds])
    if check.take == "median":
        values = np.median(values, 1, keepdims=True)
    return _Clause(check, values, seeds != [None], among)


def _verdicts(clauses: _Clauses, parts: Sequence[Sampled]) -> list[Verdict]:
    """Return the verdict of each draw, whatever its certainty."""
    now = iter(parts)
    shown, refuted, control = ([one.decided(next(now)) for one in group] for group in clauses)
    draws = len(parts[0].means)
    never = np.zeros(draws, bool)
    all_hold = np.logical_and.reduce([holds for holds, _ in shown], initial=True) if shown else never
    found = []
    for draw in range(draws):
        if any(holds[draw] for holds, _ in control):
            found.append(Verdict.OPEN)
        elif all_hold[draw]:
            found.append(Verdict.SHOWN)
        elif any(holds[draw] for holds, _ in refuted):
            found.append(Verdict.REFUTED)
        elif any(fails[draw] for _, fails in shown):
            found.append(Verdict.NOT_SHOWN)
        else:
            found.append(Verdict.OPEN)
    return found


def measured(
    rows: Sequence[Row],
    keys: Sequence[str],
    column: str,
    wanted: Selection,
    over: Selection | None = None,
    same: Sequence[str] = (),
) -> list[Measured]:
    """Return the values of a column in the rows that `wanted` selects, grouped by configuration in the order of the
    table.

    Args:
        keys: columns that make a configuration.
        over: selects the row, of the same seed and columns `same`, by which each value is divided.

    Raises:
        UserError: nothing is selected, or a divisor is not one row.
    """
    groups: dict[Configuration, list[tuple[float, int | None]]] = {}
    for row in rows:
        if selects(wanted, row):
            value = number(row.get(column))
            if over is not None:
                value = _ratio(value, number(_divisor(rows, row, over, same).get(column)))
            groups.setdefault(configuration(row, keys), []).append((value, row.get("seed")))
    if not groups:
        raise UserError(f"no row has {dict(wanted)}.")
    return [Measured(one, *zip(*pairs, strict=True)) for one, pairs in groups.items()]


def configuration(row: Row, keys: Sequence[str]) -> Configuration:
    """Return the keys of a row without the seed, those that it has."""
    return tuple((key, row[key]) for key in keys if row.get(key) is not None)


def selects(wanted: Selection, row: Row) -> bool:
    """Return True if a row has one of the wanted values of every key."""
    return all(
        row.get(key) in (value if isinstance(value, list | tuple) else (value,)) for key, value in wanted.items()
    )


def number(value: object) -> float:
    """Return a column's value as a number; infinity if it is none, since the run diverged."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.inf


def landings(claim: Claim, before: Sequence[Row], after: Sequence[Row], keys: Sequence[str]) -> list[str]:
    """Return a sentence for each configuration of a rerun that does not land within the spread that the claim
    states."""
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
    """Return a configuration in words."""
    return ", ".join(f"{value}" if key == "strategy" else f"{key} {value}" for key, value in one)


def _divisor(rows: Sequence[Row], row: Row, over: Selection, same: Sequence[str]) -> Row:
    wanted = {**{key: row.get(key) for key in same}, **over}
    found = [other for other in rows if other.get("seed") == row.get("seed") and selects(wanted, other)]
    if len(found) != 1:
        raise UserError(f"{len(found)} rows have {wanted} and seed {row.get('seed')}: a divisor is one.")
    return found[0]


def _ratio(value: float, divisor: float) -> float:
    """Return the ratio of two values; 1 if both diverged, since neither is worse."""
    if math.isinf(value):
        return 1.0 if math.isinf(divisor) else math.inf
    return value / divisor if divisor else math.inf
