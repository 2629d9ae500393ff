"""A cable between a host's network namespace and the switch's, with any delay: frames are read from one side and
written to the other some time later.

    python cable.py HOST_PID DEVICE SWITCH_PID PORT DELAY

makes the interface DEVICE in the network namespace of process HOST_PID and PORT in that of SWITCH_PID, prints "ready",
and obeys lines on its standard input: `delay SECONDS` (one way), `stall` (frames are kept, up to a second's worth),
`cut` (frames are lost), `mend` (as before). It ends when its standard input does. The kernel's own netem would do, but
not every kernel has it. Only the standard library: it must start at once.
"""

import ctypes
import fcntl
import os
import selectors
import struct
import sys
import time
from collections import deque
from contextlib import suppress

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
CLONE_NEWNET = 0x40000000
FRAME = 2048
MOST_FRAMES = 100_000  # frames


def tap(process: int, name: str) -> int:
    """Open an Ethernet interface in the network namespace of `process`; return a descriptor of its frames."""
    namespace = os.open(f"/proc/{process}/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH14x", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


class Cable:
    """A cable: its two ends, its delay, and the frames under way."""

    def __init__(self, ends: tuple[int, int], delay: float) -> None:
        self.other = {ends[0]: ends[1], ends[1]: ends[0]}
        self.under_way: deque[tuple[float, int, bytes]] = deque()  # time of arrival, end, bytes
        self.delay, self.stalled, self.lost = delay, False, False

    def take(self, end: int) -> None:
        """Read all frames that have come to one end."""
        arrives = time.monotonic() + self.delay
        for _ in range(256):
            try:
                frame = os.read(end, FRAME)
            except OSError:  # nothing more, or the interface is down
                return
            if not self.lost and len(self.under_way) < MOST_FRAMES:
                self.under_way.append((arrives, self.other[end], frame))

    def give(self) -> float | None:
        """Write the frames that are due to the other end; return the seconds until the next is, None if there
        is none."""
        while self.under_way and not self.stalled:
            left = self.under_way[0][0] - time.monotonic()
            if left > 0:
                return left
            _, end, frame = self.under_way.popleft()
            with suppress(OSError):  # the interface is down, or its queue full: as on a cable, the frame is lost
                os.write(end, frame)
        return None

    def obey(self, words: list[str]) -> None:
        """Obey an order, the words of a line of standard input."""
        if words[0] == "delay":
            self.delay = float(words[1])
        else:
            self.stalled, self.lost = words[0] == "stall", words[0] == "cut"
            if self.lost:
                self.under_way.clear()


def main() -> None:
    """Run a cable between two interfaces, and obey orders on standard input until it ends."""
    host, device, switch, port, delay = sys.argv[1:]
    cable = Cable((tap(int(host), device), tap(int(switch), port)), float(delay))
    print("ready", flush=True)
    ready = selectors.DefaultSelector()
    for end in (*cable.other, 0):
        ready.register(end, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select(cable.give()):
            if key.fd:
                cable.take(key.fd)
                continue
            orders = os.read(0, 4096).decode()
            if not orders:
                return
            for line in orders.splitlines():
                cable.obey(line.split())


if __name__ == "__main__":
    main()
