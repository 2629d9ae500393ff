"""Threads of one operation: how they wait for each other. Imports nothing heavy: it must act before torch is first
imported."""

import os
from collections.abc import MutableMapping

SPIN = "GOMP_SPINCOUNT"


def wait_politely(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let OpenMP threads spin for microseconds only before they sleep, unless the user has decided otherwise.

    By default they spin for milliseconds, and lose their core to any other process meanwhile: on two busy cores a
    training step then took 439 ms instead of 20. Not spinning at all costs a wake-up at every operation: 18 ms instead
    of 12 on two quiet cores.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault(SPIN, "1000")
