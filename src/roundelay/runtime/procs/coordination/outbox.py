"""Outbox of a learner for exchanges with rows of other hosts: it writes a request here, and reads the reply.

A learner never touches the network: threads of its host's process do (runtime/hosts/exchange/client.py).

A request is a short JSON text in the arena and a number that goes up by one; a byte through a pipe wakes the client.
The reply is a version, and the same number: then row and private vectors are as the exchange has left them.
"""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, final

import numpy as np
from numpy.typing import NDArray

from roundelay.algorithms.rules import REPORTS, describe
from roundelay.core.codec import FP32, Codec
from roundelay.core.effects import Exchange, Fetch, Gather, Quorum, Reach
from roundelay.core.errors import UserError
from roundelay.core.flat import WHOLE, VectorFragment
from roundelay.runtime.backend import RemoteRows
from roundelay.runtime.messages import Message, Number, Range, plain, read
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views import NONE, Integers
from roundelay.runtime.rows import Row
from roundelay.runtime.trace import Kind, Trace

LEFT_OUT = -2
"""The answer to a gathering in which the learner's contribution does not count."""


BY_RUN = "*"
"""Name in place of a codec's memory where the run has chosen the codec: each end keeps the part left out by itself."""
Factor = Annotated[float, Range(0, 1)]


@final
@dataclass(frozen=True)
class Gathering:
    """The terms of a gathering, without the vectors that are given to it."""

    quorum: Quorum
    close: dict[str, Any]  # the rule by which it closes, as algorithms/rules.py describes it
    beside: tuple[str, ...]  # names of vectors beside the centre that this rule takes
    last: bool
    # norm, loss: None where they are not finite.
    norm: Number | None
    loss: Number | None


class ExchangeFacts(Message):
    """Facts of an exchange, as a message in shared memory and between hosts."""

    # its name and numbers, as algorithms/rules.py describes it; None: there is no exchange.
    rule: dict[str, Any] | None = None
    since: int | None = None  # the version of the peer's row from which the rule's age counts; None: it takes none
    wire: Codec = FP32  # the codec by which the row travels, if the strategy has chosen it
    memory: str = BY_RUN  # the vector for what that leaves out; BY_RUN: the run chooses the codec
    # it is a report, and these are names of vectors beside the centre that its rule takes.
    report: tuple[str, ...] | None = None
    along: tuple[str, ...] = ()  # names of vectors that both learners keep, and that take part as their rows do
    # factors on the masses of the row of the learner that asked and of the other, where rows are weighed.
    decay: tuple[Factor, Factor] | None = None
    part: VectorFragment = WHOLE  # of the row, as the strategy has said


class PeerRequest(ExchangeFacts):
    """A learner's request that concerns a row of another host."""

    peer: Annotated[int, Range(-1)] = -1  # that row; -1: nothing is asked for
    private: tuple[str, ...] = ()  # names of vectors of the learner that the rule takes
    into: str = ""  # name of the vector into which the row is to be copied; "" where it is not
    gather: Gathering | None = None  # the gathering to which the learner comes, if it does


def is_here(arena: Arena, row: int, here: Sequence[int]) -> bool:
    """Return True if `row` belongs to the host whose learners are `here`. The centre is with the first host, or with
    the one that leads a session in its place."""
    return (int(arena.requests.centre[0]) if row == arena.layout.learners else row) in here


def read_request(arena: Arena, rank: int) -> PeerRequest:
    """Return the request of learner `rank`."""
    return read(PeerRequest, json.loads(_text(arena, rank).tobytes().rstrip(b"\0")))


def _text(arena: Arena, rank: int) -> NDArray[np.uint8]:
    text: NDArray[np.uint8] = arena.requests.text[rank].view(np.uint8)
    return text


def _gathering(effect: Gather) -> Gathering:
    norm, loss = (value if math.isfinite(value) else None for value in (effect.norm, effect.loss))
    return Gathering(effect.terms, describe(effect.close.rule), effect.close.theirs, effect.last, norm, loss)


