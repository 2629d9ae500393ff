"""Hosts of a run, as the coordinator sees them: its own, and each other."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from roundelay.runtime.base import Cluster, LearnerDied
from roundelay.runtime.hosts.control.messages import HostAnswer
from roundelay.runtime.hosts.terms import JoinHello
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink
from roundelay.runtime.hosts.transport.wire import LinkError
from roundelay.runtime.messages import Message
from roundelay.runtime.procs.cluster_rows import ClusterRows
from roundelay.runtime.procs.coordination.activity import ReportedActivity
from roundelay.runtime.procs.memory.arena import Arena

Standing = Literal["new", "ready", "in", "gone"]
"""Standing of a host: it has come ("new"), has all it needs to take part, takes part, or is lost ("gone")."""


class LocalLearners(Protocol):
    """Learners of this host, however they were started, with the facts that membership needs of them."""

    cluster: Cluster  # all learners of all hosts
    here: tuple[int, ...]  # ranks of this host
    arena: Arena  # shared with them; facts about learners elsewhere are written into it
    cluster_rows: ClusterRows  # rows in that arena
    parameters: int  # P
    shards: tuple[int, ...]  # examples in every shard that is here, as `Learner.shards`
    common: tuple[float, ...]  # numbers that every host is to have from the first, as `Learner.common`


@dataclass
class RemoteHost:
    """Another host, as the coordinator knows it: what it has said, and what it was told."""

    host: int
    ranks: tuple[int, ...]
    monitored: MonitoredLink
    hello: JoinHello
    came: float  # when it was looked at first, wall clock
    standing: Standing = "new"
    busy: bool = False  # a part of a segment runs there
    began: int = 0  # the last segment it has taken part in
    shards: tuple[int, ...] = ()  # examples in every shard, -1 where it has it not (leases.py)
    initial: int | None = None  # once its learners are built: the fingerprint of their first row
    welcomed: bool = False  # it was given all that it needs, or is just being given it
    late: bool = False  # it came when the run had begun
    copied: int | None = None  # rank of the row it began with then
    ready: list[int] = field(default_factory=list)  # its replacements that could take part
    answer: HostAnswer = field(default_factory=HostAnswer)  # its report at the end of its last part
    said: ReportedActivity | None = None  # of its learners, last
    reached: int = 0  # the round its furthest learner has begun, when it was asked
    replied: threading.Event = field(default_factory=threading.Event)

    def tell(self, message: Message) -> bool:
        """Send a message to the host; return False if the host is gone, and nothing was sent."""
        if self.standing == "gone":
            return False
        try:
            self.monitored.say(message)
        except LinkError:
            return False
        return True

    def could_begin(self) -> Sequence[int]:
        """Return ranks that could begin at once: all, if the host came late and has not begun; else replacements."""
        return self.ranks if self.late and not self.began else self.ready

    def raise_problem(self, frames: int) -> None:
        """Raise the problem with which the last part of a segment ended on the host, if any.

        Args:
            frames: number of frames trained in the segment so far.

        Raises:
            LearnerDied: a learner there has died.
            TimeoutError: learners there have waited for too long.
            RuntimeError: another error.
        """
        problem, text = self.answer.problem, self.answer.text
        if problem == "died":
            raise LearnerDied(self.answer.rank, f"{text} (on host {self.host})", frames)
        if problem == "timeout":
            raise TimeoutError(f"{text} (on host {self.host})")
        if problem:
            raise RuntimeError(f"host {self.host} failed:\n{text}")
