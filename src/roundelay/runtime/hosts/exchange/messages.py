"""Headers of the messages of exchanges: written by clients, checked and read by servers.

Legend: P parameters.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any, Self, final

from torch import Tensor

from roundelay.algorithms.averaging import shares_of
from roundelay.algorithms.codecs import CODECS, codec_named
from roundelay.algorithms.rules import REPORTS, find
from roundelay.core.codec import FP32, Codec
from roundelay.core.effects import Exchange, Gather, Quorum, Rule
from roundelay.core.flat import WHOLE, VectorFragment
from roundelay.runtime.hosts.exchange.row_format import Fragment, room, swapped
from roundelay.runtime.hosts.transport.wire import BadFrame, Message
from roundelay.runtime.procs.memory.arena import Arena, Layout

LARGEST_NUMBER = 1 << 62
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
        codec: by which it travels.
        private: how many private vectors (P,) of the asker the rule takes.
        since: the version of the peer's row from which the rule's age counts; None: it takes none.
        asked: the number of the request by which the owner of the visited row has asked for this exchange; None: the
            owner of the row that travels has asked.
        report: it is one (algorithms/rules.py): what the row has changed travels alone.
        beside: names of vectors beside the centre that the rule of a report takes behind the private one.
        along: names of vectors that both learners keep, and that take part as their rows do: the rule takes those of
            the one and then those of the other.
        decay: factors on the masses of the row of the learner that asked and of the other, where the rule weighs rows.
        mass: of the row that travels, when it was sent.
        by_run: the run has chosen the codec, so each end remembers by itself what it leaves out; else the strategy has,
            and the codec's memory is a vector of its own.
    """

    peer: int
    rule: dict[str, Any]
    fragment: Fragment
    codec: Codec
    private: int = 0
    since: int | None = None
    asked: int | None = None
    by_run: bool = True
    report: bool = False
    beside: tuple[str, ...] = ()
    along: tuple[str, ...] = ()
    decay: tuple[float, float] | None = None
    mass: float = 0.0

    @property
    def mutual(self) -> bool:
        """True if the rule takes of both ends the same: only then may it be asked of a lower rank."""
        return not self.private and self.since is None

    @property
    def simple(self) -> bool:
        """True if the rule takes nothing but the two rows: only then may they travel in fragments or coded."""
        return self.mutual and not self.along

    @property
    def returns(self) -> bool:
        """Does a vector come back?"""
        return not self.report or REPORTS[self.rule["name"]]

    def carried(self, fragment: Fragment, codec: Codec, by_run: bool) -> Self:
        """The same, of `fragment` and by `codec`."""
        return replace(self, fragment=fragment, codec=codec, by_run=by_run)

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
            "wire": self.codec.name,
            "chunks": [self.fragment.first, self.fragment.stop],
            **({} if self.asked is None else {"asked": self.asked}),
            **({} if self.by_run else {"memory": self.codec.memory}),
            **({"report": list(self.beside)} if self.report else {}),
            **({"along": list(self.along)} if self.along else {}),
            **({"decay": list(self.decay), "mass": self.mass} if self.decay is not None else {}),
            **({"part": list(astuple(self.fragment.part))} if self.fragment.part != WHOLE else {}),
        }

    @property
    def vector_bytes(self) -> int:
        """Of the part that travels, each way, with what goes along."""
        return self.codec.bytes_of(self.fragment.size) + FP32.bytes_of(self.fragment.size) * len(self.along)

    def memory(self, arena: Arena, row: int, own: Callable[[], Tensor]) -> Tensor | None:
        """The vector (P,) for what is left out of a row of this host, guarded by the row's lock; None: it is lost, or
        nothing is.

        Args:
            own: of this end, for a codec that the run has chosen.
        """
        if self.codec.exact:
            return None
        if self.by_run:
            return own()
        centre = arena.layout.learners
        return arena.vector(self.codec.memory, row) if self.codec.memory and row != centre else None

    def share(self, visited: float) -> float:
        """The share of the row of the learner that asked in the two, where the row that is `visited` has that mass."""
        return shares_of((self.mass, visited) if self.asked is None else (visited, self.mass))[0]

    @property
    def decays(self) -> tuple[float, float]:
        """Factors on the masses of the row that travels and of the row that is visited; 1 where rows are not
        weighed."""
        mine, theirs = self.decay or (1.0, 1.0)
        return (mine, theirs) if self.asked is None else (theirs, mine)

    def applied(self, age: int | None = None, strategy: Any = None, share: float | None = None) -> Rule:
        """The rule for the row that travels and the row that is visited, in this order.

        Args:
            strategy: of the run, whose rule it may be.
            share: of the row of the learner that asked, where rows are weighed.

        Raises:
            ValueError: there is no such rule.
        """
        others = self.private + len(self.beside) + 2 * len(self.along)
        rule = find(self.rule, others, self.since is not None, strategy, self.decay is not None)
        if age is not None:
            rule = partial(rule, age=age)
        if share is not None:
            rule = partial(rule, share=share)
        return rule if self.asked is None else swapped(rule)

    @classmethod
    def read(cls, message: Message, layout: Layout, strategy: Any = None) -> Self:
        """The terms that a message says, all of them checked; `strategy` is the run's.

        Raises:
            Senseless: no client of ours says that.
        """
        header, since, asked = message.header, None, None
        private = whole_number(header, "private", 1 + len(layout.memory))
        if header.get("since") is not None:
            since = whole_number(header, "since", LARGEST_NUMBER)
        if header.get("asked") is not None:
            asked = whole_number(header, "asked", LARGEST_NUMBER)
        all_, ends, wire = Fragment.whole(layout.parameters), header.get("chunks"), header.get("wire")
        if not isinstance(ends, list) or len(ends) != 2 or not isinstance(wire, str) or wire not in CODECS:
            raise Senseless("neither a part of the row nor a codec")
        memory, by_run = header.get("memory", ""), "memory" not in header
        if memory not in ("", *layout.memory):
            raise Senseless("a memory that learners have not")
        first, stop = (whole_number({"end": end}, "end", all_.stop + 1) for end in ends)
        if not first < stop:
            raise Senseless("an empty part of the row")
        fragment = Fragment(first, stop, layout.parameters, read_part(header))
        if not fragment.size:
            raise Senseless("an empty part of the row")
        terms = cls(
            whole_number(header, "peer", layout.rows),
            header.get("rule", {}),
            fragment,
            codec_named(wire, memory=memory),
            private,
            since,
            asked,
            by_run,
            "report" in header,
            names_among(header.get("report", []), layout.centre_memory),
            names_among(header.get("along", []), layout.memory),
            *_read_weights(header, layout),
        )
        if terms.report:
            terms.check_report(layout)
        if fragment.part != WHOLE and not terms.simple:
            raise Senseless("a part of what goes whole")
        if terms.along and (not terms.mutual or terms.peer == layout.learners):
            raise Senseless("vectors of both learners, where there is but one")
        if (not terms.simple and not terms.codec.exact) or (not terms.mutual and asked is not None):
            raise Senseless("private vectors or an age where only two rows are allowed")
        vectors = 0 if terms.report else private
        payload = terms.vector_bytes + 4 * fragment.size * vectors if message.kind == "exchange" else 0
        if len(message.payload) != payload:
            raise Senseless(f"{len(message.payload)} bytes, where {payload} are due")
        try:
            terms.applied(strategy=strategy)
        except ValueError as error:
            raise Senseless(str(error)) from error
        return terms

    def check_report(self, layout: Layout) -> None:
        """
        Raises:
            Senseless: this is no report to the centre.
        """
        named = self.rule.get("name") if isinstance(self.rule, Mapping) else None
        if self.peer != layout.learners or self.private != 1 or not isinstance(named, str) or named not in REPORTS:
            raise Senseless("what lies beside the centre is for reports to it")


