"""The work queue when a learner is killed between any two stores into shared memory."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from roundelay.core.epochs import EpochPlan
from roundelay.runtime.procs.arena import NONE, Arena, Layout, create_file
from roundelay.runtime.procs.patience import Patience
from roundelay.runtime.procs.queue import draw, give_back

PLAN = EpochPlan(epoch=0, examples=12, minibatch=4, learners=2, seed=0)


class Killed(BaseException):
    """What stands for SIGKILL here; like the kernel, it lets the lock go."""


class _Mortal(np.ndarray[Any, Any]):
    """A table whose store number `fuse` never happens."""

    fuse = 10**9

    def __setitem__(self, key: Any, value: Any) -> None:
        if _Mortal.fuse == 0:
            raise Killed
        _Mortal.fuse -= 1
        super().__setitem__(key, value)


class _MortalArena(Arena):
    def table(self, name: str) -> NDArray[np.int64]:
        return super().table(name).view(_Mortal)


@pytest.fixture
def arenas() -> Iterator[tuple[Arena, Arena]]:
    """Two learners' views of one arena; the first is mortal."""
    layout = Layout(learners=2, parameters=1)
    descriptor = create_file(layout)
    views = (
        _MortalArena(descriptor, layout, Patience(0, 1)),
        Arena(os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR), layout, Patience(1, 1)),
    )
    views[1].table("claim")[:] = NONE
    views[1].table("stop_round")[:] = PLAN.rounds
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
