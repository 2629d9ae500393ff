"""Copies of the newest checkpoint on the next host, so that it can lead with a disk of its own when the first is lost.

The first host looks for a newer checkpoint while learners train, and sends the files that a run goes on from, one by
one, on a thread. The JSON of the checkpoint comes last: as in the directory that is copied, a checkpoint exists when it
does.
"""

import os
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, final

from roundelay.runtime.base import wall_clock
from roundelay.runtime.hosts.control.messages import FilePiece
from roundelay.runtime.hosts.control.peers import RemoteHost
from roundelay.runtime.hosts.transport.wire import LinkError
from roundelay.runtime.messages import InvalidMessage

CHECKPOINTS = "checkpoints"
COPIED_BESIDE = ("recipe.yaml", "place.json", "events.jsonl")
"""Files of a run directory that belong to every checkpoint."""
PIECE = 1 << 20
"""Bytes of a file in one message."""
COPY_LOOK_SECONDS = 1.0
"""Interval at which a newer checkpoint is looked for."""
_NAMES = re.compile(rf"(?:{CHECKPOINTS}/)?[A-Za-z0-9_][A-Za-z0-9_.-]*\.(?:json|safetensors|yaml|jsonl)")


@final
class CopySender:
    """Sender of copies, on the first host; `exp` is its run directory, if it has one."""

    def __init__(self, exp: Path | None) -> None:
        self._exp = exp
        self._wanted: list[RemoteHost] = []
        self._sent: tuple[object, ...] = ()  # the receiver, and the checkpoint
        self._next_look = 0.0
        self._thread: threading.Thread | None = None

    def wanted(self, remote: RemoteHost) -> None:
        """Note that host `remote` keeps copies."""
        self._wanted.append(remote)

    def look(self) -> None:
        """Send the newest checkpoint to the next host, unless that has it already, or a copy is on its way."""
        now = wall_clock()
        if self._exp is None or now < self._next_look or (self._thread is not None and self._thread.is_alive()):
            return
        self._next_look = now + COPY_LOOK_SECONDS
        self._wanted = [remote for remote in self._wanted if remote.standing != "gone"]
        inside = [remote for remote in self._wanted if remote.standing == "in"]
        found = sorted((self._exp / CHECKPOINTS).glob("*.json"), key=lambda path: path.stem)
        if not inside or not found:
            return
        to, newest = min(inside, key=lambda remote: remote.host), found[-1]
        with suppress(FileNotFoundError):  # it was just removed, for a newer one
            what = to.host, id(to), newest.name, newest.stat().st_mtime_ns
            if what != self._sent:
                self._sent = what
                self._thread = threading.Thread(target=_send, args=(to, self._exp, newest), daemon=True, name="copies")
                self._thread.start()


def _send(to: RemoteHost, exp: Path, checkpoint: Path) -> None:
    tensors = [checkpoint.with_name(f"{checkpoint.stem}{end}.safetensors") for end in ("", "-again")]
    with suppress(LinkError, FileNotFoundError):
        for path in [*filter(Path.exists, tensors), *(exp / name for name in COPIED_BESIDE), checkpoint]:
            with open(path, "rb") as file:
                _send_file(to, str(path.relative_to(exp)), file)


def _send_file(to: RemoteHost, name: str, file: BinaryIO) -> None:
    at, piece = 0, file.read(PIECE)
    while True:
        following = file.read(PIECE) if len(piece) == PIECE else b""
        to.monitored.say(FilePiece(name, at, not following), [piece])
        if not following:
            return
        at, piece = at + len(piece), following


@final
class CopyReceiver:
    """Receiver of copies, on another host, in its own directory `exp`.

    Args:
        say: called once, with a sentence, if copies cannot be kept any more.
    """

    def __init__(self, exp: Path, say: Callable[[str], None]) -> None:
        self._exp, self._say, self._broken = exp, say, False

    def take(self, message: FilePiece) -> None:
        """Store a piece of a file; the whole file takes the place of the old one at once.

        Raises:
            InvalidMessage: the piece is of no file of a run directory, or does not follow the piece before.
        """
        if self._broken:
            return
        try:
            self._take(message)
        except OSError as error:  # this host trains on
            self._broken = True
            self._say(f"{self._exp}: no copies of checkpoints are kept any more ({error.strerror or error})")

    def _take(self, message: FilePiece) -> None:
        name, at = message.name, message.at
        if not _NAMES.fullmatch(name):
            raise InvalidMessage(f"{name!r} is no file of a run directory that is copied")
        path = self._exp / name
        part = path.with_name(f".{path.name}.part")
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "ab" if at else "wb") as file:
            if file.tell() != at:
                raise InvalidMessage(f"{name}: a piece at {at} after {file.tell()} bytes")
            file.write(message.payload)
            if message.last:
                file.flush()
                os.fsync(file.fileno())
        if message.last:
            os.replace(part, path)
            if path.parent.name == CHECKPOINTS and path.suffix == ".json":
                _remove_others(path)


def _remove_others(checkpoint: Path) -> None:
    """Remove all copies of checkpoints but `checkpoint`, the newest, which is whole."""
    others: Sequence[Path] = [*checkpoint.parent.glob("*.json"), *checkpoint.parent.glob("*.safetensors")]
    for path in sorted(others, key=lambda path: path.suffix != ".json"):
        if path.stem not in (checkpoint.stem, f"{checkpoint.stem}-again"):
            path.unlink()
