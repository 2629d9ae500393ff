"""Messages of exchanges: written by clients, checked and read by servers; and their replies.

Legend: P parameters.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Self, final

from torch import Tensor

from roundelay.algorithms.averaging import shares_of
from roundelay.algorithms.rules import REPORTS, find
from roundelay.core.codec import FP32, Codec
from roundelay.core.effects import Exchange, Gather, Rule
from roundelay.core.flat import WHOLE
from roundelay.runtime.hosts.exchange.row_format import Fragment, room, swapped
from roundelay.runtime.messages import Dialect, Integer, InvalidMessage, Mass, Message, RowNumber
from roundelay.runtime.procs.coordination.outbox import BY_RUN, ExchangeFacts, Factor, Gathering, PeerRequest
from roundelay.runtime.procs.memory.arena import Arena, Layout
from roundelay.strategies.base import Strategy


class ExchangeMessage(ExchangeFacts, kind="exchange"):
    """Message of a client whose row travels, as the payload. The terms are those of `ExchangeTerms`."""

    _: KW_ONLY
    n: int  # number of the message, as the asker counts
    peer: RowNumber
    chunks: tuple[int, int]  # the first chunk of the row that takes part, and the one behind the last
    private: int = 0  # number of private vectors, which come behind the row
    asked: int | None = None
    mass: Mass = 0.0
    gather: Gathering | None = None  # the gathering to which the learner comes by this exchange
    # both rows travel at once: this one follows in a `GiveMessage`, and the other comes in a `FoundReply` meanwhile.
    both: bool = False


class GiveMessage(Message, kind="give"):
    """Message with the row as payload, where both travel at once; it follows the exchange of the same number."""

    n: int


class RequestMessage(ExchangeMessage, kind="request"):
    """Request that the client of a lower rank make an exchange."""


class FetchMessage(Message, kind="fetch"):
    """Request for a row; or, with a gathering, a question whether the learner may go on from it, or word that the
    learner `comes` to it with nothing."""

    n: int
    peer: RowNumber
    gather: Gathering | None = None
    comes: bool = False


class AgainMessage(Message, kind="again"):
    """Question for the result of the exchange of number `n`."""

    n: int


class SettledMessage(Message, kind="settled"):
    """Message that the reply to the exchange of number `n` has come, so the server may forget it."""

    n: int


class Reply(Message):
    """Reply of a server to the message of number `n`."""

    n: int


class RowReply(Reply, kind="row"):
    """Reply that a row was changed, or comes back, as the payload."""

    version: Integer  # of the visited row, as it is now; 0 where a learner only asks whether it is to wait
    age: Integer | None = None  # of it, for rules that take one
    share: Factor | None = None  # of the row of the learner that asked, where rows are weighed
    counts: bool = False  # what came to a gathering does
    waits: bool = False  # the learner is to wait for others at the gathering


class FoundReply(Reply, kind="found"):
    """Reply with the visited row as it was, where both travel at once; a `RowReply` without payload follows."""


class DoneReply(Reply, kind="done"):
    """Reply that a request was carried out, with the version of the row that has travelled."""

    version: Integer


class GoneReply(Reply, kind="gone"):
    """Reply that the request has failed, and changed nothing."""


class UnknownReply(Reply, kind="unknown"):
    """Reply that the exchange asked after never came."""


REPLY_DIALECT = Dialect(RowReply, FoundReply, DoneReply, GoneReply, UnknownReply)
GIVE_DIALECT = Dialect(GiveMessage)


def asked_by(layout: Layout) -> Dialect:
    """Return the messages that a server understands."""
    kinds = ExchangeMessage, GiveMessage, RequestMessage, FetchMessage, AgainMessage, SettledMessage
    return Dialect(*kinds, row=layout.rows - 1)


@final
@dataclass(frozen=True)
class ExchangeTerms:
    """Terms of one exchange, the same at both ends."""

    peer: int  # the row that the message is for: the one that is visited, or, in a `request`, the one that is to travel
    rule: dict[str, Any]  # its name and numbers, as algorithms/rules.py describes it
    fragment: Fragment  # the part of the rows that takes part
    codec: Codec  # by which it travels
    private: int = 0  # how many private vectors (P,) of the asker the rule takes
    since: int | None = None  # the version of the peer's row from which the rule's age counts; None: it takes none
    # the number of the request by which the owner of the visited row has asked for this exchange; None: the owner of
    # the row that travels has asked.
    asked: int | None = None
    # the run has chosen the codec; else the strategy has, and the codec's memory is a vector of its own.
    by_run: bool = True
    report: bool = False  # it is one (algorithms/rules.py): what the row has changed travels alone
    # names of vectors beside the centre that the rule of a report takes behind the private one.
    beside: tuple[str, ...] = ()
    # names of vectors that both learners keep, and that take part as their rows do: the rule takes those of the one and
    # then those of the other.
    along: tuple[str, ...] = ()
    # factors on the masses of the row of the learner that asked and of the other, where the rule weighs rows.
    decay: tuple[float, float] | None = None
    mass: float = 0.0  # of the row that travels, when it was sent

    @property
    def mutual(self) -> bool:
        """True if the rule takes the same from both ends: only then may a lower rank be asked for the exchange."""
        return not self.private and self.since is None

    @property
    def simple(self) -> bool:
        """True if the rule takes nothing but the two rows: only then may they travel in fragments or coded."""
        return self.mutual and not self.along

    def both_travel(self, layout: Layout) -> bool:
        """Return True if the two rows travel at once, so that a link carries both ways at a time. The centre does not:
        it would be in flight, and none but one learner could have it, for as long as a row takes."""
        return self.simple and self.peer != layout.learners

    @property
    def returns(self) -> bool:
        """True if a vector comes back to the client."""
        return not self.report or REPORTS[self.rule["name"]]

    def carried(self, fragment: Fragment, codec: Codec, by_run: bool) -> Self:
        """Return the same terms for `fragment` of the rows, coded by `codec`, which the run has chosen if `by_run`."""
        return replace(self, fragment=fragment, codec=codec, by_run=by_run)

    def turned_to(self, asker: int, asked: int) -> Self:
        """Return the terms of the exchange that learner `asker` asks of a lower rank by request number `asked`, in
        which the asker's row is visited."""
        return replace(self, peer=asker, asked=asked)

    @classmethod
    def asked_for(cls, request: PeerRequest, layout: Layout) -> Self:
        """Return the terms that a learner of this host asks for by `request`, for a whole row in full precision."""
        whole, private, report = Fragment.whole(layout.parameters), len(request.private), request.report
        return cls(
            request.peer,
            request.rule or {},
            whole,
            FP32,
            private,
            request.since,
            report=report is not None,
            beside=report or (),
            along=request.along,
            decay=request.decay,
        )

    def message(
        self,
        n: int,
        kind: type[ExchangeMessage] = ExchangeMessage,
        gather: Gathering | None = None,
        both: bool = False,
    ) -> ExchangeMessage:
        """Return the message of number `n` with these terms; `both`: the two rows travel at once."""
        return kind(
            self.rule,
            self.since,
            self.codec,
            BY_RUN if self.by_run else self.codec.memory,
            self.beside if self.report else None,
            self.along,
            self.decay,
            self.fragment.part,
            n=n,
            peer=self.peer,
            chunks=(self.fragment.first, self.fragment.stop),
            private=self.private,
            asked=self.asked,
            mass=self.mass,
            gather=gather,
            both=both,
        )

    @property
    def vector_bytes(self) -> int:
        """Bytes that travel each way: the fragment of the row, and the vectors along."""
        return self.codec.bytes_of(self.fragment.size) + FP32.bytes_of(self.fragment.size) * len(self.along)

    def memory(self, arena: Arena, row: int, own: Callable[[], Tensor]) -> Tensor | None:
        """Return the vector (P,) that remembers what the codec leaves out of a row of this host, guarded by the row's
        lock; None: nothing is left out, or that is not remembered.

        Args:
            own: returns the vector of this end, for a codec that the run has chosen.
        """
        if self.codec.exact:
            return None
        if self.by_run:
            return own()
        centre = arena.layout.learners
        return arena.vector(self.codec.memory, row) if self.codec.memory and row != centre else None

    def share(self, visited: float) -> float:
        """Return the share of the asking learner's row in the mass of both; `visited` is the visited row's mass."""
        return shares_of((self.mass, visited) if self.asked is None else (visited, self.mass))[0]

    @property
    def decays(self) -> tuple[float, float]:
        """Factors on the masses of the row that travels and the visited row; 1 where rows are not weighed."""
        mine, theirs = self.decay or (1.0, 1.0)
        return (mine, theirs) if self.asked is None else (theirs, mine)

    def applied(self, age: int | None = None, strategy: Any = None, share: float | None = None) -> Rule:
        """Return the rule for the row that travels and the row that is visited, in this order.

        Args:
            age: the age of the peer's row, for rules that take one.
            strategy: the strategy of the run, which may have the rule.
            share: the share of the asking learner's row, where rows are weighed.

        Raises:
            ValueError: the rule does not exist.
        """
        others = self.private + len(self.beside) + 2 * len(self.along)
        rule = find(self.rule, others, self.since is not None, strategy, self.decay is not None)
        if age is not None:
            rule = partial(rule, age=age)
        if share is not None:
            rule = partial(rule, share=share)
        return rule if self.asked is None else swapped(rule)

    @classmethod
    def read(cls, message: ExchangeMessage, layout: Layout, strategy: Strategy | None = None) -> Self:
        """Return the terms in a message, all of them checked; `strategy` is that of the run.

        Raises:
            InvalidMessage: the terms make no sense in this run.
        """
        memory, by_run, report = message.memory, message.memory == BY_RUN, message.report
        if memory not in (BY_RUN, "", *layout.memory):
            raise InvalidMessage("a memory that learners have not")
        (first, stop), part = message.chunks, message.part
        if not first < stop <= Fragment.whole(layout.parameters).stop or not part.number < part.of:
            raise InvalidMessage("no part of the row")
        fragment = Fragment(first, stop, layout.parameters, part)
        if not fragment.size:
            raise InvalidMessage("an empty part of the row")
        if message.private > len(layout.memory):
            raise InvalidMessage("more private vectors than learners have")
        terms = cls(
            message.peer,
            message.rule or {},
            fragment,
            replace(message.wire, memory="" if by_run else memory),
            message.private,
            message.since,
            message.asked,
            by_run,
            report is not None,
            names_among(report or (), layout.centre_memory),
            names_among(message.along, layout.memory),
            message.decay,
            0.0 if message.decay is None else message.mass,
        )
        if terms.report:
            terms.check_report(layout)
        if terms.decay is not None and (not layout.weighed or terms.peer == layout.learners):
            raise InvalidMessage("weights of rows that have none")
        if fragment.part != WHOLE and not terms.simple:
            raise InvalidMessage("a part of what goes whole")
        if terms.along and (not terms.mutual or terms.peer == layout.learners):
            raise InvalidMessage("vectors of both learners, where there is but one")
        if (not terms.simple and not terms.codec.exact) or (not terms.mutual and terms.asked is not None):
            raise InvalidMessage("private vectors or an age where only two rows are allowed")
        vectors = 0 if terms.report else terms.private
        if message.both and (isinstance(message, RequestMessage) or not terms.both_travel(layout)):
            raise InvalidMessage("both rows at once, where one is asked for, or has to wait")
        travels = not isinstance(message, RequestMessage) and not message.both
        payload = terms.vector_bytes + 4 * fragment.size * vectors if travels else 0
        if len(message.payload) != payload:
            raise InvalidMessage(f"{len(message.payload)} bytes, where {payload} are due")
        try:
            terms.applied(strategy=strategy)
        except ValueError as error:
            raise InvalidMessage(str(error)) from error
        return terms

    def check_report(self, layout: Layout) -> None:
        """Check that these are terms of a report to the centre.

        Raises:
            InvalidMessage: the terms are not those of a report to the centre.
        """
        named = self.rule.get("name") if isinstance(self.rule, Mapping) else None
        if self.peer != layout.learners or self.private != 1 or not isinstance(named, str) or named not in REPORTS:
            raise InvalidMessage("what lies beside the centre is for reports to it")


