"""Messages between the processes of hosts in a session of attached learners, besides those of every run."""

from typing import Annotated

from roundelay.runtime.attached.hosts.lease import Number, Views
from roundelay.runtime.attached.passes import PASS_SLOTS, Key
from roundelay.runtime.hosts.control.messages import (
    EVERYONE,
    Common,
    End,
    HostRefused,
    Living,
    Meet,
    Piece,
    Welcome,
)
from roundelay.runtime.messages import Message, Range, Rank

PassReport = tuple[int, int, int, int, int]
"""Key of a pass, minibatches drawn, segment."""


class Columns(Message):
    """Columns of learners, beside it (columns.py)."""

    ranks: tuple[Rank, ...]
    everything: bool


class Shown(Message):
    """A piece of what a learner, or EVERYONE, shows, beside it; at its offset in bytes."""

    rank: Annotated[int, Range(EVERYONE, "rank")]
    at: int


# To the host that leads -----------------------------------------------------------------------------------------------


class LeaderHeard(Message, kind="beat"):
    """A heartbeat of the leader was heard: when it was sent, and the newest view in it."""

    sent: float
    seen: Number


class Back(Message):
    """Learners have come back, and wait."""

    ranks: tuple[Rank, ...]


class Entered(Message):
    """Learners that were let in live."""


class DrawRequest(Message, kind="draw"):
    """A learner asks for a minibatch of a pass; of those it drew before the last `keep` are not trained."""

    rank: Rank
    number: int
    key: Key
    pieces: Annotated[int, Range(0)]
    keep: Annotated[int, Range(0)]


class Stays(Message):
    """A host comes that followed another leader: minibatches given to its learners (rank, pass, number), the last
    meeting that it has heard of, and the views."""

    given: tuple[tuple[Rank, Key, int], ...]
    conducted: int
    views: Views


# To the others --------------------------------------------------------------------------------------------------------


class Leads(Message, kind="beat"):
    """A heartbeat of the leader."""

    sent: float
    views: Views


class Drawn(Message):
    """The answer to `Draw`; NONE where the pass is empty."""

    rank: Rank
    number: int
    index: Annotated[int, Range(-1)]


class Model(Message):
    """A piece of the model to evaluate, beside it; at its offset in elements."""

    at: int


class Passes(Message):
    """Passes that have changed, beside it (succession.py)."""

    slots: tuple[Annotated[int, Range(0, PASS_SLOTS - 1)], ...]
    count: int


class GiveRows(Message, kind="give"):
    """Rows of these learners are to be sent, and what they show."""

    rows: tuple[Rank, ...]
    laid_out: dict[str, str]


class ComeBack(Message, kind="come"):
    """A record of what learners of a host that comes back had done, beside it."""


class Enter(Message):
    """Learners that have come back are let in, after this meeting."""

    ranks: tuple[Rank, ...]
    number: int
    present: tuple[Rank, ...]
    passes: tuple[PassReport, ...]


class MeetingHeld(Message, kind="meeting"):
    """A meeting is conducted; who is present."""

    number: int
    present: tuple[Rank, ...]


TO_LEADER = (Columns, Shown, LeaderHeard, Back, Entered, DrawRequest, Stays)
TO_AGENTS = (
    *(Columns, Shown, Leads, Drawn, Model, Passes, GiveRows, ComeBack, Enter, MeetingHeld),
    *(Common, Welcome, HostRefused, Living, Meet, Piece, End),
)
