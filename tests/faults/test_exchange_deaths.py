"""Hosts that die, or stand still, while something is being carried to or from them."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from roundelay.algorithms.averaging import pair_average_
from roundelay.core.effects import Begin, Exchange, Wait
from roundelay.core.flat import CHUNK
from support.preloaded import Preloaded, environment
from support.two_hosts import Host, hosts, start
from support.until import until

TESTS = Path(__file__).parents[1]
LONG = 20 * CHUNK


@contextmanager
def peer() -> Iterator[tuple[Preloaded, int]]:
    """Host 1, and its port."""
    reads, writes = os.pipe()
    process = Preloaded(["-m", "support.exchange_peer", str(LONG)], environment(), [writes, 2])
    os.close(writes)
    try:
        with open(reads) as said:
            yield process, int(said.readline())
    finally:
        process.end_group()


@pytest.mark.parametrize("seed", range(4))
def test_a_host_killed_while_it_is_spoken_to(seed: int) -> None:
    """The bytes may be anywhere: nothing is torn, the learner is told that nobody is there, and goes on."""
    with hosts([0, 1], parameters=LONG) as (zero, _), peer() as (process, port):
        worker, row = zero.workers[0], zero.rows[0]
        zero.client.peers_changed({1: ("127.0.0.1", port)})
        assert worker.engine.perform(Exchange(1, pair_average_)) == 1
        middle = start(0, LONG).lerp(start(1, LONG), 0.5)
        assert torch.equal(row.vector, middle)  # of a row in another process
        handle = worker.engine.perform(Begin(Exchange(1, pair_average_)))
        links = list(zero.client.channels[0].carrier.links._links.values())
        share = np.random.default_rng(seed).uniform(0, 2)
        until(lambda: links[0].sent_bytes + links[0].received_bytes > (2 + share) * 4 * LONG or links[0].closed)
        process.send_signal(signal.SIGKILL)
        process.wait()
        zero.client.peers_changed({})
        assert worker.engine.perform(Wait(handle)) in (None, 2)  # it may have been just through
        assert worker.engine.perform(Exchange(1, pair_average_)) is None
        assert not row.torn
        assert torch.equal(row.vector, middle)  # both rows were the same


def test_a_host_that_stands_still_is_waited_for_no_longer_than_it_counts_as_living() -> None:
    with hosts([0, 1], parameters=LONG) as (zero, _), peer() as (process, port):
        worker = zero.workers[0]
        zero.client.peers_changed({1: ("127.0.0.1", port)})
        assert worker.engine.perform(Exchange(1, pair_average_)) == 1
        process.send_signal(signal.SIGSTOP)
        handle = worker.engine.perform(Begin(Exchange(1, pair_average_)))
        _trains_on(zero)
        assert not handle.done
        zero.client.peers_changed({})  # its heart has been silent for too long
        assert worker.engine.perform(Wait(handle)) is None
        process.send_signal(signal.SIGCONT)
        zero.client.peers_changed({1: ("127.0.0.1", port)})
        assert worker.engine.perform(Exchange(1, pair_average_)) in (
            2,
            3,
        )  # what it was asked before may have been done


def _trains_on(host: Host) -> None:
    for _ in range(3):
        with host.rows[0].writing():
            host.rows[0].vector.add_(1.0)
