"""Alarms of an attached learner: equal inputs, wrong meetings, a loop that never steps."""

import logging

import pytest
import torch

import roundelay
from roundelay.attached.forward import fingerprint
from roundelay.runtime.attached.meetings import Meetings, MeetingTables
from roundelay.runtime.attached.shares import FIRST, Inputs, InputTables
from support.small_loop import backward, batches, network_by_sgd
from support.views import zeros


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], True),
        ([1, 2, 3, 4], [1, 2, 3, 5], False),
        ([1, 2, 3, 4], [4, 3, 2, 1], False),
        ([7, 7, 7, 7], [7, 7, 7, 7], False),
        ([1, 2, 3], [1, 2, 3], False),
    ],
)
def test_equal_inputs_of_several_steps_are_an_alarm(first: list[int], second: list[int], same: bool) -> None:
    """Not one that repeats: a mask, or all examples in every step."""
    shared = zeros(InputTables, learners=2)
    learners = [Inputs(shared, rank) for rank in range(2)]
    for learner, seen in zip(learners, (first, second), strict=True):
        for number in seen:
            assert learner.wanted
            learner.note(number)
    assert learners[0].same_as() is None
    assert learners[1].same_as() == (0 if same else None)
    assert learners[1].settled == (len(first) == FIRST)


def test_a_fingerprint_is_of_the_tensors() -> None:
    x = torch.randn(4, 3)
    assert fingerprint(((x,), {})) == fingerprint(((x.clone(),), {}))
    assert fingerprint(((), {"ids": x, "more": [x]})) == fingerprint(((), {"ids": x.clone(), "more": (x,)}))
    others = [
        x + 1,
        x.reshape(3, 4),
        x.double(),
        x.to(torch.bfloat16),
        x.bool(),
        torch.view_as_complex(x[:, :2].clone()),
    ]
    found = {fingerprint(((other,), {})) for other in [x, *others]}
    assert len(found) == 1 + len(others)
    assert fingerprint((("text", 3), {})) is None
    assert fingerprint((torch.empty(0),)) is not None


def test_who_waits_long_in_a_meeting_says_in_which(caplog: pytest.LogCaptureFixture) -> None:
    meetings = Meetings(zeros(MeetingTables, learners=2), 0)
    for number in (1, 2):
        meetings.begin("consensus()")
        meetings.announce(number)
    meetings.say_long([1])
    assert "rank 0 waits in its 2nd consensus() for learners [1]" in caplog.messages[0]


@pytest.mark.parametrize("stepped", [False, True])
def test_a_loop_that_computes_gradients_and_never_steps_is_told_so(
    stepped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizer = network_by_sgd()
    with caplog.at_level(logging.WARNING), roundelay.attach(model, optimizer, "adpsgd") as session:
        for x, y in batches():
            model.zero_grad()
            backward(model, x, y)
            if stepped:
                optimizer.step()
            else:
                with torch.no_grad():
                    for p in model.parameters():
                        assert p.grad is not None
                        p.sub_(p.grad, alpha=0.1)
        session.meet()
    assert sum("taken no step since roundelay.attach" in text for text in caplog.messages) == (not stepped)
