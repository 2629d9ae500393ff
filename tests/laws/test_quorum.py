"""Means of those who come (docs/quorum.md): nothing is lost, nothing counts twice, and nobody waits for a slow one."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from roundelay.algorithms.averaging import pair_average_
from roundelay.algorithms.local_update import Sgd
from roundelay.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from roundelay.core.effects import Exchange, Gather, Quorum
from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.core.state import Minibatch
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import Cluster, Outcome, SegmentPlan, Straggler
from roundelay.runtime.gathering import LEARNT, Gatherings
from roundelay.runtime.procs.cluster_rows import ClusterRows
from roundelay.runtime.sim.cluster import Moment
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from support.clusters import cluster, make_strategy, plan
from support.slope import Told
from support.two_hosts import hosts

EACH = 8
"""Examples of a minibatch."""
SECOND = CostModel(gradient=1.0, exchange=0.0, allreduce=0.0)
"""A gradient takes a second, and nothing else takes any time."""
AVERAGING = ("bsp", "bmuf", "bmuf nesterov=true", "bmuf-fairseq", "slowmo", "diloco")


def traces(minibatches: int, heights: tuple[tuple[int, float], ...] = ()) -> Told:
    """Minibatch number i has the gradient that is `heights[i]`, or 1, at place i and 0 elsewhere: so the model shows
    which minibatches count, and how much."""
    known = dict(heights)

    def gradient(x: Tensor, batch: Minibatch, out: Tensor) -> float:
        out.zero_()
        if batch.frames:
            out[batch.index] = known.get(batch.index, 1.0)
        return batch.frames * known.get(batch.index, 1.0)

    return Told(minibatches, gradient, EACH * minibatches)


def trace(
    strategy: str,
    rounds: int,
    slow: Sequence[Straggler] = (),
    cost: CostModel = SECOND,
    heights: tuple[tuple[int, float], ...] = (),
    examples: int | None = None,
) -> tuple[Tensor, Outcome]:
    """The share of each minibatch of four learners that counted, and the outcome of the segment."""
    task = traces(4 * rounds, heights)
    segment = SegmentPlan(EpochPlan(0, examples or 4 * rounds * EACH, 4 * EACH, 4, 0), 1.0)
    with SimRuntime(Cluster(make_strategy(strategy), task, Sgd(), 4, 0, tuple(slow)), cost) as runtime:
        outcome = runtime.segment(segment)
        return -runtime.consensus(), outcome


def gathered(outcome: Outcome) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    assert outcome.gathered is not None
    told = outcome.gathered
    return told.closed, told.counted, told.late, told.left_out


# Identities -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AVERAGING)
@pytest.mark.parametrize("terms", ["quorum=3", "guard=1000"])
def test_a_quorum_of_all_and_a_guard_against_nothing_are_the_strategy_itself(name: str, terms: str) -> None:
    """Equally fast learners, local momentum, several segments that end inside a block: to rounding."""
    ends = []
    for text in (f"{name} period=3", f"{name} period=3 {terms}"):
        with SimRuntime(cluster(text, 3, momentum=0.5)) as runtime:
            for epoch in range(3):
                runtime.segment(plan(8, 3, epoch=epoch))
                rows = runtime.rows()
                assert torch.equal(rows, rows[:1].expand_as(rows))
            ends.append(runtime.consensus().clone())
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", AVERAGING)
def test_without_a_quorum_nothing_is_declared_anew(name: str) -> None:
    plain, quorate = make_strategy(name), make_strategy(f"{name} quorum=0.5")
    assert plain.traits is type(plain).traits
    assert plain.traits.synchronous
    assert not quorate.traits.synchronous
    assert quorate.traits.model == "centre"
    assert quorate == make_strategy(f"{name} quorum=0.5") != plain


def test_one_learner_is_plain_sgd() -> None:
    ends = []
    for name in ("bsp period=3 quorum=1", "sgd"):
        with SimRuntime(cluster(name, 1, momentum=0.9)) as runtime:
            runtime.segment(plan(20, 1))
            ends.append(runtime.consensus().clone())
    torch.testing.assert_close(*ends)


# Who waits, and what counts -------------------------------------------------------------------------------------------


def test_with_one_learner_five_times_slower_gatherings_fall_when_the_others_are_there() -> None:
    """Three learners take three steps in 3 s, so 13 gatherings close until 39 s, and the last at 40 s: 120 minibatches
    of theirs and 8 of the slow one. It comes late at 15 s and 30 s. Of every full gathering three steps count in all,
    and of the last one, to which three come with a step and one with two, (1 + 1 + 1 + 2 x 2) / 5."""
    counted, outcome = trace("bsp period=3 quorum=0.75 grace=0", 32, [Straggler(3, 5.0)])
    closed, came, late, left_out = gathered(outcome)
    assert outcome.virtual_seconds == pytest.approx(40.0)
    assert closed == 14
    assert came == (14, 14, 14, 3)
    assert late == (0, 0, 0, 3)
    assert not any(left_out)
    assert outcome.counts.frames.sum() == 128 * EACH
    assert (counted > 0).all(), "nothing is lost"
    assert float(counted.sum()) == pytest.approx(13 * 3 + 7 / 5, rel=1e-4), "nothing counts twice"
    assert {round(1 / float(share)) for share in counted} <= {3, 4, 5, 2}
    assert trace("bsp period=3", 32, [Straggler(3, 5.0)])[1].virtual_seconds == pytest.approx(160.0)


def test_what_is_dropped_is_what_the_late_one_did_and_nothing_else() -> None:
    counted, outcome = trace("bsp period=3 quorum=3 grace=0 late=drop", 32, [Straggler(3, 5.0)])
    assert gathered(outcome)[2] == (0, 0, 0, 3)
    assert int((counted == 0).sum()) == int(outcome.counts.steps[3]) == 8
    assert float(counted.sum()) == pytest.approx(13 * 3 + 1, rel=1e-4)


def test_a_grace_is_waited_for_whoever_is_a_little_slower() -> None:
    """2.5 s for a period of two instead of 2: with half a second of grace nobody is late."""
    _, outcome = trace("bsp period=2 quorum=3 grace=0.5", 8, [Straggler(0, 1.25)])
    assert gathered(outcome)[1:3] == ((4, 4, 4, 4), (0, 0, 0, 0))
    assert outcome.virtual_seconds == pytest.approx(4 * 2.5)
    _, hurried = trace("bsp period=2 quorum=3 grace=0.4", 8, [Straggler(0, 1.25)])
    assert gathered(hurried)[2][0] > 0


def test_the_grace_adapts_to_the_spread_of_arrivals() -> None:
    """Gradients take now longer, now shorter: with a wide spread few are late, with none about half of all."""
    uneven = replace(SECOND, jitter=0.1)
    told = [trace(f"bsp period=10 quorum=2 spread={k}", 100, cost=uneven)[1] for k in (0, 3, 8)]
    late = [sum(gathered(outcome)[2]) for outcome in told]
    assert late[0] > 3 * late[1] > 0
    assert late[2] < late[1]


def test_weights_are_examples() -> None:
    """The last round has 8, 8, 8 and 4 examples: what counts of a minibatch is its share of 28."""
    counted, _ = trace("bsp period=1 quorum=4", 1, examples=28)
    torch.testing.assert_close(counted, torch.tensor([7.0, 7.0, 7.0, 7.0]) / 28)
    uneven, _ = trace("bsp period=2 quorum=4", 1, examples=28)
    torch.testing.assert_close(uneven, counted)


@pytest.mark.parametrize(("name", "height"), [("bsp", 1e3), ("diloco", math.nan), ("bmuf", math.inf)])
def test_a_guard_leaves_out_what_is_off_and_says_whose_it_was(name: str, height: float) -> None:
    """Minibatch 41, of learner 1 in round 10, is off; its neighbours count as ever."""
    off, outcome = trace(f"{name} period=1 guard=4", 16, heights=((41, height),))
    fine, undisturbed = trace(f"{name} period=1 guard=4", 16)
    assert gathered(outcome)[3] == (0, 1, 0, 0)
    assert not any(gathered(undisturbed)[3])
    assert off[41] == 0 < fine[41]
    assert off.isfinite().all()
    others = [i for i in range(64) if not 40 <= i < 44]
    torch.testing.assert_close(off[others], fine[others])
    assert trace(f"{name} period=1 quorum=4", 16, heights=((41, height),))[0][41] != 0, "the control"


def test_what_has_become_usual_is_let_in_again() -> None:
    """From round 10 on all gradients are 5 times as large, as at another rate."""
    _, outcome = trace("bsp period=1 guard=3", 40, heights=tuple((i, 5.0) for i in range(40, 160)))
    left_out = sum(gathered(outcome)[3])
    assert 4 <= left_out <= 40


# Going on later -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bsp period=5 quorum=2", "diloco period=2 guard=1"])
@pytest.mark.parametrize("knows", [True, False])
def test_a_resumed_run_goes_on_with_what_gatherings_have_learnt(name: str, knows: bool, tmp_path: Path) -> None:
    """Bit for bit, the virtual clock included: the grace is that of past spans, and the guard judges by past norms. The
    control: without them both differ."""
    task, uneven = Quadratic(parameters=11, examples=10**4), replace(SECOND, jitter=0.3)

    def begun() -> SimRuntime:
        return SimRuntime(cluster(name, 4, task), uneven)

    with begun() as one, begun() as two:
        for runtime in (one, two):
            runtime.segment(plan(30, 4))
        position = {"epoch": 1}
        path = save_checkpoint(tmp_path, "epoch-0001", Checkpoint(two.state(), position))
        with begun() as resumed:
            state = load_checkpoint(path).state
            if not knows:
                del state.vectors[LEARNT]
            resumed.load(state)
            whole, rest = (runtime.segment(plan(30, 4, epoch=1)) for runtime in (one, resumed))
            assert torch.equal(one.consensus(), resumed.consensus()) == knows
            assert (gathered(whole) == gathered(rest)) == knows
            assert not knows or whole.virtual_seconds == rest.virtual_seconds


def test_what_gatherings_have_learnt_is_in_the_state_of_processes() -> None:
    """And in nobody's who gathers nothing; a state without it is of a run that has learnt nothing yet."""
    with hosts([0], "bsp quorum=1", 11) as (host,):
        rows = ClusterRows(host.cluster, host.arena, host.here, host.rows[0].vector.clone())
        before = rows.state()
        assert LEARNT not in before.vectors
        rules = Gatherings(host.arena.gatherings)
        rules.begin_part(0.0)
        terms, nothing = Quorum(1, guard=3.0), Exchange(1, pair_average_)
        for number in range(3):
            assert rules.admits(0, Gather(terms, nothing, nothing, norm=1.0 + number, loss=0.5))
            rules.arrive(0, False, 2.0 + number)
            rules.close([0], 2.0 + number)
            rules.take_release(0, 2.0 + number)
        state = rows.state()
        rows.load(before)
        assert rules.learnt() is None
        rows.load(state)
        assert torch.equal(rows.state().vectors[LEARNT], state.vectors[LEARNT])
        assert host.arena.gatherings.usual_seen[0] == 3
        assert host.arena.gatherings.spans[:3].tolist() == [2.0, 1.0, 1.0]


