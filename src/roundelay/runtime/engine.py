"""The engine of effects: runs the coroutine of one learner, and knows the meaning of every effect.

It does no input or output: it has no threads, no sockets, no locks, no clock and no arithmetic on vectors. Every access
to the world is a primitive of its `Backend` (`backend.py`); a runtime is a backend. These are the rules:

    Draw            the learner's rate follows the minibatch
    Grad            its minibatch is settled (trained, never to be drawn again) when the coroutine has gone on past it
    GradMean        announce, gradient, publish, collect; settled like Grad. Of one learner alone it is a Grad
    Mean, Mix       publish, collect
    Exchange, Fetch and any other Reach
                    with a dead peer nothing happens, and the reply is None; else it is done by its rule (`rows.py`). An
                    Exchange is counted
    Begin(Mean), Begin(Mix)     publish now, collect in the wait
    Begin(Reach) with a row of another host
                    ask now; over when the coroutine goes on after the reply has come, at the latest in the wait. One at
                    a time: the next waits for it first; an exchange of a fragment is asked for when those before it are
                    over, and the learner goes on meanwhile
    Begin(Reach) that the backend starts
                    goes on by itself, and is done when the backend says so (`finish`), wherever the coroutine is
    Begin(Exchange) with a living learner of this host
                    deferred: done with the next step (`rows.py`), at the latest in the wait. One at a time
    Begin(anything else)        done at once
    Gather          give, unless the contribution is left out, and wait; the learner that is to close it does. Where the
                    centre is on another host, all of this is done there
    Wait            the reply if it is there, else the rest of the effect

A primitive may answer LATER: the coroutine is left where it is, `pending` says at which effect, and `go_on` asks for
the rest of the effect when the backend is ready. Where time is virtual nearly every effect is answered twice so.

An engine adds little to an effect: its rule is found by its type, and nothing is made for it, for a simulation performs
hundreds of thousands a second. `ClockedEngine` times effects as well.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Final

from roundelay.core.effects import Begin, Draw, Effect, Exchange, Gather, Grad, GradMean, Handle, Mean, Mix, Reach, Wait
from roundelay.core.flat import WHOLE
from roundelay.core.state import Gradient, Minibatch, Statistics
from roundelay.learner.base import OnReady
from roundelay.runtime.backend import LATER, NO_REMOTE, Backend, ClockedBackend, Counting, Later, RemoteRows
from roundelay.runtime.lanes import ON_GRADIENT, ON_UPDATE, Lane, span_kind
from roundelay.runtime.learner_state import LearnerState
from roundelay.runtime.rows import Deferred, DeferredExchange
from roundelay.runtime.trace import NO_TRACE, Kind, Trace

MEANS = (Mean, Mix, GradMean, Gather)
"""Effects in which a learner meets others, counted as means."""

NOTHING = -1
"""Number recorded for a Draw that returned no minibatch, at the end of a segment."""


class Engine:
    """Runs one learner's coroutine, segment after segment.

    Args:
        deferred: the place from which the learner's steps take an exchange that was begun; None: steps do none.
        trace: records draws, gradients, gatherings and dead peers; rows record their own changes.
    """

    __slots__ = (
        "_asked",
        "_backend",
        "_deferred",
        "_me",
        "_queued",
        "_remote",
        "_role",
        "_so_far",
        "_trace",
        "_trained",
        "again",
        "answers",
        "pending",
    )

    def __init__(
        self,
        me: Counting,
        backend: Backend,
        deferred: Deferred | None = None,
        remote: RemoteRows = NO_REMOTE,
        trace: Trace = NO_TRACE,
    ) -> None:
        self._me, self._backend, self._deferred = me, backend, deferred
        self._remote = None if remote is NO_REMOTE else remote
        self._trace = None if trace is NO_TRACE else trace
        self._role: Coroutine[Effect[Any], Any, None] | None = None
        self._asked: Handle[int | None] | None = None  # of the other hosts
        self._queued: deque[Handle[int | None]] | None = None  # exchanges of fragments, to be asked for next
        self._trained: Statistics | None = None
        self._so_far: Any = None
        """Parts of the pending effect that are done, where it has several."""
        self.pending: Effect[Any] | None = None
        """The effect that the coroutine waits for."""
        self.again = False
        """True while an effect, or its rest, is asked for again: its time is over."""
        self.answers = 0
        """Answers to effects so far, LATER included."""

    # The coroutine ----------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """True between `begin` and the end of the coroutine."""
        return self._role is not None

    def begin(self, role: Coroutine[Effect[Any], Any, None]) -> None:
        """Run `role`, a segment, to its end, or to an effect that is answered LATER."""
        self._role, self.pending, self._trained, self._so_far = role, None, None, None
        self._run(None)

    def go_on(self) -> None:
        """Ask for the rest of the pending effect, and go on as `begin` does; after `close`, do nothing."""
        effect = self.pending
        if effect is None:
            return
        self.again = True
        self.answers += 1
        reply = _RULES[type(effect)](self, effect)
        if reply is not LATER:
            self._run(reply)

    def finish(self, handle: Handle[Any]) -> None:
        """Finish an effect that the backend has completed, and go on if the coroutine waits for it; not after
        `close`."""
        if self._role is None:
            return
        self.again = True
        self.answers += 1
        handle.finish(self._reach(handle.pending[0]))
        self.again = False
        pending = self.pending
        if type(pending) is Wait and pending.handle is handle:
            self._run(handle.reply)

    def close(self) -> None:
        """End the coroutine wherever it is."""
        role, self._role, self.pending, self._so_far = self._role, None, None, None
        self._queued = None
        if self._deferred is not None:
            self._deferred.clear()
        if role is not None:
            role.close()

    def _run(self, reply: Any) -> None:
        """Run the coroutine on with `reply` until an effect is answered LATER."""
        role = self._role
        assert role is not None
        send, self.again = role.send, False
        while reply is not LATER:
            try:
                effect = send(reply)
            except StopIteration:
                self._end()
                return
            if self._trained is not None:
                self._settle(self._trained)
            self.pending = effect
            self.answers += 1
            rule = _RULES.get(type(effect)) or _rule_of(effect)
            reply = rule(self, effect)

    def _end(self) -> None:
        """End the coroutine, and note that it has ended."""
        if self._trained is not None:
            self._settle(self._trained)
        self._role = self.pending = None
        self._backend.ended()

    def _settle(self, trained: Statistics) -> None:
        """Count the last minibatch as trained, once the coroutine has gone on past its gradient."""
        self._trained = None
        self._backend.settle(trained)

    # Effects ----------------------------------------------------------------------------------------------------------

    def perform(self, effect: Effect[Any]) -> Any:
        """Perform an effect; return its reply, or LATER.

        Raises:
            TypeError: there is no rule for an effect of this type.
        """
        return _rule_of(effect)(self, effect)

    def _draw(self, effect: Draw) -> Minibatch | Later | None:
        drawn = self._backend.draw(effect.group)
        if drawn is LATER:
            return drawn
        if drawn is not None:
            self._me.drawn(drawn)
        if self._trace is not None:
            self._trace.note(Kind.DRAW, mine=NOTHING if drawn is None else drawn.index)
        return drawn

    def _grad(self, effect: Grad | GradMean) -> Gradient | Later:
        gradient = self._gradient(effect, None)
        if gradient is not LATER:
            self._trained = gradient.statistics
        return gradient

    def _gradient(self, effect: Grad | GradMean, on_ready: OnReady | None) -> Gradient | Later:
        gradient = self._backend.gradient(effect, on_ready)
        if self._trace is not None and gradient is not LATER:
            self._trace.note(Kind.GRAD, mine=effect.batch.index, value=gradient.statistics.loss)
        return gradient

    def _gradient_mean(self, effect: GradMean) -> Gradient | Later:
        backend, so_far = self._backend, self._so_far
        if effect.of_one:
            return self._grad(effect)
        if so_far is None:
            on_ready = backend.announce(effect)
            own = self._gradient(effect, on_ready)
            if own is LATER:
                return own
            so_far = own, backend.publish_gradient(effect, own, on_ready)
        own, published = so_far
        mean = backend.collect(effect, published)
        if mean is LATER:
            self._so_far = so_far
            return mean
        self._so_far, self._trained = None, own.statistics
        return Gradient(mean, own.version, own.statistics, own.weight)

    def _mean(self, effect: Mean | Mix) -> Any:
        backend, so_far = self._backend, self._so_far
        if so_far is None:
            so_far = (backend.publish(effect),)
        mean = backend.collect(effect, so_far[0])
        self._so_far = so_far if mean is LATER else None
        return mean

    def _reach(self, effect: Reach) -> int | Later | None:
        """Perform an effect on the row of another learner, or on the centre, and wait for its end."""
        backend, peer = self._backend, effect.peer
        if self._remote is not None and self._remote.takes(peer):
            handle: Handle[int | None] = Handle()
            handle.pending = effect, None
            self._ask(effect, handle)
            if not handle.done:
                self._finish_asked(handle)
            return handle.reply  # type: ignore[no-any-return]
        if not backend.lives(peer):
            self._gone(peer)
            return None
        version = backend.reach(effect)
        if version is not LATER and version is not None and type(effect) is Exchange:
            self._me.count_exchange(effect, version)
        return version

    def _gone(self, peer: int) -> None:
        if self._trace is not None:
            self._trace.note(Kind.GONE, peer)

    def _gather(self, gather: Gather) -> Any:
        """Come to a gathering, and go on when it is closed."""
        if self._remote is not None and self._remote.takes(gather.close.peer):
            return self._gather_elsewhere(self._remote, gather)
        if self._so_far is None:
            self._so_far = self._gather_here(gather)
        for reply in self._so_far:
            if reply is not LATER:
                self._so_far = None
            return reply
        raise AssertionError("a gathering has a reply")

    def _gather_here(self, gather: Gather) -> Generator[bool | Later, None, None]:
        """Yield the replies of a gathering on this host: LATER as long as it must wait, then the final reply."""
        backend, trace = self._backend, self._trace
        while (counts := backend.admits(gather)) is LATER:
            yield LATER
        if trace is not None:
            trace.note(Kind.COME, value=float(counts))
        if counts and gather.give is not None:
            self._reach(gather.give)
        while (closes := backend.closes(gather)) is LATER:
            yield LATER
        if trace is not None:
            trace.note(Kind.MET, value=float(closes))
        if closes:
            self._reach(gather.close)
            while backend.closed(gather) is LATER:
                yield LATER
        yield counts

    def _gather_elsewhere(self, remote: RemoteRows, gather: Gather) -> bool:
        """Take part in a gathering at the host that has the centre, by one request to it."""
        self.finish_asked()
        remote.ask(gather)
        version = remote.wait(gather.close.peer)
        if version is None and remote.moved(gather.close.peer):  # what it gave is lost with the centre
            again = self._gather(gather)
            assert not isinstance(again, Later)  # real rows are there at once
            return bool(again)
        if version is None or version < 0:
            return False
        if gather.give is not None:
            self._me.count_exchange(gather.give, version)
        return True

    # Begin and Wait ---------------------------------------------------------------------------------------------------

    def _begin(self, begin: Begin[Any]) -> Handle[Any] | Later:
        """Begin an effect; the handle's `pending` is the effect, with the reply of `publish` for a mean."""
        effect: Effect[Any] = begin.effect
        handle: Handle[Any] = Handle()
        handle.pending = effect, None
        if isinstance(effect, Reach) and self._start(effect, handle):
            return handle
        if isinstance(effect, Mean | Mix):
            handle.pending = effect, self._backend.publish(effect)
            return LATER if self._role is None else handle  # closed: a learner it would wait for will never come
        reply = self.perform(effect)
        if reply is not LATER:
            handle.finish(reply)
        return handle if handle.done else LATER

    def _start(self, effect: Reach, handle: Handle[int | None]) -> bool:
        """Start an effect on a row in the background, if possible; return False if it is to be done at once."""
        peer, remote, deferred = effect.peer, self._remote, self._deferred
        if remote is not None and remote.takes(peer):
            if self._asked and type(effect) is Exchange and effect.fragment != WHOLE:
                self._queued = self._queued or deque()
                self._queued.append(handle)
            else:
                self._ask(effect, handle)
            return True
        if not self._backend.lives(peer):  # asked once: it may come back at any moment, and a repeated run asks once
            self._gone(peer)
            handle.finish(None)
            return True
        if self._backend.starts(effect, handle):
            return True
        if type(effect) is not Exchange or deferred is None or deferred.occupied:
            return False
        row = self._backend.deferrable(peer)
        if row is not None:
            deferred.put(DeferredExchange(effect, row, partial(self._backend.lives, peer), handle))
        return row is not None

    def _wait(self, wait: Wait[Any]) -> Any:
        handle: Handle[Any] = wait.handle
        return handle.reply if handle.done else self._finish(handle)

    def _finish(self, handle: Handle[Any]) -> Any:
        """Wait for the end of an effect that was begun; return its reply, or LATER."""
        effect, published = handle.pending
        if not isinstance(effect, Reach):
            reply = self._backend.collect(effect, published)
            if reply is LATER:
                return LATER
            handle.finish(reply)
        elif self._deferred is not None and self._deferred.withdraw(handle) is not None:
            handle.finish(self._reach(effect))
        while not handle.done and self._asked is not None:
            self._finish_asked(self._asked)
        return handle.reply if handle.done else LATER

    def finish_deferred(self) -> None:
        """Do the deferred exchange now, without a step."""
        found = None if self._deferred is None else self._deferred.withdraw()
        if found is not None:
            found.handle.finish(self._reach(found.request))

    # Other hosts ------------------------------------------------------------------------------------------------------

    def _ask(self, effect: Reach, handle: Handle[int | None]) -> None:
        """Ask another host to do an effect. `_finish_asked` finishes `handle`; if the peer is dead, this function."""
        assert self._remote is not None
        self.finish_asked()  # one at a time
        if self._backend.lives(effect.peer):
            self._remote.ask(effect)
            self._asked = handle
        else:
            self._gone(effect.peer)
            handle.finish(None)

    def _finish_asked(self, handle: Handle[int | None]) -> None:
        assert self._remote is not None
        effect, self._asked = handle.pending[0], None
        version = self._remote.wait(effect.peer)
        if version is None and self._remote.moved(effect.peer):
            again = self._reach(effect)  # which counts it
            assert not isinstance(again, Later)  # real rows are there at once
            version = again
        elif version is not None and type(effect) is Exchange:
            self._me.count_exchange(effect, version)
        handle.finish(version)
        while self._queued and self._asked is None:
            following = self._queued.popleft()
            self._ask(following.pending[0], following)

    def finish_asked(self) -> None:
        """Wait for all requests to other hosts, so that rows do not change while they are read between segments."""
        while self._asked is not None:
            self._finish_asked(self._asked)


