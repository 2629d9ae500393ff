"""Names that differ in case alone: sclite takes `4T0C0204` and `4t0c0204`, or the channels A and a, for the same."""

from collections.abc import Iterable
from typing import TypeVar

N = TypeVar("N", str, tuple[str, str])


def known_as(names: Iterable[N], reference: Iterable[N]) -> dict[N, N]:
    """Return the name that the reference has for each of `names`: the same, or the one that differs in case alone.

    What is spelled alike comes first, so that two names of the reference that differ in case stay two. A name that
    none of the reference's, or several of them, could be stays as it is.
    """
    exact = dict.fromkeys(reference)
    folded: dict[N, list[N]] = {}
    for name in exact:
        folded.setdefault(_folded(name), []).append(name)
    found = {}
    for name in names:
        near = folded.get(_folded(name), [])
        found[name] = near[0] if name not in exact and len(near) == 1 else name
    return found


def _folded(name: N) -> N:
    return name.casefold() if isinstance(name, str) else (name[0].casefold(), name[1].casefold())
