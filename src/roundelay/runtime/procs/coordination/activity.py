"""Activity: the present effect of every learner of every host, as a table that shows people which waits for which.

Each learner notes the effect it is in, the row it concerns, and since when. Hosts tell the coordinator a few times a
second, so the table can be printed when a learner's patience is over, also if no host answers any more. It is for
people alone, and kept apart from the arena: learners of the coordinator's host act on the arena's tables, in which the
numbers a host has published must not stand before its rows and vectors do.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from roundelay.core.effects import LABELS, Begin, Effect
from roundelay.runtime.messages import Integer
from roundelay.runtime.procs.memory.arena import Arena

OWN_CODE = "its own code"
EFFECTS = (OWN_CODE, *LABELS.values())
_NUMBERS = {effect: number for number, effect in enumerate(LABELS, 1)}
Numbers = tuple[Integer, ...]
"""One number a learner."""


def number_of(effect: Effect[Any]) -> tuple[int, int]:
    """Return two numbers that stand for an effect: that of its kind, and the row that it concerns, or -1."""
    if isinstance(effect, Begin):
        effect = effect.effect
    return _NUMBERS.get(type(effect), 0), getattr(effect, "peer", -1)


@dataclass(frozen=True)
class HostActivity:
    """Activity of the learners of a host, with time passed in place of points in time, which differ between hosts."""

    doing: tuple[Numbers, Numbers, Numbers]  # effects, peers, and since how many milliseconds
    round: Numbers
    published: Numbers
    versions: Numbers

    @classmethod
    def of(cls, arena: Arena, ranks: Sequence[int]) -> "HostActivity":
        """Return the present activity of the learners `ranks`."""
        now, chosen = milliseconds(), list(ranks)
        effects, peers, since = arena.activity.doing[:, chosen].tolist()
        tables = arena.queue.rounds, arena.sequences.sent_seq, arena.row_versions.versions
        return cls((effects, peers, tuple(now - moment for moment in since)), *(one[chosen].tolist() for one in tables))

    @property
    def learners(self) -> set[int]:
        """Lengths of the tables, in learners: a single one if all tables agree."""
        return {len(numbers) for numbers in (*self.doing, self.round, self.published, self.versions)}


@dataclass(frozen=True)
class ReportedActivity:
    """The last report of a host about its learners, and when it came."""

    found: HostActivity
    came: int

    def of(self, at: int) -> tuple[int, int, int, int, int, int]:
        """Return the numbers of the learner at index `at` of the report: effect, peer, milliseconds on this host's
        clock since which it is in the effect, round, version of its row, means."""
        found = self.found
        effect, peer, passed = (numbers[at] for numbers in found.doing)
        return effect, peer, self.came - passed, found.round[at], found.versions[at], found.published[at]


def milliseconds() -> int:
    """Return this host's steady clock in milliseconds."""
    return int(time.monotonic() * 1000)


def table(arena: Arena, hosts: Sequence[tuple[Sequence[int], ReportedActivity | None]]) -> str:
    """Return a line a learner: rank, host, whether it lives, effect, for how long, its round, its row's version, its
    means. `hosts` has the ranks of each host and its last report (None: there is none)."""
    lines = ["rank  host  alive  seconds  round  version  means  effect"]
    now = milliseconds()
    for host, (ranks, last) in enumerate(hosts):
        for at, rank in enumerate(ranks):
            alive = "yes" if arena.liveness.alive[rank] else "no"
            if last is None:
                lines.append(f"{rank:4}  {host:4}  {alive:>5}        -      -        -      -  has said nothing yet")
                continue
            kind, peer, since, round_, version, means = last.of(at)
            effect = EFFECTS[kind] if 0 <= kind < len(EFFECTS) else OWN_CODE
            if peer >= 0:
                effect += " the centre" if peer == arena.layout.learners else f" learner {peer}"
            lines.append(
                f"{rank:4}  {host:4}  {alive:>5}  {(now - since) / 1000:7.1f}  {round_:5}  {version // 2:7}  "
                f"{means:5}  {effect}"
            )
    return "\n".join(lines)
