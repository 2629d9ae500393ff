"""The states of an exchange between two hosts: no sockets, no threads, no clocks.

Everything that decides how an exchange goes on stands in `TRANSITIONS`. Client and server feed it events and act as the
new state says; an event that a state does not list is refused, and changes nothing.

Theory of operation

A row travels from the lower rank to the higher, never the other way. Each end of an exchange has a machine of its own:

    client   the end whose row travels. It checks the row out, sends it, applies the reply, checks the row in.
    server   the end whose row is visited. It applies the rule to its row, and keeps the reply until the next exchange.

A learner that wants a row of *higher* rank is served by its own client. One that wants a row of *lower* rank asks that
rank's client to make the same exchange; its own row is then the one that is visited:

    asker    sends `request` to the host of the lower rank and hears `done`, or `gone`. Its row is visited meanwhile,
             once: its server may apply an exchange for it only if this machine accepts `apply`.

A `reader` fetches a row and changes none. Four messages therefore serve every exchange:

    up      exchange ->   <- row
    down    request  ->   <- exchange   row ->   <- done

Where both rows travel at once (`ExchangeMessage.both`) the row that an exchange brings follows it in a `give`, and the
one that comes back goes before the reply, in a `found`. Neither changes a state: until the row has come the server has
`received` nothing that it could apply, and until the reply has come the client knows of nothing that was applied.

*Exactly once.* The sender of a message keeps it until it is answered. If the link is cut before that, the client is in
doubt: it says `again`, and the server answers with the reply it kept (`row`, `gone`), or with `unknown` if the exchange
never came; only then is it sent once more. `committed` is entered by `apply` alone, and no path leads to it twice for
one exchange. So both ends have applied it, or neither has. Once the client has a reply with a row in it, it says so
(`settled`, to which there is no answer), and the server forgets the reply; if that is lost, it does when it hears of
the next exchange. Only an end that is never heard of again, or whose learner
is replaced by another, leaves the other alone: a client that gives up has its row as it was. A `request` is simply
sent again: the server knows it by its number, and the asker's machine refuses a second visit.

*Lock order, and no deadlock.* A row that is checked out takes part in nothing else. Its client waits for a row of
higher rank only (the centre counts as the highest), so no circle of waits can close; an asker has nothing checked out
while it waits.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import final


class Role(Enum):
    """One end of a conversation about an exchange."""

    CLIENT = "client"
    SERVER = "server"
    ASKER = "asker"
    READER = "reader"


class State(Enum):
    """State of one end of an exchange."""

    __hash__ = object.__hash__  # Enum's own is a call of Python's, and each event looks in two tables

    IDLE = "idle"
    ASKED = "asked"
    VISITED = "visited"
    CHECKED_OUT = "checked out"
    SENT = "sent"
    IN_DOUBT = "in doubt"
    REPLIED = "replied"
    RECEIVED = "received"
    COMMITTED = "committed"
    VOID = "void"


class Event(Enum):
    """Event at one end of an exchange."""

    __hash__ = object.__hash__

    CHECK_OUT = "check out"
    ASK = "ask"
    SEND = "send"
    CUT = "cut"  # of the link
    ROW = "row"  # a reply, as the next three
    DONE = "done"
    GONE = "gone"
    UNKNOWN = "unknown"
    RECEIVE = "receive"
    AGAIN = "again"  # the client asks for the result of the exchange
    FORGET = "forget"  # the client speaks of another exchange: the last one is settled
    APPLY = "apply"
    GIVE_UP = "give up"
    CHECK_IN = "check in"


_LOST = {Event.GONE: State.VOID, Event.GIVE_UP: State.VOID}
_STAYS = {Event.SEND: State.ASKED, Event.CUT: State.ASKED}
_ENDED = {State.COMMITTED: {Event.CHECK_IN: State.IDLE}, State.VOID: {Event.CHECK_IN: State.IDLE}}
_NEXT = {Event.RECEIVE: State.RECEIVED, Event.FORGET: State.IDLE}

TRANSITIONS: Mapping[Role, Mapping[State, Mapping[Event, State]]] = {
    Role.CLIENT: {
        State.IDLE: {Event.CHECK_OUT: State.CHECKED_OUT},
        State.CHECKED_OUT: {Event.SEND: State.SENT, Event.GIVE_UP: State.VOID},
        State.SENT: {Event.ROW: State.REPLIED, Event.CUT: State.IN_DOUBT, **_LOST},
        State.IN_DOUBT: {
            Event.SEND: State.IN_DOUBT,
            Event.UNKNOWN: State.CHECKED_OUT,
            Event.ROW: State.REPLIED,
            Event.CUT: State.IN_DOUBT,
            **_LOST,
        },
        State.REPLIED: {Event.APPLY: State.COMMITTED, Event.GIVE_UP: State.VOID},
        **_ENDED,
    },
    Role.SERVER: {
        State.IDLE: {Event.AGAIN: State.IDLE, **_NEXT},
        State.RECEIVED: {Event.APPLY: State.COMMITTED, Event.GIVE_UP: State.VOID, Event.CUT: State.IDLE},
        State.COMMITTED: {Event.AGAIN: State.COMMITTED, **_NEXT},
        State.VOID: {Event.AGAIN: State.VOID, **_NEXT},
    },
    Role.ASKER: {
        State.IDLE: {Event.ASK: State.ASKED},
        State.ASKED: {Event.APPLY: State.VISITED, **_STAYS, **_LOST},
        State.VISITED: {Event.DONE: State.COMMITTED, Event.SEND: State.VISITED, Event.CUT: State.VISITED, **_LOST},
        **_ENDED,
    },
    Role.READER: {
        State.IDLE: {Event.ASK: State.ASKED},
        State.ASKED: {Event.ROW: State.COMMITTED, **_STAYS, **_LOST},
        **_ENDED,
    },
}

WORDS: Mapping[Role, Mapping[State, str]] = {
    Role.CLIENT: {State.CHECKED_OUT: "exchange", State.IN_DOUBT: "again"},
    Role.SERVER: {State.IDLE: "unknown", State.COMMITTED: "row", State.VOID: "gone"},
    Role.ASKER: {State.ASKED: "request", State.VISITED: "request"},
    Role.READER: {State.ASKED: "fetch"},
}
"""The message that each state sends; a server's is its reply (`done` in the place of `row` where a `request` was)."""

