"""The rules of effects, held to a backend that only takes notes and a clock that is turned by hand."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from roundelay.algorithms.averaging import pair_average_
from roundelay.core.effects import (
    LABELS,
    Begin,
    Draw,
    Effect,
    Exchange,
    Fetch,
    Gather,
    Grad,
    GradMean,
    Handle,
    Mean,
    Mix,
    Quorum,
    Reach,
    Wait,
)
from roundelay.core.state import Gradient, Minibatch, Snapshot, Statistics
from roundelay.learner.base import OnReady
from roundelay.runtime.backend import LATER, Later
from roundelay.runtime.engine import ClockedEngine, Engine
from roundelay.runtime.learner_state import LearnerState
from roundelay.runtime.rows import REACH_RULES
from support.noting_backend import BATCH, VECTOR, Notes, P

Role = Coroutine[Effect[Any], Any, None]


class Elsewhere:
    """Rows of other hosts: those of `ranks`."""

    def __init__(self, notes: Notes, ranks: Sequence[int]) -> None:
        self._notes, self._ranks, self.through = notes, ranks, False
        self.replies: list[int | None] = []  # the next ones, where they are not 10 + the rank

    def takes(self, row: int) -> bool:
        return row in self._ranks

    def moved(self, row: int) -> bool:
        return False

    def ask(self, effect: Reach | Gather) -> None:
        self.through = False
        self._notes.said(f"gather at {effect.close.peer}" if isinstance(effect, Gather) else f"ask {effect.peer}")

    def wait(self, peer: int) -> int | None:
        self._notes.said(f"reply of {peer}")
        return self.replies.pop(0) if self.replies else 10 + peer


def run(notes: Notes, role: Callable[[LearnerState], Role], elsewhere: Elsewhere | None = None) -> ClockedEngine:
    """A segment of `role`."""
    others = {} if elsewhere is None else {"remote": elsewhere}
    engine = ClockedEngine(notes.me, notes, notes.deferred, trace=notes, **others)
    engine.begin(role(notes.me))
    return engine


def gradient(notes: Notes) -> Gradient:
    """One that is not the backend's."""
    return Gradient(VECTOR, notes.rows[0].version, Statistics())


def test_a_mean_of_one_learner_is_its_gradient_as_it_is() -> None:
    notes, found = Notes(), list[Gradient]()

    async def role(me: LearnerState) -> None:
        found.append(await GradMean(Snapshot(VECTOR, 0), BATCH, (0,)))

    run(notes, role)
    assert notes.log == ["gradient", "note grad", "settle 8"]
    assert found[0].vector is VECTOR


def test_a_mean_that_is_begun_has_the_value_it_was_begun_with() -> None:
    notes, found = Notes(), list[Tensor]()

    async def role(me: LearnerState) -> None:
        vector = VECTOR.clone()
        mean = await Begin(Mean((0, 1), vector))
        mix = await Begin(Mix(((0, 1.0),), (1,), vector))
        vector.zero_()
        notes.log.append("own code")
        found.append(await Wait(mean))
        found.append(await Wait(mix))
        found.append(await Wait(mean))

    run(notes, role)
    assert notes.log == ["publish", "publish", "own code", "collect", "collect"]
    assert all(torch.equal(vector, VECTOR) for vector in found)


def test_an_exchange_that_is_begun_is_done_inside_the_next_step_before_its_update() -> None:
    notes = Notes()

    async def role(me: LearnerState) -> None:
        mixing = await Begin(Exchange(2, pair_average_))
        assert torch.equal(me.x, torch.zeros(P))
        done = [mixing.done]
        me.step(gradient(notes))
        assert [*done, mixing.done] == [False, True]
        assert await Wait(mixing) == 1

    run(notes, role)
    assert torch.equal(notes.rows[2].vector, torch.ones(P))
    assert torch.equal(notes.rows[0].vector, torch.full((P,), 0.5))  # (0 + 2) / 2 - 0.5 * 1
    assert notes.counts.exchanges[0].tolist() == [0, 0, 1]
    assert not notes.log, "the backend was not asked for it"
    assert [row.version for row in notes.rows] == [2, 0, 1]


