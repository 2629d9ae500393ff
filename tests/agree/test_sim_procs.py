"""The same strategy object in the simulator and on real processes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from roundelay.algorithms.codecs import CODECS
from roundelay.algorithms.gain import EARLY
from roundelay.algorithms.muon import Muon
from roundelay.algorithms.torch_optimizer import TorchOptimizer
from roundelay.core.flat import CHUNK
from roundelay.runtime.base import Cluster, Glance, SegmentPlan
from roundelay.runtime.procs.coordination.collectives import BUCKET, MeansLibrary
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies.diloco import DiLoCo
from support.agreeing import assert_equal, in_simulator, on_processes
from support.blobs import BlobTask
from support.clusters import ASYNCHRONOUS, ENDLESS, MINIBATCH, SYNCHRONOUS, cluster, keeps_sum, one_of_each, plan
from support.coarse import Coarse
from support.coded import Together

pytestmark = pytest.mark.usefixtures("one_thread")


QUADRATIC = Coarse(parameters=CHUNK + 1027)
CODED = [*map(Together, CODECS), DiLoCo(period=3, codec="int4"), DiLoCo(period=3, codec="int8", fragments=2)]
MUON = Muon({"weight_decay": 0.01}, TorchOptimizer("adamw", {"weight_decay": 0.1}), 0.5)
CASES = {
    **{f"{name}, on a device": cluster(name, 3, BlobTask("cpu"), 0.9) for name in one_of_each(SYNCHRONOUS)},
    **{name: cluster(name, 3, BlobTask(), 0.9) for name in ("ssgd", "delay-by-one")},
    "sgd, on a device": cluster("sgd", 1, BlobTask("cpu"), 0.9),
    "sgd": cluster("sgd", 1, BlobTask(), 0.9),
    **{
        f"{name}, gain": replace(cluster(name, 3, QUADRATIC), rate="gain") for name in ("ssgd", "dpsgd", "bsp period=3")
    },
    **{
        f"{strategy}, {where}": replace(cluster("ssgd", 3, task, 0.9), strategy=strategy)
        for strategy in CODED
        for where, task in (("on a device", BlobTask("cpu")), ("quadratic", QUADRATIC))
    },
    "muon": cluster("bmuf period=2 local_momentum=average", 2, BlobTask(dropout=0.0, width=11), optimizer=MUON),
}


@pytest.mark.parametrize("made", CASES.values(), ids=[*CASES])
def test_synchronous_strategies_agree_bit_for_bit(made: Cluster) -> None:
    """Also the noise of gradients, which is summed in the same order wherever they lie; and means of gradients, means
    begun before and mixes that are coded, and what all of them have not sent yet. All strategies, with their variants
    and other rows and optimizers: tests/laws/test_local_optimizers.py."""
    rounds = 9 if made.rate != "gain" else EARLY
    segments = [plan(0, made.learners, examples=rounds * MINIBATCH + 2, epoch=epoch) for epoch in range(2)]
    virtual, real = in_simulator(made, segments), on_processes(made, segments)
    assert_equal(real.state, virtual.state)
    assert all(outcome.counts.frames.sum() == rounds * MINIBATCH + 2 for outcome in real.outcomes)
    if made.rate == "gain":
        assert (real.outcomes[-1].counts.rate_factors > real.outcomes[-1].counts.steps).all()
    for left in (name for name in made.strategy.memory if name.endswith("left")):
        coded = made.strategy != Together("fp32")
        silent = left == "means left"  # the last has no weight in these
        assert virtual.state.vectors[left].any(1).tolist() == [coded, coded, coded and not silent]


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
    began = outcome.counts.exchanges.sum(1) > 0
    assert began.sum() <= len(rows)
    for rank in runtime.cluster.strategy.holders((0, 1, 2)):  # whoever is kept from beginning may find nothing left
        assert began[rank] or outcome.counts.steps[rank] < 20
    assert np.trace(outcome.counts.exchanges) == 0
    if keeps_sum(runtime.cluster.strategy):
        torch.testing.assert_close(after, sum_, rtol=1e-4, atol=1e-4)
    assert float((rows - rows.mean(0)).square().sum()) < float((start - start.mean(0)).square().sum())


STOPPED = (
    *("sgd", "ssgd", "delayed-gradient", "dpsgd", "bmuf period=3", "diloco period=6 fragments=2 delay=1 mix=0.5"),
    *("asgd", "rennala", "easgd period=2", "adpsgd:random", "hadpsgd"),
)
"""One for each way to wait, and each kind of block."""


@pytest.mark.parametrize("name", STOPPED)
def test_asking_to_stop_ends_the_segment_at_a_round_and_the_rest_completes_it(name: str) -> None:
    learners = 1 if name == "sgd" else 2
    task = Coarse(parameters=500_000)
    looks = 0

    def stop(_: Glance) -> bool:
        nonlocal looks
        looks += 1
        return True

    with ProcsRuntime(cluster(name, learners, task), threads=1) as runtime:
        first = runtime.segment(plan(ENDLESS, learners), stop)
        assert looks
        assert not first.finished
        assert 0 < first.next < ENDLESS * learners
        assert first.next % (learners * cluster(name, learners).strategy.block) == 0
        trained = int(first.counts.frames.sum())
        assert trained == first.next // learners * MINIBATCH
        rest = SegmentPlan(plan(first.next // learners + 5, learners).epoch, 0.1, first=first.next)
        second = runtime.segment(rest)
    assert second.finished
    assert second.counts.frames.sum() == 5 * MINIBATCH
