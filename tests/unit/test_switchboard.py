"""Switchboard-1, Fisher and Hub5-2000 from made-up trees of the LDC's layout."""

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay.core.streams import stream
from roundelay_speech.audio.reading import read_audio
from roundelay_speech.corpus.options import OPEN, PrepareOptions
from roundelay_speech.corpus.readers.base import Request
from roundelay_speech.corpus.readers.calls import find_files
from roundelay_speech.corpus.readers.fisher import read_fisher
from roundelay_speech.corpus.readers.hub5 import read_hub5
from roundelay_speech.corpus.readers.switchboard import KINDS, prepare_switchboard, read_switchboard
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.prepared import load_corpus
from support.named_corpora import call, switchboard


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return switchboard(tmp_path / "source", calls=4, turns=6)


def fisher(folder: Path) -> Path:
    """Two calls with their transcripts and table."""
    rng = stream(1, "fisher")
    for number in (1, 2):
        told = call(folder / "fisher_eng_tr_sp_d1" / "audio" / "000" / f"fe_03_{number:05d}.sph", rng, 4)
        lines = [f"# fe_03_{number:05d}.sph\n# Transcribed\n\n"]
        for side, start, end, words in told:
            lines.append(f"{start:.2f} {end:.2f} {side}: {' '.join(words).lower()} [laughter]\n\n")
        lines.append(f"{told[0][1]:.2f} {told[0][2]:.2f} B: (( go )) yes\n0.00 0.50 B: [noise]\n")
        text = folder / "fe_03_p1_tran" / "data" / "trans" / "000" / f"fe_03_{number:05d}.txt"
        text.parent.mkdir(parents=True, exist_ok=True)
        text.write_text("".join(lines))
    table = folder / "fe_03_p1_tran" / "doc" / "fe_03_p1_calldata.tbl"
    table.parent.mkdir(parents=True)
    table.write_text(
        "CALL_ID,DATE_TIME,TOPICID,SIG_GRADE,CNV_GRADE,APIN,ASX.DL,APHNUM,APHSET,APHTYP,BPIN,BSX.DL,BPHNUM,BPHSET,BPHTYP\n"
        "00001,20021201_00:00:00,ENG01,3,4,1001,f.a,,4,3,1002,m.a,,4,3\n"
        "00002,20021201_00:00:00,ENG01,3,4,,f.o,,4,3,,,,4,3\n"
    )
    return folder


def test_switchboard_and_hub5(source: Path, tmp_path: Path) -> None:
    prepare_switchboard(Request(tmp_path / "data", source, options=OPEN), Silent())
    corpus = load_corpus(tmp_path / "data")
    assert {split: {u.recording_id for u in us} for split, us in corpus.splits.items()} == {
        "train": {"sw02002", "sw02003", "sw02004"},
        "dev": {"sw02001"},
        "test": {"sw_4390", "en_4156"},
    }
    assert [len(us) for us in corpus.splits.values()] == [18, 6, 12]  # a turn each; silence is no utterance
    first = corpus.splits["dev"][0]
    assert first.id.startswith("sw02001-A_000000-0")
    assert (first.speaker, first.channel, first.gender, first.subset) == ("sw02001-A", 0, "f", "swb")
    assert {u.gender for u in corpus.splits["dev"] if u.speaker == "sw02001-B"} == {"m"}
    assert {u.channel for u in corpus.splits["train"] if u.speaker.endswith("B")} == {1}
    assert {(u.recording_id, u.subset) for u in corpus.splits["test"]} == {("sw_4390", "swb"), ("en_4156", "callhm")}
    assert all(("uh" in u.words) == u.speaker.endswith("B") for u in corpus.splits["test"])
    assert not any("st-" in u.words for u in corpus.splits["test"])
    assert corpus.lexicon.words == ("go", "no", "st-", "stay", "yes")
    assert corpus.lexicon.silence == "SIL"
    assert (tmp_path / "data" / "test.stm").read_text().startswith(";; comment")
    assert (tmp_path / "data" / "test.glm").is_file()
    loud = {u.id: abs(read_audio(u, tmp_path)).max() for u in corpus.utterances}
    assert min(loud.values()) > 0.05  # the side that speaks, not the one that listens