def test_a_step_waits_for_nobody_and_a_busy_row_is_tried_again_in_the_next() -> None:
    notes = Notes()

    async def role(me: LearnerState) -> None:
        mixing = await Begin(Exchange(1, pair_average_))
        notes.rows[1].lock.acquire()
        me.step(gradient(notes))
        done = [mixing.done]
        notes.rows[1].lock.release()
        me.step(gradient(notes))
        assert [*done, mixing.done] == [False, True]

    run(notes, role)
    assert notes.rows[1].lock.try_acquire(), "given back"
    assert torch.equal(notes.rows[1].vector, torch.full((P,), 0.25))


def test_to_wait_for_a_deferred_exchange_is_to_do_it() -> None:
    notes = Notes()

    async def role(me: LearnerState) -> None:
        mixing = await Begin(Exchange(2, pair_average_))
        assert await Wait(mixing) == 1
        assert await Wait(mixing) == 1
        me.step(gradient(notes))

    run(notes, role)
    assert notes.log == ["exchange 2"]
    assert notes.counts.exchanges[0].tolist() == [0, 0, 1]
    assert torch.equal(notes.rows[2].vector, torch.ones(P)), "once"


def test_of_two_exchanges_begun_the_second_is_done_at_once() -> None:
    notes = Notes()

    async def role(me: LearnerState) -> None:
        first, second = await Begin(Exchange(1, pair_average_)), await Begin(Exchange(2, pair_average_))
        assert (first.done, second.done) == (False, True)
        me.step(gradient(notes))
        assert first.done

    run(notes, role)
    assert notes.log == ["exchange 2"]


@pytest.mark.parametrize("when", ["before", "at the step", "in the wait"])
def test_nothing_happens_with_a_peer_that_is_gone(when: str) -> None:
    notes = Notes()

    async def role(me: LearnerState) -> None:
        if when == "before":
            notes.dead.add(2)
        mixing = await Begin(Exchange(2, pair_average_))
        notes.dead.add(2)
        if when == "at the step":
            me.step(gradient(notes))
        assert mixing.done == (when != "in the wait")
        assert await Wait(mixing) is None
        assert await Fetch(2, torch.empty(P)) is None

    run(notes, role)
    assert notes.log == ["note gone", "note gone"]
    assert torch.equal(notes.rows[2].vector, torch.full((P,), 2.0))
    assert not notes.counts.exchanges.any()


