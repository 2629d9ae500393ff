"""The work queue when a learner is killed between any two stores into shared memory."""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Statistics
from roundelay.runtime.base import Counts
from roundelay.runtime.procs.coordination.queue import draw, draw_together, give_back, settle
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.views import NONE, WorkQueue

PLAN = EpochPlan(epoch=0, examples=36, minibatch=12, learners=3, seed=0)


class Killed(BaseException):
    """Stands for SIGKILL here; like the kernel, it lets the lock go."""


class _Mortal(np.ndarray[Any, Any]):
    """A table whose store number `fuse` never happens."""

    fuse = 10**9

    def __setitem__(self, key: Any, value: Any) -> None:
        if _Mortal.fuse == 0:
            raise Killed
        _Mortal.fuse -= 1
        super().__setitem__(key, value)


class _MortalArena(Arena):
    def __init__(self, descriptor: int, layout: Layout, patience: Patience) -> None:
        super().__init__(descriptor, layout, patience)
        self.counts = Counts(**{name: array.view(_Mortal) for name, array in vars(self.counts).items()})
        self.queue = WorkQueue(**{name: array.view(_Mortal) for name, array in vars(self.queue).items()})


@pytest.fixture
def arenas() -> Iterator[tuple[Arena, Arena]]:
    """Two learners' views of one arena; the first is mortal."""
    layout = Layout(learners=3, parameters=1)
    descriptor = create_file(layout)
    views = (
        _MortalArena(descriptor, layout, Patience(0, 1)),
        Arena(os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR), layout, Patience(1, 1)),
    )
    views[1].queue.claims[:] = views[1].queue.assigned[:] = NONE
    views[1].queue.stop_round[:] = PLAN.rounds
    yield views
    _Mortal.fuse = 10**9
    for arena in views:
        arena.close()


def _drain(arena: Arena) -> list[int]:
    found = []
    while batch := draw(arena, 1, PLAN):
        found.append(batch.index)
    return sorted(found)


@pytest.mark.parametrize("returned", [False, True], ids=["from the queue", "from the dead"])
@pytest.mark.parametrize("stores", [0, 1, 2])
def test_a_draw_cut_short_loses_no_minibatch_and_doubles_none(
    arenas: tuple[Arena, Arena], stores: int, returned: bool
) -> None:
    mortal, other = arenas
    if returned:
        assert draw(other, 1, PLAN)
        give_back(other, 1)
    _Mortal.fuse = stores
    try:
        draw(mortal, 0, PLAN)
    except Killed:
        assert stores < 2
    else:
        assert stores == 2
    _Mortal.fuse = 10**9
    give_back(other, 0)
    assert _drain(other) == list(range(PLAN.pieces))


STORES = range(8)  # three totals, the mark, three counts, the claim


def test_the_next_test_kills_between_all_stores_of_settling(arenas: tuple[Arena, Arena]) -> None:
    mortal, _ = arenas
    assert draw(mortal, 0, PLAN)
    _Mortal.fuse = len(STORES)
    settle(mortal, 0, Statistics(4, 1.5, 3))
    assert _Mortal.fuse == 0


@pytest.mark.parametrize("stores", STORES)
def test_a_minibatch_settled_by_half_is_counted_once(arenas: tuple[Arena, Arena], stores: int) -> None:
    """Either it counts as trained, or it is drawn again."""
    mortal, other = arenas
    batch = draw(mortal, 0, PLAN)
    assert batch is not None
    _Mortal.fuse = stores
    with pytest.raises(Killed):
        settle(mortal, 0, Statistics(4, 1.5, 3))
    _Mortal.fuse = 10**9
    assert give_back(other, 0) == (stores <= 3)
    counts = other.counts
    if stores <= 3:
        again = draw(other, 1, PLAN)
        assert again == batch
        settle(other, 1, Statistics(4, 1.5, 3))
    assert (counts.frames.sum(), counts.loss.sum(), counts.correct.sum()) == (4, 1.5, 3)
    assert give_back(other, 0) == give_back(other, 1) == 0
    assert batch.index not in _drain(other)


@pytest.mark.parametrize("stores", range(9))
@pytest.mark.parametrize("survivors", [(1, 2), (2, 1), (2,)])
def test_a_draw_for_a_node_cut_short_loses_no_minibatch_and_doubles_none(
    arenas: tuple[Arena, Arena], stores: int, survivors: tuple[int, ...]
) -> None:
    """The others of the node come to draw too, whatever the dead one has left, before they notice that it is dead."""
    mortal, other = arenas
    _Mortal.fuse = stores
    with suppress(Killed):
        draw_together(mortal, 0, (0, 1, 2), PLAN)
    _Mortal.fuse = 10**9
    for rank in survivors:
        assert draw_together(other, rank, (0, 1, 2), PLAN)
    for rank in range(3):
        give_back(other, rank)
    assert _drain(other) == list(range(PLAN.pieces))
