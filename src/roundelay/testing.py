"""Laws that every strategy keeps, for the tests of a package that brings one.

    from roundelay.testing import laws

    test_laws = laws("doubling", "doubling,period=3")      # pytest runs a test for each law and strategy

Each law trains a noisy quadratic on a few learners, nearly all in the simulator, and compares what happens with what
the strategy declares in its `Traits`. Roundelay's own strategies are held to the same functions.

Legend: P parameters.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from roundelay.algorithms.averaging import weighted_mean
from roundelay.algorithms.local_update import LocalOptimizer, Sgd
from roundelay.core.epochs import EpochPlan
from roundelay.learner.base import Task
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import Cluster, SegmentPlan, Straggler, staleness_summary
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies import make_strategy
from roundelay.strategies.base import Strategy

MINIBATCH = 64
"""Examples of a round."""
JITTER = CostModel(jitter=0.3)
"""Costs of a simulation whose gradients take now longer, now shorter."""


def cluster(
    strategy: Strategy,
    learners: int,
    task: Task | None = None,
    momentum: float = 0.0,
    seed: int = 1,
    stragglers: tuple[Straggler, ...] = (),
    optimizer: LocalOptimizer | None = None,
) -> Cluster:
    """Return a cluster of `learners` learners under a strategy, on a noisy quadratic."""
    return Cluster(
        strategy,
        task or Quadratic(parameters=37),
        optimizer or Sgd(momentum),
        learners,
        seed,
        stragglers,
        shared_minibatch=False,  # so that block momentum has something to make up for
    )


def plan(
    rounds: int, learners: int, rate: float = 0.1, epoch: int = 0, examples: int | None = None, seed: int = 1
) -> SegmentPlan:
    """Return the plan of an epoch of `rounds` full rounds, or of `examples` examples."""
    return SegmentPlan(EpochPlan(epoch, examples or rounds * MINIBATCH, MINIBATCH, learners, seed), rate)


def check_alone(strategy: Strategy, momentum: float = 0.9) -> None:
    """Check `alone_is_sgd`: x <- x - lr v, v <- momentum v + g, without any of the package's arithmetic."""
    task = Quadratic(parameters=5, examples=20 * MINIBATCH)
    with SimRuntime(cluster(strategy, 1, task, momentum)) as runtime:
        segment = plan(20, 1)
        runtime.segment(segment)
        row = runtime.consensus().clone()
    learner, x, v, g = task.build(), torch.zeros(5), torch.zeros(5), torch.empty(5)
    for index in range(20):
        learner.gradient(x, segment.epoch.piece(index), segment.epoch, g)
        v = momentum * v + g
        x = x - 0.1 * v
    declared = strategy.traits.alone_is_sgd
    relative, absolute = (1.3e-6, 1e-5) if declared else (1e-3, 1e-8)  # to rounding; or beyond doubt
    _hold(
        torch.allclose(row, x, relative, absolute) == declared,
        f"alone_is_sgd is {declared}, and one learner ends at {row.tolist()} where plain SGD ends at {x.tolist()}",
    )


def check_frames(strategy: Strategy, learners: int = 3, examples: int = 399, seed: int = 1) -> None:
    """Check that every example is trained exactly once."""
    with SimRuntime(cluster(strategy, learners, seed=seed), JITTER) as runtime:
        outcome = runtime.segment(plan(0, learners, examples=examples))
    trained = outcome.counts.frames.sum()
    _hold(
        outcome.finished and trained == examples,
        f"{trained} of {examples} examples were trained: give each minibatch of `Draw` to one `Grad`, until it is None",
    )


def check_sum(strategy: Strategy, learners: int = 4, seed: int = 0) -> None:
    """Check `conserves`: at learning rate 0 the sum of all rows, and the centre, stays. A strategy that is `weighed` is
    not checked, since masses grow with steps."""
    if not strategy.traits.conserves or strategy.weighed:
        return
    with SimRuntime(cluster(strategy, learners, seed=seed), JITTER) as runtime:
        scatter(runtime, seed)
        before = total(runtime)
        runtime.segment(plan(15, learners, rate=0.0, examples=15 * MINIBATCH - 50))  # not as many for each learner
        after = total(runtime)
    moved = float((after - before).abs().max())
    _hold(
        torch.allclose(after, before, rtol=1e-5, atol=1e-5),
        f"conserves is True, and at learning rate 0 the sum of rows moved by {moved:.3g}: declare conserves=False, or "
        "see that each exchange gives as much as it takes",
    )


