"""Remarks of `prepare` on recordings that are not broken, but not what somebody thinks they are."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.cli import main
from roundelay.core.progress import Silent
from roundelay.core.streams import stream
from roundelay_speech.audio.reading import read_audio
from roundelay_speech.audio.speed import resampled
from roundelay_speech.corpus.build import change_features
from roundelay_speech.corpus.checks import one_rate
from roundelay_speech.corpus.options import PrepareOptions
from roundelay_speech.corpus.words import read_changes
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.lexicon.cleaning import Change, Cleaner
from roundelay_speech.lexicon.lexicon import Lexicon, NearWords, bare
from roundelay_speech.prepared import Corpus, load_corpus
from support.corpora import RATE, kaldi_corpus, prepared, recorded, speechlike, write_lines
from support.said import refusal

SPLITS = {
    "train": {"a-1": "YES NO", "a-2": "GO", "b-1": "NO NO", "b-2": "YES"},
    "dev": {"c-1": "YES"},
    "test": {"d-1": "GO NO", "d-2": "NO"},
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return kaldi_corpus(tmp_path / "source", SPLITS)


def prepare(source: Path, **options: Any) -> Corpus:
    return prepared(source, source.parent / "data", workers=1, **options)


def refused(source: Path, **options: object) -> str:
    return refusal(prepare, source, **options)


# rates ----------------------------------------------------------------------------------------------------------------


def test_rates_are_told_by_split_and_train_is_right(source: Path) -> None:
    for name in SPLITS["test"]:
        recorded(source / "wav", name, 0.5, rate=48000)
    recorded(source / "wav", "c-1", 0.5, rate=44100)
    # Nothing was learned or computed before that.
    message = refused(source, on_missing_words="guess")
    assert "train: 4 utterances at 8,000 Hz; dev: 1 utterance at 44,100 Hz; test: 2 utterances at 48,000 Hz" in message
    assert "--rate 8000" in message
    assert "a-1" not in message
    assert not (source.parent / "data").exists()


@pytest.mark.parametrize(("rate", "said"), [(44100, ["44,100", "22,050", "--rate 16000"]), (16000, [])])
def test_bands_beyond_speech_are_told(rate: int, said: list[str]) -> None:
    utterances = [Utterance("a-1", "a", "a.wav", 0.0, 1.0, 0, rate, rate, "a", "YES")]
    *_, remarks = one_rate({"train": utterances}, None, "error")
    assert all(word in remarks[0] for word in said) if said else not remarks


def test_the_training_split_is_not_accused_by_a_larger_test_split(source: Path) -> None:
    for name in (*SPLITS["dev"], *SPLITS["test"]):
        recorded(source / "wav", name, 0.5, rate=16000)
    for name in ("b-1", "b-2"):
        for split, file in (("train", "text"), ("train", "wav.scp"), ("train", "utt2spk")):
            path = source / split / file
            path.write_text("".join(x for x in path.read_text().splitlines(True) if not x.startswith(name)))
    assert "at 8,000 Hz (`--on-bad-audio skip`)" in refused(source)


def test_audio_is_resampled_where_asked_and_stays_so(source: Path) -> None:
    plain = prepare(source)
    reference = {name: plain.features().get(name).copy() for name in ("d-1", "a-1")}
    sound = speechlike(0.5, RATE, "d-1")
    soundfile.write(source / "wav" / "d-1.wav", resampled(sound, RATE, 48000), 48000, subtype="FLOAT")
    corpus = prepare(source, rate=8000)
    assert corpus.sampling_rate == corpus.features().sampling_rate == 8000
    assert {u.id: u.sampling_rate for u in corpus.splits["test"]} == {"d-1": 48000, "d-2": 8000}  # the files' own
    assert np.array_equal(corpus.features().get("a-1"), reference["a-1"])
    found = corpus.features().get("d-1")
    assert found.shape == reference["d-1"].shape
    low = slice(0, 34)  # up and down again: all but the highest bands, which the filters take
    assert np.abs(found[:, low] - reference["d-1"][:, low]).mean() < 0.05
    changed = change_features(corpus.folder, PrepareOptions().features, Silent(), workers=1)
    assert changed.features().sampling_rate == 8000
    assert load_corpus(corpus.folder).sampling_rate == 8000


def test_bringing_audio_up_is_said(source: Path) -> None:
    (remark,) = prepare(source, rate=16000).remarks
    assert "7 utterances at 8,000 Hz brought up to 16,000 Hz: nothing is in them above 4,000 Hz" in remark
    assert "--rate 16" in refused(source, rate=16)


@pytest.mark.parametrize(("rate", "wanted"), [(48000, 16000), (44100, 16000), (8000, 16000), (22050, 8000)])
def test_a_tone_stays_itself_at_another_rate(rate: int, wanted: int) -> None:
    """Below the cutoff the same tone, sample for sample; above half the lower rate nothing."""

    def tone(frequency: float, at: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        return np.sin(2 * np.pi * frequency * np.arange(at) / at).astype(np.float32)

    found, inside = resampled(tone(1000.0, rate), rate, wanted), slice(wanted // 10, -wanted // 10)
    assert len(found) == wanted
    assert np.abs(found[inside] - tone(1000.0, wanted)[inside]).max() < 1e-3
    if rate > wanted:
        assert np.abs(resampled(tone(0.53 * wanted, rate), rate, wanted)[inside]).max() < 1e-3


def test_one_rate_is_the_sound_itself_and_a_speed_is_taken_besides() -> None:
    sound = speechlike(0.3, RATE)
    assert resampled(sound, RATE, RATE) is sound
    assert len(resampled(sound, 44100, 16000, 1.1)) == round(len(sound) * 16000 / 44100 / 1.1)


# channels -------------------------------------------------------------------------------------------------------------


def stereo(source: Path, name: str, left: float, right: float) -> None:
    noise = stream(0, name).standard_normal((RATE // 2, 2))
    sound = speechlike(0.5, RATE, name)
    both = np.stack([left * sound, right * sound], 1) + 1e-4 * noise
    soundfile.write(source / "wav" / f"{name}.wav", both, RATE, subtype="FLOAT")


def test_stereo_is_said_and_a_silent_channel_is_a_warning(source: Path) -> None:
    stereo(source, "a-1", 1.0, 1.0)
    stereo(source, "b-1", 0.0, 1.0)
    remarks = prepare(source).remarks
    assert len(remarks) == 2
    assert "2 utterances in recordings of 2 channels (first a-1): channel 0 of each is taken" in remarks[0]
    assert "channel 0 of 1 utterance is silent" in remarks[1]
    assert "(first b-1)" in remarks[1]
    assert "--channel 1" in remarks[1]


def test_the_channel_that_was_asked_for_is_taken_without_a_word(source: Path) -> None:
    for name in (name for texts in SPLITS.values() for name in texts):
        stereo(source, name, 0.0, 1.0)
    corpus = prepare(source, channel=1)
    assert not corpus.remarks
    assert {u.channel for u in corpus.utterances} == {1}
    assert np.abs(read_audio(corpus.splits["train"][0], Path())).max() > 0.05
    write_lines(source / "train/segments", {name: f"{name} 0 -1 0" for name in SPLITS["train"]})
    chosen = prepare(source, channel=1).splits
    assert {u.channel for u in chosen["train"]} == {0}  # `segments` is nearer
    assert {u.channel for u in chosen["test"]} == {1}


# what training and test share -----------------------------------------------------------------------------------------


def test_the_same_speaker_and_the_same_audio_in_two_splits(source: Path) -> None:
    (source / "wav/d-2.wav").write_bytes((source / "wav/b-2.wav").read_bytes())
    write_lines(source / "test/utt2spk", {"d-1": "a", "d-2": "d"})
    remarks = prepare(source).remarks
    assert len(remarks) == 2
    assert "1 of 2 speakers of test is in train too (a)" in remarks[0]
    assert "1 utterance of test is also in train, the same audio under another id (d-2 is b-2)" in remarks[1]
    assert load_corpus(source.parent / "data").remarks == remarks
    assert "d-2 is b-2" in refused(source, on_overlap="error")


def test_a_clean_corpus_is_not_remarked_on(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(source.parent / "by_command")
    arguments = ["--source", str(source), "--lexicon", str(source / "lang/words.dic"), "--data", data, "--workers", "1"]
    assert main(["prepare", "kaldi", *arguments]) == 0
    assert "warning" not in capsys.readouterr().out


def test_audio_without_any_sound_is_remarked_on(source: Path) -> None:
    soundfile.write(source / "wav/d-1.wav", np.zeros(RATE // 2), RATE, subtype="PCM_16")
    (remark,) = prepare(source).remarks
    assert "1 utterance of test without any sound, every sample is the same: d-1 (" in remark


def test_marks_of_stress_are_remarked_on(source: Path) -> None:
    vowels = [f"{vowel}{stress}" for vowel in ("AA", "AE", "AH", "AO", "AW", "AY", "EH") for stress in "012"]
    lexicon = source / "lang/words.dic"
    lexicon.write_text(lexicon.read_text() + f"ALL {' '.join(vowels)}\n")
    (remark,) = prepare(source).remarks
    assert "`--strip-stress` makes one phone of each vowel" in remark
    assert prepare(source, strip_stress=True).remarks == []


def test_one_cause_is_one_fault(source: Path) -> None:
    (source / "train/text").write_text("")
    assert "1 fault in the data directory" in refused(source)
    assert "train/text: is empty" in refused(source)
    source.rename(source.with_name("sources"))
    message = refused(source)
    assert "`--source` names the one that holds data directories" in message
    assert "Did you mean sources?" in message


# transcripts ----------------------------------------------------------------------------------------------------------


def test_case_and_punctuation_are_named_under_every_policy(source: Path) -> None:
    write_lines(source / "train/text", SPLITS["train"] | {"a-1": "Yes, no.", "b-2": "\u201cYES\u201d"})
    message = refused(source)
    assert "Yes, (1 x, first in a-1; the lexicon has YES)" in message
    assert "no. (1 x, first in a-1; the lexicon has NO)" in message
    assert "--clean-transcripts" in message
    (remark,) = prepare(source, on_missing_words="skip", max_bad_share=1.0).remarks
    assert "3 words of the transcripts differ from words of the dictionary by case, punctuation or" in remark
    corpus = prepare(source, clean_transcripts=True)
    assert [u.text for u in corpus.splits["train"]] == ["YES NO", "GO", "NO NO", "YES"]
    assert corpus.remarks == []
    assert load_corpus(corpus.folder).changes == {"punctuation": 3}


def test_words_of_no_dictionary_lose_their_punctuation_too(source: Path) -> None:
    write_lines(source / "train/text", SPLITS["train"] | {"a-1": "- Maybe, YES !"})
    corpus = prepare(source, clean_transcripts=True, on_missing_words="skip", max_bad_share=0.5)
    assert [u.id for u in corpus.splits["train"]] == ["a-2", "b-1", "b-2"]
    assert "MAYBE" in corpus.left_out["train"][0].reason


MARKS: tuple[tuple[str, str, dict[str, int]], ...] = (
    ("YES <cough> NO", "YES NO", {"noise": 1}),
    ("[door slams] YES", "YES", {"noise": 1}),
    ("GO (he said) {breath} NO", "GO HE SAID NO", {"inside": 1, "noise": 1, "case": 2}),
    ("*laugh* ++um++ %hesitation YES &=coughs", "YES", {"noise": 4}),
    ("((YES)) YES<noise> [laughter-NO]", "YES YES NO", {"guessed": 1, "inside": 1, "noise": 1}),
    ("YES(2) N[o]- GO", "YES N GO", {"punctuation": 2, "broken": 1}),
    ("[LAUGHTER] YES [laughter]", "[LAUGHTER] YES [LAUGHTER]", {}),  # the dictionary has it
    ("YES S.", "YES S", {"stop": 1}),
    ("S. NO", "S NO", {"stop": 1}),  # is said the same without
    ("NO. YES", "NO. YES", {}),  # number, the dictionary says
    ("YES NO. ...", "YES NO", {"stop": 1, "punctuation": 1}),
    ("U.S. YES", "U.S. YES", {}),
    ("YES U.S.", "YES U.S.", {}),
    ("N.S. 5% YES", "N S 5 YES", {"letters": 1, "symbol": 1}),
)


@pytest.mark.parametrize(("text", "wanted", "kinds"), MARKS, ids=[text for text, *_ in MARKS])
def test_a_transcript_in_the_words_of_its_dictionary(text: str, wanted: str, kinds: dict[str, int]) -> None:
    said = {"YES": "Y", "NO": "N OW", "NO.": "N AH", "GO": "G", "S": "EH S", "S.": "EH S", "N": "EH N", "U.S.": "Y EH"}
    said |= {"U.S": "Y UW", "[LAUGHTER]": "LAU"}
    clean = Cleaner(Lexicon({word: (tuple(phones.split()),) for word, phones in said.items()}))
    found = clean(text)
    assert " ".join(found.words) == wanted
    assert Counter(change.kind for change in found.changes) == kinds
    assert clean(wanted).words == found.words  # what is clean stays


@settings(max_examples=200)
@given(st.lists(st.sampled_from(["YES", "no.", "S.", "<", "cough>", "[x]", "(", ")", "-", "a_b", "U.S.", "((", "*x*"])))
def test_what_is_clean_stays(words: list[str]) -> None:
    clean = Cleaner(Lexicon(dict.fromkeys(("YES", "NO", "NO.", "S", "S.", "U.S."), (("Y",),))))
    once = clean(" ".join(words)).words
    assert clean(" ".join(once)).words == once


def test_noises_are_said_and_listed_by_kind(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lines(
        source / "train/text", SPLITS["train"] | {"a-1": "Yes <cough> [x] NO", "a-2": "<cough>", "b-1": "(( )) NO"}
    )
    data = source.parent / "data"
    arguments = ["--source", str(source), "--lexicon", str(source / "lang/words.dic"), "--data", str(data)]
    policies = ["--clean-transcripts", "--max-bad-share", "0.5", "--workers", "1"]
    assert main(["prepare", "kaldi", *arguments, *policies]) == 0
    said = capsys.readouterr().out
    assert "<cough> (2), [x]" in said
    assert "a-2: nothing but noises (<cough>)" in said
    assert "b-1: some of it was not understood ((( )))" in said
    corpus = load_corpus(data)
    assert [u.text for u in corpus.splits["train"]] == ["YES NO", "YES"]
    assert (corpus.cleaned, corpus.changes) == (True, {"noise": 3, "unclear": 1, "case": 1})
    assert read_changes(data) == {
        Change("noise", "<cough>", ""): 2,
        Change("noise", "[x]", ""): 1,
        Change("unclear", "(( ))", ""): 1,
        Change("case", "Yes", "YES"): 1,
    }


def test_how_a_noise_sounds_is_not_guessed_from_its_letters(source: Path) -> None:
    write_lines(source / "train/text", SPLITS["train"] | {"a-1": "YES <cough> NO"})
    message = refused(source)
    assert "1 of them are marks of noises, which `--clean-transcripts` takes out:\n  <cough>" in message
    corpus = prepare(source, on_missing_words="guess", max_bad_share=0.5)
    assert "<cough>" not in corpus.lexicon
    assert "marks of noises among the words (<cough>)" in corpus.remarks[0]
    assert [one.id for one in corpus.left_out["train"]] == ["a-1"]


def test_near_words() -> None:
    near = NearWords(Lexicon({"'CAUSE": (("K",),), "CAUSE": (("K", "S"),), "DON'T": (("D",),)}))
    assert near.get("cause") == "CAUSE"
    assert near.get("'Cause,") == "'CAUSE"
    assert near.get("\u00abdon\u2019t\u00bb") == "DON'T"
    assert near.get("'don't'") == "DON'T"
    assert near.get("because") is None
    assert near.in_case("maybe") == "MAYBE"
    composed, in_two = "Café", "cafe\u0301"  # what a Mac may write looks the same
    for has, other in ((composed, in_two), (in_two, composed)):
        lexicon = Lexicon({has: (("K",),)})
        assert NearWords(lexicon).get(f"{other},") == has
        cleaned = Cleaner(lexicon)(other)
        assert (cleaned.words, [change.kind for change in cleaned.changes]) == ([has], ["characters"])
    assert bare("...") == ""


# text files -----------------------------------------------------------------------------------------------------------


def test_a_byte_order_mark_is_no_part_of_an_id(source: Path) -> None:
    for file in ("text", "utt2spk", "wav.scp"):
        path = source / "train" / file
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    lexicon = source / "lang/words.dic"
    lexicon.write_bytes(b"\xef\xbb\xbf" + lexicon.read_bytes())
    corpus = prepare(source)
    assert [u.id for u in corpus.splits["train"]] == [*SPLITS["train"]]
    assert "YES" in corpus.lexicon


@pytest.mark.parametrize(
    ("file", "content", "faults"),
    [
        ("text", "a-1 YES NO\na-2 GO\n\ufeffb-1 NO NO\nb-2 YES\n".encode(), (":3: ", "byte order mark (U+FEFF)")),
        (
            "text",
            b"a-1 YES\na-2 GO\nb-1 caf\xe9 NO\n",
            (":3: not UTF-8 text (byte 0xe9, at byte 7", "iconv"),
        ),
        *((file, None, (": no such file",)) for file in ("utt2spk", "text", "wav.scp")),
    ],
)
def test_what_is_wrong_with_a_file_is_one_fault(
    source: Path, file: str, content: bytes | None, faults: tuple[str, ...]
) -> None:
    path = source / "train" / file
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    message = refused(source)
    assert f"{path}{faults[0]}" in message
    assert all(fault in message for fault in faults)
    assert "1 fault in" in message


def test_all_splits_and_all_kinds_of_broken_audio_in_one_round(source: Path) -> None:
    """A header that is broken, and samples that are: also where the other split is broken in another way."""

    def flac(name: str, split: str) -> bytes:
        sound = np.round(32767 * speechlike(2.0, RATE, name)).astype(np.int16)
        soundfile.write(source / "wav" / f"{name}.flac", sound, RATE)
        write_lines(
            source / split / "wav.scp",
            {n: f"wav/{n}.{'flac' if n == name else 'wav'}" for n in SPLITS[split]},
        )
        return (source / "wav" / f"{name}.flac").read_bytes()

    whole = flac("a-2", "train")
    (source / "wav/a-2.flac").write_bytes(whole[: len(whole) // 2])
    (source / "wav/a-1.wav").write_bytes(b"")
    (source / "wav/d-1.wav").unlink()
    message = refused(source)
    assert "a-1: " in message
    assert "a-2: " in message
    assert "d-1: " in message
