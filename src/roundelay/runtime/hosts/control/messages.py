"""Messages of the links by which a run, or a session of attached learners, is coordinated."""

from typing import Annotated, Any, Literal

from roundelay.runtime.base import Joined, Lost, Traffic
from roundelay.runtime.hosts.control.lease import ViewNumber, Views
from roundelay.runtime.messages import Address, Bit, Message, Number, Range, Rank
from roundelay.runtime.procs.coordination.activity import HostActivity
from roundelay.runtime.procs.coordination.passes import Key, Passes

# Of every host, to the one that coordinates ---------------------------------------------------------------------------


class Built(Message):
    """Message that learners are built: P, the fingerprint of their first row, and examples in every shard, or -1."""

    parameters: int
    initial: int
    shards: tuple[Annotated[int, Range(-1)], ...] = ()


class Prepared(Message):
    """Message that a host has all it needs to take part."""


class Replied(Message):
    """Message that a host has done what it was last asked for."""

    integers: dict[str, Any] | None = None
    reached: int = 0


class HostState(Message, kind="state"):
    """Report of a host on its learners, sent a few times a second."""

    said: HostActivity
    steps: tuple[int, ...]
    alive: tuple[Bit, ...]
    ready: tuple[int, ...]


class Keeps(Message):
    """Message that a host keeps copies of checkpoints."""


class StopAsked(Message, kind="interrupt"):
    """Message that a host has heard a signal by which the run is to stop."""

    signal: str


class LeaderHeard(Message, kind="beat"):
    """Reply to a heartbeat of the leader: when that was sent, and the newest view in it."""

    sent: float
    seen: ViewNumber


class Want(Message):
    """Request of a host for leases of `wanted` minibatches in a part of a segment."""

    part: int
    wanted: int


class CountsReport(Message, kind="report"):
    """Report of a host on minibatches that it has trained since the last, and all that its learners have counted."""

    part: int
    settled: tuple[int, ...]
    counts: dict[str, Any]


class HostAnswer(Message):
    """Report of a host at the end of a part of a segment, on all of the segment so far: the `problem`, in words as
    `text`, and the `rank` that has died, or -1."""

    problem: Literal["", "died", "timeout", "error"] = ""
    text: str = ""
    rank: Annotated[int, Range(-1, "row")] = -1
    redrawn: int = 0
    lost: tuple[Lost, ...] = ()
    joined: tuple[Joined, ...] = ()
    traffic: tuple[Traffic, ...] = ()


class PartDone(HostAnswer, CountsReport, kind="done"):
    """The last report of a host on a part of a segment."""


# Of every host of a session -------------------------------------------------------------------------------------------


class Back(Message):
    """Message that learners of a host have come back, and wait to be let in."""

    ranks: tuple[Rank, ...]


class Entered(Message):
    """Message that the learners of a host that were let in live."""


class DrawRequest(Message, kind="draw"):
    """Request of a learner for a minibatch of a pass; of those it drew before, the last `keep` are not trained yet."""

    rank: Rank
    number: int
    key: Key
    pieces: Annotated[int, Range(0)]
    keep: Annotated[int, Range(0)]


class Stays(Message):
    """Message of a host that followed another leader: minibatches given to its learners (rank, pass, number), the last
    meeting and the views that it has heard of, and the version of the centre that each of its learners read last."""

    given: tuple[tuple[Rank, Key, int], ...]
    conducted: int
    views: Views
    read: tuple[Annotated[int, Range(0)], ...]


# To every host --------------------------------------------------------------------------------------------------------


class Common(Message):
    """Numbers that the first host has measured on its examples, for all hosts."""

    numbers: tuple[Number, ...]


class Welcome(Message):
    """Answer to a host that comes: its number, the ranks of each host, and the integers of its rows."""

    host: int
    hosts: tuple[tuple[Rank, ...], ...]
    integers: dict[str, Any]


class HostRefused(Message, kind="refused"):
    """Message to a host that it cannot take part, and why."""

    why: str


class Living(Message):
    """Learners that live, by rank, the addresses and ranks of hosts, and the numbers of hosts that were let in."""

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
    """Order to connect to each other; or, `again`, to a host that was lost to connect to all that have an address."""

    addresses: tuple[Address, ...]
    again: bool = False


class LetIn(Message, kind="let in"):
    """Order that learners which have taken the place of dead ones take part from now on. Where no learner lives on
    their host, the row and the memory of learner `copied` were sent to it, with these `integers`."""

    copied: Rank | None = None
    integers: dict[str, Any] | None = None


class PartOrder(Message, kind="part"):
    """Order to begin a part of a segment."""

    part: int
    segment: int
    plan: dict[str, Any]
    last_round: int
    living: tuple[Rank, ...]


class LeasesGiven(Message, kind="leases"):
    """Minibatches leased to a host; `more` if there are more to ask for."""

    part: int
    indices: tuple[int, ...]
    more: bool


class Hold(Message):
    """Order that no learner begin a further round."""


class Stop(Message):
    """Order that learners go on up to this round."""

    round: int


class Give(Message):
    """Order to send vectors `names` of learners `rows`, except those whose digest is that in `laid_out`, by name.
    Attached learners send the bytes that they show, too."""

    names: tuple[str, ...]
    rows: tuple[Rank, ...]
    laid_out: dict[str, str]


class Load(Message):
    """Order to go on from the rows that were sent, with these integers."""

    integers: dict[str, Any]


class End(Message):
    """Message that the run has ended: well, for the reason `why`, or by `signal`."""

    why: str = ""
    signal: str = ""


class FilePiece(Message, kind="file"):
    """A piece of a file of the run directory, as the payload; `at` is its offset in bytes."""

    name: str
    at: int
    last: bool


# To every host of a session -------------------------------------------------------------------------------------------


class Drawn(Message):
    """Answer to `DrawRequest`: the index of a minibatch; NONE where the pass is empty."""

    rank: Rank
    number: int
    index: Annotated[int, Range(-1)]


class CentreAt(Message, kind="centre"):
    """Message that the centre is on the host of `rank`, and how often it was made again after its host was lost."""

    rank: Rank
    made_again: int


class ComeBack(Message, kind="come"):
    """Order to a host to come back; the payload is the record so far of its learners."""


class StatePiece(Message, kind="given"):
    """A piece, as the payload, of the state given to a learner that comes back; `at` is its offset in bytes."""

    rank: Rank
    at: int
    last: bool


class Enter(Message):
    """Order that learners `ranks`, which have come back, are let in after meeting `number`."""

    ranks: tuple[Rank, ...]
    number: int
    present: tuple[Rank, ...]


class MeetingHeld(Message, kind="meeting"):
    """Message that meeting `number` is conducted, with the ranks that are present, and those that are let in at it, or
    were before and have not begun."""

    number: int
    present: tuple[Rank, ...]
    let_in: tuple[Rank, ...] = ()


# Both ways ------------------------------------------------------------------------------------------------------------

EVERYONE = -1
"""Number that stands, in the place of a rank, for all learners of the receiving host."""


class Piece(Message):
    """A piece, as the payload, of vector `name` of a learner, or of EVERYONE; `at` is its offset in elements."""

    name: str
    rank: Annotated[int, Range(EVERYONE, "rank")]
    at: int


class Columns(Message):
    """Columns of learners `ranks`, as the payload (columns.py)."""

    ranks: tuple[Rank, ...]
    everything: bool


class Shown(Message):
    """A piece, as the payload, of the bytes that a learner, or EVERYONE, shows; `at` is its offset in bytes."""

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
