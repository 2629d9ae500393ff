"""Rows on devices for learners that no parent leads: a process of its own, the row host, owns them.

The memory of a device belongs to a process and goes with it, and all others that have mapped it are left with nothing.
Where a parent leads the learners it owns their rows (device_rows.py). Learners that a launcher has started may die in
any order, so rank 0 starts a row host, which allocates the rows, says where they are, and does nothing more until all
that have mapped them have let go of them, or have ended: each holds a pipe to it, whose end it waits for.

Messages are JSON: for each learner, by the names of the vectors, the handle with which the driver maps one (torch
counts the mappings, so each learner is given handles of its own).

Legend: P parameters, L learners.
"""

import base64
import json
import os
import re
import select
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from roundelay.core.parent import leave_signals
from roundelay.runtime.procs.memory.device_rows import DeviceVectors, MemoryHold

Handles = dict[str, Any]
"""Vectors by name: of every rank, as `_say` describes them; the centre, or None; by name the vectors beside it; and
the pipe by which they are held."""
CENTRE, BESIDE_CENTRE, HELD_BY = "centre", "beside the centre", "held by"


@dataclass(frozen=True)
class RowRequest:
    """The rows that a row host is to allocate."""

    names: tuple[str, ...]
    parameters: int
    centre: bool
    devices: tuple[str, ...]  # (L,); "": of a learner of another host
    mapped_by: int  # so many processes
    beside: tuple[str, ...] = ()  # the centre


class RowsNotHosted(Exception):
    """Raised if the row host cannot provide rows on devices."""


