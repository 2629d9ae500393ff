"""Hosts that work and get nothing done. A heartbeat says that a host lives, only settled leases say that it moves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SUSPENDED_SECONDS = 1.0
"""The time between two looks counts for no more: a process that was suspended has not idled."""


@dataclass
class _Standstill:
    done: int
    seconds: float = 0.0


class HostProgress:
    """Seconds that each host has been busy without getting anything done.

    Args:
        patience: seconds after which that is too long.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._looked: float | None = None
        self._still: dict[int, _Standstill] = {}

    def look(self, now: float, done: Mapping[int, int]) -> list[int]:
        """Hosts that have stood still for too long.

        Args:
            now: seconds, of any clock that does not go back.
            done: by host, how much it has done: any number that changes when it gets something done. A host that is
                not named is not busy, and starts anew when it is.
        """
        passed = 0.0 if self._looked is None else min(max(0.0, now - self._looked), SUSPENDED_SECONDS)
        self._looked = now
        self._still = {host: still for host, still in self._still.items() if host in done}
        for host, amount in done.items():
            still = self._still.get(host)
            if still is None or still.done != amount:
                self._still[host] = _Standstill(amount)
            else:
                still.seconds += passed
        return sorted(host for host, still in self._still.items() if still.seconds > self._patience)


def standstill(hosts: Mapping[int, Sequence[int]], seconds: float) -> TimeoutError:
    """The error that `hosts`, each with the ranks of its learners, have got nothing done for so long."""
    named = "; ".join(f"host {host} (learners {', '.join(map(str, ranks))})" for host, ranks in hosts.items())
    return TimeoutError(
        f"{named or 'all hosts'}: alive, but nothing that was to be trained there is done for {seconds:g} s"
    )
