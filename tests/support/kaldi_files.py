"""Kaldi's files written byte by byte from the description of the formats, by nothing of the package."""

import gzip
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Tree = int | tuple[Any, ...] | None
"""A pdf; ("T", key, [Tree, ...]); ("S", key, [value, ...], Tree, Tree); or None."""

Topology = Sequence[tuple[Sequence[int], Sequence[tuple[int, Sequence[tuple[int, float]]]]]]
"""[(phones, [(pdf class or -1, [(state, probability), ...]), ...]), ...]"""

THREE = [(0, [(0, 0.75), (1, 0.25)]), (1, [(1, 0.75), (2, 0.25)]), (2, [(2, 0.75), (3, 0.25)]), (-1, [])]
FIVE = [
    (0, [(0, 0.25), (1, 0.25), (2, 0.25), (3, 0.25)]),
    (1, [(1, 0.25), (2, 0.25), (3, 0.25), (4, 0.25)]),
    (2, [(1, 0.25), (2, 0.25), (3, 0.25), (4, 0.25)]),
    (3, [(1, 0.25), (2, 0.25), (3, 0.25), (4, 0.25)]),
    (4, [(4, 0.75), (5, 0.25)]),
    (-1, []),
]
TREE: Tree = ("T", 1, [None, ("T", -1, [4, 5, 6]), ("S", 0, [0, 2], ("T", -1, [0, 1, 2]), ("S", 2, [1], 3, 7))])
TOPOLOGY = [([1], FIVE), ([2, 3], THREE)]
TRIPLES = [(1, 0, 0), (1, 1, 1), (1, 4, 2), (2, 0, 3), (2, 0, 4), (2, 1, 5), (2, 2, 6), (3, 0, 3), (3, 1, 5), (3, 2, 6)]


def i32(value: int) -> bytes:
    return b"\x04" + struct.pack("<i", value)


def u32(value: int) -> bytes:
    return b"\xfc" + struct.pack("<I", value)


def f32(value: float) -> bytes:
    return b"\x04" + struct.pack("<f", value)


def ints(values: Sequence[int]) -> bytes:
    return b"\x04" + struct.pack("<i", len(values)) + b"".join(struct.pack("<i", v) for v in values)


def tree_bytes(tree: Tree) -> bytes:
    if tree is None:
        return b"NULL "
    if isinstance(tree, int):
        return b"CE " + i32(tree)
    if tree[0] == "T":
        _, key, entries = tree
        return b"TE " + i32(key) + u32(len(entries)) + b"( " + b"".join(map(tree_bytes, entries)) + b") "
    _, key, values, yes, no = tree
    return b"SE " + i32(key) + ints(values) + b"{ " + tree_bytes(yes) + tree_bytes(no) + b"} "


def write_tree(path: Path, width: int, centre: int, tree: Tree) -> None:
    head = b"\0BContextDependency " + i32(width) + i32(centre)
    path.write_bytes(head + b"ToPdf " + tree_bytes(tree) + b"EndContextDependency ")


def write_model(path: Path, topology: Topology, triples: Sequence[tuple[int, int, int]], tuples: bool = False) -> None:
    """A final.mdl with something behind the transition model, as real ones have. `tuples`: the form of later versions
    that names the pdf of the loop as well (the same here)."""
    entry = {phone: states for phones, states in topology for phone in phones}
    ids = sum(len(entry[phone][state][1]) for phone, state, _ in triples)
    rows = [(p, s, d, d) if tuples else (p, s, d) for p, s, d in triples]
    kind = "Tuples" if tuples else "Triples"
    out = b"\0B<TransitionModel> <Topology> "
    phones = sorted(entry)
    places = {p: i for i, (own, _) in enumerate(topology) for p in own}
    out += ints(phones) + ints([places.get(p, -1) for p in range(max(phones) + 1)])
    out += (i32(-1) if tuples else b"") + i32(len(topology))
    for _, states in topology:
        out += i32(len(states))
        for pdf_class, transitions in states:
            out += i32(pdf_class) + (i32(pdf_class) if tuples else b"") + i32(len(transitions))
            out += b"".join(i32(to) + f32(p) for to, p in transitions)
    out += b"</Topology> " + f"<{kind}> ".encode() + i32(len(rows))
    out += b"".join(i32(v) for row in rows for v in row) + f"</{kind}> ".encode()
    out += b"<LogProbs> FV " + i32(ids + 1) + struct.pack(f"<{ids + 1}f", *([0.0] + [-0.5] * ids))
    path.write_bytes(out + b"</LogProbs> </TransitionModel> <DIMENSION> " + i32(39))


def write_alignment(path: Path, vectors: Mapping[str, Sequence[int]], binary: bool = True) -> None:
    """An ali.N.gz: in a table every number of a vector carries its size, unlike in a vector inside a model."""
    if binary:
        out = b"".join(
            name.encode() + b" \0B" + i32(len(values)) + b"".join(map(i32, values)) for name, values in vectors.items()
        )
    else:
        out = "".join(f"{name} {' '.join(map(str, values))} \n" for name, values in vectors.items()).encode()
    with gzip.open(path, "wb") as file:
        file.write(out)
