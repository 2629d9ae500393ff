"""Format of rows between hosts: their precision, and the fragments of them."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

from roundelay.algorithms.averaging import pair_average_
from roundelay.algorithms.codecs import CODECS, codec_named
from roundelay.algorithms.codecs.sparse import Sparse
from roundelay.algorithms.parameter_server import Report
from roundelay.core.codec import Codec
from roundelay.core.effects import Draw, Exchange, Grad
from roundelay.core.errors import UserError
from roundelay.core.flat import CHUNK
from roundelay.core.state import Me
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.hosts.exchange.row_format import Buffer, Fragment, RowFormat, Scratch, encode
from roundelay.runtime.hosts.options import HostOptions
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies.base import Strategy, Traits
from support.clusters import cluster, plan
from support.two_hosts import LONG, ask, hosts, start

BF16, THREE = RowFormat("bf16"), RowFormat(fragments=3)
ULP = 2.0**-7
"""Twice the largest rounding error of bfloat16, relative."""
ASKED = 5


@dataclass(frozen=True)
class Asks(Strategy):
    """One learner exchanges with the other a few times before it trains."""

    asker: int
    codec: Codec

    name: ClassVar[str] = "asks"
    memory: ClassVar[tuple[str, ...]] = ("delayed",)
    traits: ClassVar[Traits] = Traits(synchronous=False, conserves=False, staleness_bound=None, waits="none")

    async def learn(self, me: Me) -> None:
        for _ in range(ASKED if me.rank == self.asker else 0):
            await Exchange(1 - me.rank, pair_average_, codec=self.codec)
        while batch := await Draw():
            me.step(await Grad(me.snapshot(), batch))


def test_what_bf16_takes_away_is_carried_later() -> None:
    """The sum of all that is sent of a row is the sum of what the row was, up to one last rounding."""
    with hosts([0, 1]) as (zero, _):
        row, fragment, hold, scratch = zero.rows[0], Fragment.whole(LONG), Buffer(LONG), Scratch()
        error, sent, truth = torch.zeros(LONG), torch.zeros(LONG).double(), torch.zeros(LONG).double()
        for number in range(50):
            row.vector.add_(1e-4 * start(number))
            truth += row.vector
            encode(row, fragment, BF16.codec, hold, error, scratch)
            sent += torch.cat([coded.view(torch.bfloat16) for coded in hold.parts(LONG, BF16.codec)]).double()
            bound = row.vector.abs().double() * ULP + 1e-4
            assert bool(((sent - truth).abs() <= bound).all())
        rounded = (truth / 50).bfloat16().double() * 50
        assert float((sent - truth).abs().mean()) < float((rounded - truth).abs().mean()) / 10


@pytest.mark.parametrize("peers", [(1, 0), (0, 1)])
def test_both_ends_round_alike_so_that_bf16_moves_no_sum(peers: tuple[int, int]) -> None:
    """Rows of very different size: the rounding of the large one is larger than all of the small."""
    with hosts([0, 1], row_format=BF16) as found:
        mine, theirs = (found[rank].rows[rank].vector for rank in peers)
        mine.mul_(1000)
        sums, bound = mine.double() + theirs.double(), ULP * torch.maximum(mine.abs(), theirs.abs())
        for _ in range(10):
            before = mine.clone(), theirs.clone()
            ask(found[peers[0]].workers[peers[0]], Exchange(peers[1], pair_average_))
            torch.testing.assert_close(mine.double() + theirs.double(), sums, rtol=1e-6, atol=1e-3)
            middle = (before[0] + before[1]) / 2
            assert bool(((mine - middle).abs() <= 1.01 * bound).all())
            assert not torch.equal(mine, middle)


def test_bf16_halves_what_is_sent_and_fragments_divide_it() -> None:
    for row_format, expected in ((BF16, 2 * LONG), (THREE, 4 * CHUNK), (RowFormat("bf16", 4), 2 * CHUNK)):
        with hosts([0, 1], row_format=row_format) as (zero, _):
            ask(zero.workers[0], Exchange(1, pair_average_))
            traffic = zero.client.traffic()[1]
            for size in (traffic.sent_bytes, traffic.received_bytes):
                assert size == pytest.approx(expected, abs=1000)


@pytest.mark.parametrize("fragments", [1, 2, 3, 4, 100])
@pytest.mark.parametrize("parameters", [1, CHUNK, LONG])
def test_fragments_in_turn_visit_the_whole_row(fragments: int, parameters: int) -> None:
    row_format, count = RowFormat(fragments=fragments), min(fragments, -(-parameters // CHUNK))
    with hosts([0, 1], parameters=parameters, row_format=row_format) as (zero, one):
        mine, theirs = zero.rows[0].vector, one.rows[1].vector
        middle = mine.lerp(theirs, 0.5)
        done = torch.zeros(parameters, dtype=torch.bool)
        for turn in range(count):
            ask(zero.workers[0], Exchange(1, pair_average_))
            fragment = row_format.fragment(parameters, turn)
            assert not bool(done[fragment.elements].any())
            done[fragment.elements] = True
            assert torch.equal(mine[done], middle[done])
            assert torch.equal(theirs[done], middle[done])
            assert torch.equal(mine[~done], start(0, parameters)[~done])
            assert torch.equal(theirs[~done], start(1, parameters)[~done])
        assert bool(done.all())
        assert zero.rows[0].version == one.rows[1].version == count


@pytest.mark.parametrize("fragments", [2, 3, 4])
def test_every_fragment_meets_every_neighbour(fragments: int) -> None:
    """Left and right by turns."""
    row_format = RowFormat(fragments=fragments)
    met = {(turn % 2, row_format.fragment(8 * CHUNK, turn)) for turn in range(4 * fragments)}
    assert len(met) == 2 * fragments


@pytest.mark.parametrize("codec", [name for name, codec in CODECS.items() if not codec.exact])
@pytest.mark.parametrize("remembers", [True, False])
def test_what_the_strategy_codes_is_the_same_between_hosts_as_on_one(codec: str, remembers: bool) -> None:
    """It does not matter who asks and which row travels: both rows are the same, and what is left of them in the vector
    that the strategy names. The run's codec does not count then."""
    with (
        hosts([0, 1], "delayed-gradient", row_format=BF16) as (zero, one),
        hosts([0, 0], "delayed-gradient") as (single,),
    ):
        request = {
            rank: Exchange(1 - rank, pair_average_, codec=codec_named(codec, memory="delayed" if remembers else ""))
            for rank in (0, 1)
        }
        for rank in (0, 1, 1, 0):
            ask((zero, one)[rank].workers[rank], request[rank])
            ask(single.workers[rank], request[rank])
        for rank, host in enumerate((zero, one)):
            assert torch.equal(host.rows[rank].vector, single.rows[rank].vector)
            left = host.workers[rank].me.memory["delayed"]
            assert torch.equal(left, single.workers[rank].me.memory["delayed"])
            assert bool(left.any()) == remembers
        size = zero.client.traffic()[1].sent_bytes + zero.client.traffic()[1].received_bytes
        assert size < 2 * 4 * CODECS[codec].bytes_of(LONG) + 8000


