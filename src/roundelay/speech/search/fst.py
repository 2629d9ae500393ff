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
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.speech.bindings import kaldifst

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
        with open(path, "rb") as file:
            return _read_arrays(file)


def _read_arrays(file: BinaryIO) -> Arcs:
    file.seek(4)
    for _ in range(2):  # the names of fst and arc type, with their lengths
        file.seek(struct.unpack("<i", file.read(4))[0], os.SEEK_CUR)
    _, flags, _, start, states, arcs = struct.unpack(_HEADER, file.read(struct.calcsize(_HEADER)))

    def table(dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        if flags & _ALIGNED:
            file.seek(-file.tell() % 16, os.SEEK_CUR)
        return np.frombuffer(bytearray(file.read(count * dtype.itemsize)), dtype)

    state = table(STATE, states)
    return Arcs(start, state["final"].copy(), np.repeat(np.arange(states), state["arcs"]), table(ARC, arcs))


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
    file.write(state.view(np.uint8).data)
    file.write(arcs.view(np.uint8).data)


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


_QUANTUM = 1024.0  # weights are compared to 1 / 1024, as OpenFst's minimisation compares them
_MIX = tuple(np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93))


def merge_equal_states(fst: Arcs, rounds: int = 40, worth: float = 0.002) -> Arcs:
    """Merge states with the same final cost and the same arcs, again and again: minimisation from the ends inwards.

    Each round merges states whose arcs lead to the same states after the rounds before, so the result is equivalent
    after any of them. States that only a loop through themselves makes equal stay apart. States are compared by
    64-bit hashes of their arcs: among three million, two different ones agree with a chance below one in a million.

    Args:
        rounds: at most.
        worth: the share of states that a round must merge for another to follow.
    """
    if np.any(fst.source[1:] < fst.source[:-1]):
        order = np.argsort(fst.source, kind="stable")
        fst = replace(fst, source=fst.source[order], arcs=fst.arcs[order])
    for _ in range(rounds):
        states = len(fst.final)
        _, first, number = np.unique(_futures(fst), return_index=True, return_inverse=True)
        if len(first) == states:
            break
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        number = rank[number]  # in the order of the first of each kind: sources stay sorted
        kept = np.zeros(states, bool)
        kept[first] = True
        mask = kept[fst.source]
        arcs = fst.arcs[mask]
        arcs["target"] = number[arcs["target"]]
        fst = Arcs(int(number[fst.start]), fst.final[kept], number[fst.source[mask]], arcs)
        if len(first) > (1.0 - worth) * states:
            break
    return fst


def _futures(fst: Arcs) -> npt.NDArray[np.uint64]:
    """A hash of what each state can do next."""
    arcs, states = fst.arcs, len(fst.final)
    value = _spread(arcs["target"].astype(np.uint64) * _MIX[0] + arcs["ilabel"].astype(np.uint64))
    value = _spread(value ^ (arcs["olabel"].astype(np.uint64) * _MIX[1]))
    value = _spread(value ^ (_quantised(arcs["weight"]) * _MIX[2]))
    result = np.zeros(states, np.uint64)
    if len(arcs):
        first = np.flatnonzero(np.append(True, fst.source[1:] != fst.source[:-1]))
        result[fst.source[first]] = np.add.reduceat(value, first)
    return _spread(result ^ (_quantised(fst.final) * _MIX[3]))


def _quantised(weight: npt.NDArray[np.float32]) -> npt.NDArray[np.uint64]:
    finite = np.where(np.isfinite(weight), weight, np.float32(2**40))
    return np.rint(finite.astype(np.float64) * _QUANTUM).astype(np.int64).view(np.uint64)


def _spread(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Every bit of the result depends on every bit of the value (the last steps of splitmix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = value ^ (value >> np.uint64(31))
    return mixed


def add_output_cost(fst: Arcs, cost: float) -> Arcs:
    """Add `cost` to every arc with an output label."""
    arcs = fst.arcs.copy()
    arcs["weight"] += np.float32(cost) * (arcs["olabel"] > 0)
    return replace(fst, arcs=arcs)


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
