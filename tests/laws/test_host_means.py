"""Means over several hosts that begin while the gradient is still computed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from roundelay.algorithms.averaging import chain_piece, weighted_mean
from roundelay.algorithms.codecs import CODECS
from roundelay.core.codec import FP32, Codec
from roundelay.core.epochs import EpochPlan
from roundelay.core.flat import CHUNK
from roundelay.learner.module import ModuleLearner
from roundelay.runtime.hosts.means import HostMeans, MeanLinks
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.wire import Link
from roundelay.runtime.procs.coordination.means import Means
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.patience import Patience
from roundelay.runtime.procs.memory.views import BellTable, HostMeanSequences
from support.blobs import Blobs
from support.until import together, until

SECRET = b"of these tests"
LONG = 2 * CHUNK + CHUNK // 2 + 5
PIECE = chain_piece(2, LONG)
"""Of three."""


@dataclass(frozen=True)
class Side:
    """A host with one learner."""

    arena: Arena
    means: Means
    host: HostMeans
    link: Link


@contextmanager
def two_sides(codec: Codec = FP32) -> Iterator[list[Side]]:
    """Two hosts in this process, joined by a link. By which codec gradients travel is for the first to say."""
    with_one = Layout(2, LONG, views=(HostMeanSequences, BellTable))
    listener = Listener(("127.0.0.1", 0), SECRET)
    dialled = Link.connect(listener.address, SECRET, {}, 60.0)
    answered = listener.accept(60)
    assert answered is not None
    failures: list[str] = []
    sides = []
    for rank, link in enumerate((answered, dialled)):
        arena = Arena(create_file(with_one), with_one, Patience(rank, 60))
        arena.liveness.alive[:] = 1
        links = MeanLinks([[0], [1]], rank, {1 - rank: link}, {})
        host = HostMeans(arena, links, 0, failures.append, codec if rank == 0 else FP32)
        sides.append(Side(arena, Means(arena, rank, Patience(rank, 60), [rank]), host, link))
    for side in sides:
        side.host.start()
    try:
        yield sides
    finally:
        together(*(side.host.stop for side in sides))
        for link in (answered, dialled):
            link.close()
        listener.close()
        for side in sides:
            side.arena.close()
        assert not failures


def test_what_is_laid_is_on_its_way_before_the_rest_is_computed() -> None:
    gradients = [torch.randn(LONG, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    weights = (3.0, 1.0)
    expected = 0.75 * gradients[0] + 0.25 * gradients[1]
    with two_sides() as sides:
        lays: list[Callable[[int], None]] = []
        for rank, side in enumerate(sides):
            lay = side.means.announce_gradient(weights[rank], (0, 1), torch.empty(LONG))
            assert lay is not None
            lays.append(lay)
        means = [side.arena.vector("mean", rank) for rank, side in enumerate(sides)]

        def lay_down(rank: int, first: int, stop: int) -> None:
            sides[rank].arena.vector("gradient", rank)[first:stop] = gradients[rank][first:stop]
            lays[rank](first)

        cut = PIECE + 7  # within the second piece: that one has to wait
        lay_down(0, cut, LONG)
        lay_down(1, cut, LONG)
        for mean in means:
            until(lambda mean=mean: torch.allclose(mean[2 * PIECE :], expected[2 * PIECE :]))  # type: ignore[misc]
            assert not mean[: 2 * PIECE].any()
        assert [int(side.arena.view(HostMeanSequences).global_seq[0]) for side in sides] == [0, 0]
        lay_down(0, 0, cut)
        lay_down(1, 0, cut)
        for side in sides:
            torch.testing.assert_close(side.means.collect((0, 1)), expected)


def one_mean(sides: list[Side], vectors: list[Tensor], gradient: bool) -> list[Tensor]:
    """The mean as both hosts have it."""
    for rank, side in enumerate(sides):
        if gradient:
            side.arena.vector("gradient", rank).copy_(vectors[rank])
            side.means.publish_gradient(1.0, (0, 1))
            side.arena.view(HostMeanSequences).ready_from[rank] = 0
        else:
            side.means.publish(vectors[rank], 1.0, (0, 1))
    return [side.means.collect((0, 1)).clone() for side in sides]


def test_gradients_in_16_bits_are_the_same_everywhere_and_lose_nothing_in_the_long_run() -> None:
    """Each host adds what rounding took away to what it hands on next: all the first n means together are the exact
    ones, but for what both hosts still remember."""
    generator, total, exact = torch.Generator().manual_seed(0), torch.zeros(LONG), torch.zeros(LONG)
    with two_sides(CODECS["bf16"]) as sides:
        for step in range(1, 7):
            gradients = [torch.randn(LONG, generator=generator) for _ in sides]
            here, there = one_mean(sides, gradients, gradient=True)
            assert torch.equal(here, there)
            assert torch.equal(here, here.bfloat16().float())
            total, exact = total + here, exact + (gradients[0] + gradients[1]) / 2
            if step == 1:
                assert not torch.equal(total, exact)
            assert (total - exact).abs().max() < 3 * 2**-8 * 5, "two roundings of numbers below 5, and one of the sum"
        sent = [side.link.sent_bytes for side in sides]
        assert all(6 * 2 * LONG < count < 6 * 2.1 * LONG for count in sent)


MANY = 33


def test_many_hosts_send_smaller_pieces_and_end_with_the_bits_of_one() -> None:
    """Pieces of half a chunk, the last of them short."""
    size, everybody = 2 * CHUNK + 5, tuple(range(MANY))
    assert chain_piece(MANY, size) == CHUNK // 2
    vectors = [torch.randn(size, generator=torch.Generator().manual_seed(rank)) for rank in everybody]
    weights, layout = [1.0 + rank for rank in everybody], Layout(MANY, size, views=(HostMeanSequences, BellTable))
    listener, failures = Listener(("127.0.0.1", 0), SECRET), list[str]()
    chain: list[dict[int, Link]] = [{} for _ in everybody]
    for rank in everybody[1:]:
        chain[rank][rank - 1] = Link.connect(listener.address, SECRET, {}, 60.0)
        accepted = listener.accept(60)
        assert accepted is not None
        chain[rank - 1][rank] = accepted
    hosts, means = list[HostMeans](), list[Means]()
    for rank in everybody:
        arena = Arena(create_file(layout), layout, Patience(rank, 60))
        arena.liveness.alive[:] = 1
        hosts.append(HostMeans(arena, MeanLinks([[r] for r in everybody], rank, chain[rank], {}), 0, failures.append))
        means.append(Means(arena, rank, Patience(rank, 60), [rank]))
        hosts[-1].start()
    for rank in everybody:
        means[rank].publish(vectors[rank], weights[rank], everybody)
    expected = weighted_mean(vectors, weights)
    assert all(torch.equal(one.collect(everybody), expected) for one in means)
    for host in hosts:
        host._ended.set()
    for host in hosts:
        host.stop()
    for link in [link for links in chain for link in links.values()]:
        link.close()
    listener.close()
    for one in means:
        one._arena.close()
    assert not failures


def test_models_are_never_rounded() -> None:
    models = [torch.randn(LONG, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    with two_sides(CODECS["bf16"]) as sides:
        for mean in one_mean(sides, models, gradient=False):
            torch.testing.assert_close(mean, (models[0] + models[1]) / 2, rtol=1e-6, atol=1e-7)


def test_it_is_too_early_where_nobody_is_far_or_the_point_would_be_overwritten() -> None:
    with two_sides() as sides:
        for rank, side in enumerate(sides):
            assert side.means.announce_gradient(1.0, (rank,), torch.empty(LONG)) is None
            assert side.means.announce_gradient(1.0, (0, 1), side.arena.vector("mean", rank)) is None
            assert side.arena.sequences.sent_seq[rank] == 0


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