def read_gather(said: Gathering, layout: Layout, give: Exchange | None, strategy: Strategy | None) -> Gather:
    """Return the gathering of a message, to which a learner of another host comes, or in which it waits.

    Args:
        said: the gathering as the message has it.
        give: the learner's contribution, if it gives one.

    Raises:
        InvalidMessage: the gathering makes no sense in this run.
    """
    beside = names_among(said.beside, layout.centre_memory)
    try:
        close = Exchange(layout.learners, find(said.close, len(beside), False, strategy), theirs=beside)
    except ValueError as error:
        raise InvalidMessage(f"no gathering: {error}") from error
    norm, loss = (math.nan if value is None else value for value in (said.norm, said.loss))
    return Gather(said.quorum, give, close, said.last, norm, loss)


def names_among(names: tuple[str, ...], known: Sequence[str]) -> tuple[str, ...]:
    """Return `names` of vectors from a message, after a check that all are `known`.

    Raises:
        InvalidMessage: a name is not among those that are `known`.
    """
    if not set(names) <= set(known):
        raise InvalidMessage("vectors that are not kept here")
    return names


def largest(layout: Layout) -> int:
    """Return the most bytes of a payload of an exchange: a row, and all vectors that a learner has beside it."""
    return room(layout.parameters, 1 + len(layout.memory))
