"""Means over several hosts that begin while the gradient is still computed."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from roundelay.algorithms.averaging import chain_piece, weighted_mean
from roundelay.algorithms.codecs import CODECS
from roundelay.core.codec import FP32, Codec
from roundelay.core.epochs import EpochPlan
from roundelay.core.flat import CHUNK
from roundelay.learner.module import ModuleLearner
from roundelay.runtime.hosts.mean_transports.agreement import CommunicatorAgreement
from roundelay.runtime.hosts.mean_transports.base import MeansPart
from roundelay.runtime.hosts.mean_transports.messages import (
    CommunicatorMade,
    CommunicatorTerms,
    MeansDone,
    ReadyForMeans,
    dialect,
)
from roundelay.runtime.hosts.means import MeanLinks
from roundelay.runtime.hosts.transport.wire import Link
from roundelay.runtime.procs.memory.bell import Bell
from roundelay.runtime.procs.memory.views import HostMeanSequences
from support.blobs import Blobs
from support.mean_hosts import MeanHost, end, linked, mean_host
from support.until import until

LONG = 2 * CHUNK + CHUNK // 2 + 5
PIECE = chain_piece(2, LONG)
"""Of three."""


@contextmanager
def two_hosts(codec: Codec = FP32) -> Iterator[tuple[list[MeanHost], list[Link]]]:
    """With a learner each, and their ends of the link. By which codec gradients travel is for the first to say."""
    with linked([(0, 1)]) as links:
        codecs = (codec, FP32)
        both = [mean_host(LONG, MeanLinks([[0], [1]], n, links[n], {}), codec=codecs[n]) for n in range(2)]
        try:
            yield both, [links[n][1 - n] for n in range(2)]
        finally:
            end(both)
    assert not [failure for one in both for failure in one.failures]


def test_what_is_laid_is_on_its_way_before_the_rest_is_computed() -> None:
    gradients = [torch.randn(LONG, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    weights = (3.0, 1.0)
    expected = 0.75 * gradients[0] + 0.25 * gradients[1]
    with two_hosts() as (both, _):
        lays: list[Callable[[int], None]] = []
        for rank, one in enumerate(both):
            lay = one.means[rank].announce_gradient(weights[rank], (0, 1), torch.empty(LONG))
            assert lay is not None
            lays.append(lay)
        means = [one.mean for one in both]

        def lay_down(rank: int, first: int, stop: int) -> None:
            both[rank].arena.vector("gradient", rank)[first:stop] = gradients[rank][first:stop]
            lays[rank](first)

        cut = PIECE + 7  # within the second piece: that one has to wait
        lay_down(0, cut, LONG)
        lay_down(1, cut, LONG)
        for mean in means:
            until(lambda mean=mean: torch.allclose(mean[2 * PIECE :], expected[2 * PIECE :]))  # type: ignore[misc]
            assert not mean[: 2 * PIECE].any()
        assert [one.complete for one in both] == [0, 0]
        lay_down(0, 0, cut)
        lay_down(1, 0, cut)
        for rank, one in enumerate(both):
            torch.testing.assert_close(one.means[rank].collect((0, 1)), expected)


def one_mean(both: list[MeanHost], vectors: list[Tensor], gradient: bool) -> list[Tensor]:
    """The mean as both hosts have it."""
    for rank, one in enumerate(both):
        if gradient:
            one.arena.vector("gradient", rank).copy_(vectors[rank])
            one.means[rank].publish_gradient(1.0, (0, 1))
            one.arena.view(HostMeanSequences).ready_from[rank] = 0
        else:
            one.means[rank].publish(vectors[rank], 1.0, (0, 1))
    return [one.means[rank].collect((0, 1)).clone() for rank, one in enumerate(both)]


def test_gradients_in_16_bits_are_the_same_everywhere_and_lose_nothing_in_the_long_run() -> None:
    """Each host adds what rounding took away to what it hands on next: all the first n means together are the exact
    ones, but for what both hosts still remember."""
    generator, total, exact = torch.Generator().manual_seed(0), torch.zeros(LONG), torch.zeros(LONG)
    with two_hosts(CODECS["bf16"]) as (both, links):
        for step in range(1, 7):
            gradients = [torch.randn(LONG, generator=generator) for _ in both]
            here, there = one_mean(both, gradients, gradient=True)
            assert torch.equal(here, there)
            assert torch.equal(here, here.bfloat16().float())
            total, exact = total + here, exact + (gradients[0] + gradients[1]) / 2
            if step == 1:
                assert not torch.equal(total, exact)
            assert (total - exact).abs().max() < 3 * 2**-8 * 5, "two roundings of numbers below 5, and one of the sum"
        assert all(6 * 2 * LONG < link.sent_bytes < 6 * 2.1 * LONG for link in links)


MANY = 33


def test_many_hosts_send_smaller_pieces_and_end_with_the_bits_of_one() -> None:
    """Pieces of half a chunk, the last of them short."""
    size, everybody = 2 * CHUNK + 5, tuple(range(MANY))
    assert chain_piece(MANY, size) == CHUNK // 2
    vectors = [torch.randn(size, generator=torch.Generator().manual_seed(rank)) for rank in everybody]
    weights = [1.0 + rank for rank in everybody]
    with linked([*itertools.pairwise(everybody)]) as links:
        ranks = [[rank] for rank in everybody]
        hosts = [mean_host(size, MeanLinks(ranks, rank, links[rank], {})) for rank in everybody]
        for rank, one in enumerate(hosts):
            one.means[rank].publish(vectors[rank], weights[rank], everybody)
        expected = weighted_mean(vectors, weights)
        assert all(torch.equal(one.means[rank].collect(everybody), expected) for rank, one in enumerate(hosts))
        end(hosts)
    assert not [failure for one in hosts for failure in one.failures]


def test_models_are_never_rounded() -> None:
    models = [torch.randn(LONG, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    with two_hosts(CODECS["bf16"]) as (both, _):
        for mean in one_mean(both, models, gradient=False):
            torch.testing.assert_close(mean, (models[0] + models[1]) / 2, rtol=1e-6, atol=1e-7)


def test_a_host_that_leads_without_learners_says_who_is_in_means_once_all_others_are_ready() -> None:
    """And is in none, and says so once; of a host that is lost nobody waits for a word."""
    with linked([(0, 1), (0, 2)]) as links:
        part = MeansPart(7, Bell(None), dialect(3, 1))
        agreement = CommunicatorAgreement(part, 0, links[0], lambda host: host > 0, 60)
        come = partial(agreement.come, MeansDone(), 0.0)
        assert come() is None  # of nobody
        agreement.heard(1, ReadyForMeans(7, MeansDone(3, 2.0, 1), 5))
        assert come() is None  # not of one alone
        agreement.heard(2, ReadyForMeans(7, MeansDone(2, 2.0, 1), 4))
        for _ in range(2):
            assert come() is None
        agreement.heard(1, ReadyForMeans(7, MeansDone(3, 2.0, 1), 6))
        agreement.lost(2)
        assert come() is None
        first, second = (links[1][0].hear(part.dialect, 10.0) for _ in range(2))
        assert first == links[2][0].hear(part.dialect, 10.0)
        assert first == CommunicatorMade(7, CommunicatorTerms(6, (1, 2), (MeansDone(3, 2.0, 1), MeansDone(2, 2.0, 1))))
        assert second == CommunicatorMade(7, CommunicatorTerms(7, (1,), (MeansDone(3, 2.0, 1),)))


def test_what_comes_for_the_next_part_before_a_host_has_begun_it_is_there_then() -> None:
    """A vector for a mix, from a host that has begun it."""
    vectors = [torch.full((LONG,), float(rank)) for rank in range(2)]
    with linked([(0, 1)]) as links:
        ends = [MeanLinks([[0], [1]], host, {}, links[host]) for host in range(2)]
        first, before = mean_host(LONG, ends[0], part=2), mean_host(LONG, ends[1], part=1)
        first.means[0].publish(vectors[0], 1.0, readers=(1,))
        until(lambda: not all(thread.is_alive() for thread in before.host._threads))  # it is heard
        end([before])
        late = mean_host(LONG, ends[1], part=2)
        late.means[1].publish(vectors[1], 1.0, readers=(0,))
        for rank, one in enumerate((first, late)):
            found = one.means[rank].collect_neighbours([(0, 0.5), (1, 0.5)])
            assert torch.equal(found, torch.full((LONG,), 0.5))
        end([first, late])
    assert not first.failures + before.failures + late.failures


def test_it_is_too_early_where_nobody_is_far_or_the_point_would_be_overwritten() -> None:
    with two_hosts() as (both, _):
        for rank, one in enumerate(both):
            assert one.means[rank].announce_gradient(1.0, (rank,), torch.empty(LONG)) is None
            assert one.means[rank].announce_gradient(1.0, (0, 1), one.mean) is None
            assert one.arena.sequences.sent_seq[rank] == 0


# The learner ----------------------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """Its first parameter has no part in the loss, one layer has part in it twice, and the last, if asked for, none."""

    def __init__(self, behind: bool) -> None:
        super().__init__()
        self.before = nn.Parameter(torch.ones(5))
        self.first, self.twice, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        if behind:
            self.behind = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) of (B, 6)."""
        found: Tensor = self.last(self.twice(self.twice(self.first(x).relu()).relu()).relu())
        return found


