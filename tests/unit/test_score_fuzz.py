"""Readers of scoring files on garbage: a result, or an error of the user's that names file and line; never else."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roundelay.core.errors import UserError
from roundelay_speech.scoring.formats.ctm import read_ctm
from roundelay_speech.scoring.formats.glm import read_glm
from roundelay_speech.scoring.formats.stm import read_stm
from roundelay_speech.scoring.formats.trn import read_trn
from roundelay_speech.scoring.normalise import Rules, case_of_times

VALID = {
    "trn": "A B { C / D } (s-1)\n;; x\nE- (F) (s-2)\n",
    "ctm": ";; x\nf A 0.5 0.25 WORD 0.9\nf A 1 2 W NA\n",
    "stm": ';; LABEL "x" "y"\nf A s 0 1 <o,x> (A) { B / @ } C-\nf A s 1 2 ignore_time_segment_in_scoring\n',
    "glm": ';; x\n* name = "x"\n[A B] => { C / D } / [ ] __ [ ]\n'
    ';; INPUT_DEPENDENT_APPLICATION = "ref"\n"x" => [] / a __\n',
}
TEXT = "A B (C) x { D / E }"
READERS: dict[str, Callable[[Path], object]] = {
    "trn": read_trn,
    "ctm": read_ctm,
    "stm": read_stm,
    "glm": lambda path: read_glm(path, "ref").apply(TEXT.split(), split_hyphens=True),
}
FRAGMENTS = [
    "{",
    "}",
    "(",
    ")",
    "/",
    "@",
    "<",
    ">",
    "<o>",
    "[",
    "]",
    "=>",
    "__",
    "*",
    ";;",
    "\n",
    "\r",
    "\t",
    " ",
    "\u2028",
    "\x0c",
    "\0",
    "-1",
    "1e999",
    "nan",
    "0.5",
    "'",
    '"',
    "A",
    "f",
    "=",
    "* format = 'NIST1'",
    "(s-1)",
    "<ALT>",
    "\nf A * * <ALT_BEGIN>\n",
    "\nf A * * <ALT>\n",
    "\nf A * * <ALT_END>\n",
    "W;x",
    "\\;",
    "*",
    "é",
    "((((",
]


@st.composite
def damaged(draw: st.DrawFn, valid: str) -> bytes:
    """A valid file cut, doubled, sprinkled with marks and with bytes; or only marks."""
    text = draw(st.sampled_from([valid, "", valid * 2]))
    for _ in range(draw(st.integers(0, 4))):
        start, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        text = text[:start] + "".join(draw(st.lists(st.sampled_from(FRAGMENTS), max_size=4))) + text[end:]
    content = text.encode()
    if draw(st.integers(0, 4)) == 0:
        place = draw(st.integers(0, len(content)))
        content = content[:place] + draw(st.binary(max_size=3)) + content[place:]
    return content


@pytest.mark.parametrize("kind", READERS)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_garbage(kind: str, tmp_path: Path, data: st.DataObject) -> None:
    read_or_name(kind, tmp_path, data.draw(damaged(VALID[kind])))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data(), st.booleans(), st.sampled_from(["error", "empty"]))
def test_a_score_or_an_error(
    tmp_path: Path, data: st.DataObject, sclite: bool, missing: Literal["error", "empty"]
) -> None:
    """Damaged files through mapping, cutting and alignment: counts that fit together, or an error of the user's."""
    paths = {kind: tmp_path / f"file.{kind}" for kind in ("stm", "ctm", "glm")}
    for kind, path in paths.items():
        path.write_bytes(data.draw(damaged(VALID[kind])))
    try:
        case = case_of_times(paths["stm"], paths["ctm"], missing)
        result = case.score(Rules(glm=paths["glm"], sclite_costs=sclite, missing=missing))
    except UserError:
        return
    for utterance in result.utterances:
        errors, pairs = utterance.errors, utterance.pairs
        assert min(errors.ins, errors.del_, errors.sub, errors.correct) >= 0
        assert errors.ref == sum(ref is not None for ref, _ in pairs)
        assert errors.total == len(utterance.wrong)


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(
    "content",
    [b"", b"\n" * 10, b"(" * 4000, b"{ " * 100_000, b"f A s 0 1 " + b"{ a / " * 5000, b"[" * 4000 + b"=>" * 4000],
)
def test_much_of_the_same(kind: str, content: bytes, tmp_path: Path) -> None:
    read_or_name(kind, tmp_path, content)


def read_or_name(kind: str, folder: Path, content: bytes) -> None:
    path = folder / f"file.{kind}"
    path.write_bytes(content)
    said = f"{path}:1: "
    try:
        READERS[kind](path)
    except UserError as error:
        said = str(error)
    assert re.match(rf"{re.escape(str(path))}(:\d+: |: not UTF-8 text \(byte \d+)", said), said


@pytest.mark.parametrize("kind", READERS)
def test_valid_files_are_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"file.{kind}"
    path.write_text(VALID[kind])
    assert READERS[kind](path)
    with pytest.raises(UserError, match="no such file"):
        READERS[kind](tmp_path / "missing")
    with pytest.raises(UserError, match="not a file but a folder"):
        READERS[kind](tmp_path)
