"""A folder of transcripts is filled again where it was left; and scores of transcripts."""

import json
from pathlib import Path

import pytest

from roundelay.core.errors import UserError
from roundelay_speech.lexicon.cleaning import Cleaner
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.scoring.formats.ctm import TimedWord
from roundelay_speech.transcription.inputs import Recording
from roundelay_speech.transcription.many import TranscriptFolder
from roundelay_speech.transcription.scoring import check_reference, references, scored
from roundelay_speech.transcription.transcript import ChannelTranscript, Segment


def transcript(name: str, text: str) -> ChannelTranscript:
    words = tuple(TimedWord(word, 0.5 * number, 0.4, 0.9) for number, word in enumerate(text.split()))
    return ChannelTranscript(name, f"{name}.wav", 1, 9.0, (Segment(0.0, 9.0, words),))


def a_recording(folder: Path, name: str, content: str = "sound") -> Recording:
    path = folder / f"{name}.wav"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return Recording(name, path)


def test_what_is_there_and_whole_is_kept(tmp_path: Path) -> None:
    some = {name: a_recording(tmp_path / "in", name) for name in ("a", "b/c", "d", "e")}
    settings = {"model": "blake2b:00", "channel": None}
    folder = TranscriptFolder(tmp_path / "out", "txt", settings)
    for name, one in some.items():
        assert folder.whole(one) is None
        folder.write(one, [transcript(f"{name}@{channel}", f"GO {name}") for channel in (1, 2)])
    assert (tmp_path / "out/b/c@2.txt").read_text() == "GO b/c\n"

    # Damaged, missing, and of a recording that has changed since.
    (tmp_path / "out/a@1.txt").write_text("GO")
    (tmp_path / "out/d@2.txt").unlink()
    a_recording(tmp_path / "in", "e", "another sound")
    again = TranscriptFolder(tmp_path / "out", "txt", settings)
    kept = again.whole(some["b/c"])
    assert kept is not None
    assert [(one.name, one.text, one.file) for one in kept] == [
        ("b/c@1", "GO b/c", "b/c@1.txt"),
        ("b/c@2", "GO b/c", "b/c@2.txt"),
    ]
    assert [again.whole(some[name]) for name in "ade"] == [None, None, None]
    again.write(some["a"], [transcript("a", "NEW")])
    third = TranscriptFolder(tmp_path / "out", "txt", settings).whole(some["a"])
    assert third is not None
    assert [one.text for one in third] == ["NEW"]


def test_a_torn_line_is_one_recording_lost(tmp_path: Path) -> None:
    some = [a_recording(tmp_path, name) for name in "abc"]
    folder = TranscriptFolder(tmp_path / "out", "json", {})
    for one in some[:2]:
        folder.write(one, [transcript(one.name, "GO")])
    done = tmp_path / "out/done.jsonl"
    done.write_bytes(done.read_bytes()[:-20])
    again = TranscriptFolder(tmp_path / "out", "json", {})
    assert [again.whole(one) is not None for one in some] == [True, False, False]
    again.write(some[2], [transcript("c", "GO")])
    third = TranscriptFolder(tmp_path / "out", "json", {})
    assert [third.whole(one) is not None for one in some] == [True, False, True]
    done.write_text('{"name": "a"}\n[]\n{"name": "b", "recording": 3, "transcripts": [{}]}\n')
    assert [TranscriptFolder(tmp_path / "out", "json", {}).whole(one) for one in some] == [None, None, None]


def test_other_settings_need_another_folder(tmp_path: Path) -> None:
    TranscriptFolder(tmp_path / "out", "txt", {"model": "one", "pause": 0.5})
    TranscriptFolder(tmp_path / "out", "txt", {"model": "one", "pause": 0.5})
    with pytest.raises(UserError, match=r"out: its transcripts were made with model one, not two\. Give another --out"):
        TranscriptFolder(tmp_path / "out", "txt", {"model": "two", "pause": 0.5})
    with pytest.raises(UserError, match="made with format txt, not srt"):
        TranscriptFolder(tmp_path / "out", "srt", {"model": "one", "pause": 0.5})
    (tmp_path / "out/settings.json").write_text(json.dumps([]))
    with pytest.raises(UserError, match="made with format None, not txt"):
        TranscriptFolder(tmp_path / "out", "txt", {"model": "one", "pause": 0.5})


