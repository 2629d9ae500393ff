"""Messages of the links by which a run, or a session of attached learners, is coordinated."""

from typing import Annotated, Any, Literal

from roundelay.runtime.base import Joined, Lost, Traffic
from roundelay.runtime.hosts.control.lease import ViewNumber, Views
from roundelay.runtime.messages import Address, Bit, Message, Number, Range, Rank
from roundelay.runtime.procs.coordination.activity import HostActivity
from roundelay.runtime.procs.coordination.passes import Key, Passes

# Of every host, to the one that coordinates ---------------------------------------------------------------------------


class Built(Message):
    """Learners are built: P, the fingerprint of the row they would begin with, and examples in every shard, or -1."""

    parameters: int
    initial: int
    shards: tuple[Annotated[int, Range(-1)], ...] = ()


class Prepared(Message):
    """It has all it needs to take part."""


class Replied(Message):
    """It has done the last request."""

    integers: dict[str, Any] | None = None
    reached: int = 0


class HostState(Message, kind="state"):
    """A look at its learners, a few times a second."""

    said: HostActivity
    steps: tuple[int, ...]
    alive: tuple[Bit, ...]
    ready: tuple[int, ...]


class Keeps(Message):
    """It keeps copies of checkpoints."""


class StopAsked(Message, kind="interrupt"):
    """A signal was heard there by which the run is to stop."""

    signal: str


class LeaderHeard(Message, kind="beat"):
    """A heartbeat of the leader was heard: when it was sent, and the newest view in it."""

    sent: float
    seen: ViewNumber


class Want(Message):
    """It asks for leases of minibatches."""

    part: int
    wanted: int


class CountsReport(Message, kind="report"):
    """Minibatches that are settled, and all that its learners have counted."""

    part: int
    settled: tuple[int, ...]
    counts: dict[str, Any]


class HostAnswer(Message):
    """A host's report at the end of a part of a segment, of all the segment so far; `rank` has died, if one has, `text`
    is for people."""

    problem: Literal["", "died", "timeout", "error"] = ""
    text: str = ""
    rank: Annotated[int, Range(-1, "row")] = -1
    redrawn: int = 0
    lost: tuple[Lost, ...] = ()
    joined: tuple[Joined, ...] = ()
    traffic: tuple[Traffic, ...] = ()


class PartDone(HostAnswer, CountsReport, kind="done"):
    """The last report of a part."""


