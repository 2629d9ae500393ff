"""Local optimizers and learning rates under all strategies: state is complete, simulator and processes agree, and a
rate belongs to a round, not to a moment."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from roundelay.algorithms.local_update import LocalOptimizer, Sgd
from roundelay.algorithms.torch_optimizer import TorchOptimizer, fitting
from roundelay.core.flat import CHUNK
from roundelay.core.progress import Silent
from roundelay.core.rates import Warmup
from roundelay.runtime.base import Runtime
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.procs.processes import Deaths
from roundelay.runtime.replay.whole import replay
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from support.agreeing import assert_equal
from support.clusters import (
    ASYNCHRONOUS,
    EVERY,
    MINIBATCH,
    SYNCHRONOUS,
    cluster,
    keeps_sum,
    make_strategy,
    plan,
)
from support.coarse import Coarse
from support.slope import SlopeTask

ADAMW = TorchOptimizer("adamw", {"weight_decay": 0.1})


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", EVERY)
@given(st.sampled_from([*map(TorchOptimizer, fitting())]), st.integers(1, 5), st.integers(0, 9))
@example(Sgd(0.9), 4, 1)
@settings(max_examples=2, deadline=None)
def test_a_run_cut_in_two_is_the_whole_run(name: str, optimizer: LocalOptimizer, learners: int, seed: int) -> None:
    """Handed to a new runtime, or back to the same one as after an epoch that is taken back, state is complete."""
    learners = 1 if name == "sgd" else learners
    cluster_ = cluster(name, learners, seed=seed, optimizer=optimizer)
    segments = [plan(6, learners, rate=rate, epoch=epoch) for epoch, rate in enumerate((0.1, 0.05))]
    with SimRuntime(cluster_, CostModel(jitter=0.3)) as runtime:
        runtime.segment(segments[0])
        middle = runtime.state()
        runtime.segment(segments[1])
        whole = runtime.state()
        runtime.load(middle)
        runtime.segment(segments[1])
        assert_equal(runtime.state(), whole)
    with SimRuntime(cluster_, CostModel(jitter=0.3)) as runtime:
        runtime.load(middle)
        runtime.segment(segments[1])
        assert_equal(runtime.state(), whole)
        assert runtime.state().virtual_ns == whole.virtual_ns


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_under_adamw_processes_end_where_the_simulator_does_also_when_cut(name: str, tmp_path: Path) -> None:
    """And their record is repeated to the same rows."""
    learners = 1 if name == "sgd" else 3
    task = Coarse(parameters=2 * CHUNK + 11)
    cluster_ = cluster(name, learners, task, optimizer=ADAMW)
    segments = [
        replace(plan(0, learners, examples=7 * MINIBATCH + 2, epoch=epoch), warmup=Warmup(0.1, 10.5, 8 * epoch))
        for epoch in range(2)
    ]
    with SimRuntime(cluster_) as runtime:
        for segment in segments:
            runtime.segment(segment)
        virtual = runtime.state()
    with ProcsRuntime(cluster_, threads=1, trace=tmp_path) as processes:
        processes.segment(segments[0])
        middle = processes.state()
        processes.segment(segments[1])
        real = processes.state()
        processes.load(middle)  # as after an epoch that is taken back
        processes.segment(segments[1])
        assert_equal(processes.state(), real)
    assert_equal(virtual, real)
    found = replay(tmp_path, cluster_, Silent())
    assert found.difference == ""
    assert_equal(found.state, real)


@pytest.mark.parametrize(
    "name", ["ssgd codec=1bit", "diloco period=6 fragments=2 delay=1 mix=0.5", "easgd-sync period=2"]
)
def test_new_processes_go_on_from_a_state_to_the_same_bits(name: str) -> None:
    """As when a run is resumed; that states are complete under every strategy is the law of the simulator above."""
    segments = [plan(7, 3, epoch=epoch) for epoch in range(2)]
    with ProcsRuntime(cluster(name, 3, optimizer=ADAMW), threads=1) as processes:
        processes.segment(segments[0])
        middle = processes.state()
        processes.segment(segments[1])
        real = processes.state()
    with ProcsRuntime(cluster(name, 3, optimizer=ADAMW), threads=1) as processes:
        processes.load(middle)
        processes.segment(segments[1])
        assert_equal(processes.state(), real)


def test_a_dead_learner_is_given_the_numbers_that_belong_to_its_vectors() -> None:
    with ProcsRuntime(cluster("adpsgd", 3, optimizer=ADAMW), threads=1, deaths=Deaths("go-on")) as runtime:
        runtime.segment(plan(20, 3))
        os.kill(runtime.process_ids()[2], signal.SIGKILL)
        runtime.segment(plan(20, 3, epoch=1))
        state = runtime.state()
    steps = state.vectors["scalars"][:, ADAMW.scalars.index("step")]
    assert steps[1] == state.integers["steps"][1]
    for vector in ("scalars", "exp_avg", "exp_avg_sq"):
        assert torch.equal(state.vectors[vector][2], state.vectors[vector][1]), vector


def test_nothing_is_kept_of_an_optimizer_that_keeps_nothing() -> None:
    for optimizer in (Sgd(0.9), TorchOptimizer("sgd")):
        with SimRuntime(cluster("ssgd", 2, optimizer=optimizer)) as runtime:
            runtime.segment(plan(2, 2))
            assert "scalars" not in runtime.state().vectors


# Rates ----------------------------------------------------------------------------------------------------------------


# Whose sum moves by every learner's gradient once: in a node of hadpsgd one row stands for all, and delayed-gradient
# takes a gradient at the rate of the round it is applied in.
SUMMING = [name for name in EVERY if keeps_sum(make_strategy(name)) and name not in ("hadpsgd", "delayed-gradient")]


def trained(runtime: Runtime, learners: int, warmup: Warmup, rounds: int, cut: int) -> Tensor:
    """The sum of rows, and the centre, after an epoch of `rounds`, in segments before and after round `cut`."""
    whole = replace(plan(rounds, learners), warmup=warmup)
    if cut:
        runtime.segment(replace(whole, last_round=cut))
    runtime.segment(replace(whole, first=cut * learners))
    return runtime.rows().sum(0) + (runtime.centre() if runtime.cluster.centre else 0)


@given(
    name=st.sampled_from(SUMMING),
    learners=st.integers(1, 5),
    start=st.floats(0, 2),
    warm=st.floats(0.1, 30),
    done=st.integers(0, 20),
    cut=st.integers(0, 11),
)
@settings(max_examples=80, deadline=None)
def test_every_minibatch_is_trained_at_the_rate_of_its_round(
    name: str, learners: int, start: float, warm: float, done: int, cut: int
) -> None:
    """The learners' speeds may differ, and the epoch may be interrupted anywhere."""
    learners = 1 if name == "sgd" else learners
    warmup = Warmup(start, warm, done)
    with SimRuntime(cluster(name, learners, SlopeTask()), CostModel(jitter=0.5)) as runtime:
        after = trained(runtime, learners, warmup, 12, cut)
    rates = [0.1 * (start + (1 - start) * min(1.0, (done + round_) / warm)) for round_ in range(12)]
    torch.testing.assert_close(after, torch.full((3,), -learners * sum(rates)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in SUMMING if name in ("ssgd", *ASYNCHRONOUS)])
def test_processes_warm_up_like_the_simulator(name: str) -> None:
    with ProcsRuntime(cluster(name, 2, SlopeTask()), threads=1) as runtime:
        after = trained(runtime, 2, Warmup(0.0, 20.0, 0), 40, 7)
    expected = -2 * 0.1 * (sum(range(20)) / 20 + 20)
    torch.testing.assert_close(after, torch.full((3,), expected), rtol=1e-4, atol=1e-4)
