"""The table of who waits for whom."""

from collections.abc import Iterator

import pytest
import torch

from roundelay.core.effects import Exchange
from roundelay.runtime.procs.coordination.activity import (
    HostActivity,
    ReportedActivity,
    milliseconds,
    number_of,
    table,
)
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.locks import Patience


@pytest.fixture
def arenas() -> Iterator[list[Arena]]:
    """Of two hosts, of which learner 2 is on the second."""
    layout = Layout(learners=3, parameters=1, centre=True)
    found = [Arena(create_file(layout), layout, Patience(0, 1)) for _ in range(2)]
    yield found
    for arena in found:
        arena.close()


def _rule(*_: torch.Tensor) -> None: ...


def test_what_another_host_says_is_in_the_table(arenas: list[Arena]) -> None:
    first, second = arenas
    first.liveness.alive[[0, 2]] = 1  # who lives is the conductor's to say
    for arena, rank in ((first, 0), (second, 2)):
        arena.row_versions.versions[rank] = 2 * (10 + rank)
    first.activity.doing[:, 0] = *number_of(Exchange(3, _rule)), milliseconds() - 61_500
    second.activity.doing[:, 2] = *number_of(Exchange(0, _rule)), milliseconds() - 2_500
    second.queue.rounds[2] = 7
    second.sequences.sent_seq[2] = 5
    here = ReportedActivity(HostActivity.of(first, (0, 1)), milliseconds())
    there = ReportedActivity(HostActivity.of(second, (2,)), milliseconds())
    lines = [line.split() for line in table(first, [((0, 1), here), ((2,), there)]).splitlines()]
    assert lines[0] == ["rank", "host", "alive", "seconds", "round", "version", "means", "effect"]
    assert lines[1][:3] + lines[1][4:] == ["0", "0", "yes", "0", "10", "0", "exchange", "with", "the", "centre"]
    assert lines[2][:3] == ["1", "0", "no"]
    assert lines[3][:3] + lines[3][4:] == ["2", "1", "yes", "7", "12", "5", "exchange", "with", "learner", "0"]
    assert float(lines[1][3]) >= 61.5
    assert float(lines[3][3]) >= 2.5
    assert table(first, [((0, 1), here), ((2,), None)]).splitlines()[3].endswith("has said nothing yet")
