"""One training in several runtimes, for tests that it comes to the same bits in all of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch

from roundelay.runtime.base import Cluster, ClusterState, Outcome, Runtime, SegmentPlan
from roundelay.runtime.hosts.control.coordinator import MultiHostRuntime
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.sim.driver import SimRuntime
from support.hosts import Hosts


class Ran(NamedTuple):
    """The rows of learners in the end, and the outcome of each segment."""

    state: ClusterState
    outcomes: list[Outcome]


def run(runtime: Runtime, segments: Iterable[SegmentPlan]) -> Ran:
    """Run all segments, each to its end, in `runtime`; return the rows and the outcomes."""
    outcomes = [runtime.segment(segment) for segment in segments]
    assert all(outcome.finished for outcome in outcomes)
    return Ran(runtime.state(), outcomes)


def in_simulator(made: Cluster, segments: Iterable[SegmentPlan]) -> Ran:
    with SimRuntime(made) as runtime:
        return run(runtime, segments)


def on_processes(made: Cluster, segments: Iterable[SegmentPlan], trace: Path | None = None) -> Ran:
    with ProcsRuntime(made, threads=1, trace=trace) as runtime:
        return run(runtime, segments)


def on_hosts(hosts: Hosts, segments: Iterable[SegmentPlan]) -> Ran:
    """Run all segments on several hosts, all of which must end well."""
    with hosts:
        with MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
            found = run(runtime, segments)
        for host in range(1, len(hosts.sizes)):
            status, text = hosts.end(host)
            assert status == 0, text
    return found


def assert_equal(found: ClusterState, expected: ClusterState) -> None:
    """Check that two states are equal: every vector bit for bit, and every number."""
    assert found.integers == expected.integers
    assert set(found.vectors) == set(expected.vectors)
    for name, value in expected.vectors.items():
        assert torch.equal(found.vectors[name], value), name
