"""Kaldi's tree and transition model: files made byte by byte, and what is written is read back."""

from pathlib import Path

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay_speech.hmm.formats.kaldi_model import (
    Answer,
    ContextDependency,
    Question,
    TableMap,
    read_transition_model,
    read_tree,
    write_transition_model,
    write_tree,
)
from support import kaldi_files
from support.kaldi_files import TOPOLOGY, TREE, TRIPLES, i32, ints, u32


def test_a_tree_is_read(tmp_path: Path) -> None:
    kaldi_files.write_tree(tmp_path / "tree", 3, 1, TREE)
    found = read_tree(tmp_path / "tree")
    states = TableMap(-1, (Answer(4), Answer(5), Answer(6)))
    asked = Question(
        0,
        frozenset({0, 2}),
        TableMap(-1, (Answer(0), Answer(1), Answer(2))),
        Question(2, frozenset({1}), Answer(3), Answer(7)),
    )
    assert found == ContextDependency(3, 1, TableMap(1, (None, states, asked)))


@pytest.mark.parametrize("tuples", [True, False])
def test_a_transition_model_is_read(tmp_path: Path, tuples: bool) -> None:
    kaldi_files.write_model(tmp_path / "final.mdl", TOPOLOGY, TRIPLES, tuples)
    found = read_transition_model(tmp_path / "final.mdl")
    assert [t[:3] for t in found.tuples] == TRIPLES
    assert [s.pdf_class for s in found.topology[1]] == [0, 1, 2, 3, 4, -1]
    assert found.topology[2] == found.topology[3]
    assert found.topology[2][0].transitions == ((0, 0.75), (1, 0.25))
    # By hand: silence's states have 4, 4 and 2 ways out, all others 2.
    assert found.transition_states.tolist() == [-1, *[0] * 4, *[1] * 4, *[2] * 2, *np.repeat(range(3, 10), 2)]
    assert found.first_ids.tolist() == [1, 5, 9, 11, 13, 15, 17, 19, 21, 23]
    assert len(found.log_probs) == 25


def test_what_is_written_is_what_the_independent_writer_writes(tmp_path: Path) -> None:
    kaldi_files.write_tree(tmp_path / "theirs", 3, 1, TREE)
    write_tree(tmp_path / "ours", read_tree(tmp_path / "theirs"))
    assert (tmp_path / "ours").read_bytes().split() == (tmp_path / "theirs").read_bytes().split()
    kaldi_files.write_model(tmp_path / "model", TOPOLOGY, TRIPLES)
    write_transition_model(tmp_path / "mine", read_transition_model(tmp_path / "model"))
    # Theirs goes on with an acoustic model.
    assert (tmp_path / "model").read_bytes().startswith((tmp_path / "mine").read_bytes())


def broken(path: Path) -> str:
    """The message about a file, whose name is always in it."""
    with pytest.raises(UserError) as error:
        read_tree(path) if "tree" in path.name else read_transition_model(path)
    assert str(path) in str(error.value)
    return str(error.value)


def test_faults_are_named_with_their_place(tmp_path: Path) -> None:
    path, head = tmp_path / "tree", b"\0BContextDependency " + i32(3) + i32(1) + b"ToPdf "
    path.write_bytes(head + b"TE " + i32(1) + u32(2) + b"( NULL CE x ) EndContextDependency ")
    assert broken(path).endswith("tree: byte 59: expected a whole number of 4 bytes, found b'x ) EndConte'.")
    path.write_bytes(head + b"TE " + i32(1) + u32(2) + b"( NULL ")
    assert "cut short" in broken(path)
    path.write_bytes(head + b"TE " + i32(1) + u32(99) + b"( NULL CE " + i32(1) + b") ")
    assert "before byte 49: 99 entries of a table, which cannot be" in broken(path)
    path.write_bytes(b"\0BContextDependency " + i32(3) + i32(3) + b"ToPdf CE " + i32(1) + b"EndContextDependency ")
    assert "a window of 3 phones with the one in question at place 3" in broken(path)
    path.write_bytes(head + (b"SE " + i32(0) + ints([1]) + b"{ ") * 5000)
    assert "more than 300 deep" in broken(path)
    path.write_bytes(b"")
    assert "the file is empty" in broken(path)
    path.write_text("ContextDependency 3 1 ToPdf CE 1 EndContextDependency ")
    assert "If it is text, write it anew by Kaldi's `copy-tree`" in broken(path)
    kaldi_files.write_tree(path, 3, 1, TREE)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"TE ", b"TX ", 1))
    assert "expected CE or TE or SE or NULL, found 'TX'" in broken(path)
    path = tmp_path / "final.mdl"
    assert "cannot be read" in broken(path)
    kaldi_files.write_model(path, TOPOLOGY, TRIPLES)
    content = path.read_bytes()
    path.write_bytes(content.replace(i32(3) + i32(2) + i32(6), i32(3) + i32(3) + i32(6)))
    assert "state 3 of phone 3 with pdf 6 does not fit the topology" in broken(path)
    path.write_bytes(content.replace(b"FV " + i32(25) + bytes(4), b"FV " + i32(24)))
    assert "24 transition-ids, but log probabilities for 23" in broken(path)
