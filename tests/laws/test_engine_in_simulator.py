"""The simulator keeps its own copy of the engine's rules; here both are told the same stories."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from roundelay.algorithms.averaging import pair_average_
from roundelay.algorithms.local_update import Sgd
from roundelay.core.effects import (
    Begin,
    Draw,
    Effect,
    Exchange,
    Gather,
    Handle,
    Mean,
    Quorum,
    Wait,
)
from roundelay.core.state import Gradient, Me, Statistics
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import Cluster
from roundelay.runtime.engine import Engine
from roundelay.runtime.learner_state import LearnerState
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies.base import Strategy, Traits
from support.noting_backend import PLAN, VECTOR, Notes, P

Role = Coroutine[Effect[Any], Any, None]


def run(notes: Notes, role: Callable[[LearnerState], Role]) -> Engine:
    """A segment of `role`."""
    engine = Engine(notes.me, notes, notes.deferred, trace=notes)
    engine.begin(role(notes.me))
    return engine


@dataclass(frozen=True)
class Story(Strategy):
    """Learner 0 does what it is told, and waits for all that it has begun; the others do nothing."""

    name: ClassVar[str] = "story"
    traits: ClassVar[Traits] = Traits(synchronous=False, conserves=True, staleness_bound=None, waits="nobody")
    told: tuple[tuple[str, int], ...] = ()
    replies: list[object] = field(default_factory=list)

    async def learn(self, me: Me) -> None:
        if me.rank == 0:
            while await Draw():
                pass
            await self.tell(me)

    async def tell(self, me: Me) -> None:
        """The story alone."""
        begun: list[Handle[Any]] = []
        for what, peer in self.told:
            exchanging, mean = Exchange(peer, pair_average_), Mean((0,), torch.full((P,), float(peer)), 2.0)
            match what:
                case "exchange":
                    self.replies.append(await exchanging is not None)
                case "begin exchange":
                    begun.append(await Begin(exchanging))
                case "mean":
                    self.replies.append((await mean).tolist())
                case "begin mean":
                    begun.append(await Begin(mean))
                case "gather":
                    self.replies.append(await Gather(Quorum(1, grace=0.0), exchanging, exchanging))
                case "step":
                    me.step(Gradient(VECTOR, me.snapshot().version, Statistics()))
                case "wait" if begun:
                    self.replies.append(_plain(await Wait(begun.pop(peer % len(begun)))))
        for handle in begun:
            self.replies.append(_plain(await Wait(handle)))


def _plain(reply: Tensor | int | None) -> object:
    """A mean, or whether an exchange was done: at which version depends on when."""
    return reply.tolist() if isinstance(reply, Tensor) else reply is not None


WHAT = st.sampled_from(["exchange", "begin exchange", "mean", "begin mean", "gather", "step", "wait"])


@settings(max_examples=40)
@given(st.lists(st.tuples(WHAT, st.integers(1, 2)), max_size=12), st.booleans())
def test_the_simulator_s_rules_are_the_engine_s(told: list[tuple[str, int]], background: bool) -> None:
    """Same replies, versions, counts and sum of rows, in whatever order exchanges are done that were begun."""
    notes, here, there = Notes(), Story(tuple(told)), Story(tuple(told))
    run(notes, here.tell)
    cluster = Cluster(there, Quadratic(parameters=P), Sgd(), 3)
    runtime = SimRuntime(cluster, CostModel(cluster=replace(CostModel().virtual(3), background=background)))
    state = runtime.state()
    state.vectors["row"][:] = torch.arange(3.0)[:, None]
    runtime.load(state)
    counts = runtime.segment(PLAN).counts
    assert here.replies == there.replies
    assert [row.version for row in notes.rows] == [n // 2 for n in runtime.state().integers["versions"]]
    assert notes.counts.exchanges[0].tolist() == counts.exchanges[0].tolist()
    assert notes.counts.steps[0] == counts.steps[0]
    rows = torch.stack([row.vector for row in notes.rows])
    torch.testing.assert_close(rows.sum(0), runtime.rows().sum(0))