def read_gather(header: Mapping[str, Any], layout: Layout, give: Exchange | None, strategy: Any) -> Gather:
    """The gathering to which a learner elsewhere comes, or waits in, by what a message says of it.

    Args:
        give: what it gives, if anything.

    Raises:
        Senseless: no client of ours says that.
    """
    said = header["gather"]
    if not isinstance(said, Mapping):
        raise Senseless("no gathering")
    try:
        quorum, beside = Quorum(**said["quorum"]), names_among(said["beside"], layout.centre_memory)
        close = Exchange(layout.learners, find(said["close"], len(beside), False, strategy), theirs=beside)
        norm, loss = (math.nan if said[name] is None else float(said[name]) for name in ("norm", "loss"))
        gather = Gather(quorum, give, close, said["last"] is True, norm, loss)
    except (KeyError, TypeError, ValueError) as error:
        raise Senseless(f"no gathering: {error!r}") from error
    numbers = (quorum.needed, quorum.spread, quorum.grace or 0, quorum.guard or 0)
    if not all(isinstance(number, int | float) and 0 <= number < LARGEST_NUMBER for number in numbers):
        raise Senseless("a gathering on terms that are none")
    return gather


def _read_weights(header: Mapping[str, Any], layout: Layout) -> tuple[tuple[float, float] | None, float]:
    """Factors on the masses of two rows, and the mass of the one that travels; None and 0 where rows are not weighed.

    Raises:
        Senseless: they are none, or rows have no masses here.
    """
    if "decay" not in header:
        return None, 0.0
    decay = header["decay"]
    if not layout.weighed or not isinstance(decay, list) or len(decay) != 2 or header["peer"] == layout.learners:
        raise Senseless("weights of rows that have none")
    mine, theirs = (_real({"factor": factor}, "factor", 1.0) for factor in decay)
    return (mine, theirs), _real(header, "mass", LARGEST_NUMBER)


