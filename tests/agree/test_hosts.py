"""Learners on several hosts against the same learners on one."""

import pytest
import torch

from roundelay.core.flat import CHUNK
from roundelay.runtime.base import ClusterState, Outcome
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.procs.hosts import HostsRuntime
from support.clusters import MINIBATCH, plan
from support.hosts import Hosts

PLANS = [plan(0, 3, examples=9 * MINIBATCH + 2, epoch=epoch) for epoch in range(2)]


def on_hosts(hosts: Hosts) -> tuple[ClusterState, list[Outcome]]:
    with hosts:
        with HostsRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
            outcomes = [runtime.segment(one) for one in PLANS]
            state = runtime.state()
        for host in range(1, len(hosts.sizes)):
            status, text = hosts.end(host)
            assert status == 0, text
    return state, outcomes


def on_one(hosts: Hosts) -> tuple[ClusterState, list[Outcome]]:
    with ProcsRuntime(hosts.cluster, threads=1) as runtime:
        outcomes = [runtime.segment(one) for one in PLANS]
        return runtime.state(), outcomes


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("ssgd", (2, 1)), ("delay-by-one", (1, 2)), ("dpsgd", (1, 1, 1)), ("gossip-pga period=3", (1, 2))],
)
def test_synchronous_strategies_agree_bit_for_bit(name: str, sizes: tuple[int, ...]) -> None:
    hosts = Hosts(name, sizes, parameters=17 * CHUNK + 11, momentum=0.9)
    state, outcomes = on_hosts(hosts)
    expected, wanted = on_one(hosts)
    for vector in expected.vectors:
        assert torch.equal(state.vectors[vector], expected.vectors[vector]), vector
    assert state.integers == expected.integers
    for outcome, want in zip(outcomes, wanted, strict=True):
        assert outcome.counts.frames.tolist() == want.counts.frames.tolist()
        assert outcome.counts.loss.tolist() == want.counts.loss.tolist()
        assert (outcome.next, outcome.finished) == (want.next, want.finished)
