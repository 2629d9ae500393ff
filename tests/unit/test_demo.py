"""The demo corpus: the same bytes every time, speakers apart, noise as promised; clear words when it cannot be made."""

import errno
import importlib.util
import json
import re
import sys
from pathlib import Path

import espeakng_loader
import numpy as np
import pytest
import soundfile

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay.core.streams import stream
from roundelay_speech.corpus.demo import make as demo_module
from roundelay_speech.corpus.demo.make import (
    GRAMMAR,
    LEXICON,
    SPEAKERS,
    DemoSize,
    Speaker,
    coloured_noise,
    prepare_demo,
    resample,
    sentence,
)
from roundelay_speech.lexicon.lexicon import parse_lexicon
from roundelay_speech.prepared import Corpus, load_corpus

SIZE = DemoSize(train=6, dev=2, test=2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return prepare_demo(tmp_path_factory.mktemp("demo"), Silent(), seed=1, size=SIZE)


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "index.json"  # it notes when the audio was written
    }


def test_two_runs_give_the_same_bytes(made: Corpus, tmp_path: Path) -> None:
    again = prepare_demo(tmp_path, Silent(), seed=1, size=SIZE)
    assert files(again.folder) == files(made.folder)
    other = prepare_demo(tmp_path / "other", Silent(), seed=2, size=SIZE)
    assert files(other.folder)["train.jsonl"] != files(made.folder)["train.jsonl"]


def test_it_is_a_prepared_corpus(made: Corpus) -> None:
    corpus = load_corpus(made.folder)
    assert {split: len(us) for split, us in corpus.splits.items()} == {"train": 6, "dev": 2, "test": 2}
    assert (corpus.name, corpus.sampling_rate) == ("demo", 16000)
    assert all(re.fullmatch(r"wav/demo-\w+/demo-\w+-\d+\.wav", u.path) for u in corpus.utterances)
    assert len(corpus.features().utterance_ids) == 10
    for u in corpus.utterances:
        wave, rate = soundfile.read(corpus.folder / u.path)
        assert (rate, len(wave)) == (16000, u.num_samples)
        assert 0.02 < np.abs(wave).max() < 1
        assert 0.5 < u.duration < 6


def test_made_once(made: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_module, "_synthesise", None)
    assert prepare_demo(made.folder, Silent(), seed=1, size=SIZE) == made


def test_phone_times_follow_the_sound(made: Corpus) -> None:
    """Words and phones in order, the first word after the silence put before it, and louder from there on."""
    utterances = {u.id: u for u in made.utterances}
    lines = [json.loads(line) for line in (made.folder / "phone_times.jsonl").read_text().splitlines()]
    assert {line["id"] for line in lines} == set(utterances)
    for line in lines:
        u = utterances[line["id"]]
        begins = [time for _, time in line["phones"]]
        assert begins == sorted(begins)
        assert begins[0] == 0
        assert 0.1 <= begins[1] <= line["end"] == pytest.approx(u.duration, abs=1e-3)
        assert [word for word, _ in line["words"]] == u.words
        assert 5 <= line["snr_db"] <= 20
        wave, rate = soundfile.read(made.folder / u.path)
        first = line["words"][0][1]
        power = np.square(wave)
        speech = power[round(first * rate) : round((first + 0.4) * rate)].mean()
        assert speech > 1.5 * power[: round(first * rate)].mean()


def test_nobody_is_in_two_splits() -> None:
    voices = [(s, p) for s, people in SPEAKERS.items() for p in people]
    assert len({p.name for _, p in voices}) == len(voices) >= 24
    variants = {split: {p.voice.partition("+")[2] for p in people} for split, people in SPEAKERS.items()}
    assert not variants["train"] & variants["dev"]
    assert not variants["train"] & variants["test"]
    assert not variants["dev"] & variants["test"]


def test_grammar_and_lexicon_know_the_same_words() -> None:
    words = {w for options in GRAMMAR.values() for _, text in options for w in text.split() if w.isupper()}
    lexicon = parse_lexicon(LEXICON, "demo")
    assert set(lexicon.words) == words
    symbols = {w for options in GRAMMAR.values() for _, text in options for w in text.split() if w.islower()}
    assert symbols | {"sentence"} == set(GRAMMAR)
    rng = stream(0, "sentences")
    said = [sentence(rng) for _ in range(600)]
    assert {len(words) for words in said} == set(range(2, 8))
    assert {w for words in said for w in words} == words
    vowels = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW"
    consonants = "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH"
    assert set(lexicon.phones) <= {"SIL", *vowels.split(), *consonants.split()}


def test_resampling_keeps_a_tone_and_drops_what_cannot_be() -> None:
    time = np.arange(22050) / 22050
    fade = np.sin(np.pi * time) ** 2
    resampled = resample(fade * np.sin(2 * np.pi * 1000 * time), 22050, 16000)
    time = np.arange(16000) / 16000
    np.testing.assert_allclose(resampled, np.sin(np.pi * time) ** 2 * np.sin(2 * np.pi * 1000 * time), atol=1e-3)
    above = resample(fade * np.sin(2 * np.pi * 9500 * np.arange(22050) / 22050), 22050, 16000)
    assert np.abs(above).max() < 1e-3
    assert [len(resample(np.zeros(n), 22050, 16000)) for n in (1, 441, 442, 1000)] == [1, 320, 321, 726]


def test_pink_noise_loses_half_its_power_per_octave() -> None:
    for pink, slope in ((False, 0.0), (True, -1.0)):
        noise = coloured_noise(1 << 18, pink=pink, rng=stream(0, "pink"))
        assert np.mean(np.square(noise)) == pytest.approx(1)
        power = np.square(np.abs(np.fft.rfft(noise)))
        bands = [power[1 << k : 2 << k].mean() for k in range(8, 16)]
        assert np.polyfit(np.arange(8), np.log2(bands), 1)[0] == pytest.approx(slope, abs=0.1)


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=re.escape("pip install 'roundelay[demo]'")):
        prepare_demo(tmp_path, Silent(), size=SIZE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("voice", "message"), [("en-us+nobody", "no voice variant nobody"), ("en-us+f2", "breath noise")]
)
def test_a_voice_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, voice: str, message: str) -> None:
    monkeypatch.setattr(demo_module, "SPEAKERS", {s: (Speaker(f"x-{s}", voice, 170, 50, "f"),) for s in SPEAKERS})
    with pytest.raises(UserError, match=rf"failed on x-train \({re.escape(voice)}\), status 1(.|\n)*{message}"):
        prepare_demo(tmp_path, Silent(), size=DemoSize(1, 1, 1))
    assert not (tmp_path / "demo.json").exists()


def test_all_voices_are_there_and_repeat() -> None:
    folder = Path(espeakng_loader.get_data_path()) / "voices" / "!v"
    for people in SPEAKERS.values():
        for person in people:
            variant = person.voice.partition("+")[2]
            assert not variant or not re.search("^breath", (folder / variant).read_text(), re.MULTILINE), variant


def test_the_library_is_never_loaded_in_this_process(made: Corpus) -> None:
    assert "roundelay_speech.corpus.demo.voice" not in sys.modules
    assert "libespeak" not in Path("/proc/self/maps").read_text()


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match=r"demo-ada-000\.wav: the disk is full"):
        prepare_demo(tmp_path, Silent(), size=DemoSize(1, 1, 1))
