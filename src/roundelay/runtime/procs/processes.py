"""Learner processes of one host, their deaths, and the replacements of the dead.

A learner that dies is replaced, under a synchronous strategy where the others go on without it: a new process builds
its learner, which may take seconds, and is a pending replacement until it takes the dead one's place. It then begins
with the row of a living holder, or with the centre, and with that learner's memory. No learner waits for a pending
replacement. Learners that wait for each other let it in between two segments (`let_in`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Literal, final

from roundelay.core.errors import UserError
from roundelay.runtime.base import Joined, LearnerDied, Lost
from roundelay.runtime.procs.cluster_rows import ClusterRows
from roundelay.runtime.procs.coordination import queue
from roundelay.runtime.procs.members import Member, end
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.worker import SegmentAnswer
from roundelay.strategies.base import Strategy

OnDeath = Literal["replace", "go-on", "stop"]
REPLACEMENTS = 20
"""Replacements that a runtime starts before it takes a death for a habit."""


@final
@dataclass(frozen=True)
class Deaths:
    """Meaning of the death of a learner."""

    # under an asynchronous strategy another takes its place, the rest go on, or `LearnerDied`. Under a synchronous one
    # the rest go on, and another takes its place in the next segment, or `LearnerDied`.
    policy: OnDeath = "replace"
    replacements: int = REPLACEMENTS  # how many may be started in all; after them the rest go on

    def under(self, strategy: Strategy, recorded: bool = False) -> "Deaths":
        """Return the meaning of deaths under a strategy: learners that wait for each other go on if the policy asks for
        it, or stop.

        Raises:
            UserError: the policy is to go on, and the strategy's learners cannot go on without one, or are `recorded`.
        """
        if not strategy.traits.synchronous:
            return self
        if self.policy == "go-on":
            check_may_go_on(strategy)
            if recorded:
                raise UserError(
                    f"training.on_death is 'go-on': under {strategy.label} a trace knows of no means without the dead. "
                    "Leave --record out, or choose stop."
                )
            return self
        return replace(self, policy="stop")


def check_may_go_on(strategy: Strategy, option: str = "training.on_death") -> None:
    """Check that a strategy's learners can go on when one of them dies. `option` is the option that asks for it.

    Raises:
        UserError: they cannot; names `option` and the reason.
    """
    if strategy.traits.synchronous and strategy.traits.model == "centre":
        raise UserError(
            f"{option} is 'go-on': under {strategy.label} learner 0 keeps the model of all, so none can go on "
            "without it. Choose stop, or another strategy."
        )
    if not strategy.traits.goes_on:
        raise UserError(
            f"{option} is 'go-on': under {strategy.label} each learner knows its neighbours by all that they have sent "
            "it, so none can go on without one. Choose stop, or another strategy."
        )


REPLACE = Deaths()
"""The usual meaning of a death: a replacement takes the learner's place, where the strategy can go on."""