def test_fisher_is_trained_on(source: Path, tmp_path: Path) -> None:
    also = fisher(tmp_path / "fisher")
    corpus = prepare_switchboard(Request(tmp_path / "data", source, also=(also,), options=OPEN), Silent())
    found = [u for u in corpus.splits["train"] if u.subset == "fisher"]
    assert len(found) == 8
    genders = {u.speaker: u.gender for u in found}
    expected = {"fe_03_00001-A": "f", "fe_03_00001-B": "m", "fe_03_00002-A": "f", "fe_03_00002-B": None}
    assert genders == expected
    assert all("laughter" not in u.text for u in found)
    text = next(also.rglob("fe_03_00002.txt"))
    text.write_text("1.0 0.5 A: yes\n1.0 2.0 C: yes\n# comment\n")
    with pytest.raises(UserError, match=r"Fisher: 2 faults(?s:.*)fe_03_00002\.txt:1: (?s:.*)fe_03_00002\.txt:2: "):
        prepare_switchboard(Request(tmp_path / "data", source, also=(also,), options=OPEN), Silent())


def test_a_call_without_audio(source: Path, tmp_path: Path) -> None:
    """One of many is left out with a word; one of four means that a disc is missing."""
    next(source.rglob("sw02004.sph")).unlink()
    with pytest.raises(UserError, match=r"no audio of 1 of 4 calls(?s:.*)--also DIR(?s:.*)sw02004\.sph"):
        prepare_switchboard(Request(tmp_path / "data", source, options=OPEN), Silent())
    more = switchboard(tmp_path / "more", calls=21, turns=2, seed=2, hub5=False)
    next(more.rglob("sw02020.sph")).unlink()
    corpus = prepare_switchboard(Request(tmp_path / "data", more, options=OPEN), Silent())
    assert [one.reason for one in corpus.left_out["train"]] == ["sw02020: no sw02020.sph, but a transcript"]


def test_older_names_of_the_recordings(source: Path, tmp_path: Path) -> None:
    for path in list(source.rglob("sw020*.sph")):
        path.rename(path.with_name(f"SW{path.name[3:7]}.SPH"))
    corpus = prepare_switchboard(Request(tmp_path / "data", source, options=OPEN), Silent())
    assert len(corpus.splits["train"]) == 18


def test_times_beyond_the_recording(source: Path, tmp_path: Path) -> None:
    """A little is cut off; more is a fault."""
    text = next(source.rglob("sw2003A-ms98-a-trans.text"))
    lines = text.read_text().splitlines()
    name, start, end, *words = lines[4].split()
    for late, kept in ((0.2, True), (60.0, False)):
        text.write_text("\n".join([*lines[:4], f"{name} {start} {float(end) + late} {' '.join(words)}"]) + "\n")
        options = PrepareOptions(on_bad="skip", vocabulary="open")
        corpus = prepare_switchboard(Request(tmp_path / "data", source, options=options), Silent())
        ids = [u.id for u in corpus.splits["train"] if u.speaker == "sw02003-A"]
        assert len(ids) == (3 if kept else 2)
        assert len(corpus.left_out.get("train", [])) == (0 if kept else 1)
    with pytest.raises(UserError, match=r"sw2003A-ms98-a-trans\.text:5: .*sw02003\.sph ends at"):
        prepare_switchboard(Request(tmp_path / "data", source, options=OPEN), Silent())


