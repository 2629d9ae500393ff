"""Aligned against known phone times: matching by hand, times of frames, files that are none."""

import json
from pathlib import Path

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay_speech.hmm.boundaries import BoundaryErrors, matched, phone_begins, read_phone_times
from roundelay_speech.lexicon.lexicon import Lexicon

FIVE = ["F", "AY", "V"]


def test_phones_that_mean_the_same_are_matched() -> None:
    assert matched(FIVE, ["f", "aI", "v"]) == [(0, 0), (1, 1), (2, 2)]
    assert matched(["F", "AO", "R", "T", "UW"], ["f", "o@", "t", "u:"]) == [(0, 0), (1, 1), (3, 2), (4, 3)]
    assert matched(FIVE, ["s", "aI", "v", "@"]) == [(1, 1), (2, 2)]  # another phone is no counterpart
    assert matched(FIVE, []) == matched([], ["f"]) == []
    assert matched(["N", "AY", "N"], ["n"]) in ([(0, 0)], [(2, 0)])


def test_a_boundary_lies_between_the_centres_of_frames() -> None:
    """Frames of 25 ms every 10 ms: frames 2 and 3 are centred at 32.5 and 42.5 ms."""
    phones = np.array([1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 1], np.int16)
    states = np.array([0, 1, 2, 0, 1, 2, 0, 1, 0, 1, 0], np.int8)
    found = phone_begins(phones, states, ["SIL", "A", "B"])
    assert [name for name, _ in found] == ["A", "A", "B"]
    assert [time for _, time in found] == pytest.approx([0.0375, 0.0675, 0.0875])
    names = Lexicon({"X": (("A", "B"),)}).by_position().phones
    marked = np.array([1, names.index("A_B") + 1, names.index("B_E") + 1], np.int16)
    assert [name for name, _ in phone_begins(marked, np.zeros(3, np.int8), names)] == ["A", "B"]
    assert phone_begins(phones[:0], states[:0], ["SIL"]) == []


def test_a_file_of_times(tmp_path: Path) -> None:
    path = tmp_path / "phone_times.jsonl"
    lines = [{"id": "u", "phones": [["_", 0.0], ["f", 0.2], ["'aI2", 0.3], [",o@", 0.4], ["@2", 0.5], ["_:", 0.6]]}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert list(read_phone_times(path)) == [("u", [("f", 0.2), ("aI", 0.3), ("o@", 0.4), ("@", 0.5)])]
    for text in ("{", "[]", '{"id": "u"}', '{"id": "u", "phones": [["f", "late"]]}', '{"id": "u", "phones": [[1]]}'):
        path.write_text(f"{json.dumps(lines[0])}\n{text}\n")
        with pytest.raises(UserError, match=r"phone_times.jsonl:2: not the phone times"):
            list(read_phone_times(path))
    with pytest.raises(UserError, match="no such file"):
        list(read_phone_times(tmp_path / "none"))


def test_errors_in_numbers() -> None:
    errors = BoundaryErrors(np.array([-0.01, 0.02, 0.03, -0.06]), 7)
    assert errors.median_ms == pytest.approx(25)
    assert (errors.within(0.02), errors.within(0.05)) == (0.5, 0.75)
    assert str(errors) == (
        "phones begin 25.0 ms from where they were synthesised (median of 4); 50 % within 20 ms, 75 % within 50 ms; "
        "7 have no counterpart"
    )
