"""Learners of several hosts, made on one machine: each host is a group of processes with an arena of its own, and they
meet on the loopback."""

import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO

from support.attackers import attackers
from support.hosts import SECRET
from support.ports import free_port
from support.preloaded import Preloaded, environment


@dataclass
class HostsOfLearners:
    """Hosts of learners that all run the same Python command; use as a context manager."""

    sizes: Sequence[int]
    command: Sequence[str]
    variables: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    later: int = 0  # learners that are not started with the others, but may join later
    behind: Sequence[int] = ()  # hosts that the first one passes connections on to
    ways: dict[int, int] = field(default_factory=dict)  # by rank, another port by which it reaches the first host
    running: dict[int, Preloaded] = field(default_factory=dict)
    streams: dict[int, tuple[IO[str], IO[str]]] = field(default_factory=dict)  # files: a full pipe would stop a learner

    @property
    def _begin(self) -> int:
        return sum(self.sizes) - self.later

    def start(self, rank: int) -> None:
        """Start learner `rank`."""
        host = next(h for h in range(len(self.sizes)) if rank < sum(self.sizes[: h + 1]))
        known = {
            "RANK": rank,
            "WORLD_SIZE": self._begin,
            **({"ROUNDELAY_PLACES": sum(self.sizes)} if self.later else {}),
            "LOCAL_RANK": rank - sum(self.sizes[:host]),
            "LOCAL_WORLD_SIZE": self.sizes[host],
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": self.ways.get(rank, self.port),
            "ROUNDELAY_SECRET": SECRET.decode(),
            **({"ROUNDELAY_LISTEN": "relay"} if host in self.behind else {}),
            **self.variables,
        }
        for stream in self.streams.pop(rank, ()):
            stream.close()
        out, error = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115 closed in the end
        self.streams[rank] = out, error
        self.running[rank] = Preloaded(self.command, environment(**known), [out.fileno(), error.fileno()])

    def said(self, rank: int) -> tuple[str, str]:
        """Return standard output and error of a learner so far."""
        for stream in self.streams[rank]:
            stream.seek(0)
        out, error = self.streams[rank]
        return out.read(), error.read()

    def end(self, *victims: int) -> tuple[str, str]:
        """Wait until all learners have ended well, `victims` by a kill; return all output and errors."""
        for process in self.running.values():
            process.wait(220)
        said = {rank: self.said(rank) for rank in self.running}
        text = "".join(f"rank {rank}:\n{out}\n{error}\n" for rank, (out, error) in said.items())
        for rank, process in self.running.items():
            assert process.returncode == (-signal.SIGKILL if rank in victims else 0), text
        return tuple("".join(parts) for parts in zip(*said.values(), strict=True))  # type: ignore[return-value]

    def __enter__(self) -> "HostsOfLearners":
        for rank in range(self._begin):
            self.start(rank)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        for out, error in self.streams.values():
            out.close()
            error.close()


def run_hosts(sizes: Sequence[int], *command: str, behind: Sequence[int] = ()) -> tuple[str, str]:
    """Run learners on hosts of these sizes; return their standard output and error, once they have ended.

    All the while attackers do what they can without the secret; the last host even reaches the first by one of them.
    No host accepts them, and what learners compute is for the caller to compare.
    """
    port = free_port()
    with attackers(port) as found:
        ways = {sum(sizes) - 1 - n: found.between.address[1] for n in range(sizes[-1])}
        with HostsOfLearners(sizes, command, port=port, behind=behind, ways=ways) as hosts:
            said = hosts.end()
        assert not found.admitted
        assert found.done.keys() == {"noise", "replay", "reflection", "nothing", "slow"}, found.done
    return said