def test_faults_in_transcripts(source: Path, tmp_path: Path) -> None:
    text = next(source.rglob("sw2003A-ms98-a-trans.text"))
    text.write_text("sw2003A-ms98-a-0001 0.5\nsw2004A-ms98-a-0002 0.0 0.1 yes\nsw2003A-ms98-a-0003 0.2 0.1 yes\n")
    with pytest.raises(UserError, match="Switchboard-1: 3 faults in the transcripts") as error:
        prepare_switchboard(Request(tmp_path / "data", source, options=OPEN), Silent())
    assert all(f"{text}:{number}: not `sw2003A" in str(error.value) for number in (1, 2, 3))


def test_faults_in_the_reference(source: Path, tmp_path: Path) -> None:
    reference = next(source.rglob("*.stm"))
    reference.write_text("sw_4390 A sw_4390_A 0.0 1.0 YES\nxx_4390 A xx 0.0 1.0 <O> YES\nsw_4390 1 s 0.0 1.0 <O> YES\n")
    with pytest.raises(UserError, match="Hub5-2000: 3 faults"):
        prepare_switchboard(Request(tmp_path / "data", source, options=OPEN), Silent())


def test_alternatives_in_the_reference(source: Path, tmp_path: Path) -> None:
    reference = next(source.rglob("*.stm"))
    reference.write_text("sw_4390 A s 0.0 0.2 <O,sw,M,sw-M> { @ / YES NO / GO } STAY { GO / @ }\n")
    corpus = prepare_switchboard(Request(tmp_path / "data", source, options=OPEN), Silent())
    assert [(u.text, u.gender) for u in corpus.splits["test"]] == [("yes no stay go", "m")]


def test_what_is_missing_is_named(source: Path, tmp_path: Path) -> None:
    dictionary = next(source.rglob("sw-ms98-dict.text"))
    saved = dictionary.read_text()
    dictionary.unlink()
    with pytest.raises(UserError, match=r"no sw-ms98-dict\.text.*--lexicon"):
        prepare_switchboard(Request(tmp_path / "data", source, options=OPEN), Silent())
    other = tmp_path / "other.dict"
    other.write_text(saved.replace("_1", "(2)").replace("st[ay]-", "st-"))
    assert prepare_switchboard(Request(tmp_path / "data", source, lexicon=other, options=OPEN), Silent()).lexicon.words
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no transcripts named like sw2001A-ms98-a-trans\.text"):
        prepare_switchboard(Request(tmp_path / "data", tmp_path / "empty", options=OPEN), Silent())
    with pytest.raises(UserError, match=r"nowhere: no such folder"):
        prepare_switchboard(Request(tmp_path / "data", source, also=(tmp_path / "nowhere",), options=OPEN), Silent())


def test_links_are_followed_but_not_in_circles(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "links"
    root.mkdir()
    (root / "corpus").symlink_to(source)
    (source / "up").symlink_to(root)
    assert len(find_files([root], KINDS)["audio"]) == 4


PARTS = (
    "sw2001A-ms98-a-0001 sw_4390 en_4156 A B: A: 0.5 1.5 nan -1 1e9 <O,sw,M> { / @ } (( )) (TH-) [laughter-[ IBM's ;; #"
)
LINE = st.text(max_size=60) | st.lists(st.sampled_from(PARTS.split()), max_size=9).map(" ".join)


@given(st.lists(LINE, max_size=6))
def test_any_text_gives_segments_or_faults_with_their_line(lines: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "text")
        path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
        dictionary = Lexicon({"go": (("g", "ow"),)})
        for told in (
            read_switchboard({"sw2001a-ms98-a-trans.text": path}, {}, dictionary, Silent()),
            read_fisher({"fe_03_00001.txt": path}, {}, Silent()),
            read_hub5(path, Silent()),
        ):
            assert all(fault.startswith(f"{path}:") for fault in told.problems)
            assert all(segment.words and 0 <= segment.start < segment.end for segment in told.segments)
            assert all(re.fullmatch(rf"{path}:\d+", segment.where) for segment in told.segments)
