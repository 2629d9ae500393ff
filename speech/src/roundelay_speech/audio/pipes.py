"""Commands of `wav.scp`, run once, within limits, each into a file of its own.

A line such as `sw02001 sph2pipe -f wav -p -c 1 sw02001.sph |` is a command of the corpus's makers that would run with
the rights of its user: so it runs only when the user asks for it (`--allow-pipes`). Its output is kept in a file of the
prepared corpus, so that no later step runs anything.
"""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from roundelay.core.cores import cores
from roundelay.core.files import atomic_write
from roundelay.core.progress import Progress
from roundelay_speech.audio.headers import STREAMED, wav_chunks

_QUOTED = 500  # characters of a command's last words that a message repeats


@dataclass(frozen=True)
class Pipes:
    """The folder for the output of commands, and the limits within which they run."""

    folder: Path  # gets one file for each recording
    seconds: float = 300.0  # for one command
    gigabytes: float = 8.0  # one command may write
    workers: int | None = None  # commands at the same time; None: as many as there are cores


@dataclass(frozen=True)
class Failed:
    """The command of a recording gave no audio, for this reason."""

    reason: str


def run_pipes(
    commands: Mapping[str, str], root: Path, since: float, pipes: Pipes, progress: Progress
) -> dict[str, Path | Failed]:
    """Run `RECORDING -> COMMAND |` in `root`, several at a time; files made from the same command are kept.

    Args:
        commands: by recording, as in `wav.scp`, with the bar at the end.
        root: the folder where they run.
        since: time of change of `wav.scp`: older files are made again (s).
        pipes: folder and limits.
        progress: advances with every command.

    Returns:
        By recording, the file with its audio, or the failure: the command, how it ended and its message.
    """
    shell = shutil.which("bash") or "/bin/sh"
    found: dict[str, Path | Failed] = {}
    progress.start("running the commands of wav.scp", len(commands))
    pool = ThreadPoolExecutor(pipes.workers or cores())
    running: set[subprocess.Popen[bytes]] = set()
    try:
        waiting = {
            name: pool.submit(_one, shell, name, text, root, since, pipes, running) for name, text in commands.items()
        }
        for name, future in waiting.items():
            found[name] = future.result()
            progress.advance()
    finally:
        # After an interrupt commands that still run are not waited for. A command ended here gives no file.
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(running):
            _end(process)
        pool.shutdown()
        progress.finish()
    return found


def _one(
    shell: str,
    recording: str,
    text: str,
    root: Path,
    since: float,
    pipes: Pipes,
    running: set[subprocess.Popen[bytes]],
) -> Path | Failed:
    """Return the file of a command's output; run the command unless the file is newer than `since`."""
    command = text.strip().removesuffix("|").strip()
    digest = hashlib.blake2b(f"{recording}\0{command}".encode(), digest_size=6).hexdigest()
    path = pipes.folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', recording)[:100]}.{digest}"
    if path.is_file() and path.stat().st_mtime >= since:
        return path
    try:
        with atomic_write(path) as file:
            if (why := _run(shell, command, root, file, pipes, running)) is not None:
                raise _Refused(why)
            _mend_length(Path(file.name))
    except _Refused as refused:
        return Failed(f"its command `{command}` {refused}")
    return path


class _Refused(Exception):
    """Output of a command is refused; the message says why."""


def _run(
    shell: str, command: str, root: Path, output: BinaryIO, pipes: Pipes, running: set[subprocess.Popen[bytes]]
) -> str | None:
    """Run a command; return None when it ended well and wrote something, else the reason."""
    # A command may be a pipe of several: the failure of any is a failure, where the shell can tell (bash).
    careful = "set -o pipefail; " if os.path.basename(shell) == "bash" else ""
    limit = f"ulimit -f {int(pipes.gigabytes * 1024**2)} 2>/dev/null; "
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [shell, "-c", f"{careful}{limit}{command}"],
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=said,
            start_new_session=True,
        )
        running.add(process)
        try:
            status = process.wait(timeout=pipes.seconds)
        except subprocess.TimeoutExpired:
            return f"did not end within {pipes.seconds:g} s and was stopped{_last_words(said)}"
        finally:
            _end(process)
            running.discard(process)
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}{_last_words(said)}"
        if status:
            return f"failed with status {status}{_last_words(said)}"
        output.seek(0, os.SEEK_END)
        return None if output.tell() else f"wrote nothing{_last_words(said)}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and all that it started, unless it has ended by itself."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own, and is there until it is waited for
        process.wait()


def _last_words(said: BinaryIO) -> str:
    said.seek(0, os.SEEK_END)
    said.seek(max(0, said.tell() - 4 * _QUOTED))
    text = " / ".join(line.strip() for line in said.read().decode(errors="replace").splitlines() if line.strip())
    return f"; it said: {'... ' if len(text) > _QUOTED else ''}{text[-_QUOTED:]}" if text else "; it said nothing"


def _mend_length(path: Path) -> None:
    """Fill in the lengths of a WAV file whose writer, into a pipe, could not go back to do it."""
    size = path.stat().st_size
    with open(path, "r+b") as file:
        if size >= STREAMED:
            return
        for name, length in wav_chunks(file):
            if name == b"data":
                here = file.tell()
                if length == 0 or length >= STREAMED:
                    file.seek(here - 4)
                    file.write((size - here).to_bytes(4, "little"))
                    file.seek(4)
                    file.write((size - 8).to_bytes(4, "little"))
                return
