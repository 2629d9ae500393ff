"""The engine of effects: runs the coroutine of one learner, and knows the meaning of every effect.

It does no input or output: it has no threads, no sockets, no locks, no clock and no arithmetic on vectors. Whatever
touches the world is a primitive of its `Backend` (`backend.py`); a runtime is a backend. These are the rules:

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
    Begin(Exchange) with a living learner of this host
                    deferred: done with the next step (`deferred.py`), at the latest in the wait. One at a time
    Begin(anything else)        done at once
    Gather          give, unless the contribution is left out, and wait; whoever is to close it closes it. Where the
                    centre is on another host, all of this is done there
    Wait            the reply if it is there, else what is left to do

A primitive may answer LATER: the coroutine is left where it is, `pending` says at which effect, and the effect is asked
for again by `go_on` when the backend is ready.

Every effect is timed, counted and, where a run is recorded, noted.
"""

from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from roundelay.core.effects import Begin, Draw, Effect, Exchange, Gather, Grad, GradMean, Handle, Mean, Mix, Reach, Wait
from roundelay.core.flat import WHOLE
from roundelay.core.state import Gradient, Minibatch, Statistics
from roundelay.learner.base import OnReady
from roundelay.runtime.backend import LATER, NO_REMOTE, Backend, Later, RemoteRows
from roundelay.runtime.deferred import Deferred, DeferredExchange
from roundelay.runtime.learner_state import LearnerState
from roundelay.runtime.rows import Row
from roundelay.runtime.trace import NO_TRACE, Kind, Trace

MEANS = (Mean, Mix, GradMean, Gather)
"""Effects in which a learner meets others."""

