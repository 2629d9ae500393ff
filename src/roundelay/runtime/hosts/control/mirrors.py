"""Vectors of learners elsewhere, as the coordinator has them: mirrors, brought up to date when they are asked for."""

from collections.abc import Collection, Sequence
from typing import final

from roundelay.core.errors import UserError
from roundelay.runtime.base import ended_by_death
from roundelay.runtime.hosts.control import bulk
from roundelay.runtime.hosts.control.membership import HostMembership
from roundelay.runtime.hosts.control.messages import Give, Load
from roundelay.runtime.hosts.transport.wire import LinkError
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.strategies.base import Strategy


@final
class Mirrors:
    """Vectors of learners elsewhere, in the arena of this host. Rows that all go on from, or that are equal after every
    step, are laid out from those of this host, and do not travel (bulk.py).

    Under a synchronous strategy no host can do without one that is lost.

    Args:
        here: ranks of this host's learners.
        needs_all: True if vectors of every host are needed.
    """

    def __init__(
        self, arena: Arena, hosts: HostMembership, here: Sequence[int], strategy: Strategy, needs_all: bool
    ) -> None:
        self.names = ("row", *arena.layout.memory)
        self._arena, self._hosts, self._strategy, self._needs_all = arena, hosts, strategy, needs_all
        self._stale: set[str] = set()  # newer there
        self._here, self._alike = here, names_alike(strategy, arena.layout.memory)

    def begin_segment(self) -> None:
        """Begin a segment: learners are about to train."""
        self._stale = set(self.names)

    def fetch(self, *names: str) -> None:
        """Bring the vectors `names` here, unless they are here already.

        Raises:
            UserError: a host is lost whose vectors cannot be done without.
        """
        wanted = [name for name in names if name in self._stale]
        if wanted:
            here = [rank for rank in self._arena.liveness.living() if rank in self._here]
            elsewhere = [rank for rank in range(self._arena.layout.learners) if rank not in self._here]
            bring(self._hosts, self._arena, wanted, self._alike, here, elsewhere)
            self._stale.difference_update(wanted)
        if self._needs_all and self._hosts.lost:
            gone, (why, otherwise) = self._hosts.lost[0], ended_by_death(self._strategy)
            raise UserError(
                f"host {gone.host}, with learners {', '.join(map(str, gone.ranks))}, is lost ({gone.reason}); {why}. "
                f"The last checkpoint is complete: the same command resumes, also with fewer learners."
                f"{' ' * bool(otherwise)}{otherwise}"
            )

    def send(self) -> None:
        """Send the vectors that this host has of learners elsewhere to their hosts, which load them."""
        for remote in self._hosts.inside():
            try:
                for name in self.names:
                    for rank in remote.ranks:
                        bulk.send_vector(remote.monitored, name, rank, self._arena.vector(name, rank))
            except LinkError:
                continue  # it is lost, as will be noticed
        numbers = bulk.integers(self._arena, range(self._arena.layout.learners))
        self._hosts.ask(Load(numbers), "that it has loaded a state")
        self._stale.clear()


def bring(
    hosts: HostMembership,
    arena: Arena,
    names: Sequence[str],
    alike: Collection[str],
    here: Sequence[int],
    elsewhere: Sequence[int],
) -> None:
    """Bring vectors `names` of learners `elsewhere` into the arena of this host. Those that all have `alike` are laid
    out from one of `here`, the living learners of this host, and travel only if they differ from it."""
    alike = [name for name in names if name in alike]
    laid_out = bulk.lay_out(arena, alike, here[0], elsewhere) if here else {}
    hosts.ask(Give(tuple(names), tuple(elsewhere), laid_out), "what its learners' rows are")


def names_alike(strategy: Strategy, memory: Sequence[str]) -> set[str]:
    """Return names of the vectors that all learners have alike when a segment ends: their rows under a synchronous
    strategy that declares it, and vectors of optimizers where rows are equal after every step."""
    traits = strategy.traits
    if not traits.synchronous or traits.model == "centre" or traits.rows == "own":
        return set()
    return {"row"} | ({*memory} - {*strategy.memory} if traits.rows == "equal" else set())
