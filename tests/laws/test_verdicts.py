"""Verdicts of claims: effects that are none are seldom shown, runs are paired by seed, and chances are true."""

from dataclasses import replace
from math import inf, log

import numpy as np
import pytest

from roundelay.core.streams import stream
from roundelay_lab.claims.claim import Check, Rule
from roundelay_lab.claims.experiment import Row
from roundelay_lab.claims.rule import (
    LEVEL,
    SURE,
    Array,
    Judgement,
    Verdict,
    _Clause,
    _verdicts,
    judge,
    new_seeds,
    sampled,
    seeds_that_decide,
    standard_errors,
    student,
)

KEYS = ("strategy",)


def below(bound: float, strategies: tuple[str, ...] = ("new",), **options: object) -> Check:
    """A check that a loss is at most so many times that of `sgd` with the same seed."""
    rows = {"strategy": [*strategies]}
    return Check("it is below", "loss", rows, {"strategy": "sgd"}, at_most=bound, **options)  # type: ignore[arg-type]


def above(bound: float) -> Check:
    return Check("it is above", "loss", {"strategy": "new"}, {"strategy": "sgd"}, at_least=bound)


def table(ratios: Array, alone: Array) -> list[Row]:
    """Losses of one learner, and of another strategy by its ratio to them; a row for each seed."""
    found: list[Row] = []
    for seed, (ratio, loss) in enumerate(zip(ratios, alone, strict=True)):
        found += [
            {"strategy": "sgd", "seed": seed, "loss": loss},
            {"strategy": "new", "seed": seed, "loss": ratio * loss},
        ]
    return found


def judged(ratios: Array, rule: Rule | None = None) -> Judgement:
    return judge(rule or Rule((below(1.0),), (above(1.0),)), table(ratios, np.full(len(ratios), 2.0)), KEYS)


def test_standard_errors_are_those_of_the_tables() -> None:
    """Student's t of 0.95 with 2, 3, 4 degrees of freedom, of 0.995 with 2; never less than two."""
    assert [round(standard_errors(n), 3) for n in (3, 4, 5, 10, 100)] == [2.920, 2.353, 2.132, 2.0, 2.0]
    assert standard_errors(3, 0.005) == pytest.approx(9.925, abs=0.001)
    assert [student(t, 7) for t in (-1.895, 0.0, 1.895)] == pytest.approx([0.05, 0.5, 0.95], abs=1e-4)


@pytest.mark.parametrize("seeds", [2, 3, 5, 9])
@pytest.mark.parametrize(("configurations", "take"), [(1, "every"), (6, "every"), (6, "any")])
def test_an_effect_of_none_is_seldom_shown_and_seldom_refuted(seeds: int, configurations: int, take: str) -> None:
    """At the bound exactly, where it is hardest; of several that would do alone, too."""
    draws = 4000
    values = 1 + 0.01 * stream(0, "none", seeds, configurations).normal(size=(seeds, draws, configurations))
    one = sampled(values.reshape(seeds, -1), seeded=True)
    part = replace(
        one, means=one.means.reshape(draws, configurations), errors=one.errors.reshape(draws, configurations)
    )
    shown = _Clause(below(1.0, take=take), values[:, 0], seeded=True)
    refuting = replace(shown, among=2), replace(shown, among=2)
    for group, verdict in (([[shown], [], []], Verdict.SHOWN), ([[], [*refuting], []], Verdict.REFUTED)):
        parts = [part] * sum(map(len, group))
        share = np.mean([found is verdict for found in _verdicts(group, parts)])
        assert share <= LEVEL + 0.012, "one in twenty, and three standard errors of the share"


def test_verdicts_keep_scale_and_sign() -> None:
    """Losses in other units change nothing; with ratio and bound the other way round all is said of the other side."""
    rng = stream(0, "scale")
    for effect in (0.9, 0.98, 1.0, 1.02, 1.1):
        ratios, alone = effect + 0.01 * rng.normal(size=4), rng.uniform(1, 3, 4)
        rule = Rule((below(1.0),), (above(1.0),))
        first, other = (judge(rule, table(ratios, scale * alone), KEYS) for scale in (1.0, 1e3))
        assert first.verdict is other.verdict
        assert other.chance == pytest.approx(first.chance, abs=0.002)
        mirrored = judge(Rule((above(1.0),), (below(1.0),)), table(2 - ratios, alone), KEYS)
        assert mirrored.verdict is first.verdict
        assert mirrored.chance == pytest.approx(first.chance, abs=0.002)


def test_runs_of_a_seed_are_compared_with_each_other() -> None:
    """Seeds differ by a tenth, strategies by a hundredth: pairs tell, and the same numbers shuffled do not."""
    rng = stream(0, "paired")
    alone = 2 + 0.2 * rng.normal(size=6)
    rows = table(0.99 + 0.001 * rng.normal(size=6), alone)
    assert judge(Rule((below(1.0),), ()), rows, KEYS).verdict is Verdict.SHOWN
    shuffled = [{**row, "seed": (row["seed"] + 1) % 6} if row["strategy"] == "new" else row for row in rows]
    assert judge(Rule((below(1.0),), ()), shuffled, KEYS).verdict is Verdict.OPEN


