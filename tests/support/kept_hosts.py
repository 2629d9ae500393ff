"""Processes that are hosts of one short run after the other: most of such a run would be the start of a process."""

import json
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from support.preloaded import Preloaded, environment

ENDED = "this host's run has ended with status"
_IDLE: list["KeptHost"] = []
_KEEPING = [False]


class KeptHost:
    """A process that leads a host's learners in one run after the other, as told on its standard input."""

    def __init__(self) -> None:

        (reads, hears), (tells, writes) = os.pipe(), os.pipe()
        self.process = Preloaded(["-m", "support.hosts"], environment(), [hears, hears, tells])
        for descriptor in (hears, tells):
            os.close(descriptor)
        self._said, self._told = open(reads), open(writes, "w")  # noqa: SIM115 closed with it
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.busy = False

    def _read(self) -> None:
        for line in self._said:
            self._lines.put(line)
        self._lines.put("")  # it has ended

    def lead(self, host: int, facts: Mapping[str, Any]) -> None:
        """Begin a run as host number `host`."""
        self._told.write(json.dumps([host, facts]) + "\n")
        self._told.flush()
        self.busy = True

    def end(self, seconds: float) -> tuple[int, str]:
        """Wait until the run has ended, for `seconds` before a kill; return its exit status and its output."""
        said: list[str] = []
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.close()
                return -signal.SIGKILL, "".join(said)
            if not line or line.startswith(ENDED):
                break
            said.append(line)
        status = int(line.split()[-1]) if line else self.process.wait()
        self.busy = not line or status != 0  # it ends where a run has failed
        return status, "".join(said)

    def close(self) -> None:
        """Kill the process, with all processes that it has started."""
        self.process.end_group()
        self._reader.join()
        self._told.close()
        self._said.close()


@contextmanager
def keeping_hosts() -> Iterator[None]:
    """Have host processes that ended well used again, while the body lasts."""
    _KEEPING[0] = True
    try:
        yield
    finally:
        _KEEPING[0] = False
        while _IDLE:
            _IDLE.pop().close()


def kept() -> KeptHost | None:
    """Return a process for a host: an idle one, or a new one; None outside of `keeping_hosts`."""
    if not _KEEPING[0]:
        return None
    return _IDLE.pop() if _IDLE else KeptHost()


def give_back(host: KeptHost) -> None:
    """Make a process available again, if its run has ended."""
    if host.busy:
        host.close()
    else:
        _IDLE.append(host)
