"""Needs of `roundelay.attach` beside those of any run: learners of a script find each other without a parent."""

import os
import secrets
import socket
from collections.abc import Iterator

from roundelay.runtime.doctor.findings import Finding, Verdict
from roundelay.runtime.launch.peers import peer_user


def attach() -> Iterator[Finding]:
    """Unix sockets without a file, which carry descriptors and say whose process is at the other end; descriptors of
    processes, by which the process that speaks to other hosts sees learners end."""
    name = "\0roundelay-doctor-" + secrets.token_hex(8)
    try:
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as asker:
            listener.bind(name)
            listener.listen()
            asker.connect(name)
            with listener.accept()[0] as answerer:
                user = peer_user(answerer)
                socket.send_fds(asker, [b"!"], [asker.fileno()])
                for descriptor in socket.recv_fds(answerer, 1, 1)[1]:
                    os.close(descriptor)
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        text = f"learners of a script could not find each other: {error}"
        change = "Run where Unix sockets and pidfd_open (Linux 5.3) work; some sandboxes have none."
        yield Finding("attach", Verdict.BAD, text, change)
        return
    if user != os.geteuid():
        text = f"the kernel says that a process of user {os.geteuid()} is one of {user}"
        yield Finding("attach", Verdict.BAD, text, "Start all learners in one container, as one user.")
        return
    yield Finding("attach", Verdict.GOOD, "learners of a script find each other, and share memory, by Unix sockets")
