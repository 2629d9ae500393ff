"""Recordings become transcripts: every word of every channel once, at its time, whatever is read and cut on the way."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.audio.activity import Cutting
from roundelay_speech.audio.recordings import unique_names
from roundelay_speech.transcription.inputs import Recording, recordings
from roundelay_speech.transcription.live import Latencies
from roundelay_speech.transcription.transcribing import Finished, Options, Stretches, Transcriber, total_seconds
from roundelay_speech.transcription.transcript import UNSURE
from support.recogniser import SECONDS, TONES, Heard, ToneRecogniser, heard, places, tones

RATE = 8000


def words_like(count: int, name: str = "words") -> list[str]:
    return [str(word) for word in stream(0, name).choice(list(TONES), count)]


def recording(folder: Path, name: str, words: list[str], rate: int = RATE, pause: float = 1.0) -> Recording:
    soundfile.write(folder / f"{name}.wav", tones(words, rate, pause), rate)
    return Recording(name, folder / f"{name}.wav")


DEFAULT = Options()


def run(given: list[Recording], options: Options = DEFAULT) -> tuple[list[Finished], ToneRecogniser]:
    model = ToneRecogniser()
    return list(Transcriber(model, options).run(given)), model


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100])
@pytest.mark.parametrize("whole", [10.0, 40.0])
def test_every_word_has_its_time(tmp_path: Path, rate: int, whole: float) -> None:
    words = words_like(8)
    (found,), model = run([recording(tmp_path, "a", words, rate)], Options(Cutting(whole=whole)))
    (transcript,) = found.transcripts
    assert [word.word for word in transcript.words] == words
    np.testing.assert_allclose([word.start for word in transcript.words], places(words), atol=0.05)
    assert transcript.seconds == pytest.approx(len(tones(words, RATE)) / RATE, abs=1e-3)
    assert len(model.asked) == 1
    assert len(model.asked[0]) == (1 if whole == 40 else len(words))  # a short recording is not cut


@pytest.mark.parametrize("seconds", [0.05, 0.3, 3.0, 30.0])
@pytest.mark.parametrize("loud", [0.0, 1e-4, 0.3])
def test_steady_noise_is_not_recognised(tmp_path: Path, seconds: float, loud: float) -> None:
    """Recordings of any length pass the detector: a sentence may be empty."""
    signal = loud * stream(0, "noise").standard_normal(round(seconds * RATE)).clip(-3, 3)
    soundfile.write(tmp_path / "a.wav", signal, RATE)
    (found,), model = run([Recording("a", tmp_path / "a.wav")])
    assert model.asked == []
    assert [(t.text, t.segments) for t in found.transcripts] == [("", ())]
    assert "nothing was said" in found.note


class Unsure(ToneRecogniser):
    """Gives words no confidences."""

    def recognise_many(self, *given: Any, **how: Any) -> Iterator[tuple[str, list[Heard]]]:
        for name, found in super().recognise_many(*given, **how):
            yield name, [Heard(tuple(replace(word, confidence=None) for word in one.timed)) for one in found]


def test_notes_say_what_is_amiss_with_a_recording(tmp_path: Path) -> None:
    """Each names its file; where nothing is amiss, there is none."""
    signal = tones(["LOW", "MIDDLE"], RATE)
    soundfile.write(tmp_path / "well.wav", signal, RATE)
    soundfile.write(tmp_path / "narrow.wav", tones(["LOW", "MIDDLE"], RATE // 2), RATE // 2)
    soundfile.write(tmp_path / "cut.mp3", tones(["LOW"] * 4, RATE), RATE)
    (tmp_path / "cut.mp3").write_bytes((tmp_path / "cut.mp3").read_bytes()[:10_000])
    names = ("well.wav", "narrow.wav", "cut.mp3")
    found, _ = run([Recording(name, tmp_path / name, name) for name in names])
    notes = {one.recording.name: one.note for one in found}
    assert notes["well.wav"] == ""
    assert notes["narrow.wav"].startswith("narrow.wav: recorded at 4,000 Hz, where the model hears 8,000: nothing lies")
    assert notes["cut.mp3"].startswith("cut.mp3: damaged or cut short: about ")
    assert all(one.text for one in found)
    (doubtful,) = Transcriber(Unsure(), DEFAULT).run([Recording("a", tmp_path / "well.wav", "a")])
    assert doubtful.note == f"a: {len(signal) / RATE:.1f} s of it {UNSURE}"


def test_a_stream_says_what_it_could_not_tell() -> None:
    assert Latencies().report() == ["nothing was said."]
    sure = Latencies(final=[0.4, 0.6], computing_final=[0.1, 0.1])
    assert sure.report() == [
        "2 utterances; words were final 0.50 s of audio after they were said, at most 0.60 s",
        "computing them took 0.100 s, at most 0.100 s",
    ]
    assert replace(sure, unsure=1).report() == [*sure.report(), f"1 utterance {UNSURE}"]


def test_a_short_recording_is_heard_as_it_is(tmp_path: Path) -> None:
    """Nothing is cut off: it is recognised as `decode` would."""
    one = recording(tmp_path, "a", ["LOW"], pause=5.0)
    _, model = run([one])
    assert model.asked == [[len(tones(["LOW"], RATE, 5.0))]]


@pytest.mark.parametrize(("seconds", "longest", "pause"), [(20.0, 3.0, 1.0), (20.0, 5.0, 0.2), (30.0, 4.0, 9.0)])
def test_a_long_recording_in_stretches_loses_nothing(seconds: float, longest: float, pause: float) -> None:
    """Memory is for a stretch; words on the border of two are in one of them, whole."""
    words = words_like(60)
    signal, cutter = tones(words, RATE, pause), Stretches(RATE, Cutting(longest), seconds)
    stretches, most = [], 0
    for at in range(0, len(signal), 7777):
        stretches += list(cutter.push(signal[at : at + 7777]))
        most = max(most, sum(map(len, cutter._samples)))
    stretches.append(cutter.finish())
    assert most < (seconds + 2) * RATE + 7777
    assert len(stretches) > len(signal) / RATE / seconds / 2
    pieces = [piece for some in stretches for piece in some]
    assert all(len(piece.samples) <= longest * RATE for piece in pieces)
    found = [(piece.start + word.start, word) for piece in pieces for word in heard(piece.samples, RATE).timed]
    if pause >= 0.5:
        assert [word.word for _, word in found] == words
        np.testing.assert_allclose([at for at, _ in found], places(words, pause), atol=0.05)
    ends = [piece.start + len(piece.samples) / RATE for piece in pieces]
    assert all(piece.start >= end - 1e-9 for piece, end in zip(pieces[1:], ends, strict=False))  # none is heard twice
    spans = [(piece.start - 0.05, end + 0.05) for piece, end in zip(pieces, ends, strict=True)]
    covered = sum(any(start <= at and at + SECONDS <= end for start, end in spans) for at in places(words, pause))
    assert covered > (0.95 if pause >= 0.5 else 0.8) * len(words)


def test_silence_for_hours_takes_no_memory() -> None:
    cutter = Stretches(RATE, Cutting(longest=5), 20.0)
    assert list(cutter.push(tones(["LOW"], RATE)[: 2 * RATE])) == []
    quiet = (0.0005 * stream(0, "noise").standard_normal(10 * RATE)).astype(np.float32)
    for _ in range(12):
        list(cutter.push(quiet))
        assert sum(map(len, cutter._samples)) < 32 * RATE
    assert cutter.finish() == []


def test_channels(tmp_path: Path) -> None:
    left, right = ["LOW", "TOP"], ["HIGH", "MIDDLE"]
    both = np.stack([tones(left, RATE), tones(right, RATE)], 1)
    soundfile.write(tmp_path / "a.wav", both, RATE)
    one = Recording("a", tmp_path / "a.wav")
    (each,), _ = run([one])
    assert [(t.name, t.channel, t.text) for t in each.transcripts] == [("a@1", 1, "LOW TOP"), ("a@2", 2, "HIGH MIDDLE")]
    (second,), _ = run([one], Options(channel=2))
    assert [(t.name, t.channel, t.text) for t in second.transcripts] == [("a", 2, "HIGH MIDDLE")]
    (none,), _ = run([one], Options(channel=3))
    assert none.problem == f"{tmp_path}/a.wav: has 2 channels, no channel 3"
    soundfile.write(tmp_path / "b.wav", np.stack([both[:, 0]] * 2, 1), RATE)  # one microphone on two channels
    for channel in (None, 0):
        (mixed,), _ = run([Recording("b", tmp_path / "b.wav")], Options(channel=channel))
        assert [(t.name, t.text) for t in mixed.transcripts] == [("b", "LOW TOP")]


def test_a_bad_recording_stops_no_other(tmp_path: Path) -> None:
    good = [recording(tmp_path, name, [word]) for name, word in (("a", "LOW"), ("z", "TOP"))]
    (tmp_path / "text.wav").write_text("RIFF, but no sound")
    cut_short = tmp_path / "cut.wav"
    cut_short.write_bytes(good[0].path.read_bytes()[:9000])
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), RATE)
    bad = [Recording("gone", tmp_path / "gone.wav"), Recording("text", tmp_path / "text.wav")]
    bad += [Recording("cut", cut_short), Recording("empty", tmp_path / "empty.wav")]
    for options in (Options(), Options(speaker="folder")):
        found, _ = run([bad[0], good[0], *bad[1:], good[1]], options)
        assert [one.recording.name for one in found] == ["gone", "a", "text", "cut", "empty", "z"]
        assert [one.transcripts[0].text for one in found if not one.problem] == ["LOW", "TOP"]
        messages = [one.problem for one in found if one.problem]
        assert [
            part in text for part, text in zip(("no such", "cannot", "cut short", "no samples"), messages, strict=True)
        ]
        assert all(str(one.recording.path) in one.problem for one in found if one.problem)


def test_whose_speech_is_normalised_together(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    given = [recording(tmp_path / folder, f"{folder}{n}", ["LOW"]) for n in (1, 2) for folder in "xy"]
    sizes = {}
    for speaker in ("file", "folder", "all"):
        found, model = run(given, Options(speaker=speaker))
        assert {one.transcripts[0].text for one in found} == {"LOW"}
        assert [one.recording.name for one in found] == (
            ["x1", "x2", "y1", "y2"] if speaker == "folder" else ["x1", "y1", "x2", "y2"]
        )
        sizes[speaker] = [len(pieces) for pieces in model.asked]
    assert sizes == {"file": [1, 1, 1, 1], "folder": [2, 2], "all": [4]}


def test_time_is_counted(tmp_path: Path) -> None:
    given = [recording(tmp_path, "a", ["LOW"]), recording(tmp_path, "b", ["TOP"])]
    transcriber = Transcriber(ToneRecogniser())
    list(transcriber.run(given))
    assert transcriber.seconds == pytest.approx(2 * len(tones(["LOW"], RATE)) / RATE)
    assert 0 < transcriber.real_time_factor < 10
    assert total_seconds(given) == pytest.approx(transcriber.seconds)
    (tmp_path / "c.m4a").write_bytes(b"something else")
    assert total_seconds([*given, Recording("c", tmp_path / "c.m4a")]) is None


def test_what_can_be_named(tmp_path: Path) -> None:
    """Files, folders and lists; names are one word, and no two recordings have the same."""
    for name in ("d/b (1).wav", "d/a.flac", "d/deep/a.MP3", "d/notes.pdf", "e/a.wav", "e/x y.wav"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "list.txt").write_text("e/a.wav\n\n  e/x y.wav\n")
    (tmp_path / "wav.scp").write_text("utt-1 e/a.wav\n")
    found = recordings([str(tmp_path / "d"), str(tmp_path / "list.txt"), str(tmp_path / "gone.wav")])
    assert [(one.name, str(one.path.relative_to(tmp_path))) for one in found] == [
        ("d/a", "d/a.flac"),
        ("b__1_", "d/b (1).wav"),
        ("deep/a", "d/deep/a.MP3"),
        ("e/a", "e/a.wav"),
        ("x_y", "e/x y.wav"),
        ("gone", "gone.wav"),
    ]
    assert [one.name for one in recordings([str(tmp_path / "wav.scp")])] == ["utt-1"]
    (twice,) = recordings([str(tmp_path / "e/a.wav")] * 2)
    assert twice.name == "a"
    (piped,) = recordings(["-"], tmp_path / "spool")
    assert (piped.name, piped.path, piped.source) == ("stdin", tmp_path / "spool", "-")
    (problem,), _ = run([piped])
    assert problem.problem == "-: no such file"


def test_names_say_which_file() -> None:
    """Of one folder, of several, and of a list that gives a name twice."""
    files = ["x/talk.wav", "x/talk.mp3", "y/talk.wav", "y/more.wav"]
    found = unique_names([*((Path(file).stem, Path(file)) for file in files), ("more", Path("z/other.wav"))])
    assert list(found) == ["x/talk.wav", "x/talk.mp3", "y/talk", "y/more", "z/more"]
    assert list(unique_names([("one", Path("a.wav")), ("one", Path("b.wav"))])) == ["one", "one.2"]


def test_files_of_a_folder_that_may_be_recordings_are_not_passed_over_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("talk.wav", "talk.txt", "README.md", ".hidden.part"):
        (tmp_path / name).touch()
    assert [one.name for one in recordings([str(tmp_path)])] == ["talk"]
    assert not caplog.messages
    (tmp_path / "other.voc").touch()
    assert [one.name for one in recordings([str(tmp_path)])] == ["talk"]
    assert "passed over 1 file, such as other.voc" in caplog.text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "", "an empty list"),
        ("a.lst", "x sph2pipe x.sph |\n", "a.lst:1: a command"),
        ("none.txt", None, "no such file"),
    ],
)
def test_lists_that_name_nothing(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        recordings([str(tmp_path / name)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no recording in this folder"):
        recordings([str(tmp_path / "empty")])
