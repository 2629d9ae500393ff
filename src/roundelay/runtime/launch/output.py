"""Output of learners, line by line, with the rank before each line.

The launcher reads the standard output and standard error of every learner and writes whole lines to its own. Nothing
here blocks on a learner, and nothing is decoded: a line is bytes up to a newline. A learner is made to wait only when
the reader of the launcher's output does not keep up.
"""

import os
import select
import time
from collections.abc import Callable

READ_BYTES = 1 << 16
LONGEST_LINE = 1 << 16
"""Most bytes of a line; longer ones are broken."""
PENDING_BYTES = 1 << 20
"""Bytes that may wait to be written before learners must wait."""
DRAIN_BYTES = 1 << 22
"""Bytes read of the output that an ended learner left: more than a pipe holds unless another process writes on."""
BAR_SECONDS = 10.0
"""Seconds between two showings of a line that is written over again and again, as progress bars are."""
LAST_SECONDS = 2.0
"""Seconds for which the launcher listens to processes that learners have left behind."""

Show = Callable[[bytes], None]


class Outlet:
    """The launcher's own standard output or error, written without waiting for its reader."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.broken = descriptor, False
        self._pending = bytearray()
        self._watch = select.poll()
        self._watch.register(descriptor, select.POLLOUT)

    @property
    def pending(self) -> int:
        """Number of bytes that wait to be written."""
        return len(self._pending)

    def put(self, line: bytes) -> None:
        """Add a line to those that wait to be written."""
        if not self.broken:
            self._pending += line

    def pump(self) -> None:
        """Write as many lines as is possible without waiting: PIPE_BUF bytes do not block if there is room for them."""
        while self._pending and self._watch.poll(0):
            try:
                written = os.write(self.descriptor, self._pending[: select.PIPE_BUF])
            except BlockingIOError:
                return
            except OSError:  # its reader has gone, or the disk is full
                self.broken = True
                self._pending.clear()
                return
            del self._pending[:written]

    def flush(self, seconds: float) -> None:
        """Write all waiting lines; wait for the reader at most `seconds`."""
        deadline = time.monotonic() + seconds
        self.pump()
        while self._pending and (left := deadline - time.monotonic()) > 0:
            self._watch.poll(1000 * min(left, 0.1))
            self.pump()


class LineBuffer:
    """A cutter of a stream into lines. Of a line that is overwritten (carriage returns) the present state is shown
    every BAR_SECONDS, and the last state at its end."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._rest = bytearray()  # of a line without its end
        self._over = b""  # the line before the last carriage return
        self._news, self._next = False, 0.0  # is that to be shown, and when

    def take(self, data: bytes, now: float) -> None:
        """Take the next bytes of the stream."""
        *whole, rest = data.split(b"\n")
        for piece in whole:
            self._rest += piece
            self._end_line()
        self._rest += rest
        if b"\r" in self._rest:
            *before, last = bytes(self._rest).split(b"\r")
            self._rest[:] = last
            for state in before:
                if state.strip():
                    if not self._over:
                        self._next = now + BAR_SECONDS
                    self._over, self._news = state, True
        if len(self._rest) > LONGEST_LINE:
            self._show(bytes(self._rest))
            self._rest.clear()
        self.look(now)

    def look(self, now: float) -> None:
        """Show a line that is being overwritten, if BAR_SECONDS have passed since it was shown last."""
        if self._news and now >= self._next:
            self._show(self._over)
            self._news, self._next = False, now + BAR_SECONDS

    def end(self) -> None:
        """End the stream: show the last line as far as it has come."""
        if self._rest or self._news:
            self._end_line()

    def _end_line(self) -> None:
        states = bytes(self._rest).split(b"\r")
        written = [state for state in (self._over, *states) if state.strip()]
        self._show(written[-1] if written else states[0])
        self._rest.clear()
        self._over, self._news = b"", False


class Interruptions:
    """A filter of standard error that makes one line of each traceback of a KeyboardInterrupt, once `on` is set: Ctrl-C
    is no fault, and a traceback from each learner would hide their messages."""

    def __init__(self, show: Show) -> None:
        self.on, self._show = False, show
        self._traceback: list[bytes] = []

    def __call__(self, line: bytes) -> None:
        """Take the next line of standard error."""
        if not self._traceback:
            if self.on and line.startswith(b"Traceback (most recent call last)"):
                self._traceback.append(line)
            else:
                self._show(line)
            return
        self._traceback.append(line)
        if line.startswith(b" "):
            return
        if line.startswith(b"KeyboardInterrupt"):
            places = [found.strip() for found in self._traceback if found.startswith(b"  File ")]
            self._traceback = [line + (b" (" + places[-1] + b")" if places else b"")]
        self.end()

    def end(self) -> None:
        """Show the lines that are held back."""
        for line in self._traceback:
            self._show(line)
        self._traceback = []


