"""Random numbers by name, not by order of asking.

Every random decision has a stream of its own, keyed by (seed, role, rank, step, ...). Nothing is shared, so nothing
depends on who asked first: the simulator, real processes, a replay and a resumed run all see the same numbers.
"""

import hashlib

import numpy as np

Key = int | str


def stream_seed(seed: int, *keys: Key) -> int:
    """Return a 63-bit seed that depends on all keys and on nothing else (not on PYTHONHASHSEED, platform or
    version)."""
    text = "\x1f".join([str(seed), *(f"{type(key).__name__}:{key}" for key in keys)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def stream(seed: int, *keys: Key) -> np.random.Generator:
    """Return a generator of random numbers that is independent of those for other keys."""
    return np.random.Generator(np.random.Philox(stream_seed(seed, *keys)))