NOTHING = -1
"""Number of the minibatch that a recorded Draw at the end of a segment has."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """Kept by the handle of an effect that was begun: the effect, and the reply of `publish`."""

    effect: Effect[Any]
    published: Any = None


class Engine:
    """Runs one learner's coroutine, segment after segment.

    Args:
        deferred: the place from which the learner's steps take the exchange that was begun.
        trace: takes a note of what is drawn, computed and missed; rows note what happens to them.
    """

    def __init__(
        self,
        me: LearnerState,
        backend: Backend,
        deferred: Deferred,
        remote: RemoteRows = NO_REMOTE,
        trace: Trace = NO_TRACE,
    ) -> None:
        self._me, self._backend, self._deferred = me, backend, deferred
        self._remote, self._trace = remote, trace
        self._role: Coroutine[Effect[Any], Any, None] | None = None
        self._asked: Handle[int | None] | None = None  # of the other hosts
        self._queued: deque[Handle[int | None]] = deque()  # exchanges of fragments, to be asked for next
        self._trained: Statistics | None = None
        self._gradient_seconds = 0.0  # of the effect under way
        self.pending: Effect[Any] | None = None
        """The effect that was answered LATER."""

    # The coroutine ----------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """True between `begin` and the end of the coroutine."""
        return self._role is not None

    def begin(self, role: Coroutine[Effect[Any], Any, None]) -> None:
        """Run `role`, a segment, to its end, or to an effect that is answered LATER."""
        self._role, self.pending, self._trained = role, None, None
        self._run(None)

    def go_on(self) -> None:
        """Ask for the pending effect again, and go on as `begin` does."""
        effect = self.pending
        assert effect is not None
        reply = self._timed(effect, 0.0, self._backend.now())
        if reply is not LATER:
            self._run(reply)

    def close(self) -> None:
        """End the coroutine where it is."""
        role, self._role, self.pending = self._role, None, None
        self._deferred.clear()
        self._queued.clear()
        if role is not None:
            role.close()

    def _run(self, reply: Any) -> None:
        role, now = self._role, self._backend.now
        assert role is not None
        while reply is not LATER:
            started = now()
            if self._asked is not None and self._remote.through:
                self._finish_asked(self._asked)
            try:
                effect = role.send(reply)
            except StopIteration:
                if self._trained is not None:
                    self._settle(self._trained)
                self._role = self.pending = None
                return
            if self._trained is not None:
                self._settle(self._trained)
            asked = now()
            reply = self._timed(effect, asked - started, asked)

    def _timed(self, effect: Effect[Any], update: float, asked: float) -> Any:
        """Perform `effect`, asked for now, after so many seconds in the strategy's own code, and count the time."""
        backend = self._backend
        backend.entered(effect, asked)
        reply = self.perform(effect)
        backend.left()
        if reply is LATER:
            self.pending = effect
        elapsed, gradient = backend.now() - asked, self._gradient_seconds
        counts, rank = self._me.counts, self._me.rank
        if update:
            counts.update_s[rank] += update
        if gradient:
            counts.gradient_s[rank] += gradient
            self._gradient_seconds = 0.0
        begun = effect.effect if isinstance(effect, Begin) else effect
        if isinstance(begun, Wait):
            begun = begun.handle.pending.effect
        elif isinstance(begun, MEANS):
            counts.means[rank] += 1
        if not isinstance(begun, Draw):
            spent = counts.mean_s if isinstance(begun, MEANS) else counts.exchange_s
            spent[rank] += elapsed - gradient
        return reply

    def _settle(self, trained: Statistics) -> None:
        """The coroutine has gone on past its last gradient."""
        self._trained = None
        self._backend.settle(trained)

    # Effects ----------------------------------------------------------------------------------------------------------

    def perform(self, effect: Effect[Any]) -> Any:  # noqa: PLR0911 one return an effect
        """The reply to an effect."""
        match effect:
            case Draw(group):
                return self._draw(group)
            case Grad() | GradMean(of_one=True):
                gradient = self._gradient(effect, None)
                if not isinstance(gradient, Later):
                    self._trained = gradient.statistics
                return gradient
            case GradMean() if not effect.of_one:
                return self._gradient_mean(effect)
            case Mean() | Mix():
                return self._backend.collect(effect, self._backend.publish(effect))
            case Reach():
                return self._reach(effect)
            case Gather():
                return self._gather(effect)
            case Begin(begun):
                return self._begin(begun)
            case Wait(handle):
                if not handle.done:
                    self._finish(handle)
                return handle.reply
            case _:
                raise TypeError(f"{type(effect).__name__} is not an effect of this runtime")

    def _draw(self, group: tuple[int, ...]) -> Minibatch | Later | None:
        drawn = self._backend.draw(group)
        if isinstance(drawn, Later):
            return drawn
        if drawn is not None:
            self._me.drawn(drawn)
        self._trace.note(Kind.DRAW, mine=NOTHING if drawn is None else drawn.index)
        return drawn

    def _gradient(self, effect: Grad | GradMean, on_ready: OnReady | None) -> Gradient | Later:
        started = self._backend.now()
        gradient = self._backend.gradient(effect, on_ready)
        self._gradient_seconds += self._backend.now() - started
        if not isinstance(gradient, Later):
            self._trace.note(Kind.GRAD, mine=effect.batch.index, value=gradient.statistics.loss)
        return gradient

    def _gradient_mean(self, effect: GradMean) -> Gradient | Later:
        backend = self._backend
        on_ready = backend.announce(effect)
        own = self._gradient(effect, on_ready)
        if isinstance(own, Later):
            return own
        mean = backend.collect(effect, backend.publish_gradient(effect, own, on_ready))
        self._trained = own.statistics
        return Gradient(mean, own.version, own.statistics, own.weight)

    def _reach(self, effect: Reach) -> int | None:
        """Reach the row of another learner, or the centre, and wait for it."""
        if self._remote.takes(effect.peer):
            handle: Handle[int | None] = Handle()
            self._ask(effect, handle)
            if not handle.done:
                self._finish_asked(handle)
            return handle.reply  # type: ignore[no-any-return]
        if not self._backend.lives(effect.peer):
            self._trace.note(Kind.GONE, effect.peer)
            return None
        version = self._backend.reach(effect)
        if version is not None and isinstance(effect, Exchange):
            self._me.count_exchange(effect, version)
        return version

    def _gather(self, gather: Gather) -> bool:
        """Come to a gathering, and go on when it is closed."""
        backend, trace = self._backend, self._trace
        if self._remote.takes(gather.close.peer):
            return self._gather_elsewhere(gather)
        counts = backend.admits(gather)
        trace.note(Kind.COME, value=float(counts))
        if counts and gather.give is not None:
            self._reach(gather.give)
        closes = backend.closes(gather)
        trace.note(Kind.MET, value=float(closes))
        if closes:
            self._reach(gather.close)
            backend.closed(gather)
        return counts

    def _gather_elsewhere(self, gather: Gather) -> bool:
        """The same at the host that has the centre, as one request."""
        self.finish_asked()
        self._remote.ask(gather)
        version = self._remote.wait(gather.close.peer)
        if version is None or version < 0:
            return False
        if gather.give is not None:
            self._me.count_exchange(gather.give, version)
        return True

    # Begin and Wait ---------------------------------------------------------------------------------------------------

    def _begin(self, effect: Effect[Any]) -> Handle[Any]:
        handle: Handle[Any] = Handle()
        handle.pending = _Begun(effect)
        match effect:
            case Mean() | Mix():
                handle.pending = _Begun(effect, self._backend.publish(effect))
            case Exchange(peer, fragment=part) if part != WHOLE and self._asked and self._remote.takes(peer):
                self._queued.append(handle)
            case Reach(peer) if self._remote.takes(peer):
                self._ask(effect, handle)
            case Exchange(peer) if not self._deferred.occupied and (row := self._deferrable(peer)) is not None:
                self._deferred.put(DeferredExchange(effect, row, partial(self._backend.lives, peer), handle))
            case _:
                handle.finish(self.perform(effect))
        return handle

    def _deferrable(self, peer: int) -> Row | None:
        return self._backend.deferrable(peer) if self._backend.lives(peer) else None

    def _finish(self, handle: Handle[Any]) -> None:
        """Wait for what was begun."""
        begun = handle.pending
        if self._deferred.withdraw(handle) is not None:
            handle.finish(self._reach(begun.effect))
        elif isinstance(begun.effect, Reach):
            while not handle.done and self._asked is not None:
                self._finish_asked(self._asked)
        else:
            handle.finish(self._backend.collect(begun.effect, begun.published))

    def finish_deferred(self) -> None:
        """Do the deferred exchange now, without a step."""
        found = self._deferred.withdraw()
        if found is not None:
            found.handle.finish(self._reach(found.request))

    # Other hosts ------------------------------------------------------------------------------------------------------

    def _ask(self, effect: Reach, handle: Handle[Any]) -> None:
        """Have it done by another host; `handle` is finished in `_finish_asked`, unless nobody is there."""
        self.finish_asked()  # one at a time
        if self._backend.lives(effect.peer):
            self._remote.ask(effect)
            handle.pending, self._asked = _Begun(effect), handle
        else:
            handle.finish(None)

    def _finish_asked(self, handle: Handle[Any]) -> None:
        effect, self._asked = handle.pending.effect, None
        version = self._remote.wait(effect.peer)
        if version is not None and isinstance(effect, Exchange):
            self._me.count_exchange(effect, version)
        handle.finish(version)
        while self._queued and self._asked is None:
            following = self._queued.popleft()
            self._ask(following.pending.effect, following)

    def finish_asked(self) -> None:
        """Wait for what other hosts have been asked, if there is anything: nobody reads rows between segments that are
        still being written."""
        while self._asked is not None:
            self._finish_asked(self._asked)
