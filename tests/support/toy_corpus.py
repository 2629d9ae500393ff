"""A toy corpus whose every frame is known: the toy language, each state of each phone with a sound of its own."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from roundelay.core.streams import stream
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.features.store import FeatureStore, SpeakerStats
from roundelay_speech.hmm.flat_start import AlignConfig
from roundelay_speech.hmm.topology import STATES
from roundelay_speech.prepared import Corpus
from support.toy_speech import LEXICON, frames_of, phones_of, sentences, tying

FILTERS = 40
SIZES = {"train": 60, "dev": 6, "test": 6}
RATE = 8000  # Hz
QUICK = AlignConfig(
    tied_states=40,
    mono_gaussians=40,
    mono_passes=8,
    mono_realign=(1, 2, 3, 4, 5, 6, 7),
    tri_gaussians=50,
    tri_passes=3,
    tri_realign=(1,),
    settle=2,
    min_leaf_frames=20.0,
    workers=1,
)
"""Aligns it in seconds."""
Truth = dict[str, npt.NDArray[np.int64]]
"""(frames, 3) phone, state and monophone pdf by utterance id."""


def toy_corpus(folder: Path, seed: int = 0, short: int = 0) -> tuple[Corpus, FeatureStore, Truth]:
    """Return a corpus in `folder`, its features, and the truth about its frames.

    Args:
        short: number of training utterances that are cut after two frames.
    """
    rng = stream(seed, "corpus")
    sounds = 3.0 * rng.normal(size=(len(LEXICON.phones) + 1, STATES, FILTERS))
    splits: dict[str, list[Utterance]] = {}
    arrays, truth, offsets, speakers = [], {}, [0], []
    for split, size in SIZES.items():
        splits[split] = []
        for i, words in enumerate(sentences(rng, size)):
            name, speaker = f"{split}-{i}", i % 2
            labels = np.array(frames_of(phones_of(words, rng), tying(1), rng))
            labels = np.repeat(labels, 2, axis=0)
            if split == "train" and i < short:
                labels = labels[:2]
            truth[name] = labels
            arrays.append(sounds[labels[:, 0], labels[:, 1]] + rng.normal(size=(len(labels), FILTERS)) + 2.0 * speaker)
            offsets.append(offsets[-1] + len(labels))
            speakers.append(speaker)
            seconds, said = len(labels) / 100, (f"s{speaker}", " ".join(words))
            splits[split].append(
                Utterance(name, name, f"{name}.wav", 0.0, seconds, 0, RATE, round(seconds * RATE), *said)
            )
    array = np.concatenate(arrays).astype(np.float32)
    stats = np.zeros((2, FILTERS), np.float32), np.ones((2, FILTERS), np.float32), np.zeros(2, np.int64)
    of = SpeakerStats(("s0", "s1"), *stats)
    ends = np.array(offsets), np.array(speakers, np.int32)
    store = FeatureStore(folder, array, tuple(truth), *ends, of, RATE, {})
    return Corpus(folder, "toy", splits, LEXICON, RATE), store, truth
