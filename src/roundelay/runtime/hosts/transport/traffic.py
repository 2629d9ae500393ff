"""Traffic counters of the links between hosts."""

from collections.abc import Callable, Iterable

from roundelay.runtime.base import Traffic

Reading = tuple[int, int, int, float]
"""A host at the other end, bytes sent and received so far, seconds somebody waited for it so far."""


class TrafficCounters:
    """Readings of all links of a host, as what came between two of them.

    Args:
        host: whose links they are.
        read: a reading of each link there is now.
    """

    def __init__(self, host: int, read: Callable[[], Iterable[Reading]]) -> None:
        self._host, self._read = host, read
        self._before: dict[int, tuple[int, int, float]] = {}

    def bytes(self) -> dict[int, tuple[int, int]]:
        """Return bytes sent and received so far, over links there are now, by the host at the other end."""
        return {peer: (sent, received) for peer, (sent, received, _) in self._totals().items()}

    def _totals(self) -> dict[int, tuple[int, int, float]]:
        now: dict[int, tuple[int, int, float]] = {}
        for peer, sent, received, waited in self._read():
            old = now.get(peer, (0, 0, 0.0))
            now[peer] = (old[0] + sent, old[1] + received, old[2] + waited)
        return now

    def since(self) -> tuple[Traffic, ...]:
        """Return bytes, by the host at the other end, since this was asked last."""
        now, found = self._totals(), []
        for peer, values in sorted(now.items()):
            before = self._before.get(peer, (0, 0, 0.0))
            if values[0] < before[0]:  # a new link, after the old one was lost
                before = (0, 0, 0.0)
            sent, received, waited = values[0] - before[0], values[1] - before[1], values[2] - before[2]
            found.append(Traffic(self._host, peer, sent, received, round(waited, 6)))
        self._before = now
        return tuple(found)