# Of every host of a session -------------------------------------------------------------------------------------------


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
    meeting that it has heard of, the views, and the version of the centre that each of its learners has read last."""

    given: tuple[tuple[Rank, Key, int], ...]
    conducted: int
    views: Views
    read: tuple[Annotated[int, Range(0)], ...]


# To every host --------------------------------------------------------------------------------------------------------


class Common(Message):
    """Numbers that the first host has measured on its examples."""

    numbers: tuple[Number, ...]


class Welcome(Message):
    """The number of this host, the ranks of each, and numbers of its rows."""

    host: int
    hosts: tuple[tuple[Rank, ...], ...]
    integers: dict[str, Any]


class HostRefused(Message, kind="refused"):
    """It cannot take part."""

    why: str


class Living(Message):
    """Learners that live, addresses of hosts, and which of them were let in."""

    generation: int
    alive: tuple[Bit, ...]
    addresses: tuple[Address, ...]
    hosts: tuple[tuple[Rank, ...], ...]
    let_in: tuple[int, ...] = ()


class Leads(Message, kind="beat"):
    """A heartbeat of the host that leads, where another may lead in its place (lease.py)."""

    sent: float
    views: Views


class Meet(Message):
    """All are to connect to each other; or, `again`, this host alone to all that have an address here, since it was
    lost."""

    addresses: tuple[Address, ...]
    again: bool = False


class LetIn(Message, kind="let in"):
    """Learners that have taken the place of dead ones take part from now on. Where none lives on their host, the row
    and the memory of learner `copied` were sent to it, and these are the numbers that belong to them."""

    copied: Rank | None = None
    integers: dict[str, Any] | None = None


class PartOrder(Message, kind="part"):
    """A part of a segment begins."""

    part: int
    segment: int
    plan: dict[str, Any]
    last_round: int
    living: tuple[Rank, ...]


class LeasesGiven(Message, kind="leases"):
    """Minibatches to train."""

    part: int
    indices: tuple[int, ...]
    more: bool


class Hold(Message):
    """No learner is to begin a round."""


class Stop(Message):
    """Learners may go on up to this round."""

    round: int


class Give(Message):
    """Vectors of these names and learners are to be sent, but for those that are `laid_out` already, by name and
    digest. Attached learners send the bytes that they show, too."""

    names: tuple[str, ...]
    rows: tuple[Rank, ...]
    laid_out: dict[str, str]


class Load(Message):
    """Rows were sent, and these are the numbers that belong to them."""

    integers: dict[str, Any]


class End(Message):
    """The run has ended: well, for a reason, or by a signal."""

    why: str = ""
    signal: str = ""


class FilePiece(Message, kind="file"):
    """A piece of a file of the run directory, beside it; at its offset in bytes."""

    name: str
    at: int
    last: bool


# To every host of a session -------------------------------------------------------------------------------------------


class Drawn(Message):
    """The answer to `DrawRequest`; NONE where the pass is empty."""

    rank: Rank
    number: int
    index: Annotated[int, Range(-1)]


class CentreAt(Message, kind="centre"):
    """The centre is with the host of this learner, and was made again so often after its host was lost."""

    rank: Rank
    made_again: int


class ComeBack(Message, kind="come"):
    """Beside it, the record so far of the learners of a host that comes back."""


class StatePiece(Message, kind="given"):
    """A piece of the state that a learner which comes back is given, beside it; at its offset in bytes."""

    rank: Rank
    at: int
    last: bool


class Enter(Message):
    """Learners that have come back are let in, after this meeting."""

    ranks: tuple[Rank, ...]
    number: int
    present: tuple[Rank, ...]


class MeetingHeld(Message, kind="meeting"):
    """A meeting is conducted; the ranks that are present, and those that are let in at it or were and have not
    begun."""

    number: int
    present: tuple[Rank, ...]
    let_in: tuple[Rank, ...] = ()


# Both ways ------------------------------------------------------------------------------------------------------------

EVERYONE = -1
"""In place of a rank: all learners of the host that is written to."""


class Piece(Message):
    """A piece of vector `name` of a learner, or of EVERYONE, beside it; at its offset in elements."""

    name: str
    rank: Annotated[int, Range(EVERYONE, "rank")]
    at: int


class Columns(Message):
    """Columns of learners, beside it (columns.py)."""

    ranks: tuple[Rank, ...]
    everything: bool


class Shown(Message):
    """A piece of the bytes that a learner, or EVERYONE, shows, beside it; at its offset."""

    rank: Annotated[int, Range(EVERYONE, "rank")]
    at: int


OF_ALL = (Built, Prepared, Replied, HostState, Piece)
"""Messages that membership.py hears of a host; the rest is for the coordinator."""
OF_RUN = (Keeps, StopAsked, Want, CountsReport, PartDone)
OF_SESSION = (Columns, Shown, LeaderHeard, Back, Entered, DrawRequest, Stays)
TO_ALL = (Common, Welcome, HostRefused, Living, Meet, Give, End, Piece)
"""Messages that host_agent.py hears of the host that leads; the rest is for the agent of a run or of a session."""
TO_RUN = (LetIn, PartOrder, LeasesGiven, Hold, Stop, Load, FilePiece)
TO_SESSION = (Columns, Shown, Leads, Drawn, Passes, CentreAt, ComeBack, StatePiece, Enter, MeetingHeld)
