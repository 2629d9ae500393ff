"""Drawn in blocks: simulator, processes, a replay and several hosts agree, also on epochs that are gone on with."""

from pathlib import Path

import pytest

from roundelay.core.epochs import EpochPlan
from roundelay.core.progress import Silent
from roundelay.runtime.base import Cluster, SegmentPlan
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.replay.whole import replay
from roundelay.runtime.resize import TrainedBy, gone_on_with
from roundelay.runtime.sim.driver import SimRuntime
from support.agreeing import assert_equal, in_simulator, on_hosts, on_processes
from support.clusters import cluster
from support.hosts import Hosts
from support.in_blocks import InBlocks

NETWORKS = ("dnn", "blstm-chunks")
LEARNERS = 3
FRAMES = InBlocks("dnn").build().examples


def segment(epoch: int, first: int = 0, last: int | None = None, learners: int = LEARNERS) -> SegmentPlan:
    """Of an epoch, rounds `first` to `last`."""
    plan = EpochPlan(epoch, FRAMES, 128, learners, seed=1)
    return SegmentPlan(plan, 0.02, first=first * learners, last_round=last)


def made(network: str, name: str = "ssgd") -> Cluster:
    return cluster(name, LEARNERS, InBlocks(network), momentum=0.9)


EPOCHS = [segment(0), segment(1)]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("network", NETWORKS)
def test_processes_and_the_simulator_agree_bit_for_bit(network: str) -> None:
    state, outcomes = on_processes(made(network), EPOCHS)
    assert [outcome.counts.frames.sum() for outcome in outcomes] == [FRAMES, FRAMES]
    assert_equal(state, in_simulator(made(network), EPOCHS).state)


@pytest.mark.parametrize("network", NETWORKS)
def test_an_epoch_gone_on_with_by_others_is_the_epoch_bit_for_bit(network: str) -> None:
    """Learners that have never seen its beginning, at a round in the middle of a window."""
    state = in_simulator(made(network), [segment(0, last=7)]).state
    with ProcsRuntime(made(network), threads=1) as second:
        second.load(state)
        second.segment(segment(0, first=7))
        assert_equal(second.state(), in_simulator(made(network), [segment(0)]).state)


def test_an_epoch_gone_on_with_by_another_number_of_learners_trains_the_rest_of_its_frames() -> None:
    """The frames are the same, whatever the number (tests/unit/test_drawn_in_blocks.py)."""
    with SimRuntime(cluster("ssgd", LEARNERS, InBlocks("dnn"))) as first:
        counts = first.segment(segment(0, last=7)).counts.frames.sum()
        state = first.state()
    with SimRuntime(cluster("ssgd", 2, InBlocks("dnn"))) as second:
        second.load(gone_on_with(state, second.cluster, TrainedBy.of(second.cluster.strategy, range(LEARNERS))))
        assert counts + second.segment(segment(0, first=7, learners=2)).counts.frames.sum() == FRAMES


@pytest.mark.parametrize("network", NETWORKS)
def test_an_asynchronous_run_comes_out_the_same_bit_for_bit(network: str, tmp_path: Path) -> None:
    state, outcomes = on_processes(made(network, "adpsgd"), EPOCHS, trace=tmp_path)
    assert [outcome.counts.frames.sum() for outcome in outcomes] == [FRAMES, FRAMES]
    found = replay(tmp_path, made(network, "adpsgd"), Silent())
    assert found.difference == ""
    assert_equal(found.state, state)


def test_several_hosts_agree_bit_for_bit() -> None:
    state, outcomes = on_hosts(Hosts("ssgd", (1, 2), in_blocks="blstm-chunks", momentum=0.9), EPOCHS)
    assert [outcome.counts.frames.sum() for outcome in outcomes] == [FRAMES, FRAMES]
    assert_equal(state, in_simulator(made("blstm-chunks"), EPOCHS).state)