class RowHost:
    """Rank 0's handle of the row host, a process that it starts.

    Raises:
        RowsNotHosted: the process cannot allocate the memory, or is silent for `patience` seconds; says which.
    """

    def __init__(self, wanted: RowRequest, patience: float) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("PYTORCH_CUDA_ALLOC_CONF", None)  # memory allocated in other ways may not be shareable
        environment.pop("PYTORCH_ALLOC_CONF", None)
        process = subprocess.Popen(
            [sys.executable, "-m", "roundelay.runtime.procs.memory.row_host"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        """The row host's process, which outlives this one."""
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(vars(wanted)).encode() + b"\n")
            process.stdin.flush()
        if not select.select([process.stdout], [], [], patience)[0]:
            process.kill()
            self.close()
            process.wait()
            raise RowsNotHosted(f"their row host said nothing for {patience:.0f} s")
        said = process.stdout.readline()
        process.stdout.close()
        answer: dict[str, Any] = json.loads(said) if said else {}
        if "handles" not in answer:
            self.close()
        if not said:
            raise RowsNotHosted(f"their row host ended with status {process.wait()}")
        if "problem" in answer:
            process.wait()
            raise RowsNotHosted(answer["problem"])
        held_by = f"/proc/{os.getpid()}/fd/{process.stdin.fileno()}"
        self.handles: list[Handles] = [{**each, HELD_BY: held_by} for each in answer["handles"]]
        """For each learner here, by rank, and then for the others: for `mapped`."""

    def close(self) -> None:
        """Leave the rows to the processes that have mapped them. Safe to call twice."""
        assert self.process.stdin is not None
        if not self.process.stdin.closed:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
            threading.Thread(target=self.process.wait, daemon=True, name="row host").start()  # no zombie stays


def mapped(
    handles: Handles,
    names: Sequence[str],
    parameters: int,
    centre: bool,
    here: Sequence[bool],
    beside: Sequence[str] = (),
) -> DeviceVectors:
    """Return the rows of a row host, mapped into this process: vectors (P,) by these `names`, and the centre if there
    is one, with those `beside` it.

    Args:
        here: for each learner, by rank, True if it is on this host.

    Raises:
        ValueError: `handles` do not describe rows of these names and sizes; nothing else was mapped.
        OSError: the rows no longer exist.
    """

    def hear(said: Any) -> Tensor:
        storage = _storage(said, parameters)
        vector: Any = torch.empty(0, device=storage.device)
        row: Tensor = vector.set_(storage, 0, (parameters,))
        return row

    if not isinstance(handles, dict) or set(handles) != {*names, CENTRE, BESIDE_CENTRE, HELD_BY}:
        raise ValueError("handles of other rows")
    around = handles[BESIDE_CENTRE]
    if (handles[CENTRE] is not None) != centre or not isinstance(around, dict) or set(around) != set(beside):
        raise ValueError("handles of another centre")
    if any(not isinstance(handles[name], list) or len(handles[name]) != len(here) for name in names):
        raise ValueError("handles of other learners")
    vectors = {
        name: [hear(said) if own else None for said, own in zip(handles[name], here, strict=True)] for name in names
    }
    middle, vectors_beside = hear(handles[CENTRE]) if centre else None, {name: hear(around[name]) for name in beside}
    hold = MemoryHold(_open_checked(handles[HELD_BY], _check_pipe, os.O_WRONLY | os.O_NONBLOCK))
    return DeviceVectors(vectors, middle, vectors_beside, hold=hold)


def _say(vector: Tensor | None) -> dict[str, Any] | None:
    """Return a handle by which another process can map `vector`; None if it is of another host."""
    if vector is None:
        return None
    storage: Any = vector.untyped_storage()
    if vector.device.type != "cuda":
        descriptor, size = storage._share_fd_cpu_()
        return {"path": f"/proc/{os.getpid()}/fd/{descriptor}", "size": size}
    shared: Sequence[Any] = storage._share_cuda_()
    return {"cuda": [base64.b64encode(part).decode() if isinstance(part, bytes) else part for part in shared]}


def _storage(said: Any, parameters: int) -> Any:
    """Map memory of 4 P bytes (`parameters` is P) by a handle from `_say`, and return it."""
    kind: Any = torch.UntypedStorage
    size = 4 * parameters
    if not isinstance(said, dict):
        raise ValueError("no handle")
    if "path" in said:
        descriptor = _open_checked(said["path"], partial(_check_nameless, size=size), os.O_RDWR)
        try:
            return kind._new_shared_fd_cpu(descriptor, size)
        finally:
            os.close(descriptor)
    parts = _checked(said.get("cuda"), size)
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return kind._new_shared_cuda(*parts)


def _open_checked(path: Any, check: Callable[[str, os.stat_result], None], flags: int) -> int:
    """Return a descriptor of the file that another process has open as `path`, /proc/PID/fd/N, if `check` accepts
    it."""
    if not isinstance(path, str) or not re.fullmatch(r"/proc/[0-9]+/fd/[0-9]+", path):
        raise ValueError(f"{path!r} is no descriptor of another process")
    check(path, os.stat(path))  # before it is opened, which alone may do something to a device
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        check(path, os.fstat(descriptor))
    except ValueError:
        os.close(descriptor)
        raise
    return descriptor


def _check_pipe(path: str, found: os.stat_result) -> None:
    if not stat.S_ISFIFO(found.st_mode) or found.st_uid != os.geteuid():
        raise ValueError(f"{path} is no pipe of this user")


def _check_nameless(path: str, found: os.stat_result, size: int) -> None:
    """Check that the file `found` at `path` is shared memory of `size` bytes: a file that has no name any more."""
    if not stat.S_ISREG(found.st_mode) or found.st_nlink or found.st_uid != os.geteuid() or found.st_size != size:
        raise ValueError(f"{path} is no shared memory of {size:,} bytes of this user")


CUDA_PARTS = (int, bytes, int, int, bytes, int, bytes, bool)
"""Types of the parts of a handle, as torch makes it: device, memory, size, offset, file of counters, which of them,
event, wait for it?"""
COUNTERS = re.compile(rb"/torch_[0-9]+_[0-9]+_[0-9]+")
"""Names of such files under /dev/shm. torch writes to the one that the handle names."""


def _checked(said: Any, size: int) -> list[Any]:
    """Return the parts of the handle `said`, of `size` bytes of memory on a GPU, after checking them."""
    if not isinstance(said, list) or len(said) != len(CUDA_PARTS):
        raise ValueError("no handle of memory on a GPU")
    parts: list[Any] = [base64.b64decode(part, validate=True) if isinstance(part, str) else part for part in said]
    if any(type(part) is not kind for part, kind in zip(parts, CUDA_PARTS, strict=True)):
        raise ValueError("a handle of memory on a GPU with parts of another kind")
    device, _, length, offset, counters, counter, _, _ = parts
    if not 0 <= device < torch.cuda.device_count() or length != size or offset < 0 or counter < 0:
        raise ValueError(f"a handle of memory on GPU {device} of {length:,} bytes, not {size:,}")
    if not COUNTERS.fullmatch(counters):
        raise ValueError("a handle whose counters are in a file of another name")
    return parts


def main() -> None:
    """Be a row host: allocate the rows that standard input asks for, and keep them until it ends."""
    leave_signals(signal.SIGHUP)  # it ends with the learners
    wanted = RowRequest(**json.loads(sys.stdin.readline()))
    try:
        devices = [torch.device(device) if device else None for device in wanted.devices]
        rows = DeviceVectors.allocate(wanted.names, wanted.parameters, wanted.centre, devices, wanted.beside)
        each = [
            {
                **{name: [_say(vector) for vector in vectors] for name, vectors in rows.vectors.items()},
                CENTRE: _say(rows.centre),
                BESIDE_CENTRE: {name: _say(vector) for name, vector in rows.beside.items()},
            }
            for _ in range(wanted.mapped_by)
        ]
        answer: dict[str, Any] = {"handles": each}
    except Exception as error:
        answer = {"problem": (str(error).splitlines() or [type(error).__name__])[0]}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    if "problem" in answer:
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):  # a pipe that is read to its end must not be held open
        os.dup2(nowhere, stream)
    sys.stdin.read()


if __name__ == "__main__":
    main()
