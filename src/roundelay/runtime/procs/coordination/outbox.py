"""Outbox of a learner for exchanges with rows of other hosts: it writes a request here, and reads the reply.

A learner never touches the network: threads of its host's process do (runtime/hosts/exchange/client.py).

A request is a short JSON text in the arena and a number that goes up by one; a byte through a pipe wakes the client.
The reply is a version, and the same number: then row and private vectors are as the exchange has left them.
"""

import json
import math
import os
from dataclasses import asdict, astuple
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundelay.algorithms.rules import REPORTS, describe
from roundelay.core.effects import Exchange, Fetch, Gather, Reach
from roundelay.core.errors import UserError
from roundelay.core.flat import WHOLE
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.patience import Patience
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views import NONE

LEFT_OUT = -2
"""The answer to a gathering for which what the learner came with does not count."""


def is_here(row: int, learners: int, here: tuple[int, ...]) -> bool:
    """Does `row` belong to the host whose learners are `here`? The centre is where learner 0 is."""
    return (0 if row == learners else row) in here


def read_text(arena: Arena, rank: int) -> Any:
    """The request of learner `rank`."""
    return json.loads(_text(arena, rank).tobytes().rstrip(b"\0"))


def _text(arena: Arena, rank: int) -> NDArray[np.uint8]:
    text: NDArray[np.uint8] = arena.requests.text[rank].view(np.uint8)
    return text


def _gathering(effect: Gather) -> dict[str, Any]:
    """A gathering without what is given to it, as JSON."""
    measured = {"norm": effect.norm, "loss": effect.loss}
    return {
        "quorum": asdict(effect.terms),
        "close": describe(effect.close.rule),
        "beside": list(effect.close.theirs),
        "last": effect.last,
        **{name: value if math.isfinite(value) else None for name, value in measured.items()},
    }


class Outbox:
    """One learner's side. One request is under way at a time.

    Args:
        here: the learners of this host.
        wake: path of the pipe that wakes this learner's channel of the host's client.
    """

    def __init__(self, arena: Arena, rank: int, here: tuple[int, ...], wake: str, patience: Patience) -> None:
        self._arena, self._rank, self._here, self._patience = arena, rank, here, patience
        self._asked, self._done = arena.requests.asked, arena.requests.done
        self._awaited = arena.requests.awaited
        self._names = {arena.vector(name, rank).data_ptr(): name for name in arena.layout.memory}
        try:
            self._wake = os.open(wake, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise RuntimeError(f"learner {rank}: the exchange client of its host is not there ({error})") from error
        self._send({})  # whatever a learner that had this place before has asked for comes to nothing

    def takes(self, row: int) -> bool:
        """Is `row` one of another host?"""
        return not is_here(row, self._arena.layout.learners, self._here)

    def ask(self, effect: Reach | Gather) -> None:
        """Hand over a request.

        Raises:
            UserError: another host cannot do this; says why.
        """
        peer = effect.close.peer if isinstance(effect, Gather) else effect.peer
        text: dict[str, Any] = {"peer": peer}
        try:
            if isinstance(effect, Exchange):
                text |= self._exchange(effect)
            elif isinstance(effect, Gather):
                text |= {} if effect.give is None else self._exchange(effect.give)
                text["gather"] = _gathering(effect)
            elif isinstance(effect, Fetch):
                text["into"] = self._name(effect.into.data_ptr())
            else:
                raise UserError(
                    f"{type(effect).__name__} with row {peer}, of another host: only Exchange, Fetch and Gather reach "
                    "rows of other hosts. Run this strategy on one host."
                )
        except ValueError as error:
            raise UserError(f"an exchange with learner {peer} of another host: {error}.") from error
        self.wait(peer)
        self._send(text)

    def _exchange(self, effect: Exchange) -> dict[str, Any]:
        rule, private = describe(effect.rule), [self._name(vector.data_ptr()) for vector in effect.private]
        to_centre = effect.peer == self._arena.layout.learners
        reports = to_centre and len(private) == 1 and rule["name"] in REPORTS
        along = bool(effect.theirs) and not to_centre and list(effect.theirs) == private
        part = effect.fragment != WHOLE
        plain = not (effect.theirs or effect.private or effect.since is not None) and effect.codec.exact
        if (effect.theirs and not (reports or along)) or (part and not plain):
            raise UserError(
                f"an exchange with row {effect.peer}, of another host, is of a fragment and of more than rows, or asks "
                "for what that row's learner remembers and this one does not bring: neither travels. Run this strategy "
                "on one host."
            )
        text: dict[str, Any] = {"rule": rule, "since": effect.since, "private": [] if along else private}
        text |= {} if effect.decay is None else {"decay": list(effect.decay)}
        text |= {"part": list(astuple(effect.fragment))} if part else {}
        text |= {"report": list(effect.theirs)} if reports else {"along": private} if along else {}
        return text if effect.codec.exact else text | self._coded(effect)

    def _coded(self, effect: Exchange) -> dict[str, str]:
        codec = effect.codec
        if effect.private or effect.since is not None:
            raise UserError(f"an exchange by codec {codec.name} is for rules of nothing but the two rows.")
        if codec.memory not in ("", *self._arena.layout.memory):
            raise UserError(f"the memory {codec.memory!r} of codec {codec.name} is none of the strategy's vectors.")
        return {"codec": codec.name, "memory": codec.memory}

    def _send(self, text: dict[str, Any]) -> None:
        data, place = json.dumps(text).encode(), _text(self._arena, self._rank)
        if len(data) > len(place):
            raise UserError(f"a request of {len(data)} bytes to another host: rules may have a few numbers only.")
        place[:] = 0
        place[: len(data)] = np.frombuffer(data, np.uint8)
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
        """Is the last request answered?"""
        return bool(self._done[self._rank] == self._asked[self._rank])

    def wait(self, peer: int) -> int | None:
        """The answer to the last request: the version of row `peer`, or LEFT_OUT, or None: nobody is there.

        Raises:
            TimeoutError: the client does not reply.
        """
        if not self.through:
            publish(self._awaited, self._rank, int(self._asked[self._rank]))
            os.write(self._wake, b"!")  # it is to begin now, if it has not
            self._patience.until(lambda: self.through, f"an exchange with row {peer}, of another host")
        version = int(self._arena.requests.version[self._rank])
        return None if version == NONE else version