def scatter(runtime: SimRuntime, seed: int) -> None:
    """Set rows, and the centre, to random values far from each other."""
    state, generator = runtime.state(), torch.Generator().manual_seed(seed)
    for name in ("row", "centre"):
        if name in state.vectors:
            state.vectors[name].normal_(generator=generator)
    runtime.load(state)


def total(runtime: SimRuntime) -> Tensor:
    """Return the sum of the rows, and of the centre, that a strategy may conserve, (P,)."""
    rows = runtime.rows().sum(0)
    return rows + runtime.centre() if runtime.cluster.centre else rows


def check_speed(strategy: Strategy, learners: int = 3) -> None:
    """Check `synchronous`: if True, results do not depend, bit for bit, on the speed of learners; else they do."""
    rows = []
    for cost, slow in ((CostModel(), ()), (JITTER, (Straggler(0, 7.0),))):
        with SimRuntime(cluster(strategy, learners, stragglers=slow), cost) as runtime:
            runtime.segment(plan(12, learners))
            rows.append(runtime.rows().clone())
    declared, equal = strategy.traits.synchronous, torch.equal(*rows)
    _hold(equal == declared, f"synchronous is {declared}, and a slow learner {'changed' if declared else 'left'} all")


def check_staleness(strategy: Strategy, learners: int = 5, least: int = 3) -> None:
    """Check `staleness_bound` with a learner that is five times as slow.

    Args:
        least: without a bound, some gradient must be more stale than this.
    """
    with SimRuntime(cluster(strategy, learners, stragglers=(Straggler(0, 5.0),)), JITTER) as runtime:
        _, largest, _ = staleness_summary(runtime.segment(plan(40, learners)).counts)
    bound = strategy.traits.staleness_bound
    _hold(
        largest > least if bound is None else largest <= bound,
        f"staleness_bound is {bound}, and the stalest gradient was {largest} versions old",
    )


def check_model(strategy: Strategy, learners: int = 4) -> None:
    """Check `model`, `holders` and `memory`: the model to evaluate is the declared one."""
    with SimRuntime(cluster(strategy, learners), JITTER) as runtime:
        runtime.segment(plan(12, learners))
        vectors, shares, found = runtime.state().vectors, runtime.shares(), runtime.consensus()
    rows = vectors["row"][list(strategy.holders(tuple(range(learners))))]
    mean = rows.mean(0) if shares is None else weighted_mean(list(rows), shares)
    centre = vectors["centre"][0] if "centre" in vectors else mean
    declared = strategy.traits.model
    _hold(
        ("centre" in vectors) == (declared == "centre"), f"model is {declared!r}: there is a centre only for 'centre'"
    )
    _hold(torch.equal(found, centre), f"model is {declared!r}, and another model is evaluated")
    _hold(
        (declared == "mean") == torch.allclose(centre, mean, rtol=1e-3),
        f"model is {declared!r}, and the centre {'is not' if declared == 'mean' else 'is'} the mean of rows",
    )
    missing = sorted({*strategy.memory} - {*vectors})
    _hold(not missing, f"memory names {missing}, which learners do not have")


def check_rows(strategy: Strategy, learners: int = 4) -> None:
    """Check `rows`: learners go on from one model when a segment ends, or from rows of their own."""
    if strategy.traits.model == "centre":
        return
    with SimRuntime(cluster(strategy, learners), JITTER) as runtime:
        runtime.segment(plan(11, learners))
        rows = runtime.rows()
    one, declared = all(torch.equal(row, rows[0]) for row in rows), strategy.traits.rows
    _hold(
        one == (declared != "own"), f"rows is {declared!r}, and after a segment rows are {'' if one else 'not '}equal"
    )


