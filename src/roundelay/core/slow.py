"""Slow learners, and the causes: seconds of learners by what they were spent on, and sentences on those that need
longer than the others.

A learner's own time for a step is what it computes, what its loop does between steps, and what it exchanges by itself.
In means and at meetings it waits for others. So where all wait for each other, and take equally many steps, the slow
one still has the longest steps of its own, and the others the longest waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import median

SLOW = 1.5
"""Multiple of the other learners' median time for a step from which a learner is called slow."""
WORTH_SAYING = 0.1
"""Least part of the others' time, beyond the learner's own, of a wait for it that is named."""
SLOWED_SECONDS = 10.0
"""Seconds that a learner must have lost to its slowness before it is said in a log."""
OWN_KINDS = ("computing", "between", "exchanges")
"""Kinds of a learner's own seconds, in which it does not wait for others."""


@dataclass(frozen=True)
class Spent:
    """Seconds of one learner over some stretch of a training, by what they were spent on."""

    steps: int = 0
    computing: float = 0.0  # gradients, and updates
    between: float = 0.0  # in the loop between two steps, and in draws: waits for batches
    exchanges: float = 0.0  # exchanges with rows, as far as the learner waits for them
    means: float = 0.0  # in means, waits for the others included
    meetings: float = 0.0  # at meetings, waits for the others included
    coreless: float = 0.0  # of all these: ready to run, while others had the cores

    def since(self, before: "Spent") -> "Spent":
        """Return what was spent after `before`."""
        return Spent(*(getattr(self, one.name) - getattr(before, one.name) for one in fields(self)))

    @property
    def own(self) -> float:
        """Seconds of the learner's own."""
        return self.computing + self.between + self.exchanges

    def part(self, name: str) -> float:
        """Return a kind of seconds as a part of all."""
        return float(getattr(self, name)) / max(1e-9, self.own + self.means + self.meetings)

    def a_step(self, name: str) -> float:
        """Return the seconds of a kind that a step takes."""
        return float(getattr(self, name)) / self.steps


def slow(spent: Sequence[Spent], lost: float = 0.0) -> dict[int, str]:
    """Return a sentence on each slow learner that says why it is slow, by rank.

    Args:
        spent: by rank; learners without a step are left out.
        lost: seconds that a learner must have lost, beside the others' median, to be named.
    """
    stepping = {rank: one for rank, one in enumerate(spent) if one.steps > 0 and one.own > 0}
    found = {}
    for rank, one in stepping.items():
        others = [other for of, other in stepping.items() if of != rank]
        usual = median(other.a_step("own") for other in others) if others else one.a_step("own")
        excess = one.a_step("own") - usual
        if one.a_step("own") >= SLOW * usual and excess * one.steps >= lost:
            found[rank] = (
                f"learner {rank} is slow: {one.a_step('own'):.2g} s of its own a step, {_times(one, others, 'own')} "
                f"the others' median. {_cause(one, others)}{_waited_for(one, others)}"
            )
    return found


def _cause(one: Spent, others: Sequence[Spent]) -> str:
    """Return a sentence, without its end, on the part of the learner's own time that exceeds the others' most."""
    more = {name: one.a_step(name) - _median(others, name) for name in (*OWN_KINDS, "coreless")}
    cause = max(OWN_KINDS, key=more.__getitem__)
    seconds, part = f"{one.a_step(cause):.2g} s", f"{one.part(cause):.0%} of its time"
    if cause == "between":
        return f"It waits for batches, or its loop does other things between steps: {seconds}, {part}"
    if cause == "exchanges":
        return f"It waits for exchanges, whose rows come slowly: {seconds}, {part}"
    robbed = more["coreless"] >= more[cause] / 2
    return f"Its gradient and update take {seconds}, {_times(one, others, cause)} the others'" + (
        f": {one.part('coreless'):.0%} of its time it was ready, and other processes had its cores" if robbed else ""
    )


def _waited_for(one: Spent, others: Sequence[Spent]) -> str:
    """Return the rest of that sentence: for how long, and where, the others wait for the learner."""
    more = {name: median(other.part(name) for other in others) - one.part(name) for name in ("means", "meetings")}
    where = max(more, key=more.__getitem__)
    if more[where] < WORTH_SAYING:
        return "."
    place = "in means" if where == "means" else "at meetings"
    return f"; the others wait for it {place}, {more[where]:.0%} of their time."


def _median(others: Sequence[Spent], name: str) -> float:
    return median(other.a_step(name) for other in others)


def _times(one: Spent, others: Sequence[Spent], name: str) -> str:
    return f"{one.a_step(name) / max(1e-6, _median(others, name)):.1f} times"
