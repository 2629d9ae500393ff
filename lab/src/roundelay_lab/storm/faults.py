"""Faults of hosts and learners: kinds, and random schedules of them.

Faults come as a Poisson process: the times between them are independent and exponential, of a given mean. Kinds come
in decks: as many faults in a row as there are kinds have each of them once, in an order that is drawn, so that a short
storm has the rare and hard ones too. Which host, and how long one lasts are drawn, all from one seed, so that a
schedule can be had again; the state that a fault meets depends on the machine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from roundelay.core.streams import stream

FAULTS = {
    "kill": "a learner is killed",
    "crash": "all of a host is killed, and its command is given again a while later",
    "stop": "a learner is stopped for a while",
    "cut": "a host is off the network for a while",
    "slow": "a host's link is slow for a while",
}
LASTS_AT_MOST = 5.0
"""Longest duration of a fault, in units of the mean."""


@dataclass(frozen=True)
class Fault:
    """A fault that is to come."""

    at: float  # seconds after training has begun
    kind: str
    host: int  # from 0
    seconds: float  # that it lasts; of `crash`, until the command is given again
    choice: float  # from 0 to 1: which of the host's learners, where one is meant


def schedule(
    seed: int, hosts: int, every: float, lasting: float, kinds: Sequence[str], spares_the_first: Sequence[str] = ()
) -> Iterator[Fault]:
    """Yield faults in order, without end.

    Args:
        every: mean seconds between two faults.
        lasting: mean seconds that a fault lasts.
        kinds: kinds of faults to draw from, some of FAULTS.
        spares_the_first: kinds that never meet the first host.
    """
    drawn, at = stream(seed, "storm"), 0.0
    deck: list[str] = []
    while True:
        at += float(drawn.exponential(every))
        deck = deck or [kinds[int(place)] for place in drawn.permutation(len(kinds))]
        kind = deck.pop()
        host = int(drawn.integers(1 if kind in spares_the_first else 0, hosts))
        seconds = min(float(drawn.exponential(lasting)), LASTS_AT_MOST * lasting)
        yield Fault(at, kind, host, seconds, float(drawn.random()))