@final
class LearnerProcesses:
    """The processes of this host's learners, alive or dead, with their pending replacements.

    Args:
        start: starts the learner of a rank.
        deaths: their meaning under the strategy (`Deaths.under`).
        synchronous: True if the strategy is: then there is no queue for minibatches of the dead to come back to.
    """

    def __init__(
        self, arena: Arena, rows: ClusterRows, start: Callable[[int], Member], deaths: Deaths, synchronous: bool
    ) -> None:
        self._arena, self._rows, self._start = arena, rows, start
        self._policy, self._left, self._synchronous = deaths.policy, deaths.replacements, synchronous
        self._replaces = deaths.policy == ("go-on" if synchronous else "replace")
        self._members: dict[int, Member] = {}
        self._started = False
        self._told = 0, 0  # deaths and replacements
        self.pending: dict[int, bool] = {}
        """Pending replacements by rank: True if one is ready to take its place."""
        self.lost: list[Lost] = []
        """Deaths in this segment, and since the last one was over."""
        self.joined: list[Joined] = []
        """Replacements that took their places in this segment, or before it."""
        self.redrawn = 0
        """Minibatches of the dead, drawn again in this segment."""

    def start(self, ranks: Iterable[int]) -> None:
        """Start the learners `ranks`; each sends an answer when it is built.

        Raises:
            LearnerDied: a learner cannot be started.
        """
        for rank in ranks:
            try:
                self._members[rank] = self._start(rank)
            except OSError as error:
                raise LearnerDied(rank, f"it could not be started ({error})") from error

    def all_started(self) -> None:
        """Wait until every learner started has answered, or is dead.

        Raises:
            LearnerDied: some are dead, and the run cannot go on without them.
        """
        living = self._rows.living()
        missing = sorted({lost.rank for lost in self.lost} - set(living))
        if missing and (self._policy != "go-on" or not living):
            first = self._members[missing[0]]  # the first by rank, not by chance
            raise LearnerDied(missing[0], f"{first.reason()}{first.advice()}")
        self._started = True

    def begin_segment(self) -> None:
        """Forget deaths and replacements that `tell` has returned; those since then count for the new segment."""
        lost, joined = self._told
        self.lost, self.joined, self.redrawn, self._told = self.lost[lost:], self.joined[joined:], 0, (0, 0)

    def tell(self) -> tuple[tuple[Lost, ...], tuple[Joined, ...]]:
        """Return the deaths and the replacements of the segment so far."""
        self._told = len(self.lost), len(self.joined)
        return tuple(self.lost), tuple(self.joined)

    def process_ids(self, ranks: Iterable[int]) -> list[int]:
        """Return the process ids of the learners `ranks`; a replacement's where a learner is being replaced."""
        return [self._members[rank].process.pid or 0 for rank in ranks]

    # Messages ---------------------------------------------------------------------------------------------------------

    def send(self, ranks: Iterable[int], orders: bytes) -> list[int]:
        """Send `orders` to the learners `ranks`, and reap the dead among them; return the ranks they were sent to."""
        sent = []
        for rank in ranks:
            try:
                self._members[rank].pipe.send_bytes(orders)
            except OSError:
                self.reap(rank)
            else:
                sent.append(rank)
        return sent

    def answers(self, ranks: set[int], seconds: float) -> dict[int, SegmentAnswer]:
        """Return, by rank, the answers of `ranks` that come within `seconds`. The dead are reaped, and replacements
        that have built their learners become ready."""
        found = self._listen({*ranks, *self.pending}, seconds)
        for rank in found.keys() - ranks:
            self._hear(rank, found.pop(rank))
        return found

    def working(self, ranks: set[int]) -> set[int]:
        """Return those of `ranks` that are neither dead nor being replaced."""
        return {rank for rank in ranks if not self._members[rank].reaped and rank not in self.pending}

    def _listen(self, ranks: set[int], seconds: float) -> dict[int, SegmentAnswer]:
        """Return, by rank, the messages of `ranks` that come within `seconds`; the dead among them are reaped."""
        members = {rank: self._members[rank] for rank in sorted(ranks)}
        sources: list[Connection | int] = [m.pipe for m in members.values()]
        ready = set(wait([*sources, *(m.process.sentinel for m in members.values())], timeout=max(0.0, seconds)))
        answers = {}
        for rank, member in members.items():
            if member.pipe in ready:  # answers first: a learner may answer and then die
                try:
                    answers[rank] = member.answer()
                except (EOFError, OSError):
                    self.reap(rank)
            elif member.process.sentinel in ready:
                self.reap(rank)
        return answers

    # Life and death ---------------------------------------------------------------------------------------------------

    def reap(self, rank: int) -> None:
        """Mark a dead learner, give back the minibatch it worked on, and start another in its place."""
        member = self._members[rank]
        if member.reaped:
            return
        member.reaped = True
        self._arena.liveness.mark([rank], False)
        self.give_back([rank])
        reason = member.reason()
        if self.pending.pop(rank, None) is not None:
            reason += ", before it could take the place of one lost earlier"
        torn = self._rows.mend()
        if torn:
            reason += " in the middle of writing a row"
        replaced = self._replace(rank)
        if self._replaces and not replaced:
            reason += "; not replaced" + ", since too many were" * (not self._left)
        self.lost.append(Lost(rank, reason, replaced, torn))

    def give_back(self, ranks: Iterable[int]) -> None:
        """Give back the minibatches of the learners `ranks`, for others to draw."""
        if not self._synchronous:
            for rank in ranks:
                self.redrawn += queue.give_back(self._arena, rank)

    def _replace(self, rank: int) -> bool:
        """Start a replacement for dead learner `rank`, if one more is allowed and a learner is left to copy from."""
        if not self._replaces or not self._left:
            return False
        if self._started and not self._rows.living():
            return False
        if not self._started and not self._members[rank].killed:  # it ended by itself, as the next one would
            return False
        self._left -= 1
        self._members[rank].let_go()
        try:
            self._members[rank] = self._start(rank)
        except OSError:  # no memory, or no more processes: the others can go on all the same
            return False
        if not self._started:  # it has missed nothing: no learner has trained yet
            self._arena.liveness.mark([rank], True)
            return True
        self.pending[rank] = False
        return True

    # Replacements -----------------------------------------------------------------------------------------------------

    def collect_replacements(self) -> None:
        """Mark replacements ready that have built their learners."""
        self.answers(set(), 0.0)

    def _hear(self, rank: int, answer: SegmentAnswer) -> None:
        """Mark the replacement of `rank` ready, if its `answer` says that it has built its learner; else reap it."""
        if answer.problem:
            self._members[rank].failure = answer.text.strip().rpartition("\n")[2]
            self.reap(rank)
        else:
            self.pending[rank] = True

    def ready(self) -> list[int]:
        """Return the ranks of replacements that have built their learners."""
        return [rank for rank, ready in self.pending.items() if ready]

    def promote(self, wanted: Sequence[int], trace: Path | None, number: int) -> list[int]:
        """Let replacements of the ranks `wanted` that are ready take their places; return the ranks of those that did.

        Args:
            trace: folder of the trace; None: the run is not recorded.
            number: number, in the trace, of the orders that they begin with.
        """
        ready = [rank for rank in self.ready() if rank in wanted]
        for rank in ready:
            near = self._near()
            # Where no other lives on this host: the row that the dead one has left, at worst half a step further on.
            source = self._rows.source(rank, near) if near else rank
            self._rows.hand_over(rank, source, trace, number)
            self._place(rank, None if self._arena.layout.centre else source)
        return ready

    def let_in(self, given: int | None = None, mirrored: Sequence[int] = ()) -> None:
        """Let all replacements that are ready take their places, between two segments of learners that wait for each
        other.

        Args:
            given: where no learner lives here, the learner elsewhere whose row and memory already lie in the places of
                the replacements; None: there is none, so they wait unless there are `mirrored`.
            mirrored: learners elsewhere whose rows and memories are in this host's arena, to copy from.
        """
        self.collect_replacements()
        for rank in self.ready():
            near = self._near() or mirrored
            source = self._rows.source(rank, near) if near else given
            if source is None:
                continue
            if near:
                self._rows.hand_over(rank, source, None, 0)
            self._place(rank, source)

    def _near(self) -> list[int]:
        """Return the living learners of this host."""
        return [rank for rank in self._rows.living() if rank in self._members]

    def _place(self, rank: int, copied: int | None) -> None:
        """Note that the replacement of `rank`, whose row is ready, takes part; `copied` is the learner it began as."""
        self.joined.append(Joined(rank, copied))
        del self.pending[rank]
        self._arena.liveness.mark([rank], True)  # last: now others exchange with its row

    def close(self) -> None:
        """End all learner processes and pending replacements."""
        end(self._members, set(self.pending))
        self._members, self.pending = {}, {}