@pytest.mark.parametrize("codec", [Sparse(density=0.125), Sparse(density=0.3, two_bits=False), Sparse()])
@pytest.mark.parametrize("asker", [0, 1])
def test_a_codec_with_options_gives_the_same_between_hosts_as_in_the_simulator(codec: Codec, asker: int) -> None:
    remembering = replace(codec, memory="delayed")
    simulated = replace(cluster("delayed-gradient", 2, Quadratic(parameters=LONG)), strategy=Asks(asker, remembering))
    with hosts([0, 1], "delayed-gradient", row_format=BF16) as found, SimRuntime(simulated) as runtime:
        state = runtime.state()
        for rank in (0, 1):
            state.vectors["row"][rank] = start(rank)
        runtime.load(state)
        runtime.segment(plan(2, 2, rate=0.0))
        for _ in range(ASKED):
            ask(found[asker].workers[asker], Exchange(1 - asker, pair_average_, codec=remembering))
        state = runtime.state()
        for rank, host in enumerate(found):
            assert torch.equal(host.rows[rank].vector, state.vectors["row"][rank])
            assert torch.equal(host.workers[rank].me.memory["delayed"], state.vectors["delayed"][rank])
            assert bool(state.vectors["delayed"][rank].any())
        assert not torch.equal(state.vectors["row"][0], start(0))


def test_what_needs_whole_rows_gets_them_in_full_precision() -> None:
    """A report is a difference small beside the rows, and its age is that of the whole row."""
    row_format = RowFormat("bf16", 4)
    with hosts([0, 1], "asgd", row_format=row_format) as (zero, one), hosts([0, 0], "asgd") as (single,):
        for mine in (one, single):
            worker = mine.workers[1]
            ask(worker, Exchange(2, Report(), (worker.me.memory["pulled"],), since=0))
        assert torch.equal(zero.rows[2].vector, single.rows[2].vector)
        assert torch.equal(one.rows[1].vector, single.rows[1].vector)


@pytest.mark.parametrize("wrong", [{"wire": "fp8"}, {"fragments": 0}, {"host_patience": 0.0}, {"exchange_share": 1.5}])
def test_options_that_cannot_be_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"training.{next(iter(wrong))}"):
        HostOptions(**wrong)
