"""Attackers beside a run who reach the port of its first host and do not know its secret."""

import itertools
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from roundelay.runtime.hosts.transport.handshake import GREETING, VERDICT, WELCOME
from support.relay import Relay

PAUSE_SECONDS = 0.2
"""Between two rounds: the run beside it shares the processors."""
SILENT = 20
"""Connections that are held open, of which each sends one byte a round."""


class Attackers:
    """Attackers of a port, each a thread, until they are stopped. Use `attackers`."""

    def __init__(self, port: int) -> None:
        self.between = Relay(("127.0.0.1", port), "change", True)
        """The man in the middle: whoever goes by its port is recorded."""
        self.done: Counter[str] = Counter()
        """Attacks by name, of those that the host has answered with its greeting."""
        self.admitted: list[str] = []
        """Names of the attacks that got any further."""
        self._port, self._stop, self._silent = port, threading.Event(), list[socket.socket]()
        self._thread = threading.Thread(target=self._attack)
        self._thread.start()

    def _attack(self) -> None:
        ways: dict[str, Callable[[bytes], bytes]] = {
            "noise": lambda _: os.urandom(200),
            "replay": lambda _: bytes(self.between.said),
            "reflection": lambda greeting: greeting + os.urandom(32),
            "nothing": lambda _: b"",
        }
        for name, say in itertools.cycle(ways.items()):
            if self._stop.wait(PAUSE_SECONDS / len(ways)):
                return
            with suppress(OSError):
                self._once(name, say)
            self._drip()

    def _once(self, name: str, say: Callable[[bytes], bytes]) -> None:
        with socket.create_connection(("127.0.0.1", self._port), timeout=20) as attacker:
            greeting = attacker.recv(GREETING.size, socket.MSG_WAITALL)
            words = say(greeting)
            if len(greeting) != GREETING.size or (name == "replay" and not words):
                return
            self.done[name] += 1
            attacker.sendall(words)
            attacker.shutdown(socket.SHUT_WR)
            verdict = attacker.recv(VERDICT.size, socket.MSG_WAITALL)
            if verdict[:1] == bytes([WELCOME]) or attacker.recv(1):
                self.admitted.append(name)

    def _drip(self) -> None:
        """Send another byte on each slow connection, and open again those that were closed."""
        for silent in [*self._silent]:
            try:
                silent.send(b"R")
            except OSError:
                self._silent.remove(silent)
                silent.close()
        if len(self._silent) < SILENT:
            with suppress(OSError):
                self._silent.append(socket.create_connection(("127.0.0.1", self._port), timeout=20))
                self.done["slow"] += 1

    def stop(self) -> None:
        """Close all connections of the attackers, those through the man in the middle among them."""
        self._stop.set()
        self._thread.join()
        for silent in self._silent:
            silent.close()
        self.between.close()


@contextmanager
def attackers(port: int) -> Iterator[Attackers]:
    """Run attackers of the first host's port while the body lasts."""
    found = Attackers(port)
    try:
        yield found
    finally:
        found.stop()
