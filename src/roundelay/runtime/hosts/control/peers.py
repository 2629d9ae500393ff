"""Hosts of a run, as the coordinator sees them: its own, and each other."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from roundelay.runtime.base import Cluster, Joined, LearnerDied, Lost, Traffic
from roundelay.runtime.hosts.transport import checks
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink
from roundelay.runtime.hosts.transport.wire import Address, LinkError
from roundelay.runtime.procs.cluster_rows import ClusterRows
from roundelay.runtime.procs.coordination.activity import ReportedActivity
from roundelay.runtime.procs.memory.arena import Arena

Standing = Literal["new", "ready", "in", "gone"]
"""It has come; it has all it needs to take part; it takes part; it is lost."""


class LocalLearners(Protocol):
    """The learners of the first host, whoever has started them, with what membership asks of them."""

    @property
    def cluster(self) -> Cluster:
        """All learners of all hosts."""
        ...

    @property
    def here(self) -> tuple[int, ...]:
        """Ranks of this host."""
        ...

    @property
    def arena(self) -> Arena:
        """Shared with them; facts about learners elsewhere are written into it."""
        ...

    @property
    def cluster_rows(self) -> ClusterRows:
        """Rows in that arena."""
        ...

    @property
    def parameters(self) -> int:
        """P."""
        ...

    @property
    def shards(self) -> tuple[int, ...]:
        """Examples in every shard that is here, as `Learner.shards`."""
        ...

    @property
    def common(self) -> tuple[float, ...]:
        """Numbers that every host is to have from this one, as `Learner.common`."""
        ...


@dataclass(frozen=True)
class HostAnswer:
    """A host's report at the end of a part of a segment, of all the segment so far. `problem` is "", "died" (learner
    `rank`), "timeout" or "error"; `text` is for people."""

    problem: str = ""
    text: str = ""
    rank: int = -1
    redrawn: int = 0
    lost: tuple[Lost, ...] = ()
    joined: tuple[Joined, ...] = ()
    traffic: tuple[Traffic, ...] = ()

    @classmethod
    def read(cls, said: dict[str, Any], rows: int) -> "HostAnswer":
        """From a message of a host, in a run that has so many rows.

        Raises:
            KeyError, InvalidMessage: it is none.
        """
        if said["problem"] not in ("", "died", "timeout", "error"):
            raise checks.InvalidMessage(f"{said['problem']!r} is no problem that is known here")
        return cls(
            said["problem"],
            checks.text(said["text"]),
            checks.whole(said["rank"], -1, rows),
            checks.whole(said["redrawn"]),
            tuple(_lost(one, rows) for one in checks.listed(said["lost"])),
            tuple(_joined(one, rows) for one in checks.listed(said["joined"])),
            tuple(_traffic(one, rows) for one in checks.listed(said["traffic"])),
        )


def _lost(said: Any, rows: int) -> Lost:
    said = checks.mapping(said)
    torn = tuple(checks.wholes(said["torn"], stop=rows))
    return Lost(checks.whole(said["rank"], stop=rows), checks.text(said["reason"]), bool(said["replaced"]), torn)


def _joined(said: Any, rows: int) -> Joined:
    said = checks.mapping(said)
    copied = said["copied"]
    return Joined(checks.whole(said["rank"], stop=rows), None if copied is None else checks.whole(copied, stop=rows))


def _traffic(said: Any, rows: int) -> Traffic:
    said = checks.mapping(said)
    host, peer = (checks.whole(said[name], stop=rows) for name in ("host", "peer"))
    sent, received = (checks.whole(said[name]) for name in ("sent_bytes", "received_bytes"))
    return Traffic(host, peer, sent, received, checks.seconds(said["waited_s"]))


@dataclass
class RemoteHost:
    """Another host: what it has said of itself, and what it was told."""

    host: int
    ranks: tuple[int, ...]
    monitored: MonitoredLink
    address: Address  # where it listens
    standing: Standing = "new"
    busy: bool = False  # a part of a segment runs there
    began: int = 0  # the last segment it has taken part in
    shards: tuple[int, ...] = ()  # examples in every shard, -1 where it has it not (runtime/hosts/control/division)
    initial: int | None = None  # once its learners are built: the fingerprint of what they would begin with
    welcomed: bool = False  # it has been given what it needs, or is just being given it
    late: bool = False  # it came when the run had begun
    copied: int | None = None  # whose row it began with then
    ready: list[int] = field(default_factory=list)  # its replacements that could take part
    answer: HostAnswer = field(default_factory=HostAnswer)  # what it said at the end of its last part
    said: ReportedActivity | None = None  # of its learners, last
    reached: int = 0  # the round its furthest learner has begun, when it was asked
    replied: threading.Event = field(default_factory=threading.Event)

    def tell(self, kind: str, **header: Any) -> bool:
        """Say something, unless it is gone."""
        if self.standing == "gone":
            return False
        try:
            self.monitored.send(kind, header)
        except LinkError:
            return False
        return True

    def could_begin(self) -> Sequence[int]:
        """Learners that could begin at once: all, when it has just come, or replacements."""
        return self.ranks if self.late and not self.began else self.ready

    def raise_problem(self, frames: int) -> None:
        """Turn the problem with which its last part ended, if any, into an exception.

        Args:
            frames: trained in the segment so far.

        Raises:
            LearnerDied, TimeoutError, RuntimeError.
        """
        problem, text = self.answer.problem, self.answer.text
        if problem == "died":
            raise LearnerDied(self.answer.rank, f"{text} (on host {self.host})", frames)
        if problem == "timeout":
            raise TimeoutError(f"{text} (on host {self.host})")
        if problem:
            raise RuntimeError(f"host {self.host} failed:\n{text}")