class Outbox:
    """One learner's side of its outbox. One request is under way at a time.

    Args:
        here: the learners of this host.
        wake: path of the pipe that wakes this learner's channel of the host's client.
    """

    def __init__(self, arena: Arena, rank: int, here: tuple[int, ...], wake: str, patience: Patience) -> None:
        self._arena, self._rank, self._here, self._patience = arena, rank, here, patience
        self._asked, self._done = arena.requests.asked, arena.requests.done
        self._awaited, self._centre, self._asked_at = arena.requests.awaited, arena.requests.centre, NONE
        self._names = {arena.vector(name, rank).data_ptr(): name for name in arena.layout.memory}
        try:
            self._wake = os.open(wake, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise RuntimeError(f"learner {rank}: the exchange client of its host is not there ({error})") from error
        self._send(PeerRequest())  # requests of an earlier learner in this place come to nothing

    def takes(self, row: int) -> bool:
        """Return True if `row` belongs to another host; if it is a lost centre, first wait until it is made again.

        Raises:
            TimeoutError: the centre is not made again within the learner's patience.
        """
        if row == self._arena.layout.learners:
            self._patience.until(lambda: bool(self._centre[0] != NONE), "the centre, whose host is lost, on another")
        return not is_here(self._arena, row, self._here)

    def moved(self, row: int) -> bool:
        """Return True if `row` is a centre that was on another host when the last request was made."""
        return bool(row == self._arena.layout.learners and self._centre[0] != self._asked_at)

    def ask(self, effect: Reach | Gather) -> None:
        """Lay out a request to another host for `effect`, and wake the client that sends it.

        Raises:
            UserError: another host cannot perform `effect`; says why.
        """
        peer = effect.close.peer if isinstance(effect, Gather) else effect.peer
        request = PeerRequest(peer=peer)
        try:
            if isinstance(effect, Exchange):
                request = self._exchange(effect)
            elif isinstance(effect, Gather):
                request = request if effect.give is None else self._exchange(effect.give)
                request = replace(request, gather=_gathering(effect))
            elif isinstance(effect, Fetch):
                request = replace(request, into=self._name(effect.into.data_ptr()))
            else:
                raise UserError(
                    f"{type(effect).__name__} with row {peer}, of another host: only Exchange, Fetch and Gather reach "
                    "rows of other hosts. Run this strategy on one host."
                )
        except ValueError as error:
            raise UserError(f"an exchange with learner {peer} of another host: {error}.") from error
        self.wait(peer)
        self._send(request)

    def _exchange(self, effect: Exchange) -> PeerRequest:
        rule, private = describe(effect.rule), tuple(self._name(vector.data_ptr()) for vector in effect.private)
        to_centre = effect.peer == self._arena.layout.learners
        reports = to_centre and len(private) == 1 and rule["name"] in REPORTS
        along = bool(effect.theirs) and not to_centre and effect.theirs == private
        whole = not (effect.theirs or effect.private or effect.since is not None) and effect.codec.exact
        if (effect.theirs and not (reports or along)) or (effect.fragment != WHOLE and not whole):
            raise UserError(
                f"an exchange with row {effect.peer}, of another host, is of a fragment and of more than rows, or asks "
                "for what that row's learner remembers and this one does not bring: neither travels. Run this strategy "
                "on one host."
            )
        return PeerRequest(
            rule,
            effect.since,
            effect.codec,
            BY_RUN if effect.codec.exact else self._memory(effect),
            effect.theirs if reports else None,
            private if along else (),
            effect.decay,
            effect.fragment,
            effect.peer,
            () if along else private,
        )

    def _memory(self, effect: Exchange) -> str:
        codec = effect.codec
        if effect.private or effect.since is not None:
            raise UserError(f"an exchange by codec {codec.name} is for rules of nothing but the two rows.")
        if codec.memory not in ("", *self._arena.layout.memory):
            raise UserError(f"the memory {codec.memory!r} of codec {codec.name} is none of the strategy's vectors.")
        return codec.memory

    def _send(self, request: PeerRequest) -> None:
        data, place = json.dumps(request.header, default=plain).encode(), _text(self._arena, self._rank)
        if len(data) > len(place):
            raise UserError(f"a request of {len(data)} bytes to another host: rules may have a few numbers only.")
        place[:] = 0
        place[: len(data)] = np.frombuffer(data, np.uint8)
        self._asked_at = int(self._centre[0])
        publish(self._asked, self._rank, int(self._asked[self._rank]) + 1)  # last: the client acts on it
        os.write(self._wake, b"!")

    def _name(self, address: int) -> str:
        try:
            return self._names[address]
        except KeyError:
            raise UserError(
                "an exchange or a fetch with a learner of another host can only use vectors that the strategy has "
                "declared as its memory."
            ) from None

    @property
    def through(self) -> bool:
        """True if the last request is answered."""
        return bool(self._done[self._rank] == self._asked[self._rank])

    def wait(self, peer: int) -> int | None:
        """Return the answer to the last request: the version of row `peer`, or LEFT_OUT, or None: no learner is there.

        Raises:
            TimeoutError: the client does not reply.
        """
        if not self.through:
            publish(self._awaited, self._rank, int(self._asked[self._rank]))
            os.write(self._wake, b"!")  # it is to begin now, if it has not
            self._patience.until(lambda: self.through, f"an exchange with row {peer}, of another host")
        version = int(self._arena.requests.version[self._rank])
        return None if version == NONE else version


@final
class NotedRemote(RemoteRows):
    """A learner's access to rows of other hosts, which notes in a trace each request, and when its answer is taken. For
    the centre, or a copy of a row, the learner waits at once, so request and answer are one event."""

    def __init__(self, remote: RemoteRows, trace: Trace, row: Row, asked: Integers) -> None:
        self._remote, self._trace, self._row, self._asked = remote, trace, row, asked
        self._looks = self._seen = 0
        self._at_once: Kind | None = None  # of the note of an answer

    def takes(self, row: int) -> bool:
        return self._remote.takes(row)

    def moved(self, row: int) -> bool:
        return self._remote.moved(row)

    def ask(self, effect: Reach | Gather) -> None:
        peer = effect.close.peer if isinstance(effect, Gather) else effect.peer
        self._looks = self._seen = 0
        self._at_once = Kind.FETCH if isinstance(effect, Fetch) else None if peer < len(self._asked) else Kind.VISITED
        self._trace.note(Kind.ASKED, peer, int(self._asked[self._row.rank]) + 1)
        self._remote.ask(effect)

    @property
    def through(self) -> bool:
        self._looks += 1
        found = self._remote.through
        self._seen = self._looks if found else 0
        return found

    def wait(self, peer: int) -> int | None:
        version = self._remote.wait(peer)
        with self._row.lock:
            said = -1 if version is None else version
            if version is None or self._at_once is None:
                self._trace.note(Kind.ANSWERED, peer, self._row.version, said, float(self._seen))
            elif self._at_once is Kind.FETCH:
                self._trace.note(Kind.FETCH, peer, theirs=version)
            else:
                self._trace.note(Kind.VISITED, peer, self._row.version - 1, version - 1)
        return version