REPLIES: Mapping[str, Event] = {event.value: event for event in (Event.ROW, Event.DONE, Event.GONE, Event.UNKNOWN)}
"""Replies by their names on the wire."""


class OutOfTurn(Exception):
    """Error: the state of an exchange does not allow an event."""


@final
class ExchangeState:
    """State machine of one end of exchanges, one after the other.

    Args:
        guard: lock that is held while an event is taken, where several threads feed this machine.
    """

    def __init__(self, role: Role, guard: AbstractContextManager[object] | None = None) -> None:
        self.role, self.state, self._table = role, State.IDLE, TRANSITIONS[role]
        self._guard = guard or nullcontext()

    def take(self, event: Event) -> State:
        """Change to the state that follows on `event`, and return it.

        Raises:
            OutOfTurn: this state does not allow `event`; nothing has changed.
        """
        with self._guard:
            following = self._table[self.state].get(event)
            if following is None:
                raise OutOfTurn(f"{event.value!r} while the {self.role.value} of an exchange is {self.state.value}")
            self.state = following
            return following

    def offer(self, event: Event) -> bool:
        """Take `event` if this state allows it; return True if so."""
        try:
            self.take(event)
        except OutOfTurn:
            return False
        return True

    def hear(self, reply: str) -> State:
        """Take the event of a reply, given its name on the wire; return the new state.

        Raises:
            OutOfTurn: no reply has that name, or it does not answer the last message.
        """
        event = REPLIES.get(reply)
        if event is None:
            raise OutOfTurn(f"{reply!r} is no reply")
        return self.take(event)

    @property
    def word(self) -> str:
        """Name of the message that this state sends; "" if it sends none."""
        return WORDS[self.role].get(self.state, "")
