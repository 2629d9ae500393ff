"""A spoken language of beeps: every phone a chord of its own, so that a small network can learn it in seconds."""

from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile
import yaml

from roundelay.cli import main
from roundelay.core.streams import stream

Float64 = npt.NDArray[np.float64]

RATE = 16000
DICTIONARY = "YES\tY EH S\nNO\tN OW\nGO\tG OW\nSTAY\tS T EY\n"
WORDS = {line.split()[0]: line.split()[1:] for line in DICTIONARY.splitlines()}
PHONES = sorted({phone for phones in WORDS.values() for phone in phones})
RECIPE = {
    "name": "beeps",
    "corpus": "data",
    "alignment": "alignment",
    "align": {
        "tied_states": 40,
        "mono_gaussians": 60,
        "mono_passes": 6,
        "mono_realign": [1, 2, 3, 4],
        "tri_gaussians": 60,
        "tri_passes": 3,
        "tri_realign": [1],
        "settle": 1,
        "workers": 1,
    },
    "model": {"layers": 1, "width": 64, "dropout": 0.1, "context": 3},
    "training": {"minibatch": 64, "precision": "fp32"},
    "schedule": {"learning_rate": 0.05, "max_epochs": 3},
    "decode": {"workers": 1, "scales": [0.2]},
}
"""Trains on the prepared corpus in seconds."""
UNALIGNED = {
    **{key: value for key, value in RECIPE.items() if key not in ("alignment", "align")},
    "model": {"name": "blstm", "layers": 1, "cells": 24, "dropout": 0.0, "deltas": 1, "subsampling": 3},
    "training": {"objective": "ctc", "minibatch": 6, "minibatch_unit": "sequences", "precision": "fp32"},
    "optimizer": {"name": "adam"},
    "schedule": {"rule": "anneal", "learning_rate": 0.02, "max_epochs": 14},
    "decode": {"graph": "ctc", "workers": 1, "scales": [0.5, 1]},
}
"""Trains by CTC, without an alignment."""
SIZES = {"train": 60, "dev": 10, "test": 10}


def prepare_beeps(folder: Path, **changes: Mapping[str, object]) -> Path:
    """Write, prepare and align the corpus in `folder`; return the path of its recipe, `recipe.yaml`.

    Args:
        changes: changes to sections of RECIPE, by section.
    """
    recipe = {name: {**RECIPE[name], **section} for name, section in changes.items()}  # type: ignore[dict-item]
    with chdir(folder):
        source = write_beeps(folder / "source")
        Path("recipe.yaml").write_text(yaml.safe_dump({**RECIPE, **recipe}))
        prepare = ["prepare", "kaldi", "--source", str(source), "--lexicon", str(source / "dict.txt"), "--data", "data"]
        assert main(prepare) == 0
        assert main(["align", "recipe.yaml"]) == 0
    return folder


def write_beeps(folder: Path, seed: int = 0) -> Path:
    """Write a corpus of Kaldi data directories with audio and `dict.txt`: utterances of one to four words, by four
    speakers; return its folder."""
    rng = stream(seed, "beeps")
    (folder / "dict.txt").parent.mkdir(parents=True, exist_ok=True)
    (folder / "dict.txt").write_text(DICTIONARY)
    for split, size in SIZES.items():
        lines: dict[str, list[str]] = {"wav.scp": [], "text": [], "utt2spk": []}
        for number in range(size):
            speaker = f"{split}{number % 2}"
            name = f"{speaker}-{number:03d}"
            words = [str(w) for w in rng.choice(list(WORDS), int(rng.integers(1, 5)))]
            path = folder / "wav" / f"{name}.wav"
            path.parent.mkdir(exist_ok=True)
            soundfile.write(path, say(words, rng), RATE, subtype="PCM_16")
            lines["wav.scp"].append(f"{name} wav/{name}.wav")
            lines["text"].append(f"{name} {' '.join(words)}")
            lines["utt2spk"].append(f"{name} {speaker}")
        (folder / split).mkdir()
        for file, content in lines.items():
            (folder / split / file).write_text("".join(f"{line}\n" for line in sorted(content)))
    return folder


def say(words: list[str], rng: np.random.Generator) -> Float64:
    """Return the words as samples at RATE."""
    pieces = [_hiss(0.15, rng)]
    for word in words:
        pieces += [_chord(PHONES.index(phone), rng) for phone in WORDS[word]]
        pieces.append(_hiss(0.08, rng))
    signal = np.concatenate([*pieces, _hiss(0.15, rng)])
    return signal + 0.002 * rng.standard_normal(len(signal))


def _hiss(seconds: float, rng: np.random.Generator) -> Float64:
    return 0.003 * rng.standard_normal(int(seconds * RATE))


def _chord(phone: int, rng: np.random.Generator) -> Float64:
    time = np.arange(int(rng.uniform(0.06, 0.12) * RATE)) / RATE
    base = 250 * 1.45**phone * rng.uniform(0.98, 1.02)
    chord: Float64 = 0.1 * np.sin(2 * np.pi * base * time)
    return chord + 0.05 * np.sin(2 * np.pi * 1.2 * base * time)
