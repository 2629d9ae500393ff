"""Vectors of learners elsewhere, as the coordinator has them: mirrors, brought up to date when they are asked for."""

from typing import final

from roundelay.core.errors import UserError
from roundelay.runtime.base import ended_by_death
from roundelay.runtime.hosts.control import bulk
from roundelay.runtime.hosts.control.membership import HostMembership
from roundelay.runtime.hosts.transport.wire import LinkError
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.strategies.base import Strategy


@final
class Mirrors:
    """Vectors of learners elsewhere, in the arena of this host.

    Under a synchronous strategy nobody can do without a host that is lost.
    """

    def __init__(self, arena: Arena, hosts: HostMembership, strategy: Strategy, needs_all: bool) -> None:
        self.names = ("row", *arena.layout.memory)
        self._arena, self._hosts, self._strategy, self._needs_all = arena, hosts, strategy, needs_all
        self._stale: set[str] = set()  # newer there

    def begin_segment(self) -> None:
        """Learners are about to train."""
        self._stale = set(self.names)

    def fetch(self, *names: str) -> None:
        """Bring the vectors `names` here, unless they are here already.

        Raises:
            UserError: a host is lost, without which there is no state.
        """
        wanted = [name for name in names if name in self._stale]
        if wanted:
            self._hosts.ask("give", "what its learners' rows are", names=wanted)
            self._stale.difference_update(wanted)
        if self._needs_all and self._hosts.lost:
            gone, (why, otherwise) = self._hosts.lost[0], ended_by_death(self._strategy)
            raise UserError(
                f"host {gone.host}, with learners {', '.join(map(str, gone.ranks))}, is lost ({gone.reason}); {why}. "
                f"The last checkpoint is complete: the same command resumes, also with fewer learners."
                f"{' ' * bool(otherwise)}{otherwise}"
            )

    def send(self) -> None:
        """Load what is here into the learners elsewhere."""
        for remote in self._hosts.inside():
            try:
                for name in self.names:
                    for rank in remote.ranks:
                        bulk.send_vector(remote.monitored, name, rank, self._arena.vector(name, rank))
            except LinkError:
                continue  # it is lost, as will be noticed
        numbers = bulk.integers(self._arena, range(self._arena.layout.learners))
        self._hosts.ask("load", "that it has loaded a state", integers=numbers)
        self._stale.clear()
