"""A run whose loss becomes NaN on several hosts: it ends like one on one host, under every strategy."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from roundelay.runtime.base import Outcome
from roundelay.runtime.hosts.control.coordinator import MultiHostRuntime
from roundelay.runtime.procs.driver import ProcsRuntime
from support.clusters import ASYNCHRONOUS, MINIBATCH, SYNCHRONOUS, make_strategy, one_of_each, plan
from support.hosts import Hosts
from support.kept_hosts import keeping_hosts

FAR_TOO_FAST = 1e30
"""A learning rate at which the second or third loss is infinite, and the next NaN."""
ROUNDS = 30


@pytest.fixture(scope="module", autouse=True)
def kept_hosts() -> Iterator[None]:
    """Hosts take part in one run after the other."""
    with keeping_hosts():
        yield


def diverged(outcome: Outcome) -> None:
    assert outcome.finished
    assert outcome.counts.frames.sum() == ROUNDS * MINIBATCH
    assert outcome.redrawn == 0
    assert (outcome.hosts_lost, outcome.lost) == ((), ())
    assert np.isnan(outcome.counts.loss.sum())


def sizes(name: str) -> tuple[int, int]:
    return (2, 2) if "hadpsgd" in name and "node_size=1" not in name else (1, 1)


@pytest.mark.parametrize("name", [n for n in one_of_each(ASYNCHRONOUS) if not make_strategy(n).traits.one_host])
def test_an_asynchronous_run_that_diverges_ends(name: str) -> None:
    hosts = Hosts(name, sizes(name), terms={"patience_seconds": 60})
    learners = sum(hosts.sizes)
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
        diverged(runtime.segment(plan(ROUNDS, learners, rate=FAR_TOO_FAST)))
        assert not torch.isfinite(runtime.consensus()).all()
    with ProcsRuntime(hosts.cluster, threads=1) as one:
        diverged(one.segment(plan(ROUNDS, learners, rate=FAR_TOO_FAST)))
        assert not torch.isfinite(one.consensus()).all()


@pytest.mark.parametrize("name", one_of_each(SYNCHRONOUS))
def test_a_synchronous_run_that_diverges_ends_where_one_host_does(name: str) -> None:
    hosts = Hosts(name, (1, 1), terms={"patience_seconds": 60})
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
        outcome, rows = runtime.segment(plan(ROUNDS, 2, rate=FAR_TOO_FAST)), runtime.rows()
    with ProcsRuntime(hosts.cluster, threads=1) as one:
        expected, wanted = one.segment(plan(ROUNDS, 2, rate=FAR_TOO_FAST)), one.rows()
    diverged(outcome)
    diverged(expected)
    assert np.array_equal(outcome.counts.loss, expected.counts.loss, equal_nan=True)
    assert torch.equal(torch.isfinite(rows), torch.isfinite(wanted))