def test_chances_are_those_of_new_seeds() -> None:
    """Over effects and spreads of all sizes, verdicts come again as often as was said, and those that are shown nearly
    always."""
    rng = stream(0, "calibration")
    told, came, again = [], [], []
    for _ in range(300):
        effect, spread = rng.uniform(-0.3, 0.3), 0.01 * 10 ** rng.uniform(-0.5, 0.5)
        found = judged(1 - effect + spread * rng.normal(size=3))
        values = 1 - effect + spread * rng.normal(size=(3, 400))
        one = sampled(values, seeded=True)
        part = replace(one, means=one.means.T, errors=one.errors.T)
        clauses = [[_Clause(below(1.0), values[:, :1], seeded=True)], [_Clause(above(1.0), values[:, :1], seeded=True)]]
        came.append(np.mean([verdict is found.here for verdict in _verdicts([*clauses, []], [part, part])]))
        told.append(found.chance)
        if found.verdict in (Verdict.SHOWN, Verdict.REFUTED):
            again.append(came[-1])
    assert len(again) > 75
    assert np.mean(again) >= SURE
    assert np.mean(came) == pytest.approx(np.mean(np.array(told, float)), abs=0.06)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([0.90, 0.9001, 0.8999], Verdict.SHOWN),
        ([1.10, 1.1001, 1.0999], Verdict.REFUTED),
        ([1.01, 1.0101, 1.0099], Verdict.NOT_SHOWN),  # beyond the bound, and not as far as what refutes
        ([0.95, 1.05, 1.0], Verdict.OPEN),
        ([0.985, 0.99, 0.98], Verdict.OPEN),  # kept here, and by new seeds too seldom
        ([inf, inf, inf], Verdict.REFUTED),
        ([0.9, inf, 0.9], Verdict.OPEN),  # nothing is known of the mean where some diverged
    ],
)
def test_a_verdict_by_where_the_interval_lies(ratios: list[float], verdict: Verdict) -> None:
    assert judged(np.array(ratios), Rule((below(1.0),), (above(1.05),))).verdict is verdict


def test_an_experiment_that_cannot_tell_leaves_a_claim_open() -> None:
    rows = table(np.array([0.9, 0.9001, 0.8999]), np.full(3, 2.0))
    high = Check("one learner fails too", "loss", {"strategy": "sgd"}, at_least=1.9)
    assert judge(Rule((below(1.0),), (), (high,)), rows, KEYS).verdict is Verdict.OPEN
    assert judge(Rule((below(1.0),), (), (replace(high, at_least=2.1),)), rows, KEYS).verdict is Verdict.SHOWN


def test_an_open_claim_says_how_many_seeds_would_do() -> None:
    """With so many of that mean and spread it is shown, and with half of them it is not."""
    few = np.array([0.985, 0.99, 0.98])
    found = judged(few)
    assert (found.verdict, found.here) == (Verdict.OPEN, Verdict.SHOWN)
    seeds = seeds_that_decide(Rule((below(1.0),), (above(1.0),)), table(few, np.full(3, 2.0)), KEYS)
    assert seeds is not None

    def as_many(seeds: int) -> Array:
        """Of the same mean and standard deviation."""
        alike = np.linspace(-1, 1, seeds)
        return np.asarray(few.mean() + alike / alike.std(ddof=1) * few.std(ddof=1))

    assert judged(as_many(seeds)).verdict is Verdict.SHOWN
    assert judged(as_many(seeds // 2 + 1)).verdict is Verdict.OPEN


def test_one_seed_decides_nothing_and_a_number_without_seeds_is_sure() -> None:
    assert judged(np.array([0.5])).verdict is Verdict.OPEN
    rows = [{key: value for key, value in row.items() if key != "seed"} for row in table(np.array([0.5]), np.ones(1))]
    found = judge(Rule((below(1.0),), ()), rows, KEYS)
    assert (found.verdict, found.chance) == (Verdict.SHOWN, None)


def test_new_seeds_have_the_means_and_the_spreads_of_the_old() -> None:
    """Of many seeds little is left open: means spread by the standard error twice over, once known and once new."""
    values = stream(0, "many").normal([1.0, -2.0], [0.1, 3.0], (60, 2))
    drawn = new_seeds(values, 60)
    error = np.asarray(values.std(0, ddof=1)) / np.sqrt(60)
    assert np.all(abs(drawn.means.mean(0) - values.mean(0)) < 0.1 * error)
    assert drawn.means.std(0) == pytest.approx(np.sqrt(2) * error, rel=0.1)
    assert drawn.errors.mean(0) == pytest.approx(error, rel=0.05)
    together = np.asarray(values)[:5] @ np.array([[1.0, 30.0], [0.0, 0.0]])  # one moves as the other, in every draw
    pair = new_seeds(together, 5).means
    assert log(np.asarray(np.corrcoef(pair.T))[0, 1]) == pytest.approx(0, abs=1e-9)