def said(learner: ModuleLearner) -> tuple[list[int], list[Tensor], Tensor]:
    """From where on the gradient was said to be complete, what it was there at that moment, and what it is."""
    epoch = EpochPlan(0, learner.examples, 60, 3, seed=3)
    out, firsts, found = torch.full((learner.parameters,), torch.nan), list[int](), list[Tensor]()

    def lay(first: int) -> None:
        firsts.append(first)
        found.append(out[first:].clone())

    learner.gradient(learner.initial(), epoch.piece(0), epoch, out, on_ready=lay)
    return firsts, found, out


def test_what_a_learner_says_to_be_complete_is() -> None:
    firsts, found, out = said(ModuleLearner(Odd(behind=False), Blobs()))
    assert len(firsts) > 3
    assert firsts == sorted(firsts, reverse=True)
    assert firsts[-1] == 5, "all but the parameter that has no part"
    for first, then in zip(firsts, found, strict=True):
        assert torch.equal(then, out[first:])
    assert torch.equal(out[:5], torch.zeros(5))


def test_nothing_is_said_of_what_may_still_change() -> None:
    assert said(ModuleLearner(Odd(behind=True), Blobs()))[0] == [], "zeros come when all else is there"
    assert said(ModuleLearner(Odd(behind=False), Blobs(), clip=1e-3))[0] == [], "the norm is known in the end"
    elsewhere = ModuleLearner(Odd(behind=False), Blobs(), device=torch.device("cpu"))
    assert said(elsewhere)[0] == [], "it is copied in the end"