_RULES: Final[dict[type[Effect[Any]], Callable[[Engine, Any], Any]]] = {
    Draw: Engine._draw,
    Grad: Engine._grad,
    GradMean: Engine._gradient_mean,
    Mean: Engine._mean,
    Mix: Engine._mean,
    Exchange: Engine._reach,
    Gather: Engine._gather,
    Begin: Engine._begin,
    Wait: Engine._wait,
}


def _rule_of(effect: Effect[Any]) -> Callable[[Engine, Any], Any]:
    """Return the engine's rule for an effect; that of a new kind of Reach is added to the table."""
    kind = type(effect)
    if kind not in _RULES:
        if not isinstance(effect, Reach):
            raise TypeError(f"{kind.__name__} is not an effect of this runtime")
        _RULES[kind] = Engine._reach
    return _RULES[kind]


class ClockedEngine(Engine):
    """An engine whose effects take time on a clock. It times them, counts means, and tells the backend when the learner
    is in an effect, and takes note of another host's answer whenever the coroutine goes on.
    """

    __slots__ = ("_clocked", "_gradient_seconds", "_state", "lane")

    def __init__(
        self,
        me: LearnerState,
        backend: ClockedBackend,
        deferred: Deferred,
        remote: RemoteRows = NO_REMOTE,
        trace: Trace = NO_TRACE,
    ) -> None:
        super().__init__(me, backend, deferred, remote, trace)
        self._state, self._clocked = me, backend
        self._gradient_seconds = 0.0  # of the effect under way
        self.lane: Lane | None = None
        """Takes a note of where time goes; None: none is wanted."""

    def go_on(self) -> None:
        if self.pending is not None:
            reply = self._timed(self.pending, 0.0, self._clocked.now())
            if reply is not LATER:
                self._run(reply)

    def _run(self, reply: Any) -> None:
        role, now = self._role, self._clocked.now
        assert role is not None
        while reply is not LATER:
            started = now()
            if self._asked is not None and self._remote is not None and self._remote.through:
                self._finish_asked(self._asked)
            try:
                effect = role.send(reply)
            except StopIteration:
                self._end()
                return
            if self._trained is not None:
                self._settle(self._trained)
            self.pending = effect
            asked = now()
            reply = self._timed(effect, asked - started, asked)

    def _timed(self, effect: Effect[Any], update: float, asked: float) -> Any:
        """Perform `effect`, asked for at `asked` after `update` seconds in the strategy's code, and count both
        times."""
        backend = self._clocked
        backend.entered(effect, asked)
        rule = _RULES.get(type(effect)) or _rule_of(effect)
        reply = rule(self, effect)
        backend.left()
        elapsed, gradient = backend.now() - asked, self._gradient_seconds
        counts, rank = self._state.counts, self._state.rank
        lane = self.lane
        if lane is not None and not lane.full:
            lane.note(ON_UPDATE, asked - update, asked)
            lane.note(ON_GRADIENT, asked, asked + gradient)
            lane.note(span_kind(effect), asked + gradient, asked + elapsed)
        if update:
            counts.update_s[rank] += update
        if gradient:
            counts.gradient_s[rank] += gradient
            self._gradient_seconds = 0.0
        begun = effect.effect if isinstance(effect, Begin) else effect
        if isinstance(begun, Wait):
            begun = begun.handle.pending[0]
        elif isinstance(begun, MEANS):
            counts.means[rank] += 1
        if isinstance(begun, Draw):
            counts.between_s[rank] += elapsed
        else:
            spent = counts.mean_s if isinstance(begun, MEANS) else counts.exchange_s
            spent[rank] += elapsed - gradient
        return reply

    def _gradient(self, effect: Grad | GradMean, on_ready: OnReady | None) -> Gradient | Later:
        started = self._clocked.now()
        gradient = super()._gradient(effect, on_ready)
        self._gradient_seconds += self._clocked.now() - started
        return gradient
