"""Settings of the C libraries below torch: freed memory is kept for the next step, and threads that wait for each other
sleep soon. Imports nothing heavy: it must act before torch is first imported.

Every training step allocates the same activations and gradients and frees them again. By default glibc gives large
pieces back to the kernel at once, which clears each page before it hands it out again: up to 15,000 page faults and 25
of 65 ms a step for 12.5 million parameters, or next to none, as the addresses fall.
"""

import ctypes
import os
from collections.abc import MutableMapping

FROM_KERNEL, KEEP = 1 << 30, (1 << 31) - 1
"""Bytes from which memory comes straight from the kernel, and most free bytes kept for the next step."""
SPIN = "GOMP_SPINCOUNT"
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt


def keep_freed() -> None:
    """Have the C library of this process keep freed memory for the next step; without glibc do nothing."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_THRESHOLD, FROM_KERNEL)
    mallopt(_TRIM_THRESHOLD, KEEP)


def keep_freed_in(environment: MutableMapping[str, str]) -> None:
    """Have processes in `environment` keep freed memory for the next step, unless the user has decided otherwise."""
    environment.setdefault("MALLOC_MMAP_THRESHOLD_", str(FROM_KERNEL))
    environment.setdefault("MALLOC_TRIM_THRESHOLD_", str(KEEP))


def wait_politely(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let OpenMP threads spin for microseconds only before they sleep, unless the user has decided otherwise.

    By default they spin for milliseconds, and lose their core to any other process meanwhile: on two busy cores a
    training step then took 439 ms instead of 20. Not spinning at all costs a wake-up at every operation: 18 ms instead
    of 12 on two quiet cores.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault(SPIN, "1000")
