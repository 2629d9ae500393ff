"""Transcripts in every format, read back by readers of their own."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from roundelay.core.errors import UserError
from roundelay_speech.hmm.formats.textgrid import read_textgrid
from roundelay_speech.scoring.formats.ctm import TimedWord, read_ctm
from roundelay_speech.scoring.formats.trn import read_trn
from roundelay_speech.transcription.formats import FORMATS
from roundelay_speech.transcription.transcript import ChannelTranscript, Segment, placed

WORDS = [
    ("GO", 0.5, 0.25, 0.75),
    ("TO", 0.75, 0.5, 1.0),
    ("<SPAM>", 3601.5, 0.125, 0.0625),
    ("O'NEIL", 3601.75, 1, 0.5),
]
TIMED = [TimedWord(*word) for word in WORDS]
SOME = ChannelTranscript(
    "talk@2",
    "talks/talk.wav",
    2,
    3700.0,
    (Segment(0.25, 1.5, tuple(TIMED[:2])), Segment(100.0, 101.0, ()), Segment(3601.0, 3603.0, tuple(TIMED[2:]))),
)
NOTHING = ChannelTranscript("silence", "silence.wav", 1, 2.5, ())


def test_every_format_is_here() -> None:
    assert set(FORMATS) == {"txt", "json", "ctm", "srt", "vtt", "trn", "TextGrid"}


def test_txt() -> None:
    assert FORMATS["txt"](SOME) == "GO TO\n<SPAM> O'NEIL\n"
    assert FORMATS["txt"](NOTHING) == ""


def test_trn(tmp_path: Path) -> None:
    (tmp_path / "a.trn").write_text(FORMATS["trn"](SOME) + FORMATS["trn"](NOTHING))
    assert read_trn(tmp_path / "a.trn") == {"talk@2": ["GO", "TO", "<SPAM>", "O'NEIL"], "silence": []}


def test_ctm(tmp_path: Path) -> None:
    (tmp_path / "a.ctm").write_text(FORMATS["ctm"](SOME) + FORMATS["ctm"](NOTHING))
    assert read_ctm(tmp_path / "a.ctm") == {("talk@2", "2"): TIMED}


def test_json() -> None:
    text = FORMATS["json"](SOME)
    assert text.endswith("}\n")
    assert text.count("\n") == 1
    found = json.loads(text)
    assert (found["name"], found["source"], found["channel"], found["seconds"]) == ("talk@2", "talks/talk.wav", 2, 3700)
    assert found["text"] == "GO TO <SPAM> O'NEIL"
    words = [word for segment in found["segments"] for word in segment["words"]]
    assert [(w["word"], w["start"], w["end"] - w["start"], w["confidence"]) for w in words] == WORDS
    assert [(s["id"], s["start"], s["end"]) for s in found["segments"]] == [
        (0, 0.25, 1.5),
        (1, 100, 101),
        (2, 3601, 3603),
    ]
    assert json.loads(FORMATS["json"](NOTHING))["segments"] == []


def test_textgrid(tmp_path: Path) -> None:
    (tmp_path / "a.TextGrid").write_text(FORMATS["TextGrid"](SOME))
    grid = read_textgrid(tmp_path / "a.TextGrid")
    assert (grid.start, grid.end) == (0, 3700)
    tiers = {tier.name: [i for i in tier.intervals if i.text] for tier in grid.tiers}
    assert [(i.text, i.start, i.end - i.start) for i in tiers["words"]] == [word[:3] for word in WORDS]
    assert [float(i.text) for i in tiers["confidences"]] == [round(word[3], 4) for word in WORDS]
    assert [(i.text, i.start, i.end) for i in tiers["segments"]] == [
        ("GO TO", 0.25, 1.5),
        ("<SPAM> O'NEIL", 3601, 3603),
    ]
    (tmp_path / "b.TextGrid").write_text(FORMATS["TextGrid"](NOTHING))
    assert [len(tier.intervals) for tier in read_textgrid(tmp_path / "b.TextGrid").tiers] == [1, 1, 1]


SRT_TIME = r"(\d\d+):([0-5]\d):([0-5]\d),(\d{3})"
VTT_TIME = r"(\d\d+):([0-5]\d):([0-5]\d)\.(\d{3})"
Cue = tuple[float, float, list[str]]


def seconds(parts: tuple[str, ...]) -> float:
    hours, minutes, rest, milliseconds = map(int, parts)
    return 3600 * hours + 60 * minutes + rest + milliseconds / 1000


def read_srt(text: str) -> list[Cue]:
    """By its grammar: number, times, lines of text, an empty line between cues."""
    cues = []
    for number, block in enumerate(text.removesuffix("\n").split("\n\n") if text else [], 1):
        first, times, *lines = block.split("\n")
        found = re.fullmatch(f"{SRT_TIME} --> {SRT_TIME}", times)
        assert first == str(number)
        assert found
        assert lines
        assert all(lines)
        cues.append((seconds(found.groups()[:4]), seconds(found.groups()[4:]), lines))
    return cues


def read_vtt(text: str) -> list[Cue]:
    """By its grammar: the header, then cues with an empty line before each; `&` and `<` only in escapes."""
    header, *blocks = text.removesuffix("\n").split("\n\n")
    assert header == "WEBVTT"
    cues = []
    for block in blocks:
        times, *lines = block.split("\n")
        found = re.fullmatch(f"{VTT_TIME} --> {VTT_TIME}", times)
        assert found
        for line in lines:
            assert not re.search(r"[<>]|-->|&(?!amp;|lt;|gt;)", line)
        plain = [line.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") for line in lines]
        cues.append((seconds(found.groups()[:4]), seconds(found.groups()[4:]), plain))
    return cues


def test_subtitles() -> None:
    expected = [(0.5, 1.3, ["GO TO"]), (3601.5, 3602.75, ["<SPAM> O'NEIL"])]
    assert read_srt(FORMATS["srt"](SOME)) == expected
    assert read_vtt(FORMATS["vtt"](SOME)) == expected
    assert read_srt(FORMATS["srt"](NOTHING)) == read_vtt(FORMATS["vtt"](NOTHING)) == []


def test_subtitles_are_short_and_never_together() -> None:
    words, at = [], 0.0
    for number in range(300):
        length = 1 + number * 7 % 13
        words.append(TimedWord("A" * length, at, 0.05 * length))
        at += 0.05 * length + (1.5 if number % 41 == 40 else 0.01)
    words[100] = TimedWord("B" * 60, words[100].start, words[100].duration)
    transcript = ChannelTranscript("a", "a.wav", 1, at, (Segment(0, at, tuple(words)),))
    cues = read_srt(FORMATS["srt"](transcript))
    assert " ".join(" ".join(lines) for *_, lines in cues) == transcript.text
    for start, end, lines in cues:
        assert start < end <= start + 7.001
        assert len(lines) <= 2
        assert all(len(line) <= 42 or line == "B" * 60 for line in lines)
    assert all(one[1] <= other[0] for one, other in pairwise(cues))
    assert read_vtt(FORMATS["vtt"](transcript)) == cues


def test_a_word_that_a_format_cannot_hold_is_named() -> None:
    odd = ChannelTranscript("a", "a.wav", 1, 1.0, (Segment(0, 1, (TimedWord("TWO WORDS", 0, 1),)),))
    for name in ("ctm", "trn"):
        with pytest.raises(UserError, match=r"a\.wav: a: .*(?s:TWO WORDS)"):
            FORMATS[name](odd)


def test_words_without_times_share_the_segment() -> None:
    assert placed(["A", "B"], [], 1.0, 2.0).words == (TimedWord("A", 1.0, 0.5), TimedWord("B", 1.5, 0.5))
    assert placed(["A"], [TimedWord("A", 0.25, 0.5, 0.9)], 1.0, 2.0).words == (TimedWord("A", 1.25, 0.5, 0.9),)
    assert placed([], [], 1.0, 2.0) == Segment(1.0, 2.0, ())
