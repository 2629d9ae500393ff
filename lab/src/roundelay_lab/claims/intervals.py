"""Intervals of means over seeds, and seeds that have not been drawn.

A number of an experiment is a mean over seeds, of a column or of its ratio to that of another run of the same seed:
what the two share (data, order, first weights) cancels. Its bound is the mean with two standard errors, or with as
many as Student's distribution asks for where seeds are few (2.9 of three; Student 1908, Biometrika 6). So of effects
that are none, at most one in twenty keeps a bound.

Chance of a verdict under new seeds: means and spreads are drawn as the seeds leave them open (no prior knowledge:
Gelman et al., Bayesian Data Analysis, 3rd ed., sec. 3.2), then as many seeds of such an experiment, and they are
judged. All numbers of an experiment are drawn together, as its seeds moved them together; one scale is drawn for all.

Legend: N seeds; K numbers, one a configuration; D draws.
"""

from dataclasses import dataclass
from functools import cache
from math import atan, cos, pi, sin, sqrt

import numpy as np
from numpy.typing import NDArray

from roundelay.core.streams import stream

LEVEL = 0.05
"""Chance at which an effect that is none keeps a bound, at most."""
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
    """Return how many standard errors a bound is from the mean: two, or what Student's distribution asks for."""
    low, high = 2.0, 1e6
    if student(low, seeds - 1) >= 1 - level:
        return low
    for _ in range(200):
        middle = sqrt(low * high)
        low, high = (middle, high) if student(middle, seeds - 1) < 1 - level else (low, middle)
    return high


@dataclass(frozen=True)
class Sampled:
    """Means and standard errors of K numbers over N seeds, in each of D draws: (D, K). One draw: what was measured."""

    means: Array
    errors: Array
    seeds: int

    def bounds(self, level: float = LEVEL) -> tuple[Array, Array]:
        """Return the lower and the upper bounds, each (D, K). Without seeds there is no chance in a number, and with
        one nothing is known of its spread."""
        if self.seeds == 0:
            return self.means, self.means
        if self.seeds == 1:
            return np.full_like(self.means, -np.inf), np.full_like(self.means, np.inf)
        with np.errstate(invalid="ignore"):
            away = np.where(self.errors > 0, standard_errors(self.seeds, level) * self.errors, 0.0)
        return self.means - away, self.means + away


def sampled(values: Array, *, seeded: bool) -> Sampled:
    """Return what was measured, of values (N, K). Numbers that diverged with every seed are infinite for certain; with
    some seeds only, nothing is known of their mean."""
    infinite = np.isinf(values)
    mixed = infinite.any(0) & ~infinite.all(0)
    finite = np.where(infinite, 0.0, values)
    count = len(values)
    errors = finite.std(0, ddof=1) / sqrt(count) if count > 1 else np.zeros(values.shape[1])
    errors = np.where(mixed, np.inf, errors)
    means = np.where(infinite.all(0), np.inf, finite.mean(0))
    return Sampled(means[None], errors[None], count if seeded else 0)


def new_seeds(values: Array, seeds: int, *, stay: bool = False) -> Sampled:
    """Return experiments of `seeds` new seeds each, as those measured, (N, K), leave them open; with `stay`, as they
    would leave them open if so many seeds had been measured, with the means and spreads of these."""
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
