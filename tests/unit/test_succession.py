"""The next host of a session that has lost its first goes on with passes where that had been."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from roundelay.runtime.attached.hosts.taking_over import PassReplica
from roundelay.runtime.messages import InvalidMessage, plain
from roundelay.runtime.procs.coordination import passes
from roundelay.runtime.procs.coordination.passes import Key, PassTables
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.publish import prepare_publishing
from support.messages import MOST, received

LEARNERS, PIECES = 3, 30
KEYS: tuple[Key, ...] = ((0, 0, 0), (0, 1, 0))
LAYOUT = Layout(LEARNERS, 1, views=(PassTables,))


@pytest.fixture
def arenas() -> Iterator[tuple[Arena, Arena]]:
    """Of the first host, and of the next."""
    prepare_publishing()
    found = tuple(Arena(create_file(LAYOUT), LAYOUT, Patience(rank, 60)) for rank in range(2))
    for arena in found:
        arena.view(PassTables).held[:] = -1
    yield found  # type: ignore[misc]
    for arena in found:
        arena.close()


def next_host(arena: Arena) -> Any:
    """It stores what it is told."""

    return SimpleNamespace(host=1, tell=lambda message: passes.enter(arena, received(message)))


def rest(arena: Arena, key: Key) -> list[int]:
    """Minibatches that are drawn of a pass from now on."""
    return list(iter(lambda: passes.draw(arena, 1, key, PIECES), None))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("heard", [1.0, 0.1])
def test_what_the_living_were_given_is_given_once_and_nothing_is_left_out(
    arenas: tuple[Arena, Arena], seed: int, heard: float
) -> None:
    """Learner 0 is lost with the first host. Of what it had done the next host may not have `heard` all."""
    first, then = arenas
    draw = random.Random(seed)
    replica, there = PassReplica(), next_host(then)
    given: list[tuple[int, Key, int]] = []
    for _ in range(draw.randrange(40)):
        rank, key = draw.randrange(LEARNERS), draw.choice(KEYS)
        index = passes.draw(first, rank, key, PIECES)
        if index is not None:
            given.append((rank, key, index))
        if draw.random() < heard:
            replica.look([there], passes.read(first))
    living = [one for one in given if one[0]]
    passes.take_over(then, living, [0])
    lost = [one for one in given if not one[0]]
    for key in KEYS:
        mine = [index for _, one, index in living if one == key]
        dead = [index for _, one, index in lost if one == key]
        found = Counter([*mine, *rest(then, key)])
        assert max(found.values()) == 1
        assert {*found, *dead} == {*range(PIECES)}
        if heard == 1.0:  # all but the last that it held is trained already
            held = {lost[-1][2]} if lost and lost[-1][1] == key else set[int]()
            assert {*found} & {*dead} == held


def test_what_is_no_replica_changes_nothing(arenas: tuple[Arena, Arena]) -> None:
    first, then = arenas
    for rank in range(LEARNERS):
        passes.draw(first, rank, KEYS[0], PIECES)
    passes.give_back(first, 2)
    said = passes.read(first)
    slot, one = json.loads(json.dumps(said.header, default=plain))["passes"][0]
    held = [[0, [[0, 0]]]]
    wrong: list[dict[str, Any]] = [
        {"passes": [[passes.PASS_SLOTS, one]]},
        {"passes": [[slot, one | {"following": -1}]]},
        {"passes": [[slot, one | {"key": [0, 0]}]]},
        {"passes": [[slot, one | {"again": [*range(1 + passes.HELD * LEARNERS)]}]], "held": held},
        {"passes": [[slot, one]], "held": [[0, [[0, 0]] * (passes.HELD + 1)]]},
        {"passes": [[slot, one]], "held": [[0, [[passes.PASS_SLOTS, 0]]]]},
        {"passes": [[slot, one]], "held": [[MOST["rank"] + 1, [[0, 0]]]]},
        {"count": -1},
    ]
    before = [table.copy() for table in vars(then.view(PassTables)).values()]
    for changed in wrong:
        with pytest.raises(InvalidMessage):
            passes.enter(then, received(said, **changed))
        for table, was in zip(vars(then.view(PassTables)).values(), before, strict=True):
            assert (table == was).all()
    passes.enter(then, received(said))
    assert passes.read(then) == said
