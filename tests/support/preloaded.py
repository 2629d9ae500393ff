"""Python processes that have torch and this package loaded when they begin, which takes longer than most of what tests
do with a process. They are forks of one process that has loaded both, and otherwise as if they had been started."""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from support.forking import LONGEST

TESTS = Path(__file__).parents[1]
_TEMPLATES: list["_Template"] = []


def environment(**more: object) -> dict[str, str]:
    """Return environment variables of a process that finds the modules of the tests, and computes with one thread."""
    paths = [str(TESTS), str(TESTS.parent / "src"), *filter(None, sys.path)]
    ours = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    return {**os.environ, **ours, **{name: str(value) for name, value in more.items()}}


class Preloaded:
    """A process of its own session that runs a Python command: a part of what `subprocess.Popen` has.

    Args:
        command: a script and its arguments, or `-m`, a module and its arguments.
        streams: descriptors of its standard output and error, and of its input, if it has one; else `communicate` has
            what it writes.
        where: its folder; else this process's.
        inside: a process whose network and mounts it has.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        streams: Sequence[int] = (),
        where: Path | None = None,
        inside: int = 0,
    ) -> None:
        if not _TEMPLATES:
            _TEMPLATES.append(_Template())
        self.args = [*command]
        self.returncode: int | None = None
        self._text = ""
        self._written = None if streams else tempfile.TemporaryFile("w+")  # noqa: SIM115 closed once it is read
        to = [self._written.fileno()] * 2 if self._written else streams
        self._status = _TEMPLATES[0].fork(to, [[*command], {**env}, str(where or Path.cwd()), inside])
        for file in (self._status, self._written):
            if file is not None:  # nobody may wait for its end
                weakref.finalize(self, file.close)
        self.pid = int(self._status.recv(LONGEST))

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended; return its exit status.

        Raises:
            subprocess.TimeoutExpired: the process still runs after `timeout` seconds.
        """
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            said = self._status.recv(LONGEST)
            self._status.close()
            assert said, "the process of which others are forks has died"
            self.returncode = int(said)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send the process a signal, if it runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process, if it runs."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait until the process has ended; return all its output, and "".

        Raises:
            subprocess.TimeoutExpired: the process still runs after `timeout` seconds.
        """
        self.wait(timeout)
        if self._written is not None:
            with self._written as file:
                file.seek(0)
                self._text, self._written = file.read(), None
        return self._text, ""

    def end_group(self) -> None:
        """Kill the process with its process group, if it runs, and wait for its end."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.communicate()


def run_preloaded(command: Sequence[str], env: Mapping[str, str], timeout: float) -> "subprocess.CompletedProcess[str]":
    """Run a Python command to its end in a process; return the ended process with its output.

    Raises:
        subprocess.TimeoutExpired: the process had not ended after `timeout` seconds, and was killed.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        process = Preloaded(command, env, [out.fileno(), error.fileno()])
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired as late:
            error.seek(0)
            late.add_note(error.read())
            raise
        finally:
            process.end_group()
        out.seek(0)
        error.seek(0)
        return subprocess.CompletedProcess([*command], status, out.read(), error.read())


class _Template:
    """The process that others are forks of. It ends with this one."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.forking", str(theirs.fileno())],
                env=environment(),
                cwd=TESTS,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self.close)

    def fork(self, streams: Sequence[int], facts: Sequence[object]) -> socket.socket:
        """Fork a process; return a socket that gives its id, and later its exit status."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._control, [json.dumps(facts).encode()], [theirs.fileno(), *streams])
        return mine

    def close(self) -> None:
        """Have the template end, and all that it has forked killed."""
        self._control.close()
        self._process.wait()
