"""Vectors that all hosts have alike do not travel when a segment ends, and the first host has them all the same."""

from collections.abc import Iterator

import pytest
import torch

from roundelay.runtime.base import SegmentPlan
from roundelay.runtime.hosts.control import bulk
from roundelay.runtime.hosts.control.coordinator import MultiHostRuntime
from roundelay.runtime.hosts.control.messages import Piece, Replied
from roundelay.runtime.hosts.control.mirrors import names_alike
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink
from roundelay.runtime.messages import Dialect
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.sim.driver import SimRuntime
from support.clusters import MANY, MINIBATCH, cluster, make_strategy, plan
from support.hosts import Hosts
from support.kept_hosts import keeping_hosts
from support.links import pair


@pytest.fixture(scope="module", autouse=True)
def kept_hosts() -> Iterator[None]:
    """Hosts take part in one run after the other."""
    with keeping_hosts():
        yield


@pytest.fixture
def came(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the vectors whose pieces have come to the first host, one for each piece."""
    found: list[str] = []
    take = bulk.take_piece

    def noted(arena: Arena, message: Piece, ranks: tuple[int, ...]) -> None:
        found.append(message.name)
        take(arena, message, ranks)

    monkeypatch.setattr(bulk, "take_piece", noted)
    return found


@pytest.mark.parametrize(
    ("name", "to_evaluate", "to_keep"),
    [
        ("ssgd", set(), set()),
        ("delayed-gradient", set(), {"delayed"}),
        ("bsp period=3", set(), {"momentum"}),
        ("dpsgd", {"row"}, {"momentum"}),
        ("adpsgd", {"row"}, {"momentum"}),
    ],
)
def test_vectors_that_are_alike_stay_where_they_are(
    name: str, to_evaluate: set[str], to_keep: set[str], came: list[str]
) -> None:
    hosts, part = Hosts(name, (1, 2), momentum=0.9), plan(0, 3, examples=9 * MINIBATCH)
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
        runtime.segment(part)
        came.clear()
        consensus = runtime.consensus()
        assert {*came} == to_evaluate
        came.clear()
        state = runtime.state()
        assert {*came} == to_keep
    if name == "adpsgd":
        return
    with ProcsRuntime(hosts.cluster, threads=1) as one:
        one.segment(part)
        assert torch.equal(consensus, one.consensus())
        expected = one.state()
    assert all(torch.equal(state.vectors[vector], value) for vector, value in expected.vectors.items())
    assert state.integers == expected.integers


def test_a_vector_that_differs_all_the_same_is_sent() -> None:
    """It may, where processors of two hosts round in their own ways."""
    layout = Layout(3, 40, ("momentum",))
    mine, theirs = (Arena(create_file(layout), layout, Patience(0, 60)) for _ in range(2))
    for rank in range(3):
        theirs.vector("row", rank).fill_(1.0)
        theirs.vector("momentum", rank).fill_(float(rank))
        mine.vector("row", rank).fill_(float(1 - rank))
    theirs.vector("row", 2)[-1] = 1.0 + 2**-23
    laid_out = bulk.lay_out(mine, ["row"], 0, [1, 2])
    with pair() as (near, far, _):
        for name in ("row", "momentum"):
            bulk.give(MonitoredLink(near, 60), theirs, name, [1, 2], laid_out)
        MonitoredLink(near, 60).say(Replied())
        came = []
        said = Dialect(Piece, Replied, rank=3)
        while isinstance(message := said.read(far.receive(60)), Piece):
            came.append((message.name, message.rank))
            bulk.take_piece(mine, message, [1, 2])
    assert came == [("row", 2), ("momentum", 1), ("momentum", 2)]
    for rank in (1, 2):
        assert torch.equal(mine.vector("row", rank), theirs.vector("row", rank))
    for arena in (mine, theirs):
        arena.close()


@pytest.mark.parametrize("name", [n for n in MANY if make_strategy(n).traits.synchronous])
def test_vectors_that_are_expected_to_be_alike_are(name: str) -> None:
    """They are at the end of a segment, wherever that is."""
    strategy, whole = make_strategy(name), plan(12, 4, examples=12 * MINIBATCH - 7)
    with SimRuntime(cluster(name, 4, momentum=0.9)) as runtime:
        for first, last in ((0, 6), (6, whole.end_round)):
            runtime.segment(SegmentPlan(whole.epoch, 0.1, first=4 * first, last_round=last))
            vectors = runtime.state().vectors
            for vector in names_alike(strategy, runtime.cluster.memory):
                assert all(torch.equal(vectors[vector][0], one) for one in vectors[vector])
    assert ("row" in names_alike(strategy, ())) == (strategy.traits.rows != "own" and strategy.traits.model == "mean")
