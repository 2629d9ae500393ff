"""Deaths and joins, as the virtual cluster says."""

from roundelay.runtime.base import LearnerDied
from roundelay.runtime.sim.cluster import VirtualCluster
from roundelay.runtime.sim.cost import Prices


class Lives:
    """The living learners of a cluster at virtual time `now_ns`. Who shares a node with whom depends on them."""

    def __init__(self, cluster: VirtualCluster, prices: Prices, now_ns: int) -> None:
        self._cluster, self._prices = cluster, prices
        self.alive = [cluster.alive_at(rank, now_ns) for rank in range(cluster.learners)]
        self.number = sum(self.alive)
        """Learners that live."""
        self.all_there = all(self.alive)
        prices.set_alive(self.alive)

    @property
    def living(self) -> tuple[int, ...]:
        """Ranks, in order."""
        return tuple(rank for rank, there in enumerate(self.alive) if there)

    def set(self, rank: int, there: bool) -> None:
        """Note that learner `rank` has come, or died."""
        if self.alive[rank] == there:
            return
        self.alive[rank] = there
        self.number += 1 if there else -1
        self.all_there = self.number == len(self.alive)
        self._prices.change_alive(rank, there)

    def late(self, now_ns: int) -> list[int]:
        """Return learners that should be there by now and are not: they were still copying a row."""
        return [r for r, there in enumerate(self.alive) if not there and self._cluster.alive_at(r, now_ns)]

    def after(self, now_ns: int) -> list[tuple[int, int, bool]]:
        """Return the coming deaths and joins: (virtual nanosecond, rank, whether it joins)."""
        return [told for told in self._cluster.lives() if told[0] > now_ns]

    def neighbour(self, rank: int) -> int:
        """Return the living learner nearest by number."""
        return min((other for other in self.living if other != rank), key=lambda other: (abs(other - rank), other))

    def there(self, peer: int) -> bool:
        """Return True for the centre, which always is there."""
        return self.all_there or peer >= len(self.alive) or self.alive[peer]

    def died(self, rank: int, now_ns: int) -> LearnerDied:
        """Return the exception to raise if its death cannot be borne."""
        return LearnerDied(rank, self.reason(now_ns))

    def reason(self, now_ns: int) -> str:
        """Return the reason of a death."""
        return f"cluster {self._cluster.name!r} says so, at {now_ns / 1e9:g} s"