def check_segments(strategy: Strategy, learners: int = 3) -> None:
    """Check `block`: to stop in the middle of an epoch, at a round that ends a block, and go on is not to have stopped,
    bit for bit. Synchronous strategies only."""
    if not strategy.traits.synchronous:
        return
    whole = plan(12, learners, examples=12 * MINIBATCH - 7)
    block, states = strategy.block, []
    first = -(-6 // block) * block
    for cuts in ((), (first,), (first, first + block)):
        ends = (*(cut for cut in cuts if cut < whole.end_round), whole.end_round)
        with SimRuntime(cluster(strategy, learners, momentum=0.9)) as runtime:
            for begin, last in zip((0, *ends), ends, strict=False):
                runtime.segment(SegmentPlan(whole.epoch, 0.1, first=begin * learners, last_round=last))
            states.append(runtime.state().vectors)
    differ = sorted({name for state in states for name in state if not torch.equal(state[name], states[0][name])})
    differ = [name for name in differ if name != "centre"]  # it is written at the end of each segment
    _hold(
        not differ,
        f"block is {block}, and a segment that is cut at a multiple of it, round {first}, ends with another "
        f"{' and '.join(differ)}: let `block` be a number of rounds after which only rows and `memory` count, "
        "or let the rest follow from `me.steps`",
    )


def check_optimum(strategy: Strategy, learners: int = 5, rate: float = 0.3, rounds: int = 300) -> None:
    """Check that a strategy finds the optimum of a quadratic without noise, on all learners."""
    task = Quadratic(parameters=10, curvature=(0.3, 1.0), noise=0.0)
    in_full = max(1.0, learners * strategy.moves(learners, learners))  # it bears the less of the rate
    rate, rounds = rate / in_full, int(rounds * in_full)
    with SimRuntime(cluster(strategy, learners, task), JITTER) as runtime:
        runtime.segment(plan(rounds, learners, rate=rate))
        loss, apart = task.build().evaluate(runtime.consensus(), "held out").mean_loss, runtime.consensus_distance()
    _hold(loss < 1e-5 and apart < 1e-2, f"after {rounds} rounds the loss is {loss:.3g}, and rows are {apart:.3g} apart")


def check_waits(strategy: Strategy, among: Sequence[int] = ()) -> None:
    """Check `waits`, by the work of each of 8 learners while learner 3 is 10 times slower.

    Args:
        among: learners that are held up; empty: all if the strategy is synchronous, learner 3 alone if `waits` begins
            with "none".
    """
    slow = {*among} or ({3} if strategy.traits.waits.startswith("none") else {*range(8)})
    with SimRuntime(cluster(strategy, 8, stragglers=(Straggler(3, 10.0),))) as runtime:
        outcome = runtime.segment(plan(60, 8))
    alone = (outcome.virtual_seconds or 0.0) / CostModel().gradient
    found = {rank for rank in range(8) if outcome.counts.steps[rank] < 0.5 * alone}
    _hold(
        found == slow,
        f"waits is {strategy.traits.waits!r}, and with a slow learner 3 learners {sorted(found)} are held up, where "
        f"{sorted(slow)} should be",
    )


def check_processes(strategy: Strategy, learners: int = 3) -> None:
    """Check that processes train as the simulator: bit for bit under a synchronous strategy, else as many examples."""
    made = cluster(strategy, learners, momentum=0.9)
    segments = [plan(0, learners, examples=9 * MINIBATCH + 2, epoch=epoch) for epoch in range(2)]
    with SimRuntime(made) as simulator, ProcsRuntime(made, threads=1) as processes:
        for segment in segments:
            simulator.segment(segment)
            trained = processes.segment(segment).counts.frames.sum()
            _hold(trained == 9 * MINIBATCH + 2, f"{trained} of {9 * MINIBATCH + 2} examples were trained by processes")
        virtual, real = simulator.state(), processes.state()
    if strategy.traits.synchronous:
        differ = [name for name, value in virtual.vectors.items() if not torch.equal(real.vectors[name], value)]
        _hold(not differ, f"synchronous is True, and {' and '.join(differ)} of processes differ from the simulator's")


LAWS: tuple[Callable[[Strategy], None], ...] = (
    check_alone,
    check_frames,
    check_sum,
    check_speed,
    check_staleness,
    check_model,
    check_rows,
    check_segments,
    check_optimum,
    check_waits,
    check_processes,
)
"""All laws that need no setting but the strategy."""


def laws(*strategies: str) -> Callable[[str, Callable[[Strategy], None]], None]:
    """Return a test for pytest that checks strategies by all laws, one by one.

    Args:
        strategies: as on the command line: NAME, NAME:TOPOLOGY or NAME,KEY=VALUE,...

    Raises:
        UserError: no such strategy or option.
    """
    import pytest  # noqa: PLC0415 it comes with no extra: who tests has it

    for text in strategies:
        make_strategy(text)

    @pytest.mark.parametrize("law", LAWS, ids=[law.__name__.removeprefix("check_") for law in LAWS])
    @pytest.mark.parametrize("strategy", strategies)
    def test(strategy: str, law: Callable[[Strategy], None]) -> None:
        law(make_strategy(strategy))

    return test


def _hold(kept: bool, otherwise: str) -> None:
    if not kept:
        raise AssertionError(f"{otherwise}.")
