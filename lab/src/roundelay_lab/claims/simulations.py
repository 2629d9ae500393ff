"""Experiments without training: speedups beside printed ones, strategies on virtual clusters, distances from consensus.

Legend: L learners.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from math import isfinite

import numpy as np

from roundelay.algorithms.local_update import Sgd
from roundelay.core.epochs import EpochPlan
from roundelay.core.progress import Progress
from roundelay.core.topology import ring_matrix
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import Cluster, SegmentPlan, Straggler
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.simulation.scenario import Scenario, simulate
from roundelay.strategies import make_strategy
from roundelay.strategies.base import Strategy
from roundelay.strategies.delay_by_one import DelayByOne
from roundelay.strategies.dpsgd import DPsgd
from roundelay_lab.claims.experiment import Mixing, Piece, Printed, Row, Scenarios, Work
from roundelay_lab.published.hours import (
    ComparedHours,
    IbmHours,
    Machine,
    PrintedHours,
    assumed_otherwise,
    hours,
    load_printed,
    machines,
)
from roundelay_lab.published.speedups import PublishedRow, fit, load_tables, predict

AS_ASSUMED = "as assumed"
"""Value of the key `assumed` in rows under the common assumptions."""


def printed_pieces(experiment: Printed) -> list[Piece]:
    """Return the row to compute for each printed number: columns `printed`, `model`, `error` (relative, without sign).
    Predicted hours have one more row for each other assumption."""
    if experiment.what == "ibm":
        return _hours(experiment)
    return [Piece({name: getattr(row, name) for name in experiment.keys}, work) for row, work in _speedups()]


def _speedups() -> list[tuple[PublishedRow, Work]]:
    tables = load_tables()

    def work(row: PublishedRow, _: Progress) -> Row:
        speedup = predict(fit(tables, row.network), row)
        return _beside(row.speedup, speedup, speedup / row.speedup - 1)

    return [(row, partial(work, row)) for row in tables.rows]


def _hours(experiment: Printed) -> list[Piece]:
    def work(printed: IbmHours, fitted: Callable[[], Mapping[str, Machine]], row: PrintedHours, _: Progress) -> Row:
        strategy = make_strategy(row.strategy)
        compared = ComparedHours(row, hours(printed, fitted()[row.system], row.gpus, strategy))
        return _beside(row.hours, compared.hours, compared.error)

    found = []
    printed = load_printed()
    for name, under in {AS_ASSUMED: printed, **assumed_otherwise(printed)}.items():
        fitted = cache(partial(machines, under))
        for row in under.rows:
            if name == AS_ASSUMED or row.use == "predicted":
                key = {**{key: getattr(row, key) for key in experiment.keys if key != "assumed"}, "assumed": name}
                found.append(Piece(key, partial(work, under, fitted, row)))
    return found


def _beside(printed: float, model: float, error: float) -> Row:
    return {"printed": printed, "model": _round(model), "error": float(f"{abs(error):.4f}")}


def scenario_pieces(experiment: Scenarios) -> list[Piece]:
    """Return the row to compute for each strategy, number of learners, factor of the straggler and seed.

    Columns: `seconds` (virtual), `speedup` over one learner that is not slowed, `share` (minibatches of the learner
    with fewest, to that with most), `balance` (the same times the factor: 1 where each has work by its speed),
    `staleness`, and on the quadratic `consensus` and `loss`.
    """

    def work(strategy: str, learners: int, factor: float, seed: int, _: Progress) -> Row:
        cost = CostModel(
            gradient=experiment.gradient,
            jitter=experiment.jitter,
            exchange=experiment.exchange,
            allreduce=experiment.allreduce,
        )
        scenario = Scenario(
            learners=learners,
            rounds=experiment.rounds,
            seed=seed,
            stragglers=(Straggler(1, factor=factor),) if factor != 1 else (),
            cost=cost,
            timing_only=experiment.timing_only,
            model_bytes=4.0,  # nothing is priced by its bytes here
        )
        (found,) = simulate(scenario, [strategy])
        row = {
            "seconds": _round(found.virtual_seconds),
            "speedup": _round(found.speedup),
            "share": _round(found.fewest / found.most),
            "balance": _round(found.fewest / found.most * factor),
            "staleness": _round(found.staleness_mean),
        }
        if not experiment.timing_only:
            row |= {"consensus": _round(found.consensus_distance), "loss": _round(found.loss)}
        return row

    return [
        Piece(
            {"strategy": strategy, "learners": learners, "factor": factor, "seed": seed},
            partial(work, strategy, learners, factor, seed),
        )
        for learners in experiment.learners
        for strategy in experiment.strategies
        for factor in experiment.factors
        for seed in experiment.seeds
    ]


def mixing_pieces(experiment: Mixing) -> list[Piece]:
    """Return the row to compute for each strategy, number of learners and seed. Columns: `gap` (1 - the second
    eigenvalue of the mixing matrix, or of its effect on squares in the mean), `predicted` and `consensus` (root mean
    square distance, in steps of one learner's noise), `ratio` of the two; of strategies without a matrix `consensus`
    alone."""

    def work(text: str, learners: int, seed: int, _: Progress) -> Row:
        strategy = make_strategy(text)
        found = _settled(experiment, strategy, learners, seed)
        paper = settled_on_paper(strategy, learners)
        if paper is None:
            return {"consensus": _round(found)}
        gap, predicted = paper
        return {
            "gap": _round(gap),
            "predicted": _round(predicted),
            "consensus": _round(found),
            "ratio": _round(found / predicted),
        }

    return [
        Piece({"strategy": text, "learners": learners, "seed": seed}, partial(work, text, learners, seed))
        for learners in experiment.learners
        for text in experiment.strategies
        for seed in experiment.seeds
    ]


def settled_on_paper(strategy: Strategy, learners: int) -> tuple[float, float] | None:
    """Return the spectral gap, and the root mean square distance that rows settle at under W <- W T - noise of variance
    1.

    In the direction of eigenvalue t the variance v obeys v = t^2 v + 1, so the square is the sum of 1 / (1 - t^2) over
    all directions but the mean's, divided by L. A ring drawn anew in every step multiplies the square of any difference
    by (L/3 - 1) / (L - 1) in the mean. None: the strategy has no such matrix.
    """
    match strategy:
        case DelayByOne():
            squares = np.zeros(learners - 1)
        case DPsgd(order="consensus", topology="ring"):
            squares = np.sort(np.linalg.eigvalsh(ring_matrix(learners)) ** 2)[:-1]
        case DPsgd(order="consensus", topology="random-ring"):
            squares = np.full(learners - 1, (learners / 3 - 1) / (learners - 1))
        case _:
            return None
    gap = 1 - float(np.sqrt(squares.max()))
    return gap, float(np.sqrt((1 / (1 - squares)).sum() / learners))


def _settled(experiment: Mixing, strategy: Strategy, learners: int, seed: int) -> float:
    """Return the consensus distance after all rounds, of rows that only noise moves."""
    task = Quadratic(experiment.parameters, experiment.rounds * learners, (1e-9, 1e-9), seed=seed)
    plan = EpochPlan(0, task.examples, learners, learners, seed)  # an example for each learner: noise of variance 1
    cost = CostModel(gradient=1.0, exchange=1e-3, allreduce=0.0)
    with SimRuntime(Cluster(strategy, task, Sgd(), learners, seed), cost) as runtime:
        runtime.segment(SegmentPlan(plan, 1.0))
        return runtime.consensus_distance()


def _round(value: float) -> float | None:
    """Round a number to six digits; return None for infinity and NaN."""
    return float(f"{value:.6g}") if isfinite(value) else None
