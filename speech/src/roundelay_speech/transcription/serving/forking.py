"""A process that has loaded the model, and forks one of itself for each recording and each person who speaks.

The forks share the model's memory, begin within milliseconds and keep nothing: all that one of them leaks, breaks or
never ends goes with it. They are forked from a process of one thread, never from the server, which may have several. It
gets its orders over a socket, with the descriptors of another socket, on which the fork answers, and of a file. When
the server closes its end of that other socket, the answer is not wanted any more, and the fork is killed; when the
server itself dies, the kernel kills this process, and with it all forks.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, Protocol, final

from roundelay.core.errors import UserError
from roundelay.core.files import json_line
from roundelay.core.parent import die_with_parent, leave_signals

REPLY_HEAD, PIECE, TEXT, END = b"h", b"p", b"t", b"e"
"""First bytes of messages from a fork: status and kind of a reply, as JSON; a piece of its body; a text for a speaker;
the end."""
MOST_TOLD = 1 << 17
"""Most bytes of a message to or from this process."""


class ForkedWorker(Protocol):
    """A loaded model whose process is forked for each recording."""

    def facts(self) -> Mapping[str, Any]:
        """Return the facts of the model that the server shows."""

    def work(self, asked: Mapping[str, Any], link: Connection, file: int | None) -> None:
        """Do the work of a request in a process of its own, and answer by `link`; `file` is a descriptor of its
        data."""


def parent_of_forks(make: Callable[[], ForkedWorker], asked: socket.socket, server: int) -> None:
    """Load the model, tell the server, and fork for each request until the server closes the socket.

    Args:
        server: process id of the server.
    """
    die_with_parent(server)
    # Ctrl-C, and often other signals, go to every process of a group; the server alone answers them.
    leave_signals()
    try:
        worker = make()
    except UserError as error:
        asked.send(json_line({"problem": str(error)}).encode())
        return
    # Objects that are there stay: a collection that wrote into them would copy them into every fork.
    gc.collect()
    gc.freeze()
    asked.send(json_line(worker.facts()).encode())
    _Forks(worker, asked).run()


@final
class _Forks:
    """Loop of the process that forks one copy of a worker for each request, and ends and reaps the copies."""

    def __init__(self, worker: ForkedWorker, asked: socket.socket) -> None:
        self._worker, self._asked = worker, asked
        self._forks: dict[int, tuple[int, socket.socket]] = {}  # process id and its end, by descriptor
        self._poll = select.poll()
        self._poll.register(asked, select.POLLIN)
        self._woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._woken, select.POLLIN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def run(self) -> None:
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._asked.fileno():
                    told, descriptors, _, _ = socket.recv_fds(self._asked, MOST_TOLD, 2)
                    if not told:
                        return
                    self._fork(json.loads(told), descriptors)
                elif descriptor == self._woken:
                    os.read(self._woken, 1 << 10)
                    self._reap()
                elif descriptor in self._forks:  # the server wants no answer any more
                    self._poll.unregister(descriptor)
                    os.kill(self._forks[descriptor][0], signal.SIGKILL)

    def _fork(self, asked: Mapping[str, Any], descriptors: list[int]) -> None:
        """Fork a copy of the worker for the request `asked`; `descriptors` are its link and, with one, a file."""
        parent, (link, *file) = os.getpid(), descriptors
        child = os.fork()
        if not child:
            try:
                die_with_parent(parent)
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self._asked.close()
                for _, other in self._forks.values():
                    other.close()
                with Connection(link) as connection:
                    self._worker.work(asked, connection, file[0] if file else None)
            except (OSError, EOFError):
                os._exit(1)  # the server has hung up
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        for one in file:
            os.close(one)
        # Its end stays open here, too, so that its other end's closing is seen.
        end = socket.socket(fileno=link)
        self._poll.register(link, 0)
        self._forks[link] = child, end

    def _reap(self) -> None:
        """Reap forks that have ended; closing their sockets tells the server."""
        while True:
            try:
                ended, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not ended:
                return
            for descriptor, (child, end) in list(self._forks.items()):
                if child == ended:
                    with contextlib.suppress(KeyError):  # it was killed
                        self._poll.unregister(descriptor)
                    end.close()
                    del self._forks[descriptor]
