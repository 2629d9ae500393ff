"""Laws of every effect that reaches another's row: its rule says all there is to it, in all runtimes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from roundelay.algorithms.averaging import pair_average_
from roundelay.algorithms.local_update import Sgd
from roundelay.core.effects import Exchange, Fetch, Reach
from roundelay.core.flat import CHUNK
from roundelay.learner.base import TimingOnly
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import Cluster
from roundelay.runtime.rows import REACH_RULES, Lock, Row, reach
from roundelay.runtime.sim.cluster import Node, VirtualCluster, VirtualLink, VirtualLinks
from roundelay.runtime.sim.cost import CostModel, Prices
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.runtime.trace import Kind, TraceEvent, Use
from support.clusters import plan
from support.overwriting import Overwrite, Overwriting

P = CHUNK + 7
ONE_OF_EACH: dict[type[Reach], Reach] = {
    Exchange: Exchange(1, pair_average_),
    Fetch: Fetch(1, torch.empty(P)),
    Overwrite: Overwrite(1, torch.full((P,), 9.0)),
}
EVERY = pytest.mark.parametrize("kind", REACH_RULES, ids=[kind.__name__ for kind in REACH_RULES])


class Taken(Lock):
    """The lock of row `rank`: writes down when it is taken and given back, for all rows in one list."""

    def __init__(self, rank: int, log: list[str]) -> None:
        self._rank, self._log = rank, log

    def acquire(self) -> None:
        self._log.append(f"lock {self._rank}")

    def try_acquire(self) -> bool:
        self.acquire()
        return True

    def release(self) -> None:
        self._log.append(f"unlock {self._rank}")


class Rows:
    """Two of them, and all that happens to them."""

    def __init__(self) -> None:
        self.log, self.events = list[str](), list[TraceEvent]()
        self.versions, self.away = np.array([6, 10], np.int64), np.zeros(2, np.int64)
        self.rows = [
            Row(rank, torch.full((P,), float(rank)), self.versions, Taken(rank, self.log), self.away, self)
            for rank in range(2)
        ]

    def note(self, kind: Kind, peer: int = -1, mine: int = -1, theirs: int = -1, value: float = 0.0) -> None:
        self.log.append("note")
        self.events.append(TraceEvent(kind, peer, mine, theirs, value))

    @property
    def vectors(self) -> list[Tensor]:
        return [row.vector.clone() for row in self.rows]


@EVERY
@pytest.mark.parametrize("mine", [0, 1])
def test_rows_that_are_written_have_a_version_more_and_no_other_is_changed(kind: type[Reach], mine: int) -> None:
    """Under the locks of the rows it meets, the lower rank first; and a trace says the same of it as its rule."""
    found, rule = Rows(), REACH_RULES[kind]
    before, effect = found.vectors, replace(ONE_OF_EACH[kind], peer=1 - mine)
    version = reach(found.rows[mine], found.rows[1 - mine], effect)
    uses = dict(zip((mine, 1 - mine), rule.access, strict=True))
    for rank, first in enumerate((3, 5)):
        written = uses[rank] is Use.WRITTEN
        assert found.rows[rank].version == first + written
        assert torch.equal(found.rows[rank].vector, before[rank]) != written
    assert version == found.rows[1 - mine].version
    met = [rank for rank in (0, 1) if uses[rank]]
    assert found.log == [*(f"lock {rank}" for rank in met), "note", *(f"unlock {rank}" for rank in reversed(met))]
    (event,) = found.events
    versions = [first if use else -1 for first, use in zip((3, 5)[:: 1 - 2 * mine], rule.access, strict=True)]
    assert (event.access, event.peer, [event.mine, event.theirs]) == (rule.access, 1 - mine, versions)
    assert str(version - (rule.access.theirs is Use.WRITTEN)) in str(event)


@EVERY
@pytest.mark.parametrize("away", [0, 1])
def test_a_row_on_its_way_to_another_host_is_read_and_not_written(kind: type[Reach], away: int) -> None:
    found, use = Rows(), REACH_RULES[kind].access[away]
    found.away[away] = 3
    before = found.vectors
    version = reach(found.rows[0], found.rows[1], ONE_OF_EACH[kind])
    assert (version is None) == (use is Use.WRITTEN)
    if version is None:
        assert all(torch.equal(row.vector, x) for row, x in zip(found.rows, before, strict=True))
        assert found.versions.tolist() == [6, 10]
        assert [event.kind for event in found.events] == [Kind.AWAY], "a replay is to know"
    assert [word for word in found.log if word.startswith("lock")] == [
        word.removeprefix("un") for word in reversed(found.log) if word.startswith("unlock")
    ]


FAR = VirtualCluster(nodes=(Node(1, count=3),), links=VirtualLinks(VirtualLink(), VirtualLink(1e-3, 1e6)))


def test_what_is_carried_is_what_it_costs() -> None:
    """A latency each way, and the bytes of a row for each that is carried."""
    prices, way, row = Prices(FAR, 3, 4e3), 1e-3, 4e3 / 1e6
    cost = {kind: prices.reach_ns(0, 1, *REACH_RULES[kind].carried(effect)) for kind, effect in ONE_OF_EACH.items()}
    assert cost[Exchange] == round(1e9 * (2 * way + 2 * row))
    assert cost[Fetch] == cost[Overwrite] == round(1e9 * (2 * way + row))


@pytest.mark.parametrize("background", [False, True])
def test_an_effect_with_nothing_but_a_rule_is_simulated_with_vectors_and_without(background: bool) -> None:
    found = []
    for task in (Quadratic(parameters=37), TimingOnly()):
        virtual = replace(FAR, model_bytes=1e3, background=background)
        runtime = SimRuntime(Cluster(Overwriting(), task, Sgd(), 3), CostModel(cluster=virtual))
        outcome = runtime.segment(plan(12, 3))
        found.append((runtime.state().integers, outcome.virtual_seconds, outcome.counts.exchanges.tolist()))
    (integers, seconds, _), timed = found
    assert timed == found[0]
    assert sum(integers["versions"]) > 2 * sum(integers["steps"]), "not by steps alone"
    assert seconds is not None
