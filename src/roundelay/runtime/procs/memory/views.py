"""Views of the arena's tables by meaning: the writer of each table, and the moments of its writing.

A view is a frozen dataclass with a field for each of its tables, which says the table's shape; the arena computes from
the shapes where each table lies, and gives the view its arrays. Several processes that open the same arena therefore
see each other's stores, and a name that does not exist is an error of the type checker.

Legend: L learners, R rows: those of the learners and of the centre, if there is one.
"""

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from roundelay.algorithms.codecs import MOST_NUMBERS
from roundelay.runtime.base import Counts
from roundelay.runtime.gathering import GatheringTable
from roundelay.runtime.procs.memory.publish import publish

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sizes:
    """Numbers that shapes of tables depend on."""

    learners: int
    centre: bool = False
    scalars: int = 0  # that each learner's optimizer keeps, and the mass of its row, if rows are weighed
    tensors: int = 0  # trainable parameter tensors of a module that a user's loop trains
    others: int = 0  # learners whose shares each row knows, if rows are weighed

    @property
    def rows(self) -> int:
        """Rows with a version and a lock: the learners' and the centre's."""
        return self.learners + self.centre


@dataclass(frozen=True)
class Table:
    """Shape and type of one table; every item has 8 bytes."""

    shape: tuple[int, ...]
    kind: type[Any] = np.int64

    @property
    def items(self) -> int:
        """Number of items in the table."""
        return int(np.prod(self.shape))


Size = int | Callable[[Sizes], int]
L: Size = attrgetter("learners")
R: Size = attrgetter("rows")


def table(*shape: Size, kind: type[Any] = np.int64) -> Any:
    """Return a field of a view: a table of shape `shape` and type `kind`."""
    return field(metadata={"shape": shape, "kind": kind})