def test_a_peer_that_comes_back_while_an_exchange_is_begun_with_it_is_gone_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asked twice, it would be done at once, and a repeated run, which knows that it was done, would defer it."""
    notes, found = Notes(), [False, True]
    monkeypatch.setattr(notes, "lives", lambda _: found.pop(0))

    async def role(_: LearnerState) -> None:
        assert await Wait(await Begin(Exchange(2, pair_average_))) is None

    run(notes, role)
    assert notes.log == ["note gone"]


def test_a_deferred_exchange_does_not_outlive_its_segment() -> None:
    notes = Notes()

    async def forgets(me: LearnerState) -> None:
        await Begin(Exchange(2, pair_average_))

    async def steps(me: LearnerState) -> None:
        me.step(gradient(notes))

    engine = run(notes, forgets)
    notes.me.begin_segment(None, (0, 1, 2), "row")
    engine.begin(steps(notes.me))
    assert torch.equal(notes.rows[2].vector, torch.full((P,), 2.0))


def test_a_minibatch_is_settled_when_the_coroutine_has_gone_on_past_its_gradient() -> None:
    notes = Notes()

    async def role(me: LearnerState) -> None:
        for effect in (Grad, GradMean):
            batch = await Draw()
            assert batch is not None
            at = me.snapshot()
            found = await (Grad(at, batch) if effect is Grad else GradMean(at, batch, (0, 1)))
            assert found.weight == 8
            me.step(found)
            notes.log.append("step")

    run(notes, role)
    first = ["draw", "note draw", "gradient", "note grad", "step", "settle 8"]
    second = [
        "draw",
        "note draw",
        "gradient",
        "note grad",
        "publish gradient of weight 8",
        "collect",
        "step",
        "settle 8",
    ]
    assert notes.log == first + second


@pytest.mark.parametrize("fails", ["the strategy", "the mean"])
def test_a_minibatch_whose_step_fails_is_not_settled(fails: str) -> None:
    notes = Notes()
    notes.lost = fails == "the mean"

    async def role(me: LearnerState) -> None:
        await GradMean(Snapshot(VECTOR, 0), BATCH, (0, 1))
        raise LookupError("the strategy cannot go on")

    with pytest.raises(LookupError):
        run(notes, role)
    assert not any(line.startswith("settle") for line in notes.log)


def test_an_effect_that_is_answered_later_is_asked_for_again_and_nothing_is_done_twice() -> None:
    notes = Notes()
    notes.ready = False

    async def role(me: LearnerState) -> None:
        notes.log.append("begins")
        batch = await Draw()
        assert batch is BATCH
        await Mean((0,), VECTOR)
        await Grad(Snapshot(VECTOR, 0), BATCH)

    engine = run(notes, role)
    engine.go_on()
    assert notes.log == ["begins"], "not yet"
    assert isinstance(engine.pending, Draw)
    notes.ready = True
    assert isinstance(notes.draw(()), Minibatch)
    notes.log.clear()
    notes.clock += 1000  # of somebody else's time
    engine.go_on()
    assert not engine.running
    assert notes.log == ["draw", "note draw", "publish", "collect", "gradient", "note grad", "settle 8"]
    assert notes.counts.update_s[0] + notes.counts.exchange_s[0] + notes.counts.mean_s[0] < 1000


def test_seconds_are_those_of_the_kind_of_effect_they_were_spent_on() -> None:
    notes = Notes()

    async def role(me: LearnerState) -> None:
        await Draw()
        notes.clock += 32
        mean = await Begin(Mean((0, 1), VECTOR))  # 1 s
        await GradMean(Snapshot(VECTOR, 0), BATCH, (0, 1))  # 4 s and 2 s
        await Wait(mean)  # 1 s
        await Exchange(1, pair_average_)  # 1 s
        await Wait(await Begin(Fetch(1, torch.empty(P))))  # 1 s

    run(notes, role)
    found = {name: float(getattr(notes.counts, name)[0]) for name in ("update_s", "gradient_s", "mean_s", "exchange_s")}
    assert found == {"update_s": 32, "gradient_s": 4, "mean_s": 4, "exchange_s": 2}
    assert notes.counts.means[0] == 2


def test_a_request_to_another_host_goes_on_meanwhile_and_one_waits_for_the_one_before() -> None:
    notes = Notes()
    elsewhere = Elsewhere(notes, [1, 2])

    async def role(me: LearnerState) -> None:
        first = await Begin(Exchange(1, pair_average_))
        await Draw()
        done = [first.done]
        second = await Begin(Fetch(2, torch.empty(P)))
        assert [*done, first.done] == [False, True]
        assert await Wait(first) == 11
        elsewhere.through = True
        await Draw()  # it has come meanwhile, and is taken note of when the coroutine goes on
        assert second.done
        assert await Wait(second) == 12
        assert await Exchange(1, pair_average_) == 11
        notes.dead.add(1)
        assert await Wait(await Begin(Exchange(1, pair_average_))) is None
        await Begin(Exchange(2, pair_average_))

    engine = run(notes, role, elsewhere)
    draw = ["draw", "note draw"]
    assert notes.log == [
        "ask 1",
        *draw,
        "reply of 1",
        "ask 2",
        *draw,
        "reply of 2",
        "ask 1",
        "reply of 1",
        "note gone",  # of a dead peer nothing is asked
        "ask 2",
    ]
    engine.finish_asked()
    engine.finish_asked()
    assert notes.log[12:] == ["reply of 2"]
    assert notes.counts.exchanges[0].tolist() == [0, 2, 1]


@pytest.mark.parametrize(("reply", "counts"), [(12, True), (-2, False), (None, False)])
def test_a_gathering_at_another_host_is_one_request(reply: int | None, counts: bool) -> None:
    """A request under way is waited for first; a contribution that counts is counted as an exchange."""
    notes, said = Notes(), list[bool]()
    elsewhere = Elsewhere(notes, [1, 2])
    elsewhere.replies = [11, reply]

    async def role(me: LearnerState) -> None:
        await Begin(Exchange(1, pair_average_))
        give, close = Exchange(2, pair_average_, since=9), Exchange(2, pair_average_)
        said.append(await Gather(Quorum(2), give, close))

    run(notes, role, elsewhere)
    assert notes.log == ["ask 1", "reply of 1", "gather at 2", "reply of 2"]
    assert said == [counts]
    assert notes.counts.exchanges[0].tolist() == [0, 1, int(counts)]


def test_every_effect_has_a_meaning_and_a_name() -> None:
    notes = Notes()
    engine = Engine(notes.me, notes, notes.deferred)
    at, handle = Snapshot(VECTOR, 0), Handle[int | None]()
    handle.finish(3)
    every = [
        Draw(),
        Grad(at, BATCH),
        GradMean(at, BATCH, (0,)),
        Mean((0,), VECTOR),
        Mix(((0, 1.0),), (), VECTOR),
        Exchange(1, pair_average_),
        Fetch(1, torch.empty(P)),
        Gather(Quorum(1), None, Exchange(1, pair_average_)),
        Wait(handle),
    ]
    assert {type(effect) for effect in every} == set(LABELS), "one of each here, and a name for each there"
    assert all(engine.perform(effect) is not None for effect in every)
    ours = {
        kind for kind in (*Effect.__subclasses__(), *Reach.__subclasses__()) if kind.__module__ == Effect.__module__
    }
    assert ours == {*LABELS, Begin, Reach}
    assert {kind for kind in ours if issubclass(kind, Reach)} == {*REACH_RULES, Reach} & ours, (
        "a rule for each that reaches a row"
    )
    with pytest.raises(TypeError, match="Effect is not an effect"):
        engine.perform(Effect())


def test_a_gathering_is_given_to_then_waited_for_then_closed() -> None:
    notes, gather = Notes(), Gather(Quorum(2), Exchange(1, pair_average_), Exchange(2, pair_average_))

    async def role(me: LearnerState) -> None:
        assert await gather
        notes.counts_what_comes = False
        assert not await gather

    run(notes, role)
    assert notes.log[:5] == ["admits", "exchange 1", "closes", "exchange 2", "closed"]
    assert notes.log[5:] == ["admits", "closes", "exchange 2", "closed"], "what does not count is not given"


class Slow(Notes):
    """Answers LATER to whatever can be answered so, and when it is asked again as `Notes` does. What reaches a row and
    was begun goes on by itself."""

    engine: Engine
    starts_all = True

    def __init__(self) -> None:
        super().__init__()
        self._asked: list[str] = []
        self.started: list[Handle[int | None]] = []

    def _first(self, what: str) -> bool:
        """Is it asked for the first time?"""
        if what in self._asked:
            self._asked.remove(what)
            return False
        self._asked.append(what)
        return True

    def draw(self, group: tuple[int, ...]) -> Minibatch | Later | None:
        return LATER if self._first("draw") else super().draw(group)

    def gradient(self, effect: Grad | GradMean, on_ready: OnReady | None) -> Gradient | Later:
        return LATER if self._first("gradient") else super().gradient(effect, on_ready)

    def collect(self, effect: Mean | Mix | GradMean, published: Any) -> Tensor | Later:
        return LATER if self._first("collect") else super().collect(effect, published)

    def admits(self, effect: Gather) -> bool | Later:
        return LATER if self._first("admits") else super().admits(effect)

    def closes(self, effect: Gather) -> bool | Later:
        return LATER if self._first("closes") else super().closes(effect)

    def closed(self, effect: Gather) -> Later | None:
        return LATER if self._first("closed") else super().closed(effect)

    def reach(self, effect: Reach) -> int | Later | None:
        return super().reach(effect) if self.engine.again else LATER

    def starts(self, effect: Reach, handle: Handle[int | None]) -> bool:
        if self.starts_all:
            self.started.append(handle)
        return self.starts_all


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_backend_that_answers_later_comes_to_the_same_and_nothing_is_done_twice(by_itself: bool) -> None:
    replies: dict[str, list[object]] = {"at once": [], "later": []}

    def story(name: str) -> Callable[[LearnerState], Role]:
        said = replies[name]

        async def role(me: LearnerState) -> None:
            batch = await Draw()
            assert batch is not None
            said.append((await Grad(me.snapshot(), batch)).weight)
            said.append((await GradMean(me.snapshot(), batch, (0, 1))).vector.tolist())
            said.append((await Mean((0, 1), VECTOR)).tolist())
            mean = await Begin(Mean((0, 1), 2 * VECTOR))
            said.append(await Exchange(1, pair_average_))
            said.append((await Wait(mean)).tolist())
            said.append(await Gather(Quorum(2), Exchange(1, pair_average_), Exchange(2, pair_average_)))
            said.append(await Wait(await Begin(Exchange(1, pair_average_))))
            said.append(await Wait(await Begin(Fetch(2, torch.empty(P)))))

        return role

    at_once, later = Notes(), Slow()
    later.starts_all = by_itself
    Engine(at_once.me, at_once, trace=at_once).begin(story("at once")(at_once.me))
    engine = later.engine = Engine(later.me, later, trace=later)
    engine.begin(story("later")(later.me))
    for _ in range(20):
        if later.started:
            engine.finish(later.started.pop())
        elif engine.running:
            engine.go_on()
    assert not engine.running
    assert replies["later"] == replies["at once"]
    assert later.log == at_once.log
    assert later.counts.exchanges.tolist() == at_once.counts.exchanges.tolist()


def test_what_goes_on_by_itself_is_done_when_it_is_over_whatever_the_coroutine_does() -> None:
    slow, done = Slow(), list[bool]()

    async def role(me: LearnerState) -> None:
        begun = await Begin(Exchange(1, pair_average_)), await Begin(Exchange(2, pair_average_))
        await Grad(me.snapshot(), BATCH)
        done.extend(handle.done for handle in begun)
        await Wait(begun[1])

    engine = slow.engine = Engine(slow.me, slow)
    engine.begin(role(slow.me))
    first, second = slow.started
    engine.finish(first)
    assert isinstance(engine.pending, Grad)
    engine.go_on()
    assert done == [True, False]
    assert isinstance(engine.pending, Wait)
    engine.finish(second)
    assert not engine.running
    assert slow.counts.exchanges[0].tolist() == [0, 1, 1]


def test_nothing_happens_to_a_coroutine_that_was_closed() -> None:
    slow = Slow()

    async def role(me: LearnerState) -> None:
        await Begin(Exchange(1, pair_average_))
        await Exchange(2, pair_average_)

    engine = slow.engine = Engine(slow.me, slow)
    engine.begin(role(slow.me))
    engine.close()
    engine.finish(slow.started[0])
    engine.go_on()
    assert not slow.counts.exchanges.any()
    assert not engine.running
