"""The process that others are forks of (preloaded.py): it has loaded what they need, and has one thread."""

import atexit
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from multiprocessing import util
from pathlib import Path
from typing import Any, NoReturn

import torch

from roundelay.core.extras import uncollected

LONGEST = 1 << 20
"""Bytes of what is asked of it at once."""
LOADED = (
    "roundelay_speech.api.training",
    "roundelay.attached",
    "roundelay.runtime.attached.hosts.agent",
    "roundelay.runtime.attached.hosts.coordinator",
    "roundelay.runtime.attached.hosts.session_host",
)
"""Modules that take long to load."""


class Forked(subprocess.Popen[Any]):
    """A process as `subprocess` starts it; one that would run Python is a fork of this process where it may be."""

    def __init__(self, args: Sequence[str], **options: Any) -> None:
        command = _python_command(args)
        if command and not {"executable", "pass_fds"} & options.keys() and _may_be_forked():
            before, environment = options.pop("preexec_fn", None), options.get("env") or dict(os.environ)
            options["preexec_fn"] = lambda: _become(command, environment, before)
        super().__init__(args, **options)


def _python_command(arguments: Sequence[str]) -> list[str]:
    """The script or `-m` and the module, with their arguments; nothing where another program is to run."""
    if isinstance(arguments, str) or list(arguments[:1]) != [sys.executable]:
        return []
    command = list(arguments[1:])
    return command if command and (command[0] == "-m" or command[0].endswith(".py")) else []


def _may_be_forked() -> bool:
    """Return True if this process has one thread, and shares no memory by an opened file. In a fork, what other threads
    hold
    would stay held, and so would locks on that file, whoever has died."""
    return len(os.listdir("/proc/self/task")) == 1 and "/memfd:" not in Path("/proc/self/maps").read_text()


def _become(command: list[str], environment: Mapping[str, str], before: Callable[[], None] | None) -> NoReturn:
    """Become, in a process that has just been forked, the process that this Python command would have been."""
    status = 1
    try:
        if before is not None:
            before()
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        _reset_signals()
        os.environ.clear()
        os.environ.update(environment)
        gc.enable()
        _open_streams("PYTHONUNBUFFERED" in environment)
        given = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
        first = os.getcwd() if command[0] == "-m" else str(Path(command[0]).resolve().parent)
        sys.path[:] = list(dict.fromkeys([first, *given, *sys.path[1:]]))
        vars(subprocess)["Popen"], vars(util)["spawnv_passfds"] = Forked, _fork_server
        status = _exit_status(command)
    finally:
        os._exit(status)


def _enter(process: int, folder: str) -> None:
    """Go to the network and the mounts of another process, and there to a folder."""
    libc, before = ctypes.CDLL(None, use_errno=True), os.stat("/proc/self/ns/user").st_ino
    kinds = ["net", "mnt"] if os.stat(f"/proc/{process}/ns/user").st_ino == before else ["user", "net", "mnt"]
    spaces = [os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY) for kind in kinds]
    for space in spaces:
        if libc.setns(space, 0):
            raise OSError(ctypes.get_errno(), "setns")
    os.chdir(folder)


def _reset_signals() -> None:
    """Handle signals as a program does that has just been started, and is Python."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN, None):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)


def _fork_server(
    path: str, arguments: Sequence[str], descriptors: Sequence[int], start: Any = util.spawnv_passfds
) -> int:
    """Start a process of `multiprocessing` that keeps these descriptors: its fork server by a fork, too."""
    if "multiprocessing.forkserver" not in arguments[-1] or not _may_be_forked():
        return int(start(path, arguments, descriptors))
    if process := os.fork():
        return process
    try:
        _reset_signals()
        kept = [2, *sorted(descriptors), os.sysconf("SC_OPEN_MAX")]
        for one, other in pairwise(kept):
            os.closerange(one + 1, other)
        exec(arguments[-1], {"__name__": "__main__"})
    finally:
        os._exit(1)


def _open_streams(unbuffered: bool) -> None:
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        raw = open(number, "rb" if number == 0 else "wb", closefd=False)  # noqa: SIM115 as long as the process lives
        errors = "backslashreplace" if name == "stderr" else "strict"
        whole = io.TextIOWrapper(raw, "utf-8", errors, line_buffering=number == 2, write_through=unbuffered)
        vars(sys)[name] = vars(sys)[f"__{name}__"] = whole


def _exit_status(command: list[str]) -> int:
    """Run a Python command, and all that Python does at a process's end; return the exit status."""
    sys.orig_argv = [sys.executable, *command]
    status = 0
    try:
        if command[0] == "-m":
            sys.argv = command[1:]
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = command
            runpy.run_path(command[0], run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    vars(threading)["_shutdown"]()
    vars(atexit)["_run_exitfuncs"]()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status & 0xFF


def _serve(control: socket.socket) -> None:
    """Fork processes as asked, and say how they end."""
    running: dict[int, tuple[Forked, socket.socket]] = {}  # by a descriptor that says that one has ended
    while True:
        for ready in select.select([control.fileno(), *running], [], [])[0]:
            if ready in running:
                process, status = running.pop(ready)
                os.close(ready)
                with status, suppress(OSError):
                    status.send(str(process.wait()).encode())
                continue
            facts, descriptors, _, _ = socket.recv_fds(control, LONGEST, 4)
            if not facts:
                for process, _ in running.values():
                    os.killpg(process.pid, signal.SIGKILL)
                return
            command, environment, where, inside = json.loads(facts)
            process = Forked(
                [sys.executable, *command],
                env=environment,
                cwd=where,
                stdin=descriptors[3] if descriptors[3:] else subprocess.DEVNULL,
                stdout=descriptors[1],
                stderr=descriptors[2],
                start_new_session=True,
                preexec_fn=(lambda process=inside, folder=where: _enter(process, folder)) if inside else None,
            )
            for descriptor in descriptors[1:]:
                os.close(descriptor)
            status = socket.socket(fileno=descriptors[0])
            status.send(str(process.pid).encode())
            running[os.pidfd_open(process.pid)] = process, status


def _load() -> None:
    with uncollected():
        for name in LOADED:
            importlib.import_module(name)
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)  # the first optimizer loads the compiler
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    _load()
    _serve(socket.socket(fileno=int(sys.argv[1])))
