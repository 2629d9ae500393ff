"""Means over hosts by a process group: gloo, in the place of NCCL, which wants GPUs."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from roundelay.algorithms.averaging import weighted_mean
from roundelay.core.errors import UserError
from roundelay.core.flat import CHUNK
from roundelay.runtime.hosts.mean_transports.group import GroupOptions
from roundelay.runtime.hosts.means import MeanLinks
from roundelay.runtime.hosts.options import HostOptions
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.wire import Link
from roundelay.runtime.procs.memory.views import HostMeanSequences
from support.mean_hosts import SECRET, MeanHost, end, linked, mean_host
from support.until import until

SIZE, BUCKET = 2 * CHUNK + 5, CHUNK
"""Three buckets, the first of them short."""
RANKS = ((0, 1), (2,), (3,))
"""Of three hosts."""
EVERYBODY, HOSTS = (0, 1, 2, 3), range(3)
WEIGHTS = (3.0, 1.0, 2.0, 0.5)
VECTORS = [torch.randn(SIZE, generator=torch.Generator().manual_seed(rank)) for rank in EVERYBODY]
ROUNDING = 4e-7 * max(float(vector.abs().max()) for vector in VECTORS)
"""Four numbers are summed in another order: each sum is rounded to 2^-24 of its size, which is below that of the
largest of them."""


def host(number: int, links: dict[int, Link], seconds: float = 60) -> MeanHost:
    """One of those that take means by gloo."""
    options = GroupOptions("gloo", "127.0.0.1", seconds, BUCKET)
    return mean_host(SIZE, MeanLinks(RANKS, number, {}, links), group=options)


@contextmanager
def three_hosts(seconds: float = 60) -> Iterator[tuple[list[MeanHost], dict[int, dict[int, Link]]]]:
    with linked([(0, 1), (0, 2), (1, 2)]) as links:
        sides = [host(number, links[number], seconds) for number in HOSTS]
        try:
            yield sides, links
        finally:
            end(sides)
    assert not [failure for one in sides for failure in one.failures]


def test_means_are_those_of_one_host_to_rounding_and_the_same_everywhere() -> None:
    """Whole vectors and fragments, with weights, one after the other over one communicator."""
    with three_hosts() as (sides, _):
        for number, size in enumerate((SIZE, CHUNK // 2, SIZE), 1):
            for one in sides:
                for rank, means in one.means.items():
                    means.publish(number * VECTORS[rank][:size], WEIGHTS[rank], EVERYBODY)
            expected = weighted_mean([number * vector[:size] for vector in VECTORS], WEIGHTS)
            found = [means.collect(EVERYBODY)[:size].clone() for one in sides for means in one.means.values()]
            torch.testing.assert_close(found[0], expected, rtol=0, atol=number * ROUNDING)
            assert all(torch.equal(mean, found[0]) for mean in found)
            assert all(means.total == sum(WEIGHTS) for one in sides for means in one.means.values())


def test_a_gradient_is_on_its_way_before_the_rest_is_computed() -> None:
    expected = weighted_mean(VECTORS, WEIGHTS)
    with three_hosts() as (sides, _):
        lays = {}
        for one in sides:
            for rank, means in one.means.items():
                lays[rank] = means.announce_gradient(WEIGHTS[rank], EVERYBODY, torch.empty(SIZE))
                one.arena.vector("gradient", rank)[CHUNK:] = VECTORS[rank][CHUNK:]
        for lay in lays.values():
            assert lay is not None
            lay(CHUNK)
        for one in sides:
            mean = one.mean
            until(lambda mean=mean: bool((mean[2 * CHUNK :] - expected[2 * CHUNK :]).abs().max() < ROUNDING))  # type: ignore[misc]
            assert one.complete == 0
            assert not mean[:CHUNK].any()
        for one in sides:
            for rank in one.means:
                one.arena.vector("gradient", rank)[:CHUNK] = VECTORS[rank][:CHUNK]
        for lay in lays.values():
            assert lay is not None
            lay(0)
        for one in sides:
            for means in one.means.values():
                torch.testing.assert_close(means.collect(EVERYBODY), expected, rtol=0, atol=ROUNDING)


# Hosts that are lost --------------------------------------------------------------------------------------------------


def host_that_will_be_lost(address: tuple[str, int]) -> None:
    """Be the last host: half of its gradient is there, and the rest never comes."""
    links = {}
    for other in (0, 1):
        links[other] = Link.connect(address, SECRET, {"for": other}, 60.0)
    one = host(2, links)
    lay = one.means[3].announce_gradient(WEIGHTS[3], EVERYBODY, torch.empty(SIZE))
    assert lay is not None
    one.arena.vector("gradient", 3)[CHUNK:] = VECTORS[3][CHUNK:]
    lay(CHUNK)
    signal.pause()


@contextmanager
def beside_one_that_will_be_lost() -> Iterator[tuple[list[MeanHost], int]]:
    """Two hosts here and one in a process, in the middle of the mean of a gradient; and the id of that process."""
    listener = Listener(("127.0.0.1", 0), SECRET)
    child = os.fork()
    if not child:
        try:
            host_that_will_be_lost(listener.address)
        finally:
            os._exit(1)
    try:
        there: dict[int, Link] = {}
        for _ in range(2):
            link = listener.accept(60)
            assert link is not None
            there[int(link.hello["for"])] = link
        with linked([(0, 1)]) as links:
            sides = [host(number, {**links[number], 2: there[number]}) for number in (0, 1)]
            try:
                for one in sides:
                    for rank, means in one.means.items():
                        one.arena.vector("gradient", rank).copy_(VECTORS[rank])
                        lay = means.announce_gradient(WEIGHTS[rank], EVERYBODY, torch.empty(SIZE))
                        assert lay is not None
                        lay(0)
                for one in sides:
                    until(lambda mean=one.mean: bool(mean[2 * CHUNK :].any()))  # type: ignore[misc]
                    assert one.complete == 0
                yield sides, child
            finally:
                end(sides)
        for link in there.values():
            link.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        listener.close()


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_hosts_that_are_left_go_on_with_the_mean_of_those_who_are_left(how: str) -> None:
    """A killed host's connections end; a stopped one keeps them, and the run says that it is lost."""
    with beside_one_that_will_be_lost() as (sides, child):
        os.kill(child, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        if how == "stopped":
            for one in sides:
                one.arena.liveness.mark([3], False)
        for number in (1, 2):
            for one in sides:
                until(lambda one=one, number=number: one.complete == number or bool(one.failures), 30)  # type: ignore[misc]
                assert not one.failures
            expected = number * weighted_mean(VECTORS[:3], WEIGHTS[:3])
            for one in sides:
                torch.testing.assert_close(one.mean, expected, rtol=0, atol=number * ROUNDING)
                assert one.arena.view(HostMeanSequences).total[number % 2] == sum(WEIGHTS[:3])
            assert torch.equal(sides[0].mean, sides[1].mean)
            for one in sides:
                for rank, means in one.means.items():
                    means.publish(2 * VECTORS[rank], WEIGHTS[rank], EVERYBODY)


def test_hosts_of_which_two_cannot_reach_each_other_give_up_in_time() -> None:
    """The first host, which both reach, takes them for alive."""
    with three_hosts(seconds=1.0) as (sides, links):
        links[1][2].close()
        for one in sides:
            for rank, means in one.means.items():
                means.publish(VECTORS[rank], WEIGHTS[rank], EVERYBODY)
        for one in sides[1:]:
            until(lambda one=one: bool(one.failures))  # type: ignore[misc]
            assert one.complete == 0
            assert re.search(r"host 2 is lost|host 1 is lost|has waited 1 s", one.failures.pop())
        sides[0].failures.clear()


# Options --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["gloo", "nccl"])
def test_a_library_is_for_networks_that_are_trusted_and_for_full_precision(library: str) -> None:
    with pytest.raises(UserError, match=rf"training\.means is {library}, which neither authenticates nor encrypts"):
        HostOptions(means=library)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"training\.wire is bf16"):
        HostOptions(means=library, trusted_network=True, wire="bf16")  # type: ignore[arg-type]
    assert HostOptions(means=library, trusted_network=True).library(on_gpus=False) == library  # type: ignore[arg-type]


def test_nothing_but_the_chain_is_chosen_unasked() -> None:
    assert [HostOptions().library(on_gpus) for on_gpus in (False, True)] == [None, None]
    trusted = HostOptions(trusted_network=True)
    assert [trusted.library(on_gpus) for on_gpus in (False, True)] == [None, "nccl"]
    assert HostOptions(means="chain", trusted_network=True).library(on_gpus=True) is None
