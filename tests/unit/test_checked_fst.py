"""A graph from a stranger is looked at before the library that trusts every byte of it reads it."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from roundelay.core.checksums import verify, write_checked
from roundelay.core.errors import UserError
from roundelay.core.files import open_regular, read_json, read_text
from roundelay_speech.search.fst import ARC, STATE, Arcs, file_bytes, read_checked_fst, to_arrays, write_arrays

COLUMNS, WORDS = 3, 4
ARCS = [(0, (1, 0, 0.5, 1)), (1, (0, 3, -0.2, 2)), (1, (1, 0, 0.1, 1)), (2, (3, 1, 0.0, 0))]
GRAPH = Arcs(
    0,
    np.array([np.inf, np.inf, 0.25], np.float32),
    np.array([source for source, _ in ARCS]),
    np.array([arc for _, arc in ARCS], ARC),
)
HEAD = file_bytes(GRAPH) - STATE.itemsize * 3 - ARC.itemsize * 4


def written(folder: Path, *changes: tuple[int, bytes]) -> Path:
    path = folder / "HCLG.fst"
    with open(path, "wb") as file:
        write_arrays(file, GRAPH)
    data = bytearray(path.read_bytes())
    for place, value in changes:
        data[place : place + len(value)] = value
    path.write_bytes(data)
    return path


def in_state(number: int, name: str, value: float) -> tuple[int, bytes]:
    kind, place = STATE.fields[name][:2]  # type: ignore[index]
    return HEAD + STATE.itemsize * number + place, np.array(value, kind).tobytes()


def in_arc(number: int, name: str, value: float) -> tuple[int, bytes]:
    kind, place = ARC.fields[name][:2]  # type: ignore[index]
    return HEAD + STATE.itemsize * 3 + ARC.itemsize * number + place, np.array(value, kind).tobytes()


def test_a_whole_one_is_read(tmp_path: Path) -> None:
    read = to_arrays(read_checked_fst(written(tmp_path), COLUMNS, WORDS))
    assert (read.start, read.final.tolist()) == (0, GRAPH.final.tolist())
    assert sorted(read.arcs.tolist()) == sorted(GRAPH.arcs.tolist())


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ((0, b"\0"), "another kind"),
        ((8, b"x"), "another kind"),
        ((HEAD - 24, struct.pack("<q", 3)), "start"),
        ((HEAD - 24, struct.pack("<q", -1)), "start"),
        ((HEAD - 16, struct.pack("<q", 1 << 40)), "size"),
        ((HEAD - 8, struct.pack("<q", -4)), "size"),
        (in_state(1, "first", 2), "arcs of a state"),
        (in_state(1, "arcs", 1 << 31), "arcs of a state"),
        (in_state(2, "final", np.nan), "ending"),
        (in_state(2, "final", -np.inf), "ending"),
        (in_arc(0, "ilabel", COLUMNS + 1), "label"),
        (in_arc(0, "ilabel", -1), "label"),
        (in_arc(2, "olabel", WORDS), "label"),
        (in_arc(3, "target", 3), "no state"),
        (in_arc(3, "target", -1), "no state"),
        (in_arc(1, "weight", np.nan), "cost"),
        (in_arc(1, "weight", 3e38), "cost"),
        (in_arc(1, "target", 1), "cycle"),
    ],
)
def test_what_would_crash_or_never_end_is_named(tmp_path: Path, change: tuple[int, bytes], fault: str) -> None:
    with pytest.raises(UserError, match=rf"HCLG\.fst: not a graph that can be searched: .*{fault}"):
        read_checked_fst(written(tmp_path, change), COLUMNS, WORDS)


def test_a_cycle_over_two_states_takes_no_input_either(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cycle"):
        read_checked_fst(written(tmp_path, in_arc(3, "ilabel", 0), in_arc(0, "ilabel", 0)), COLUMNS, WORDS)


@pytest.mark.parametrize("cut", [0, 10, HEAD, HEAD + 30, -1])
def test_a_file_cut_short_is_named(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UserError, match=r"HCLG\.fst"):
        read_checked_fst(path, COLUMNS, WORDS)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_nothing_but_a_file_is_opened(tmp_path: Path, kind: str) -> None:
    """Opening a pipe that has no writer, or reading /dev/zero, would not end."""
    (tmp_path / "file.json").write_text("{}")
    write_checked(tmp_path / "index.json", {}, ["file.json"])
    path = tmp_path / "file.json"
    path.unlink()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case _:
            path.mkdir()
    with pytest.raises(OSError, match=f"not a file but a {kind}"):
        open_regular(path)
    for read in (read_json, lambda path: read_text(path, "needed")):
        with pytest.raises(UserError, match=rf"file\.json: cannot be read \(not a file but a {kind}\)"):
            read(path)
    faults = [found.fault for found in verify(tmp_path) if found.fault]
    assert len(faults) == 2  # as a JSON, and as a file that another JSON names
    assert all(f"not a file but a {kind}" in fault for fault in faults)


def test_a_link_to_a_file_is_one(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1]")
    (tmp_path / "b.json").symlink_to("a.json")
    assert read_json(tmp_path / "b.json") == [1]
