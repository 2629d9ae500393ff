"""The same strategy object in the simulator and on real processes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from roundelay.algorithms.codecs import CODECS
from roundelay.core.flat import CHUNK
from roundelay.learner.base import Task
from roundelay.runtime.base import Cluster, ClusterState, Glance, Outcome, SegmentPlan
from roundelay.runtime.procs.coordination.collectives import BUCKET, MeansLibrary
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies.base import Strategy
from roundelay.strategies.diloco import DiLoCo
from support.blobs import BlobTask
from support.clusters import ASYNCHRONOUS, MANY, MINIBATCH, SYNCHRONOUS, cluster, keeps_sum, one_of_each, plan
from support.coarse import Coarse
from support.coded import Together


def both(cluster_: Cluster, segments: list[SegmentPlan]) -> tuple[ClusterState, ClusterState, list[Outcome]]:
    with SimRuntime(cluster_) as sim:
        for segment in segments:
            sim.segment(segment)
        virtual = sim.state()
    with ProcsRuntime(cluster_, threads=1) as procs:
        outcomes = [procs.segment(segment) for segment in segments]
        return virtual, procs.state(), outcomes


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("name", "task"),
    [
        *((name, BlobTask("cpu")) for name in ("sgd", *one_of_each(SYNCHRONOUS))),
        *((name, BlobTask()) for name in ("sgd", "ssgd", "delay-by-one")),
    ],
    ids=lambda of: of if isinstance(of, str) else "module on a device" if of.device else "module",
)
def test_synchronous_strategies_agree_bit_for_bit(name: str, task: Task) -> None:
    """And all, with their variants and other rows and optimizers: tests/laws/test_local_optimizers.py."""
    learners = 1 if name == "sgd" else 3
    segments = [plan(0, learners, examples=9 * MINIBATCH + 2, epoch=e) for e in range(2)]
    virtual, real, outcomes = both(cluster(name, learners, task, momentum=0.9), segments)
    for vector in virtual.vectors:
        assert torch.equal(virtual.vectors[vector], real.vectors[vector]), vector
    assert virtual.integers == real.integers
    assert all(outcome.counts.frames.sum() == 9 * MINIBATCH + 2 for outcome in outcomes)


@pytest.mark.parametrize("name", ["ssgd", "dpsgd", "bsp period=3"])
def test_factors_on_the_learning_rate_agree_bit_for_bit(name: str) -> None:
    """The noise of gradients is summed in the same order wherever they lie."""
    made = replace(cluster(name, 3, Coarse(parameters=CHUNK + 1027)), rate="gain")
    virtual, real, outcomes = both(made, [plan(11, 3, epoch=epoch) for epoch in range(2)])
    for vector in virtual.vectors:
        assert torch.equal(virtual.vectors[vector], real.vectors[vector]), vector
    assert (outcomes[-1].counts.rate_factors > 11).all()


@pytest.mark.parametrize(
    "strategy",
    [*map(Together, CODECS), DiLoCo(period=3, codec="int4"), DiLoCo(period=3, codec="int8", fragments=2)],
    ids=str,
)
@pytest.mark.parametrize(
    "task", [BlobTask("cpu"), Coarse(parameters=CHUNK + 1027)], ids=["module on a device", "quadratic"]
)
def test_coded_messages_agree_bit_for_bit(strategy: Strategy, task: Task) -> None:
    """Means of gradients, means begun before and mixes, and what all of them have not sent yet."""
    made = replace(cluster("ssgd", 3, task, momentum=0.9), strategy=strategy)
    virtual, real, _ = both(made, [plan(0, 3, examples=6 * MINIBATCH + 2, epoch=e) for e in range(2)])
    for vector in virtual.vectors:
        assert torch.equal(virtual.vectors[vector], real.vectors[vector]), vector
    for left in (name for name in strategy.memory if name.endswith("left")):
        coded = strategy != Together("fp32")
        silent = left == "means left"  # the last has no weight in these
        assert virtual.vectors[left].any(1).tolist() == [coded, coded, coded and not silent]


@pytest.mark.parametrize(
    ("name", "bucket"),
    [
        *((name, 50) for name in one_of_each(SYNCHRONOUS)),
        *((name, BUCKET) for name in ("ssgd", "dpsgd", "delay-by-one")),
    ],
    ids=lambda of: {50: "four buckets", BUCKET: "one bucket"}.get(of, of),
)
def test_means_of_a_collective_library_agree_to_rounding(name: str, bucket: int) -> None:
    """Gloo, in place of NCCL, which wants GPUs."""
    made = cluster(name, 3, BlobTask("cpu"), momentum=0.9)
    segments = [plan(0, 3, examples=9 * MINIBATCH + 2, epoch=epoch) for epoch in range(2)]
    with SimRuntime(made) as sim, ProcsRuntime(made, threads=1, library=MeansLibrary("gloo", bucket)) as procs:
        for segment in segments:
            sim.segment(segment)
            assert procs.segment(segment).counts.frames.sum() == 9 * MINIBATCH + 2
        virtual, real = sim.state(), procs.state()
        in_arena = [
            procs.arena.vector(name, 0).any() for name in ("gradient", "contribution 0", "contribution 1", "mean")
        ]
    assert not any(in_arena) or made.centre  # a centre is in the arena, and so are means with it
    assert virtual.integers == real.integers
    for vector, value in virtual.vectors.items():
        torch.testing.assert_close(real.vectors[vector], value, rtol=1e-4, atol=1e-5)


def test_a_run_whose_node_takes_means_by_a_library_is_that_of_means_in_the_arena() -> None:
    """One node: nobody exchanges, so that the result does not depend on timing."""
    made = cluster("hadpsgd node_size=2", 2, BlobTask("cpu"), momentum=0.9)
    segments = [plan(0, 2, examples=6 * MINIBATCH + 2, epoch=epoch) for epoch in range(2)]
    states = []
    for library in (MeansLibrary("gloo", 50), MeansLibrary()):
        with ProcsRuntime(made, threads=1, library=library) as procs:
            for segment in segments:
                assert procs.segment(segment).counts.frames.sum() == 6 * MINIBATCH + 2
            states.append(procs.state())
            in_arena = [procs.arena.vector(f"contribution {number}", 0).any() for number in (0, 1)]
            assert any(in_arena) == (library.name is None)
    for vector, value in states[1].vectors.items():
        torch.testing.assert_close(states[0].vectors[vector], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", one_of_each(ASYNCHRONOUS))
def test_asynchronous_strategies_train_every_frame_and_keep_the_sum(name: str) -> None:
    task = Coarse(parameters=CHUNK + 5)
    with ProcsRuntime(cluster(name, 3, task), threads=1) as runtime:
        state = runtime.state()
        state.vectors["row"].normal_(generator=torch.Generator().manual_seed(0))
        runtime.load(state)
        start = runtime.rows().clone()
        sum_ = start.sum(0) + runtime.centre() if runtime.cluster.centre else start.sum(0)
        outcome = runtime.segment(plan(60, 3, rate=0.0))
        rows = runtime.rows()
        after = rows.sum(0) + runtime.centre() if runtime.cluster.centre else rows.sum(0)
    assert outcome.counts.frames.sum() == 60 * MINIBATCH
    # Every learner finishes what it began; where a row was just being written it may have begun fewer than one a step,
    # or one of each fragment.
    assert 2 <= outcome.counts.exchanges.sum() <= 180 * getattr(runtime.cluster.strategy, "fragments", 1)
    assert (outcome.counts.exchanges.sum(1) > 0).sum() == len(rows)
    assert np.trace(outcome.counts.exchanges) == 0
    if keeps_sum(runtime.cluster.strategy):
        torch.testing.assert_close(after, sum_, rtol=1e-4, atol=1e-4)
    assert float((rows - rows.mean(0)).square().sum()) < float((start - start.mean(0)).square().sum())


@pytest.mark.parametrize("name", ["sgd", *one_of_each(MANY)])
def test_asking_to_stop_ends_the_segment_at_a_round_and_the_rest_completes_it(name: str) -> None:
    learners = 1 if name == "sgd" else 2
    task = Coarse(parameters=500_000)
    looks = 0

    def stop(_: Glance) -> bool:
        nonlocal looks
        looks += 1
        return True

    with ProcsRuntime(cluster(name, learners, task), threads=1) as runtime:
        first = runtime.segment(plan(2000, learners), stop)
        assert looks
        assert not first.finished
        assert 0 < first.next < 2000 * learners
        assert first.next % (learners * cluster(name, learners).strategy.block) == 0
        trained = int(first.counts.frames.sum())
        assert trained == first.next // learners * MINIBATCH
        rest = SegmentPlan(plan(first.next // learners + 5, learners).epoch, 0.1, first=first.next)
        second = runtime.segment(rest)
    assert second.finished
    assert second.counts.frames.sum() == 5 * MINIBATCH