class _Stream:
    """Standard output or error of one learner."""

    def __init__(self, source: int, name: str, outlet: Outlet) -> None:
        self.source, self.outlet = source, outlet
        self._prefix = f"[{name}] ".encode()
        self.interruptions = Interruptions(lambda line: outlet.put(self._prefix + line + b"\n"))
        self.lines = LineBuffer(self.interruptions)
        os.set_blocking(source, False)

    def read(self, now: float) -> int:
        """Read the bytes that are available; return their number, -1 at the end of the stream."""
        try:
            data = os.read(self.source, READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            return -1
        self.lines.take(data, now)
        return len(data)

    def end(self) -> None:
        self.lines.end()
        self.interruptions.end()


class Output:
    """The streams of all learners, and this process's own two."""

    def __init__(self) -> None:
        out = Outlet(1)
        self._outlets = (out, out if _same(1, 2) else Outlet(2))
        self._streams: dict[str, tuple[_Stream, ...]] = {}

    def add(self, name: str, out: int, error: int) -> None:
        """Read a process's standard output and error from descriptors, to be closed at its end or restart. Its `name`
        is the learner's rank, with its place if the learner is a group."""
        for stream in self._streams.get(name, ()):
            self._close(stream)
        self._streams[name] = tuple(
            _Stream(source, name, outlet) for source, outlet in zip((out, error), self._outlets, strict=True)
        )

    def interrupted(self) -> None:
        """Note that Ctrl-C was passed on to the learners."""
        for streams in self._streams.values():
            streams[1].interruptions.on = True

    def wait(self, seconds: float) -> None:
        """Pass on available output, or wait for some up to `seconds`."""
        watch = select.poll()
        reading = [stream for stream in self._open() if stream.outlet.pending < PENDING_BYTES]
        for stream in reading:
            watch.register(stream.source, select.POLLIN)
        for outlet in set(self._outlets):
            if outlet.pending:
                watch.register(outlet.descriptor, select.POLLOUT)
        ready = {descriptor for descriptor, _ in watch.poll(1000 * seconds)}
        now = time.monotonic()
        for stream in reading:
            if stream.source in ready and (stream.read(now) < 0 or stream.outlet.broken):
                self._close(stream)
            stream.lines.look(now)
        for outlet in set(self._outlets):
            outlet.pump()

    def ended(self, name: str) -> None:
        """Pass on all output of the process `name`, which has ended, even if other processes hold its streams open."""
        now = time.monotonic()
        for stream in self._streams[name]:
            left = DRAIN_BYTES
            while stream.source >= 0 and left > 0:
                size = stream.read(now)
                if size < 0:
                    self._close(stream)
                elif not size:
                    break
                left -= size
            stream.end()

    def flush(self, seconds: float) -> bool:
        """Write all waiting output, for at most `seconds`; return True if all was written."""
        for outlet in set(self._outlets):
            outlet.flush(seconds)
        return not any(outlet.pending for outlet in self._outlets)

    def finish(self) -> None:
        """Read a little longer from processes that the learners, all ended, may have left behind; then stop reading."""
        deadline = time.monotonic() + LAST_SECONDS
        while self._open() and (left := deadline - time.monotonic()) > 0:
            self.wait(min(left, 0.1))
        for streams in self._streams.values():
            for stream in streams:
                self._close(stream)

    def _open(self) -> list[_Stream]:
        return [stream for streams in self._streams.values() for stream in streams if stream.source >= 0]

    def _close(self, stream: _Stream) -> None:
        """Close a stream; processes that still write to it get an error."""
        if stream.source >= 0:
            stream.end()
            os.close(stream.source)
            stream.source = -1


def _same(one: int, other: int) -> bool:
    """Return True if two descriptors refer to the same file, terminal or pipe."""
    try:
        a, b = os.fstat(one), os.fstat(other)
    except OSError:  # one is closed
        return False
    return (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