def test_scores(tmp_path: Path) -> None:
    (tmp_path / "ref.trn").write_text("go to (s1-a)\nstop now (b)\n")
    (tmp_path / "text").write_text("a go to\nb STOP NOW\nother NEVER\n")
    for name in ("ref.trn", "text"):
        errors = scored(tmp_path / name, {"a": "GO TO", "x/b": "STOP"})[0].score.errors
        assert (errors.ref, errors.del_, errors.ins, errors.sub) == (4, 1, 0, 0)
    (tmp_path / "talk.txt").write_text("go to\nstop now\n")
    (tmp_path / "marks").write_text("a cafe\u0301\n")
    assert scored(tmp_path / "marks", {"a": "Café"})[0].score.errors.sub == 0
    assert references(tmp_path / "talk.txt", ["talk"]) == {"talk": ["GO", "TO", "STOP", "NOW"]}
    with pytest.raises(UserError, match=r"ref\.trn: nothing is said there of c, d, only of s1-a, b"):
        references(tmp_path / "ref.trn", ["a", "c", "d"])
    (tmp_path / "two.trn").write_text("go (s1-a)\nto (s2_a)\n")
    with pytest.raises(UserError, match="s1-a and s2_a may both be a"):
        references(tmp_path / "two.trn", ["a"])
    (tmp_path / "twice").write_text("a go\na to\n")
    with pytest.raises(UserError, match="twice:2: a comes twice"):
        references(tmp_path / "twice", ["a", "b"])


NOT_OF_IT = {
    "text": "fash-an251 YES\nfash-an252 NO\n",  # Kaldi's, of other recordings
    "one": "rec_1 go to\n",
    "sorted": "anna go\nbert to\ncleo stop\ndora now\n",
    "ref.trn": "go to (s1-a)\n",
    "ref.stm": "t 1 s 0.0 1.0 go to\n",
    "hyp.ctm": "t 1 0.0 1.0 go\n",
    "t.srt": "1\n00:00:00,000 --> 00:00:01,000\ngo to\n",
    "empty": "\n",
}


@pytest.mark.parametrize("name", NOT_OF_IT)
def test_a_reference_that_does_not_fit_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(NOT_OF_IT[name])
    with pytest.raises(UserError, match=name):
        check_reference(tmp_path / name, ["t"])
    with pytest.raises(UserError, match=name):
        scored(tmp_path / name, {"t": "GO TO"})


def test_the_names_of_both_sides_are_shown(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("fash-an251 YES\nfash-an252 NO\n")
    with pytest.raises(UserError, match=r"names \(fash-an251, fash-an252\), and the recording is called t\. Name the"):
        check_reference(tmp_path / "text", ["t"])
    (tmp_path / "text").write_text("t@1 YES\nt@2 NO\n")
    check_reference(tmp_path / "text", ["t"])  # of two channels


def test_words_of_other_speech_are_remarked_on(tmp_path: Path) -> None:
    (tmp_path / "talk.txt").write_text("go to the shop\n" * 10)
    assert scored(tmp_path / "talk.txt", {"t": "GO TO THE SHOP " * 9})[1] == []
    assert "has 40 words for t, where 2 were recognised" in scored(tmp_path / "talk.txt", {"t": "GO TO"})[1][0]


def test_references_are_written_as_those_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a Go, <cough> to\n")
    clean = Cleaner(Lexicon({"go": (("G",),), "to": (("T",),)}))
    assert references(tmp_path / "text", ["a"], clean) == {"a": ["GO", "TO"]}
    (said,) = scored(tmp_path / "text", {"a": "go to"}, clean)[1]
    assert said.startswith(f"{tmp_path / 'text'}: transcripts were written in the model's words: 1 x marks of noises")
    (tmp_path / "text").write_text("a go to\n")
    assert scored(tmp_path / "text", {"a": "go to"}, clean)[1] == []
