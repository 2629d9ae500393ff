"""Small corpora on disk: sounds, utterances, Kaldi data directories; and where the real ones are."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
from hypothesis import strategies as st

from roundelay.core.progress import Silent
from roundelay.core.streams import stream
from roundelay_speech.corpus.build import prepare_kaldi
from roundelay_speech.corpus.options import Preparation, PrepareOptions
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.prepared import Corpus

RATE = 8000
RECORDINGS = {"rec-a": 8000, "rec-b": 22050, "rec-c": 16000}
"""Recordings of `write_recordings`, by name, and their rates (Hz)."""
DICTIONARY = "YES Y EH S\nNO N OW\nGO G OW\n"


NAMES = st.text(st.characters(exclude_categories=("Z", "C")), min_size=1, max_size=6).filter(lambda s: s.split() == [s])
"""Names and words as a file of lines can hold them."""


def speechlike(seconds: float, rate: int, name: str = "speech", seed: int = 0) -> npt.NDArray[np.float32]:
    """Return voiced and unvoiced stretches of changing loudness over a noise floor, 16 bits: (N,) in [-1, 1]."""
    rng = stream(seed, name)
    time = np.arange(round(seconds * rate)) / rate
    pitch = 120 + 30 * np.sin(2 * np.pi * 0.7 * time)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    voice = sum(np.cos(k * phase) / k for k in range(1, int(0.45 * rate / 150)))
    loudness = np.clip(np.sin(2 * np.pi * 1.5 * time), 0, 1)
    hiss = np.clip(np.sin(2 * np.pi * 1.5 * time + 2), 0, 1) * rng.standard_normal(len(time))
    signal = 0.1 * loudness * voice + 0.03 * hiss + 0.001 * rng.standard_normal(len(time))
    quantised: npt.NDArray[np.float32] = (np.round(np.clip(signal, -1, 1) * 32767) / 32768).astype(np.float32)
    return quantised


def write_recordings(folder: Path) -> Path:
    """Write RECORDINGS, of one second and two channels each."""
    for name, rate in RECORDINGS.items():
        one = speechlike(1, rate, name)
        soundfile.write(folder / f"{name}.flac", one[:, None].repeat(2, 1), rate, subtype="PCM_16")
    return folder


def utterance(name: str, path: str, **fields: object) -> Utterance:
    """Return an utterance of half a second at 8 kHz that says YES, with other fields as given."""
    seconds = float(str(fields.pop("seconds", 0.5)))
    rate = int(str(fields.get("sampling_rate", RATE)))
    values: dict[str, object] = {
        "id": name,
        "recording_id": name,
        "path": path,
        "start": 0.0,
        "duration": round(seconds * rate) / rate,
        "channel": 0,
        "sampling_rate": rate,
        "num_samples": round(seconds * rate),
        "speaker": name.split("-", maxsplit=1)[0],
        "text": "YES",
    }
    return Utterance(**values | fields)  # type: ignore[arg-type]


@st.composite
def cut_anywhere(draw: st.DrawFn, may_be_whole: bool = True) -> list[Utterance]:
    """Draw some utterances, sorted, cut from RECORDINGS at any sample, or each a whole recording."""
    speakers = draw(st.lists(st.tuples(NAMES, st.none() | st.sampled_from("fm")), min_size=1, unique_by=lambda s: s[0]))
    whole = may_be_whole and draw(st.booleans())
    found = []
    for name in sorted(
        draw(st.lists(st.sampled_from(list(RECORDINGS)) if whole else NAMES, min_size=1, max_size=4, unique=True))
    ):
        recording = name if whole else draw(st.sampled_from(list(RECORDINGS)))
        rate = RECORDINGS[recording]
        first = 0 if whole else draw(st.integers(0, rate - 1))
        samples = rate if whole else draw(st.integers(1, rate - first))
        speaker, gender = draw(st.sampled_from(speakers))
        how: dict[str, object] = {"recording_id": recording, "sampling_rate": rate, "start": first / rate}
        how |= {"duration": samples / rate, "num_samples": samples, "channel": 0 if whole else draw(st.integers(0, 1))}
        how |= {"speaker": speaker, "gender": gender, "language": draw(st.none() | NAMES)}
        text = " ".join(draw(st.lists(NAMES, min_size=1, max_size=3)))
        found.append(utterance(name, f"{recording}.flac", text=text, **how))
    return found


def recorded(folder: Path, name: str, seconds: float = 0.5, rate: int = RATE, **fields: object) -> Utterance:
    """Write a sound to folder/NAME.wav and return its utterance, with a path relative to the folder."""
    soundfile.write(folder / f"{name}.wav", speechlike(seconds, rate, name), rate, subtype="PCM_16")
    return utterance(name, f"{name}.wav", seconds=seconds, sampling_rate=rate, **fields)


def write_lines(path: Path, lines: Mapping[str, str]) -> None:
    """Write a file of lines `KEY VALUE`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key} {value}\n" for key, value in lines.items()))


def kaldi_corpus(folder: Path, splits: Mapping[str, Mapping[str, str]], rate: int = RATE) -> Path:
    """Write a corpus of Kaldi data directories, given as split -> utterance id -> transcript, with the dictionary in
    lang/words.dic; return its folder."""
    (folder / "wav").mkdir(parents=True)
    for split, texts in splits.items():
        for name in texts:
            soundfile.write(folder / "wav" / f"{name}.wav", speechlike(0.5, rate, name), rate, subtype="PCM_16")
        write_lines(folder / split / "wav.scp", {name: f"wav/{name}.wav" for name in texts})
        write_lines(folder / split / "text", texts)
        write_lines(folder / split / "utt2spk", {name: name.split("-")[0] for name in texts})
    (folder / "lang").mkdir()
    (folder / "lang" / "words.dic").write_text(DICTIONARY)
    return folder


def prepared(source: Path, data: Path, *splits: str, licence: str = "", **options: Any) -> Corpus:
    """Prepare the corpus of `kaldi_corpus` in `data`, all of its splits or some, with options of PrepareOptions."""
    found = {name: name for name in splits or ("train", "dev", "test")}
    how = Preparation(data, "toy", licence, PrepareOptions(**options))
    return prepare_kaldi(source, source / "lang/words.dic", found, how, Silent())


def an4() -> Path:
    """Return the folder of AN4; if there is none, skip the test and say where it was looked for."""
    return _real("an4", "train/wav.scp")


def english_text() -> Path:
    """Return the folder of English text and the CMU dictionary; if there is none, skip the test."""
    return _real("english_text", "cmudict.dict.gz")


def _real(name: str, has: str) -> Path:
    named = os.environ.get("ROUNDELAY_CORPORA")
    corpora = Path(named) if named else Path(__file__).resolve().parents[3] / "shared" / "corpora"
    if not (corpora / name / has).is_file():
        pytest.skip(f"{name} is not in {corpora} (set ROUNDELAY_CORPORA to the folder that holds {name}/)")
    return corpora / name
