"""Transducers as arrays: what is slow or missing in kaldifst's Python face, done on whole arrays of arcs.

kaldifst has no vectorised access to arcs, but OpenFst's "const" file is a header, a table of states and a table of
arcs, which numpy reads and writes as they are. Everything here goes through that file; its layout is `fst/const-fst.h`,
version 2 (unaligned), of OpenFst 1.7 and later.
"""

import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import kaldifst
import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError

Fst = Any  # kaldifst.StdVectorFst or StdConstFst: the binding has no types

ARC = np.dtype([("ilabel", "<i4"), ("olabel", "<i4"), ("weight", "<f4"), ("target", "<i4")])
STATE = np.dtype([("final", "<f4"), ("first", "<u4"), ("arcs", "<u4"), ("iepsilons", "<u4"), ("oepsilons", "<u4")])
_MAGIC = 2125659606
_NAMES = (b"const", b"standard")
_HEADER = "<iiQqqq"  # version, flags, properties, start, states, arcs
_ALIGNED = 4  # flag: both tables begin at multiples of 16 bytes
_UNALIGNED_VERSION = 2
_EXPANDED_AND_ILABEL_SORTED = 0x10000000 | 0x1


@dataclass(frozen=True, eq=False)
class Arcs:
    """A transducer: start state, cost of ending in each state (inf: cannot), and arcs with the states they leave."""

    start: int
    final: npt.NDArray[np.float32]  # (states,)
    source: npt.NDArray[np.int64]  # (arcs,)
    arcs: npt.NDArray[np.void]  # (arcs,) of ARC


def to_arrays(fst: Fst) -> Arcs:
    """The arrays of any kaldifst transducer with tropical weights."""
    with _scratch() as path:
        if not kaldifst.StdConstFst(fst).write(path):
            raise UserError(f"{path}: cannot be written. Is the temporary folder full? TMPDIR names another.")
        data = Path(path).read_bytes()
    at = 4
    for _ in range(2):  # the names of fst and arc type, with their lengths
        at += 4 + struct.unpack_from("<i", data, at)[0]
    _, flags, _, start, states, arcs = struct.unpack_from(_HEADER, data, at)
    at += struct.calcsize(_HEADER)

    def table(dtype: np.dtype[Any], count: int, at: int) -> tuple[npt.NDArray[Any], int]:
        if flags & _ALIGNED:
            at += -at % 16
        return np.frombuffer(data, dtype, count, at).copy(), at + count * dtype.itemsize

    state, at = table(STATE, states, at)
    arc, _ = table(ARC, arcs, at)
    return Arcs(start, state["final"].copy(), np.repeat(np.arange(states), state["arcs"]), arc)


def write_arrays(file: BinaryIO, fst: Arcs) -> None:
    """Write the const file; arcs are sorted by state and input label."""
    order = np.lexsort((fst.arcs["ilabel"], fst.source))
    source, arcs = fst.source[order], fst.arcs[order]
    state = np.zeros(len(fst.final), STATE)
    state["final"] = fst.final
    state["arcs"] = np.bincount(source, minlength=len(state))
    state["first"] = np.cumsum(state["arcs"]) - state["arcs"]
    state["iepsilons"] = np.bincount(source[arcs["ilabel"] == 0], minlength=len(state))
    state["oepsilons"] = np.bincount(source[arcs["olabel"] == 0], minlength=len(state))
    file.write(struct.pack("<i", _MAGIC))
    for name in _NAMES:
        file.write(struct.pack("<i", len(name)) + name)
    header = (_UNALIGNED_VERSION, 0, _EXPANDED_AND_ILABEL_SORTED, fst.start, len(state), len(arcs))
    file.write(struct.pack(_HEADER, *header))
    file.write(state.tobytes())
    file.write(arcs.tobytes())


def file_bytes(fst: Arcs) -> int:
    """The size of the file that `write_arrays` writes."""
    header = 4 + sum(4 + len(name) for name in _NAMES) + struct.calcsize(_HEADER)
    return header + STATE.itemsize * len(fst.final) + ARC.itemsize * len(fst.arcs)


def from_arrays(fst: Arcs) -> Fst:
    """The const transducer that the decoder reads."""
    with _scratch() as path:
        with open(path, "wb") as file:
            write_arrays(file, fst)
        return kaldifst.StdConstFst.read(path)


def add_self_loops(fst: Arcs) -> Arcs:
    """Let every emitting arc be taken for any number of frames: a loop, cost 0, on the state it enters.

    A state entered by arcs of different input labels is split first, one copy per label, each with an epsilon arc to
    the original: a loop must repeat the label one came by (Kaldi's "reorder" form).
    """
    label = fst.arcs["ilabel"].astype(np.int64)
    target = fst.arcs["target"].astype(np.int64)
    labels = int(label.max(initial=0)) + 1
    keys, inverse = np.unique(target * labels + label, return_inverse=True)
    state, entered_by = keys // labels, keys % labels
    ways = np.bincount(state, minlength=len(fst.final))
    ways[fst.start] += 1  # the start is entered by nothing, too
    split = (entered_by > 0) & (ways[state] > 1)
    copies = int(split.sum())
    own = state.copy()
    own[split] = len(fst.final) + np.arange(copies)

    arcs = fst.arcs.copy()
    arcs["target"] = own[inverse]
    back = np.zeros(copies, ARC)
    back["target"] = state[split]
    emitting = entered_by > 0
    loops = np.zeros(int(emitting.sum()), ARC)
    loops["ilabel"], loops["target"] = entered_by[emitting], own[emitting]
    return Arcs(
        fst.start,
        np.concatenate([fst.final, np.full(copies, np.inf, np.float32)]),
        np.concatenate([fst.source, own[split], own[emitting]]),
        np.concatenate([arcs, back, loops]),
    )


def map_input(fst: Arcs, table: npt.NDArray[np.integer[Any]]) -> Arcs:
    """Rename input labels: label i becomes table[i]."""
    arcs = fst.arcs.copy()
    arcs["ilabel"] = table[arcs["ilabel"]]
    return replace(fst, arcs=arcs)


@contextmanager
def _scratch() -> Iterator[str]:
    handle, path = tempfile.mkstemp(prefix="roundelay-")
    os.close(handle)
    try:
        yield path
    finally:
        os.unlink(path)
