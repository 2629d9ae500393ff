"""Headers of the messages of exchanges: written by clients, checked and read by servers.

Legend: P parameters.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, final

from roundelay.algorithms.rules import find
from roundelay.core.effects import Rule
from roundelay.runtime.hosts.exchange.codec import WIDTH, Fragment, swapped
from roundelay.runtime.hosts.transport.wire import BadFrame, Message
from roundelay.runtime.procs.memory.arena import Layout

LARGEST = 1 << 62
"""Beyond all numbers of requests and versions."""


class Senseless(Exception):
    """A message that no client of ours sends."""


@final
@dataclass(frozen=True)
class ExchangeTerms:
    """The terms of one exchange, the same at both ends.

    Args:
        peer: the row that the message is for: the one that is visited, or, in a `request`, the one that is to travel.
        rule: its name and numbers, as algorithms/rules.py describes it.
        fragment: the part of the rows that takes part.
        wire: in what precision it travels.
        private: how many private vectors (P,) of the asker the rule takes.
        since: the version of the peer's row from which the rule's age counts; None: it takes none.
        asked: the number of the request by which the owner of the visited row has asked for this exchange; None: the
            owner of the row that travels has asked.
    """

    peer: int
    rule: dict[str, Any]
    fragment: Fragment
    wire: str
    private: int = 0
    since: int | None = None
    asked: int | None = None

    @property
    def simple(self) -> bool:
        """True if the rule takes nothing but the two rows: only then may it be asked of a lower rank, or travel in
        fragments or fewer bits."""
        return not self.private and self.since is None

    def carried(self, fragment: Fragment, wire: str) -> Self:
        """The same, of `fragment` and in precision `wire`."""
        return replace(self, fragment=fragment, wire=wire)

    def turned_to(self, asker: int, asked: int) -> Self:
        """The terms of the exchange that learner `asker` asks for by request number `asked`: its row is visited."""
        return replace(self, peer=asker, asked=asked)

    @property
    def header(self) -> dict[str, Any]:
        """For a message."""
        return {
            "peer": self.peer,
            "rule": self.rule,
            "since": self.since,
            "private": self.private,
            "wire": self.wire,
            "chunks": [self.fragment.first, self.fragment.stop],
            **({} if self.asked is None else {"asked": self.asked}),
        }

    @property
    def vector_bytes(self) -> int:
        """Of the part that travels, each way."""
        return self.fragment.size * WIDTH[self.wire]

    def applied(self, age: int | None = None) -> Rule:
        """The rule for the row that travels and the row that is visited, in this order.

        Raises:
            ValueError: there is no such rule.
        """
        rule = find(self.rule, self.private, self.since is not None)
        if age is not None:
            rule = partial(rule, age=age)
        return rule if self.asked is None else swapped(rule)

    @classmethod
    def read(cls, message: Message, layout: Layout) -> Self:
        """The terms that a message says, all of them checked.

        Raises:
            Senseless: no client of ours says that.
        """
        header, since, asked = message.header, None, None
        private = whole_number(header, "private", 1 + len(layout.memory))
        if header.get("since") is not None:
            since = whole_number(header, "since", LARGEST)
        if header.get("asked") is not None:
            asked = whole_number(header, "asked", LARGEST)
        all_, ends, wire = Fragment.whole(layout.parameters), header.get("chunks"), header.get("wire")
        if not isinstance(ends, list) or len(ends) != 2 or not isinstance(wire, str) or wire not in WIDTH:
            raise Senseless("neither a part of the row nor a precision")
        first, stop = (whole_number({"end": end}, "end", all_.stop + 1) for end in ends)
        if not first < stop:
            raise Senseless("an empty part of the row")
        fragment = Fragment(first, stop, layout.parameters)
        terms = cls(
            whole_number(header, "peer", layout.rows), header.get("rule", {}), fragment, wire, private, since, asked
        )
        if not terms.simple and (wire != "fp32" or asked is not None):
            raise Senseless("private vectors or an age where only two rows are allowed")
        payload = terms.vector_bytes + 4 * fragment.size * private if message.kind == "exchange" else 0
        if len(message.payload) != payload:
            raise Senseless(f"{len(message.payload)} bytes, where {payload} are due")
        try:
            terms.applied()
        except ValueError as error:
            raise Senseless(str(error)) from error
        return terms


def whole_number(header: dict[str, Any], name: str, stop: int) -> int:
    """The whole number `name`, from 0 up to, not including, `stop`.

    Raises:
        Senseless: there is none.
    """
    value = header.get(name)
    if type(value) is not int or not 0 <= value < stop:
        raise Senseless(f"{name} is no whole number from 0 to {stop - 1}")
    return value


def integer(message: Message, name: str) -> int:
    """An integer of a reply, either sign.

    Raises:
        BadFrame: there is none.
    """
    value = message.header.get(name)
    if type(value) is not int or abs(value) >= LARGEST:
        raise BadFrame(f"a reply without {name}")
    return value


def largest(layout: Layout) -> int:
    """Bytes that may go over a link for exchanges at once: a row, and all that a learner remembers besides."""
    return 4 * layout.parameters * (1 + len(layout.memory))
