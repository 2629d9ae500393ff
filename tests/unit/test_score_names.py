"""Names that differ in case alone belong together, unless that is not clear."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.errors import UserError
from roundelay_speech.scoring.alignment.counts import ErrorCounts, known_as, score
from roundelay_speech.scoring.normalise import case_of_times

names = st.lists(st.text(alphabet="aAbB", min_size=1, max_size=2), unique=True, max_size=8)


@given(names, names)
def test_known_as(found: list[str], reference: list[str]) -> None:
    """A name of the reference is itself; another is the only one that differs in case; else it stays."""
    for name, known in known_as(found, reference).items():
        near = [other for other in reference if other.lower() == name.lower()]
        assert known == (name if name in reference or len(near) != 1 else near[0])


def test_utterances() -> None:
    assert score({"S-U1": ["A"], "s-u2": ["B"]}, {"s-U1": ["A"], "s-u2": ["C"]}).errors == ErrorCounts(0, 0, 1, 2)
    both = {"s-a": ["A"], "S-A": ["B"]}
    assert score(both, both).errors == ErrorCounts(ref=2)


@pytest.mark.parametrize(
    ("refs", "hyps", "message"),
    [
        ("s-a", "S-A s-A", "1 hypotheses belong to utterances without a reference: s-A"),
        ("s-a", "s-a S-A", "without a reference: S-A"),
        ("s-a S-A", "S-a", "2 of 2 utterances have no hypothesis"),
        ("s-a S-A", "S-A", "1 of 2 utterances have no hypothesis: s-a"),
    ],
)
def test_two_that_could_be_one(refs: str, hyps: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        score({name: ["A"] for name in refs.split()}, {name: ["A"] for name in hyps.split()})


def test_files_and_channels(tmp_path: Path) -> None:
    """Words of `2347 a` go to the segments of `2347 A`, in order of time with those of `2347 A`."""
    stm, ctm = tmp_path / "ref.stm", tmp_path / "hyp.ctm"
    stm.write_text("Tape A s 0 2 one two\nTape B t 0 2 three\n")
    ctm.write_text("tape a 1.0 0.2 two\nTAPE b 0.5 0.2 three\nTape A 0.1 0.2 one\n")
    case = case_of_times(stm, ctm)
    assert [*case.hyps.values()] == [["one", "two"], ["three"]]
    assert score(case.refs, case.hyps).errors == ErrorCounts(ref=3)
    ctm.write_text("tape a 0.1 0.2 one\n")
    with pytest.raises(UserError, match="1 of 2 channels with speech have no recognised word: Tape B"):
        case_of_times(stm, ctm)
    stm.write_text("Tape A s 0 2 one\nTape a t 0 2 two\n")
    ctm.write_text("TAPE A 0.1 0.2 one\n")
    with pytest.raises(UserError, match=r"without a segment in the reference: TAPE A\."):
        case_of_times(stm, ctm)