def _real(header: Mapping[str, Any], name: str, largest: float) -> float:
    """The number `name`, from 0 up to `largest`.

    Raises:
        Senseless: there is none.
    """
    value = header.get(name)
    if not (type(value) is float or type(value) is int) or not 0 <= value <= largest:
        raise Senseless(f"{name} is no number from 0 to {largest:g}")
    return float(value)


def read_part(header: Mapping[str, Any]) -> VectorFragment:
    """The part of the rows that a strategy has said.

    Raises:
        Senseless: it is none.
    """
    if "part" not in header:
        return WHOLE
    part = header["part"]
    if not isinstance(part, list) or len(part) != 2:
        raise Senseless("no part of a row")
    of = whole_number({"of": part[1]}, "of", LARGEST_NUMBER)
    return VectorFragment(whole_number({"number": part[0]}, "number", of), of)


def names_among(names: Any, known: Sequence[str]) -> tuple[str, ...]:
    """Names of vectors, as a message says them.

    Raises:
        Senseless: they are not among those that are `known`.
    """
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Senseless("no names")
    if not set(names) <= set(known):
        raise Senseless("vectors that nobody keeps here")
    return tuple(names)


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
    if type(value) is not int or abs(value) >= LARGEST_NUMBER:
        raise BadFrame(f"a reply without {name}")
    return value


def fraction(message: Message, name: str) -> float:
    """A number of a reply from 0 to 1.

    Raises:
        BadFrame: there is none.
    """
    try:
        return _real(message.header, name, 1.0)
    except Senseless as error:
        raise BadFrame(f"a reply without {name}") from error


def largest(layout: Layout) -> int:
    """Bytes that may go over a link for exchanges at once: a row, and all that a learner remembers besides."""
    return room(layout.parameters, 1 + len(layout.memory))
