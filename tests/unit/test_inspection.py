"""`roundelay inspect`: each fault of a corpus is named with what mends it, and a sound corpus is called so."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from roundelay.cli import main
from roundelay.core.checksums import write_checked
from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay_speech.corpus.inspection.findings import Finding, Inspection
from roundelay_speech.corpus.inspection.inspect import InspectOptions, _odd_rates, inspect_corpus
from roundelay_speech.corpus.inspection.sound import SILENT_DB, SoundFacts, measure
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.hmm.alignment import AlignSummary
from roundelay_speech.hmm.fit import Fit
from roundelay_speech.prepared import load_corpus
from support.corpora import RATE, kaldi_corpus, speechlike, write_lines

SAID = ("YES NO", "GO YES", "NO GO NO", "YES GO", "GO GO", "NO YES")
SPEAKERS = {"train": "abcd", "dev": "ef", "test": "gh"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Eight speakers, six utterances each, half of them women, nobody in two splits."""
    splits = {
        split: {f"{one}-{i}": text for one in speakers for i, text in enumerate(SAID)}
        for split, speakers in SPEAKERS.items()
    }
    folder = kaldi_corpus(tmp_path / "source", splits)
    for split, speakers in SPEAKERS.items():
        write_lines(folder / split / "spk2gender", {one: "fm"[i % 2] for i, one in enumerate(speakers)})
    return folder


def inspect(source: Path, workers: int = 1, **options: Any) -> Inspection:
    """Everything that is found, but that this corpus has few speakers."""
    found = inspect_corpus(source, InspectOptions(workers=workers, **options), Silent())
    return dataclasses.replace(
        found, findings=tuple(one for one in found.findings if "train: only 4 speakers" not in one.what)
    )


def only(source: Path, kind: str, **options: Any) -> Finding:
    """The one finding there is."""
    found = inspect(source, **options).findings
    assert [finding.kind for finding in found] == [kind], found
    assert found[0].proposal.endswith(".")
    return found[0]


def edit(file: Path, change: Callable[[str], str]) -> None:
    file.write_text(change(file.read_text()))


def sound(source: Path, name: str, samples: object, rate: int = RATE) -> None:
    soundfile.write(source / "wav" / f"{name}.wav", samples, rate, subtype="PCM_16")


# a sound corpus -------------------------------------------------------------------------------------------------------


