"""A host of a run, as the conductor sees it."""

import threading
from dataclasses import dataclass, field
from typing import Any, Literal

from roundelay.runtime.base import Joined, Lost, Traffic
from roundelay.runtime.hosts.lines import Line
from roundelay.runtime.hosts.wire import Address, LinkError
from roundelay.runtime.procs.waiting import Said

Standing = Literal["new", "ready", "in", "gone"]
"""It has come; it has all it needs to take part; it takes part; it is lost."""


@dataclass
class Remote:
    """Another host: what it has said of itself, and what it was told."""

    host: int
    ranks: tuple[int, ...]
    line: Line
    address: Address  # where it listens
    standing: Standing = "new"
    busy: bool = False  # a part of a segment runs there
    began: int = 0  # the last segment it has taken part in
    initial: int | None = None  # once its learners are built: the fingerprint of what they would begin with
    welcomed: bool = False  # it has been given what it needs, or is just being given it
    late: bool = False  # it came when the run had begun
    copied: int | None = None  # whose row it began with then
    ready: list[int] = field(default_factory=list)  # its newcomers that could take part
    answer: dict[str, Any] = field(default_factory=dict)  # what it said at the end of its last part
    said: Said | None = None  # of its learners, last
    reached: int = 0  # the round its furthest learner has begun, when it was asked
    lost: tuple[Lost, ...] = ()
    joined: tuple[Joined, ...] = ()
    redrawn: int = 0
    traffic: tuple[Traffic, ...] = ()
    replied: threading.Event = field(default_factory=threading.Event)

    def tell(self, kind: str, **header: Any) -> bool:
        """Say something, unless it is gone."""
        if self.standing == "gone":
            return False
        try:
            self.line.send(kind, header)
        except LinkError:
            return False
        return True

    def begin_segment(self) -> None:
        """Nothing has happened in it yet."""
        self.lost, self.joined, self.redrawn, self.traffic = (), (), 0, ()
        self.answer = {}

    def note(self, found: dict[str, Any]) -> None:
        """What it said at the end of a part, of all the segment so far."""
        self.answer = found
        self.lost = tuple(Lost(**{**lost, "torn": tuple(lost["torn"])}) for lost in found["lost"])
        self.joined = tuple(Joined(**joined) for joined in found["joined"])
        self.traffic = tuple(Traffic(**traffic) for traffic in found["traffic"])
        self.redrawn = int(found["redrawn"])
