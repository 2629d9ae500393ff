"""Reading of the notes that learners of benchmarks/two_hosts.py --to-loss leave (two_hosts_loop.py says which)."""

from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def speed(ends: NDArray[np.float64], period: int) -> float:
    """Steps a second, from the second of the end of each, over whole periods where there is one."""
    whole = len(ends) // period * period
    if period > 1 and whole:
        return whole / float(ends[whole - 1])
    if len(ends) < 3:
        return len(ends) / float(ends[-1]) if len(ends) else 0.0
    return (len(ends) - 1) / float(ends[-1] - ends[0])


def done(notes: Path, seconds: float) -> bool:
    """True once both learners have trained for so long."""
    for rank in range(2):
        with suppress(OSError), open(notes / f"steps-{rank}", "rb") as file:
            file.seek(-8, 2)
            if np.frombuffer(file.read(8))[0] >= seconds:
                continue
        return False
    return True


def last_words(notes: Path) -> str:
    """Last line of each learner's output."""
    said = [(notes / f"said-{host}").read_text(errors="replace").strip().splitlines() for host in range(2)]
    return " / ".join(lines[-1][:200] for lines in said if lines) or "(they said nothing)"