def test_a_sound_corpus_is_called_so(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = inspect(source)
    assert found.sound
    assert found.findings == ()
    numbers = found.splits["train"]
    assert (numbers.utterances, numbers.speakers, numbers.women, numbers.men, numbers.words) == (24, 4, 2, 2, 52)
    assert main(["inspect", str(source)]) == 0
    assert "nothing to mend" in capsys.readouterr().out


def test_several_processes_find_the_same(source: Path) -> None:
    sound(source, "a-1", np.zeros(RATE // 2))
    assert inspect(source, workers=2) == inspect(source, workers=1)


def test_a_prepared_corpus_is_inspected_too(source: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    lexicon = source / "lang" / "words.dic"
    sound(source, "a-1", np.zeros(RATE // 2))
    made = ["prepare", "kaldi", "--source", str(source), "--lexicon", str(lexicon), "--data", str(data)]
    edit(lexicon, lambda text: f"{text}MAYBE M EY B IY\n")  # a word that only a held-out split has
    edit(source / "test" / "text", lambda text: text.replace("g-0 YES", "g-0 MAYBE"))
    (tmp_path / "text").write_text("YES NO GO\n")
    assert main([*made, "--speed", "0.9", "1.1", "--vocabulary", str(tmp_path / "text")]) == 0
    assert set(load_corpus(data).held_out_words) == {"MAYBE"}
    found = inspect(data)
    assert [finding.kind for finding in found.findings] == ["silent"]
    assert found.splits["train"].utterances == 24  # copies at other speeds are not counted


# faults of sound ------------------------------------------------------------------------------------------------------


def test_silence(source: Path) -> None:
    noise = 1e-4 * np.sin(np.arange(RATE // 2))
    sound(source, "a-1", np.zeros(RATE // 2))
    sound(source, "a-2", noise)
    assert only(source, "silent").utterances == ("a-1", "a-2")


def test_clipping(source: Path) -> None:
    for name in ("a-1", "b-2"):
        sound(source, name, np.clip(8 * speechlike(0.5, RATE, name), -1, 1))
    assert only(source, "clipping").utterances == ("a-1", "b-2")


@pytest.mark.parametrize("hertz", [60, 200, 1000])
def test_a_loud_tone_is_not_clipped(hertz: int) -> None:
    tone = (np.round(0.99 * 32767 * np.sin(2 * np.pi * hertz * np.arange(RATE) / RATE)) / 32768).astype(np.float32)
    assert measure(tone, RATE).clipped == 0
    assert measure(np.clip(2 * tone, -1, 1), RATE).clipped > 0.1


def test_measures(source: Path) -> None:
    speech = speechlike(2.0, RATE)
    pause = np.zeros(2 * RATE, np.float32)
    one, padded = measure(speech, RATE), measure(np.concatenate([pause, speech, pause]), RATE)
    assert one.speech_s == pytest.approx(padded.speech_s, abs=0.4)  # pauses around speech are no speech
    assert one.loud_db > SILENT_DB
    assert measure(0.5 * speech, RATE).loud_db == pytest.approx(one.loud_db - 6.02, abs=0.01)


def test_the_speech_is_on_the_other_channel(source: Path) -> None:
    speech = speechlike(0.5, RATE, "a-1")
    sound(source, "a-1", np.stack([0.001 * speech, speech], 1))
    found = inspect(source)
    assert {finding.kind for finding in found.findings} == {"channels", "silent"}
    assert any("`--channel 1` takes it" in finding.what for finding in found.findings)


def test_rates(source: Path) -> None:
    sound(source, "e-1", speechlike(0.5, 2 * RATE, "e-1"), 2 * RATE)
    found = only(source, "rates")
    assert found.severity == "error"
    assert "dev: 11 utterances at 8,000 Hz, 1 utterance at 16,000 Hz" in found.what
    assert "--rate HZ" in found.proposal


def test_audio_that_cannot_be_read_stops_nothing_else(source: Path) -> None:
    file = source / "wav" / "a-1.wav"
    file.write_bytes(file.read_bytes()[:3000])
    (source / "wav" / "e-1.wav").unlink()
    sound(source, "g-1", np.zeros(RATE // 2))
    found = inspect(source)
    assert [(f.severity, f.kind, f.split, f.utterances) for f in found.findings] == [
        ("error", "unusable", "train", ("a-1",)),
        ("error", "unusable", "dev", ("e-1",)),
        ("warning", "silent", "test", ("g-1",)),
    ]
    assert main(["inspect", str(source)]) == 2
    elsewhere = inspect(source, root=source.parent)  # nothing of any split is found
    assert [f.split for f in elsewhere.findings if f.kind == "unusable"] == ["train", "dev", "test"]
    assert f"begin at {source.parent}, or at `--root DIR`" in elsewhere.findings[0].proposal


def test_audio_of_test_is_in_train_under_another_name_and_format(source: Path) -> None:
    samples, rate = soundfile.read(source / "wav" / "a-1.wav")
    soundfile.write(source / "wav" / "g-1.flac", samples, rate, subtype="PCM_16")
    edit(source / "test" / "wav.scp", lambda text: text.replace("wav/g-1.wav", "wav/g-1.flac"))
    found = only(source, "audio")
    assert "g-1 is a-1" in found.what
    assert "--on-overlap error" in found.proposal


def test_audio_is_there_twice_with_other_words(source: Path) -> None:
    (source / "wav" / "b-1.wav").write_bytes((source / "wav" / "a-0.wav").read_bytes())
    found = only(source, "audio")
    assert "a-0 and b-1" in found.what
    assert "with other words" in found.what


# faults of transcripts ------------------------------------------------------------------------------------------------


def test_transcripts_that_cannot_be_what_is_said(source: Path) -> None:
    edit(source / "train" / "text", lambda text: text.replace("a-1 GO YES\n", "a-1 " + 12 * "GO YES " + "\n"))
    found = only(source, "fit")
    assert found.utterances == ("a-1",)
    assert "characters a second of speech" in found.what


def test_a_short_word_fits_though_little_of_it_is_loud() -> None:
    """Six letters in 0.12 s of loud sound are one word of 0.4 s; a hundred are not."""
    for word, odd in (("ШЕСТЬЯ", False), (100 * "A", True)):
        utterance = Utterance("a-1", "a", "a.wav", 0.0, 0.4, 0, RATE, RATE, "a", word)
        assert bool(_odd_rates([utterance], {"a-1": SoundFacts(-20.0, 0.12)})) is odd


def test_a_transcript_that_is_too_long_for_its_phones(source: Path) -> None:
    sound(source, "a-1", speechlike(0.1, RATE, "a-1"))
    assert only(source, "fit", lexicon=source / "lang" / "words.dic").utterances == ("a-1",)
    edit(source / "train" / "text", lambda text: text.replace("a-1 GO YES", "a-1 Go yes"))
    fit = [f for f in inspect(source, lexicon=source / "lang" / "words.dic").findings if f.kind == "fit"]
    assert [f.utterances for f in fit] == [("a-1",)]


@pytest.mark.parametrize(
    ("was", "becomes", "kind", "shown"),
    [
        ("YES NO", "YES, NO.", "punctuation", "YES,"),
        ("YES NO", "Yes NO", "case", "YES/Yes"),
        ("GO GO", "GO 12", "digits", "12"),
        ("GO GO", "GO <cough> GO [noise]", "marks", "<cough>, [noise]"),
    ],
)
def test_spelling(source: Path, was: str, becomes: str, kind: str, shown: str) -> None:
    def spelled_so(text: str) -> str:
        return text.replace(f"a-0 {was}", f"a-0 {becomes}").replace(f"a-4 {was}", f"a-4 {becomes}")

    edit(source / "train" / "text", spelled_so)
    assert shown in only(source, kind).what


def test_words_the_dictionary_lacks(source: Path) -> None:
    edit(source / "train" / "text", lambda text: text.replace("a-0 YES NO", "a-0 yes MAYBE"))
    found = {f.kind: f for f in inspect(source, lexicon=source / "lang" / "words.dic").findings}
    assert "yes (YES)" in found["spelling"].what
    assert "--clean-transcripts" in found["spelling"].proposal
    assert "1 word of the transcripts not in the dictionary (MAYBE)" in found["dictionary"].what
    assert "--on-missing-words guess" in found["dictionary"].proposal


def test_what_an_alignment_found_is_told_too(source: Path, tmp_path: Path) -> None:
    counts = {"train": 24, "dev": 12, "test": 12}
    fit = Fit({f"a-{i}": 1.0 for i in range(6)}, ["a-3"], [("a-1", "a-2")], 0.9).to_json()
    config = {"tied_states": 10}
    summary = AlignSummary("gmm", "x", config, counts, counts, {}, 900, 900, 10, 9, 9, -50.0, 0.2, fit=fit)
    write_checked(tmp_path / "alignment" / "align.json", dataclasses.asdict(summary), [])
    found = inspect(source, alignment=tmp_path / "alignment").findings
    assert [finding.kind for finding in found] == ["fit", "fit"]
    assert "a-3" in found[0].what
    assert "a-1 and a-2 fit each other's transcripts better" in found[1].what
    with pytest.raises(UserError, match="no alignment here"):
        inspect(source, alignment=tmp_path)


# faults of speakers and splits ----------------------------------------------------------------------------------------


def test_a_speaker_of_train_and_test(source: Path) -> None:
    edit(source / "test" / "utt2spk", lambda text: text.replace(" g\n", " a\n"))
    edit(source / "test" / "spk2gender", lambda text: text.replace("g ", "a "))
    found = only(source, "speakers")
    assert "1 of 2 speakers of test is in train too (a)" in found.what


@pytest.mark.parametrize("split", ["train", "dev"])
def test_a_split_of_one_speaker(source: Path, split: str) -> None:
    file = source / split / "utt2spk"
    edit(file, lambda text: "".join(f"{line.split()[0]} one\n" for line in text.splitlines()))
    (source / split / "spk2gender").unlink()
    write_lines(source / split / "spk2gender", {"one": "f"})
    found = inspect(source).findings
    assert any(f.kind == "speakers" and f"{split}: all of it is by one speaker, one" in f.what for f in found)


def test_most_of_it_by_one_speaker(source: Path) -> None:
    for i in range(6):
        sound(source, f"b-{i}", speechlike(4.0, RATE, f"b-{i}"))
    found = [f for f in inspect(source).findings if "is by b, one of 4 speakers" in f.what]
    assert [f.kind for f in found] == ["balance"]


def test_women_and_men(source: Path) -> None:
    write_lines(source / "train" / "spk2gender", {"a": "m", "b": "m", "c": "m", "d": "m"})
    write_lines(source / "test" / "spk2gender", {"g": "f", "h": "f"})
    found = [f for f in inspect(source).findings if f.kind == "balance"]
    assert "--warp-of men" in found[0].proposal  # there are no women to be warped
    what = [f.what for f in found]
    assert "train: 0% of the speech is by women (0 of 4 speakers): expect more errors with them" in what
    assert "test: none of the speech is by men: its error rates say nothing of them" in what
    write_lines(source / "train" / "spk2gender", {"a": "m", "b": "w", "c": "f"})
    (unknown,) = (f for f in inspect(source).findings if f.kind == "balance" and not f.split)
    assert unknown.what.startswith("whether 2 of 8 speakers are women or men is not known (b, d)")


def test_a_rare_kind_of_voice_and_few_speakers_are_measured_by_folds(source: Path) -> None:
    """A quarter of the speech, as in AN4, is too little."""
    write_lines(source / "train" / "spk2gender", {"a": "f", "b": "m", "c": "m", "d": "m"})
    found = inspect_corpus(source, InspectOptions(workers=1), Silent()).findings
    rare, few = (one for one in found if one.split == "train")
    assert rare.severity == "warning"
    assert "is by women (1 of 4 speakers)" in rare.what
    assert "--warp 0.94 1.06 --warp-of few" in rare.proposal
    assert few.severity == "note"
    assert "train: only 4 speakers" in few.what
    for one in (rare, few):
        assert "`roundelay evaluate RECIPE --folds 5` measures word errors" in one.proposal


def test_genders_that_nobody_wrote_down(source: Path) -> None:
    for split in SPEAKERS:
        (source / split / "spk2gender").unlink()
    assert only(source, "balance").severity == "note"
    assert inspect(source).sound


def test_files_that_disagree_stop_only_their_split(source: Path) -> None:
    edit(source / "dev" / "utt2spk", lambda text: text.replace("e-1 e\n", ""))
    found = only(source, "files")
    assert (found.split, found.severity) == ("dev", "error")
    assert "e-1" in found.what
    assert set(inspect(source).splits) == {"train", "test"}


def test_splits_by_other_names(source: Path) -> None:
    (source / "train").rename(source / "train_clean")
    (source / "dev").rename(source / "cv")
    found = inspect(source).findings
    assert any("train_clean as train" in f.what and "--split train=train_clean" in f.proposal for f in found)
    assert any("no split named dev" in f.what for f in found)
    names = {"train": "train_clean", "dev": "cv", "test": "test"}
    assert inspect(source, splits=names).sound


def test_one_data_directory(source: Path) -> None:
    found = inspect(source / "train", root=source)
    assert set(found.splits) == {"train"}
    assert found.sound


# the command ----------------------------------------------------------------------------------------------------------


def test_json_holds_every_finding(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound(source, "a-1", np.zeros(RATE // 2))
    assert main(["inspect", str(source), "--format", "json"]) == 0
    told: Mapping[str, object] = json.loads(capsys.readouterr().out)
    found = inspect_corpus(source, InspectOptions(workers=1), Silent())
    assert told == json.loads(json.dumps(found.to_json()))
    assert (told["sound"], told["usable"]) == (False, True)


def test_a_folder_without_a_corpus_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path)]) == 2
    assert "--split NAME=FOLDER" in capsys.readouterr().err