# Faults ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bsp period=3 quorum=0.5", "diloco period=3 guard=5", "bmuf period=3 quorum=4"])
def test_the_living_go_on_without_the_dead_and_train_every_example(name: str) -> None:
    virtual = replace(SECOND.virtual(4), deaths=(Moment(2, 4.5),), joins=(Moment(2, 20.0),))
    task = Quadratic(parameters=11, examples=10**4)
    with SimRuntime(cluster(name, 4, task), CostModel(cluster=virtual)) as runtime:
        before = task.build().evaluate(runtime.consensus(), "dev").mean_loss
        outcome = runtime.segment(plan(40, 4))
        assert outcome.finished
        assert outcome.counts.frames.sum() == 40 * 64
        assert [lost.rank for lost in outcome.lost] == [2]
        assert outcome.virtual_seconds is not None
        assert outcome.virtual_seconds < 60
        assert gathered(outcome)[1][2] > 1, "it is back"
        assert task.build().evaluate(runtime.consensus(), "dev").mean_loss < 0.5 * before


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bsp quorum=1.5", "bsp.quorum is 1.5"),
        ("bsp quorum=0", "bsp.quorum is 0"),
        ("bmuf grace=-1 quorum=2", "bmuf.grace is -1"),
        ("bmuf grace=1", "give bmuf.quorum as well"),
        ("bsp spread=1", "bsp.spread is of a quorum whose grace adapts"),
        ("bsp quorum=2 grace=1 spread=1", "no bsp.grace"),
        ("slowmo guard=0", "slowmo.guard is 0"),
        ("slowmo quorum=2 late=never", "late"),
        ("bsp quorum=2 local_momentum=average", "bsp.local_momentum is average"),
        ("diloco quorum=2 codec=int8", "leave codec"),
        ("diloco guard=3 fragments=2", "leave codec"),
    ],
)
def test_terms_that_mean_nothing_are_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        make_strategy(text)


def test_a_quorum_of_more_learners_than_there_are_is_refused() -> None:
    with pytest.raises(UserError, match=r"bsp\.quorum is 5 with 4 learners"):
        make_strategy("bsp quorum=5").check(4)
