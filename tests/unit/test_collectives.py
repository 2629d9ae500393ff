"""Means by a collective library: when they begin, and those of a node."""

import tempfile
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from torch import distributed

from roundelay.runtime.procs.coordination.collectives import Collectives, DeviceMeans, NodeMeans
from roundelay.runtime.procs.coordination.means import MemberLost
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.locks import Patience
from support.until import together, until


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


def test_weights_are_of_this_mean_also_where_a_member_comes_while_they_are_looked_at(alone: None) -> None:
    made, arena = means(2, torch.ones(100), 100)
    arena.sequences.weights[1, 1] = 8.0  # of an earlier mean
    lay = made.announce_gradient(8.0, (0, 1), arena.vector("row", 0))
    reply, sent = made._mean.fill_(-1), made._sent

    class Coming:
        """Learner 1 has come when its number is looked at, and not before."""

        def __getitem__(self, key: Any) -> Any:
            if isinstance(key, list):
                arena.sequences.weights[1, 1], arena.sequences.sent_seq[1] = 24.0, 1
            return sent[key]

    made._sent = cast(Any, Coming())
    lay(0)
    until(lambda: bool((reply == 0.25).all()))


def test_a_mean_that_was_begun_goes_on_beside_the_next_gradient(alone: None) -> None:
    made, arena = means(2, torch.zeros(100), 30)
    made.publish(torch.ones(100), 1.0, (0, 1))
    reply = made._mean.fill_(-1)
    made.look(60)
    assert (reply == -1).all()
    arena.sequences.weights[1, 1], arena.sequences.sent_seq[1] = 1.0, 1
    made.look(30)
    until(lambda: bool((reply == 0.5).all()))


# Means of a node ------------------------------------------------------------------------------------------------------

SIZE, NODE = 100, (0, 1)


@pytest.fixture
def node() -> Iterator[list[NodeMeans]]:
    """Two learners of one node of a run of three, in this process; buckets from 70, 40, 10 and 0."""
    meeting = Collectives("gloo", tempfile.mkdtemp(), 30, nodes=True)
    arena = Arena(create_file(layout := Layout(3, SIZE)), layout, Patience(0, 30))
    arena.liveness.alive[:] = 1
    made = [NodeMeans(arena, rank, Patience(rank, 30), torch.full((SIZE,), 1.0 + rank), meeting) for rank in NODE]
    for one in made:
        one.begin_part(1)
    yield made
    for one in made:
        one.leave()
    meeting.clear()
    arena.close()


def test_one_members_vector_arrives_bit_for_bit_and_gradients_are_averaged(node: list[NodeMeans]) -> None:
    """The third learner is of another node, and does not come. The first one's gradient is taken at the reply to it,
    which the mean does not overwrite."""
    model = torch.randn(SIZE, generator=torch.Generator().manual_seed(0))
    models, means = [torch.empty(0)] * 2, [torch.empty(0)] * 2

    def learn(rank: int) -> None:
        one = node[rank]
        one.publish(model if rank == 0 else torch.zeros(SIZE), 1.0 - rank, NODE)
        models[rank] = one.collect(NODE)
        lay = one.announce_gradient(3.0 - 2 * rank, NODE, models[rank])
        assert lay is not None
        lay(0)
        means[rank] = one.collect(NODE)

    together(lambda: learn(0), lambda: learn(1))
    assert all(torch.equal(one, model) for one in models)
    assert all(torch.equal(one, torch.full((SIZE,), 1.25)) for one in means)


def test_a_member_that_dies_in_the_middle_of_a_mean_is_named(node: list[NodeMeans]) -> None:
    first, second = node
    lays = [one.announce_gradient(1.0, NODE, torch.empty(SIZE)) for one in node]
    assert lays[0] is not None
    assert lays[1] is not None
    together(lambda: lays[0](0), lambda: lays[1](40))
    until(lambda: bool((first._mean[40:] == 1.5).all()))
    second._alive[1] = 0
    with pytest.raises(MemberLost, match="learner 1 died"):
        first.collect(NODE)
