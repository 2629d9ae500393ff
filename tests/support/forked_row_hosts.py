"""Row hosts (runtime/procs/memory/row_host.py) that are forks of one process, which has loaded torch: a script that
opens fifty sessions else waits for torch fifty times."""

import os
import sys
from collections.abc import Mapping, Sequence
from subprocess import PIPE
from types import SimpleNamespace
from typing import Any

from roundelay.runtime.procs.memory import row_host
from support.preloaded import Preloaded
from support.until import until

_STARTED: list["_RowHostFork"] = []


class _RowHostFork(Preloaded):
    """A row host that takes the place of the process which `row_host.RowHost` starts by `subprocess.Popen`."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], **_: Any) -> None:
        hear, said = os.pipe()
        asked, ask = os.pipe()
        super().__init__(command[1:], env, [said, sys.stderr.fileno(), asked])
        os.close(said)
        os.close(asked)
        self.stdin, self.stdout = os.fdopen(ask, "wb"), os.fdopen(hear, "rb")
        _STARTED.append(self)


def fork_row_hosts() -> None:
    """Start the row hosts of this process as forks from now on."""
    vars(row_host)["subprocess"] = SimpleNamespace(Popen=_RowHostFork, PIPE=PIPE)


def row_hosts_end() -> None:
    """Wait until the row hosts of all sessions of this process, which are closed, have ended."""
    until(lambda: all(process.returncode == 0 for process in _STARTED))
