"""Means by a collective library: when they begin."""

import tempfile
from collections.abc import Iterator

import pytest
import torch
from torch import distributed

from roundelay.runtime.procs.coordination.collectives import Collectives, DeviceMeans
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.patience import Patience
from support.until import until


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of one."""
    meeting = Collectives("gloo", tempfile.mkdtemp())
    meeting.join(0, 1, torch.device("cpu"), 10)
    yield
    distributed.destroy_process_group()
    meeting.clear()


def means(learners: int, gradient: torch.Tensor, bucket: int) -> tuple[DeviceMeans, Arena]:
    """Of learner 0."""
    patience = Patience(0, 10)
    arena = Arena(create_file(layout := Layout(learners, len(gradient))), layout, patience)
    arena.liveness.alive[:] = 1
    return DeviceMeans(arena, 0, patience, gradient, bucket), arena


def test_a_gradients_mean_is_under_way_while_the_rest_of_it_is_computed(alone: None) -> None:
    gradient = torch.full((100,), torch.nan)
    made, arena = means(1, gradient, 30)  # buckets from 70, 40, 10 and 0
    at = arena.vector("row", 0)
    lay = made.announce_gradient(8.0, (0,), at)
    reply = made._mean.fill_(-1)
    for first, there in ((75, 100), (55, 70), (40, 40), (12, 40), (3, 10)):
        gradient[first:] = torch.arange(first, 100.0)
        lay(first)
        until(lambda there=there: bool((reply[there:] == torch.arange(there, 100.0)).all()))  # type: ignore[misc]
        assert (reply[:there] == -1).all()
    gradient[:] = torch.arange(100.0)
    lay(0)
    assert torch.equal(made.collect((0,)), torch.arange(100.0))


def test_nothing_begins_before_all_have_come(alone: None) -> None:
    made, arena = means(2, torch.ones(100), 30)
    lay = made.announce_gradient(8.0, (0, 1), arena.vector("row", 0))
    reply = made._mean.fill_(-1)
    lay(0)
    assert (reply == -1).all()  # the library is not even called: it would wait for learner 1 for ever
    arena.sequences.weights[1, 1], arena.sequences.sent_seq[1] = 24.0, 1
    made.advance()
    until(lambda: bool((reply == 0.25).all()))  # a group of one: the other's share is missing


def test_a_mean_that_was_begun_goes_on_beside_the_next_gradient(alone: None) -> None:
    made, arena = means(2, torch.zeros(100), 30)
    made.publish(torch.ones(100), 1.0, (0, 1))
    reply = made._mean.fill_(-1)
    made.look(60)
    assert (reply == -1).all()
    arena.sequences.weights[1, 1], arena.sequences.sent_seq[1] = 1.0, 1
    made.look(30)
    until(lambda: bool((reply == 0.5).all()))
