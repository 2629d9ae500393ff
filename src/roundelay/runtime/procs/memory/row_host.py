"""Rows on devices for learners that no parent leads: a process of its own, the row host, owns them.

The memory of a device belongs to a process and goes with it, and whoever else has mapped it is left with nothing. Where
a parent leads the learners it owns their rows (device_rows.py). Learners that somebody else has started may die in any
order, so rank 0 starts a row host, which allocates the rows, says where they are, and does nothing more until the last
learner process has ended.

What is said is JSON: for each learner, by the names of the vectors, what the driver needs to map one (torch counts who
has mapped what, so each learner is given handles of its own).

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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from roundelay.core.parent import leave_signals
from roundelay.runtime.procs.memory.device_rows import DeviceRows

Handles = dict[str, Any]
"""Vectors by name: of every rank, as `_say` describes them; the centre, or None; and by name what lies beside it."""
CENTRE, BESIDE_CENTRE = "centre", "beside the centre"


@dataclass(frozen=True)
class RowRequest:
    """The rows that a row host is to allocate."""

    names: tuple[str, ...]
    parameters: int
    centre: bool
    devices: tuple[str, ...]  # (L,)
    processes: tuple[int, ...]  # (L,) of the learners
    beside: tuple[str, ...] = ()  # the centre


class RowsNotHosted(Exception):
    """There are no such rows."""


class RowHost:
    """Rank 0's handle of the process.

    Raises:
        RowsNotHosted: it cannot have the memory, or says nothing for `patience` seconds; says which.
    """

    def __init__(self, wanted: RowRequest, patience: float) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("PYTORCH_CUDA_ALLOC_CONF", None)  # what is allocated in other ways may not be shareable
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
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(vars(wanted)).encode())
            process.stdin.close()
        if not select.select([process.stdout], [], [], patience)[0]:
            process.kill()
            process.wait()
            raise RowsNotHosted(f"their row host said nothing for {patience:.0f} s")
        said = process.stdout.readline()
        process.stdout.close()
        if not said:
            raise RowsNotHosted(f"their row host ended with status {process.wait()}")
        answer: dict[str, Any] = json.loads(said)
        if "problem" in answer:
            process.wait()
            raise RowsNotHosted(answer["problem"])
        self.process = process
        """It outlives this one."""
        self.handles: list[Handles] = answer["handles"]
        """For each learner, by rank: for `mapped`."""


def mapped(
    handles: Handles, names: Sequence[str], parameters: int, centre: bool, learners: int, beside: Sequence[str] = ()
) -> DeviceRows:
    """Return the rows of a row host, mapped into this process: vectors (P,) by these `names`, and the centre if there
    is one, with those `beside` it.

    Raises:
        ValueError: `handles` are not of such rows; nothing was mapped that is not.
        OSError: they are no more.
    """

    def hear(said: Any) -> Tensor:
        storage = _storage(said, parameters)
        vector: Any = torch.empty(0, device=storage.device)
        row: Tensor = vector.set_(storage, 0, (parameters,))
        return row

    if not isinstance(handles, dict) or set(handles) != {*names, CENTRE, BESIDE_CENTRE}:
        raise ValueError("handles of other rows")
    around = handles[BESIDE_CENTRE]
    if (handles[CENTRE] is not None) != centre or not isinstance(around, dict) or set(around) != set(beside):
        raise ValueError("handles of another centre")
    if any(not isinstance(handles[name], list) or len(handles[name]) != learners for name in names):
        raise ValueError("handles of other learners")
    vectors = {name: [hear(said) for said in handles[name]] for name in names}
    return DeviceRows(vectors, hear(handles[CENTRE]) if centre else None, {name: hear(around[name]) for name in beside})


def _say(vector: Tensor) -> dict[str, Any]:
    """Return a description by which another process can map it."""
    storage: Any = vector.untyped_storage()
    if vector.device.type != "cuda":
        descriptor, size = storage._share_fd_cpu_()
        return {"path": f"/proc/{os.getpid()}/fd/{descriptor}", "size": size}
    shared: Sequence[Any] = storage._share_cuda_()
    return {"cuda": [_text(part) if isinstance(part, bytes) else part for part in shared]}


def _storage(said: Any, parameters: int) -> Any:
    """Return memory of 4 P bytes that `_say` has described."""
    kind: Any = torch.UntypedStorage
    size = 4 * parameters
    if not isinstance(said, dict):
        raise ValueError("no handle")
    if "path" in said:
        descriptor = _open_nameless(said["path"], size)
        try:
            return kind._new_shared_fd_cpu(descriptor, size)
        finally:
            os.close(descriptor)
    parts = _checked(said.get("cuda"), size)
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return kind._new_shared_cuda(*parts)


def _open_nameless(path: Any, size: int) -> int:
    """Return a descriptor of another process's shared memory: a file of this user that has no name any more."""
    if not isinstance(path, str) or not re.fullmatch(r"/proc/[0-9]+/fd/[0-9]+", path):
        raise ValueError(f"{path!r} is no descriptor of another process")
    _check_nameless(path, os.stat(path), size)  # before it is opened, which alone may do something to a device
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        _check_nameless(path, os.fstat(descriptor), size)
    except ValueError:
        os.close(descriptor)
        raise
    return descriptor


def _check_nameless(path: str, found: os.stat_result, size: int) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_nlink or found.st_uid != os.geteuid() or found.st_size != size:
        raise ValueError(f"{path} is no shared memory of {size:,} bytes of this user")


CUDA_PARTS = (int, bytes, int, int, bytes, int, bytes, bool)
"""Types of the parts of a handle, as torch makes it: device, memory, size, offset, file of counters, which of them,
event, wait for it?"""
COUNTERS = re.compile(rb"/torch_[0-9]+_[0-9]+_[0-9]+")
"""Names of such files under /dev/shm. torch writes to the one that the handle names."""


def _checked(said: Any, size: int) -> list[Any]:
    """Return the parts of a handle of memory of so many bytes on a GPU."""
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


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def main() -> None:
    """Keep what is asked for on standard input until all learners have ended."""
    leave_signals(signal.SIGHUP)  # it ends with the learners
    wanted = RowRequest(**json.load(sys.stdin))
    living = []
    for process in wanted.processes:
        with suppress(ProcessLookupError):
            living.append(os.pidfd_open(process))
    try:
        devices = [torch.device(device) for device in wanted.devices]
        rows = DeviceRows.allocate(wanted.names, wanted.parameters, wanted.centre, devices, wanted.beside)
        each = [
            {
                **{name: [_say(vector) for vector in vectors] for name, vectors in rows.vectors.items()},
                CENTRE: None if rows.centre is None else _say(rows.centre),
                BESIDE_CENTRE: {name: _say(vector) for name, vector in rows.beside.items()},
            }
            for _ in wanted.devices
        ]
        answer: dict[str, Any] = {"handles": each}
    except Exception as error:
        answer = {"problem": (str(error).splitlines() or [type(error).__name__])[0]}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    if "problem" in answer:
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # a pipe that somebody reads to its end must not be held open
        os.dup2(nowhere, stream)
    while living:
        ended, _, _ = select.select(living, [], [])
        living = [process for process in living if process not in ended]


if __name__ == "__main__":
    main()