class View(ABC):  # noqa: B024 only fields are missing
    """Some tables of the arena. Subclasses are frozen dataclasses, each field of which is a `table`."""

    PUBLISHED: ClassVar[tuple[str, ...]] = ()
    """Tables that others act on without holding a lock. While others may read them, they are written by `publish`
    alone; a segment may begin with plain stores."""

    @classmethod
    def tables(cls, sizes: Sizes) -> dict[str, Table]:
        """Return the tables that the view owns, by the names of its fields."""
        kind: Any = cls
        return {
            item.name: Table(
                tuple(size if isinstance(size, int) else size(sizes) for size in item.metadata["shape"]),
                item.metadata["kind"],
            )
            for item in fields(kind)
        }

    @classmethod
    def on(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the view of these `arrays`, by the names that `tables` gives them."""
        make: Any = cls
        view: Self = make(**arrays)
        return view


NONE = -1
"""No minibatch."""
EMPTY = -2
"""A minibatch without examples, for a member of a group that draws together when there are not enough."""
END = -3
"""Nothing more to draw, for all of a group."""
TRAINED = -4
"""A claim on a minibatch that is trained and about to be counted."""
PREFETCH = 1024
"""Minibatches a host may have drawn from the run's queue, on other hosts, for its learners to draw."""
REQUEST_BYTES = 1024
"""Bytes of one request in `OutboxRequests`."""


@dataclass(frozen=True)
class Liveness(View):
    """A table of the learners that take part.

    Read by all, without a lock, so it is published: a reader that sees a learner live sees its row complete, and one
    that sees it dead sees all that it did before.

    The parent writes it. Where no parent watches, a learner writes its own item when it enters and leaves, and the
    first that notices a death writes the dead one's, under the queue lock (runtime/procs/coordination/lives.py).
    """

    PUBLISHED = ("alive",)

    alive: Integers = table(L)  # 1: takes part; 0: not yet, or no more

    def mark(self, ranks: Sequence[int], alive: bool | Sequence[int]) -> None:
        """Note that the learners `ranks` live (`alive`, for all or one by one), or do not."""
        publish(self.alive, list(ranks), alive)

    def living(self) -> list[int]:
        """Return the ranks of the learners that take part, on all hosts."""
        return [rank for rank, lives in enumerate(self.alive.tolist()) if lives]


@dataclass(frozen=True)
class WorkQueue(View):
    """The work queue's tables: minibatches still to be drawn, those being worked on, and the rounds of synchronous
    learners. The rules are in runtime/procs/coordination/queue.py.

    Written under the queue lock, except `totals` and a learner's own claim on a minibatch it has trained, which is
    published; and by the parent between segments, when no learner draws."""

    next_index: Integers = table(1)  # The next minibatch of an asynchronous segment
    returned: Integers = table(lambda of: 1 + 2 * of.learners)  # How many minibatches are to be drawn again, then which
    prefetch: Integers = table(2 + PREFETCH)
    """On a host among several: how many were drawn, how many put in, then a ring of minibatches."""
    more: Integers = table(1)  # May more be put into the ring? A learner that finds it empty waits then
    claims: Integers = table(L)  # The minibatch a learner works on, NONE or TRAINED
    assigned: Integers = table(L)  # The next minibatch of a learner whose group has drawn it; NONE, EMPTY or END
    totals: Floats = table(3, L, kind=np.float64)
    """Frames, correct frames and loss of each learner as they will be when its minibatch is counted; written by the
    learner before its claim becomes TRAINED."""
    rounds: Integers = table(L)
    """The next round of a synchronous learner. Under `roundelay.attach` each learner's own: steps in this segment,
    published when it begins one."""
    stop_round: Integers = table(1)  # The segment ends before this round
    hold: Integers = table(1)  # Synchronous learners begin no round while it is set

    def begin_segment(self, first: int, first_round: int, end_round: int) -> None:
        """Begin a segment from minibatch `first`, in `first_round`, to `end_round`: nothing is claimed or was given
        back. Called by the parent, while no learner runs."""
        self.next_index[0], self.stop_round[0] = first, end_round
        self.rounds[:], self.claims[:], self.assigned[:] = first_round, NONE, NONE
        self.returned[0] = self.hold[0] = 0


@dataclass(frozen=True)
class Counters(View):
    """Counts of the segment: minibatches, frames, loss, staleness, exchanges, seconds.

    Each learner writes its own items. Frames, correct frames and loss are exact once it has let go of its claim (see
    `WorkQueue`); the rest may be one step behind. The host's own process writes those of other hosts' learners."""

    counts: Counts

    @classmethod
    def tables(cls, sizes: Sizes) -> dict[str, Table]:
        found = vars(Counts.zeros(sizes.learners, sizes.centre))
        return {name: Table(array.shape, array.dtype.type) for name, array in found.items()}

    @classmethod
    def on(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        return cls(Counts(**arrays))


@dataclass(frozen=True)
class OptimizerState(View):
    """Numbers that belong to a row, beside its vectors: a checkpoint keeps them.

    A learner writes its own items while a segment runs, the parent all of them between segments. Others read
    `scalars` under the row's lock, and change a row's mass, the last of them where rows are weighed, with the row;
    `others` is written with the row too. `steps` may be read at any time, and then is right or one behind."""

    steps: Integers = table(L)  # Local updates since the run began
    scalars: Floats = table(L, attrgetter("scalars"), kind=np.float64)  # Numbers that each optimizer keeps; a mass
    others: Floats = table(L, attrgetter("others"), kind=np.float64)  # Row.others; no checkpoint keeps these


@dataclass(frozen=True)
class RowVersions(View):
    """Versions of rows, and rows that take part in an exchange with another host.

    Both are written and read through `Row`, under the row's lock; the parent writes them between segments, and, for
    rows that only mirror those of another host, while no learner here looks at them."""

    versions: Integers = table(R)  # Half mutations of each row: odd while one is under way
    in_flight: Integers = table(R)
    """Number of the exchange with another host that the row takes part in just now; 0: none."""


@dataclass(frozen=True)
class MeanSequences(View):
    """Numbers by which learners take part in means: the last that each has sent for, and has read. The protocol is in
    runtime/procs/coordination/means.py.

    A learner writes its own column: first the vector and the facts about it, then the sequence number, published.
    Items of learners on other hosts are written by threads of this host's own process (runtime/hosts/means.py)."""

    PUBLISHED = ("sent_seq", "acked_seq")

    sent_seq: Integers = table(L)  # Number of the last mean a learner has sent its vector to
    acked_seq: Integers = table(L)  # Number of the last mean a learner has done its reading for
    source: Integers = table(2, L)
    """For means with an even and with an odd number: which of `Means.SOURCES` has a learner's vector."""
    weights: Floats = table(2, L, kind=np.float64)  # The same for its weight

    def begin_part(self) -> None:
        """Begin a part of a segment: set all numbers to 0. Called by the parent, while no learner runs."""
        self.sent_seq[:] = self.acked_seq[:] = 0


@dataclass(frozen=True)
class HostMeanSequences(View):
    """Numbers by which learners of several hosts take part in means: an agreement between each learner and the threads
    of its host's own process, which alone touch the network (runtime/hosts/means.py).

    A learner writes its own items of `readers`, `codec`, `codec_numbers` and `elements`, and publishes those of
    `ready_from` and `global_sent_seq`; the threads write `total`, and publish `global_seq` and `forwarded_seq`."""

    PUBLISHED = ("global_sent_seq", "global_seq", "forwarded_seq", "ready_from")

    global_sent_seq: Integers = table(L)  # Number of the last mean of all that a learner has sent its vector to
    global_seq: Integers = table(1)  # Number of the last mean of all that is complete on this host
    total: Floats = table(2, kind=np.float64)
    """For means of all learners with an even and with an odd number: the sum of the weights."""
    forwarded_seq: Integers = table(L)
    """Number of the last mean for which a learner's mailbox, and the facts about it, have been read here."""
    readers: Integers = table(2, L, L)
    """For even and odd numbers: 1 where the second learner will read the mailbox of the first."""
    codec: Integers = table(2, L)
    """For even and odd numbers: the codec by which a learner's mailbox travels, by its place in `form_names`."""
    codec_numbers: Floats = table(2, L, MOST_NUMBERS, kind=np.float64)  # For even and odd numbers: its options
    elements: Integers = table(2, L)  # For even and odd numbers: elements of the vector in a learner's mailbox
    ready_from: Integers = table(L)  # From this element to the end, the gradient a learner takes part with is complete

    def begin_part(self) -> None:
        """Begin a part of a segment: set all numbers to 0. Called by the host's own process, while no learner runs."""
        for numbers in vars(self).values():
            numbers[:] = 0


@dataclass(frozen=True)
class BellTable(View):
    """The words of bells in shared memory (memory/bell.py).

    In the arena of a host that trains with other hosts. A number goes up with every ring; one of two at the same
    moment may be lost, and both are heard."""

    PUBLISHED = ("means", "session")

    means: Integers = table(1)  # Rung by learners, and by threads that take means with other hosts, for each other
    session: Integers = table(1)  # Attached learners ring for the process that speaks to other hosts


@dataclass(frozen=True)
class OutboxRequests(View):
    """Requests of learners that concern rows of other hosts, and the replies. The learner's side is
    runtime/procs/coordination/outbox.py, the other runtime/hosts/exchange/client.py.

    A learner writes its own `text`, then publishes `asked`; the carrier of requests writes `version` and `read`, then
    publishes `done`. The process that speaks to other hosts publishes `centre`."""

    PUBLISHED = ("asked", "done", "awaited", "centre")

    asked: Integers = table(L)  # Number of the last request
    done: Integers = table(L)  # Number of the last request that is answered
    awaited: Integers = table(L)  # Number of the last request that its learner has stopped to wait for
    version: Integers = table(L)  # The answer: the version of the other row, or NONE: no learner is there
    read: Integers = table(L)  # Version of the centre, on another host, when it was reached last
    centre: Integers = table(1)  # A learner whose host has the centre, or NONE: its host is lost
    text: Integers = table(L, REQUEST_BYTES // 8)  # The request, as JSON, padded with zeros


@dataclass(frozen=True)
class GatheringNumbers(View):
    """Numbers of gatherings: the learners that have come, when, and the usual values. The rules are in
    runtime/gathering.py.

    Written under the queue lock; by the parent between segments, when no learner runs."""

    numbers: GatheringTable

    @classmethod
    def tables(cls, sizes: Sizes) -> dict[str, Table]:
        return {name: Table(shape, kind) for name, (shape, kind) in GatheringTable.shapes(sizes.learners).items()}

    @classmethod
    def on(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        return cls(GatheringTable(**arrays))


@dataclass(frozen=True)
class Activity(View):
    """The effect that each learner is in, for people who ask why nothing moves.

    Each learner writes its own column; no process acts on it, so its three numbers need not fit each other."""

    doing: Integers = table(3, L)
    """The effect a learner is in, the peer it is about or -1, and since when (milliseconds of this host)."""
