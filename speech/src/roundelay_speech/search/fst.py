"""Transducers as arrays: work that is slow or missing in kaldifst's Python interface, done on whole arrays of arcs.

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
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.files import open_regular
from roundelay_speech.bindings import kaldifst

Fst = Any  # kaldifst.StdVectorFst or StdConstFst: the binding has no types

ARC = np.dtype([("ilabel", "<i4"), ("olabel", "<i4"), ("weight", "<f4"), ("target", "<i4")])
STATE = np.dtype([("final", "<f4"), ("first", "<u4"), ("arcs", "<u4"), ("iepsilons", "<u4"), ("oepsilons", "<u4")])
_MAGIC = 2125659606
_NAMES = (b"const", b"standard")
_HEADER = "<iiQqqq"  # version, flags, properties, start, states, arcs
_SIZES = struct.Struct("<qqq")  # the last three of them
_ALIGNED = 4  # flag: both tables begin at multiples of 16 bytes
_UNALIGNED_VERSION = 2
_EXPANDED_AND_ILABEL_SORTED = 0x10000000 | 0x1


@dataclass(frozen=True, eq=False)
class Arcs:
    """A transducer as arrays: start state, cost of ending in each state (inf: impossible), and arcs with the states
    they leave."""

    start: int
    final: npt.NDArray[np.float32]  # (states,)
    source: npt.NDArray[np.int64]  # (arcs,)
    arcs: npt.NDArray[np.void]  # (arcs,) of ARC


def to_arrays(fst: Fst) -> Arcs:
    """Return the arrays of any kaldifst transducer with tropical weights."""
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
    """Write a transducer as a const file, with arcs sorted by state and input label."""
    order = np.lexsort((fst.arcs["ilabel"], fst.source))
    source, arcs = fst.source[order], fst.arcs[order]
    state = np.zeros(len(fst.final), STATE)
    state["final"] = fst.final
    state["arcs"] = np.bincount(source, minlength=len(state))
    state["first"] = np.cumsum(state["arcs"]) - state["arcs"]
    state["iepsilons"] = np.bincount(source[arcs["ilabel"] == 0], minlength=len(state))
    state["oepsilons"] = np.bincount(source[arcs["olabel"] == 0], minlength=len(state))
    file.write(_head(fst.start, len(state), len(arcs)))
    file.write(state.view(np.uint8).data)
    file.write(arcs.view(np.uint8).data)


def _head(start: int, states: int, arcs: int) -> bytes:
    """Return the header of a const file, up to the table of states; it ends with the three numbers."""
    names = b"".join(struct.pack("<i", len(name)) + name for name in _NAMES)
    header = struct.pack(_HEADER, _UNALIGNED_VERSION, 0, _EXPANDED_AND_ILABEL_SORTED, start, states, arcs)
    return struct.pack("<i", _MAGIC) + names + header


def file_bytes(fst: Arcs) -> int:
    """Return the size of the file that `write_arrays` writes."""
    return len(_head(0, 0, 0)) + STATE.itemsize * len(fst.final) + ARC.itemsize * len(fst.arcs)


def from_arrays(fst: Arcs) -> Fst:
    """Return the const transducer that the decoder reads."""
    with _scratch() as path:
        with open(path, "wb") as file:
            write_arrays(file, fst)
        return kaldifst.StdConstFst.read(path)


MOST_WEIGHT = 1e6  # nats, of an arc; a word that never occurs costs 230
_LONGEST_CHAIN = 1000  # arcs without input in a row; graphs of words have a few


def read_checked_fst(path: Path, inputs: int, outputs: int) -> Fst:
    """Read the const transducer in a file, after a check of all its states and arcs, since the library that reads and
    searches it uses every number as a place in memory.

    Args:
        inputs, outputs: bounds of input labels (included) and of output labels (excluded).

    Raises:
        UserError: the file is no such transducer, cut short, or has an invalid state, label or weight, or a cycle
            without input.
        OSError: the file cannot be read.
    """
    with open_regular(path) as file:
        fault = _fault(file, inputs, outputs)
    if fault:
        raise UserError(f"{path}: not a graph that can be searched: {fault}.")
    return kaldifst.StdConstFst.read(str(path))


def _fault(file: BinaryIO, inputs: int, outputs: int) -> str:
    """Return the fault of a const file of the form that `write_arrays` writes; "" if it has none."""
    head = _head(-1, 0, 0)
    found = file.read(len(head))
    if len(found) < len(head) or found[: -_SIZES.size] != head[: -_SIZES.size]:
        return "another kind of file"
    start, states, arcs = _SIZES.unpack(found[-_SIZES.size :])
    size = len(head) + STATE.itemsize * states + ARC.itemsize * arcs
    if min(states, arcs) < 0 or size != os.fstat(file.fileno()).st_size:
        return f"its size does not agree with its {states:,} states and {arcs:,} arcs"
    if not 0 <= start < states:
        return "its start is not one of its states"
    with mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        state = np.frombuffer(data, STATE, states, len(head))
        arc = np.frombuffer(data, ARC, arcs, len(head) + STATE.itemsize * states)
        try:
            return _fault_of_states(state, arcs) or _fault_of_arcs(state, arc, (inputs, outputs))
        finally:
            del state, arc  # or the map cannot be closed


def _fault_of_states(state: npt.NDArray[np.void], arcs: int) -> str:
    count = state["arcs"].astype(np.int64)
    after = np.cumsum(count)
    if after[-1] != arcs or not np.array_equal(after - count, state["first"]):
        return "the arcs of a state are not where they should be"
    if not np.all(state["final"] >= -MOST_WEIGHT):  # NaN is not
        return "a cost of ending is no number"
    return ""


def _fault_of_arcs(state: npt.NDArray[np.void], arc: npt.NDArray[np.void], labels: tuple[int, int]) -> str:
    if not len(arc):
        return ""
    numbers = arc.view("<u4").reshape(-1, 4)  # negative numbers become large
    if numbers[:, 0].max() > labels[0] or numbers[:, 1].max() >= labels[1]:
        return "a label is that of no column or word"
    if numbers[:, 3].max() >= len(state):
        return "an arc leads to no state"
    weight = arc["weight"]
    if not max(-float(weight.min()), float(weight.max())) <= MOST_WEIGHT:  # NaN is not
        return "a cost is no number, or too large"
    silent = np.flatnonzero(arc["ilabel"] == 0)
    source = np.repeat(np.arange(len(state), dtype=np.int32), state["arcs"])[silent]
    return "a cycle takes no input" if _cyclic(source, arc["target"][silent], len(state)) else ""


def _cyclic(source: npt.NDArray[np.integer[Any]], target: npt.NDArray[np.integer[Any]], states: int) -> bool:
    """Return True if arcs form a cycle, or a chain too long to belong to words."""
    for _ in range(_LONGEST_CHAIN):
        leaving = np.zeros(states, bool)
        leaving[source] = True
        on = leaving[target]  # an arc that leads to a state without any is on no cycle
        if not on.any():
            return False
        if on.all():
            return True
        source, target = source[on], target[on]
    return True


def add_self_loops(fst: Arcs) -> Arcs:
    """Let every emitting arc be taken for any number of frames: a loop, cost 0, on the state it enters.

    A state entered by arcs of different input labels is split first, one copy per label, each with an epsilon arc to
    the original: a loop must repeat the label of the arc taken (Kaldi's "reorder" form).
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
    after any of them. States that are equal only through a loop over themselves stay apart. States are compared by
    64-bit hashes of their arcs: among three million, two different ones agree with a chance below one in a million.

    Args:
        rounds: most rounds of merging.
        worth: share of states that a round must merge for another to follow.
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
    """Return a hash of each state's arcs and final weight."""
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
    """Mix a value so that every bit of the result depends on every bit of the value (the last steps of splitmix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = value ^ (value >> np.uint64(31))
    return mixed


def add_output_cost(fst: Arcs, cost: float, labels: npt.NDArray[np.integer[Any]] | None = None) -> Arcs:
    """Add `cost` to every arc with an output label, or only with one of `labels`."""
    arcs = fst.arcs.copy()
    output = arcs["olabel"]
    arcs["weight"] += np.float32(cost) * (output > 0 if labels is None else np.isin(output, labels))
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
