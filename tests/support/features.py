"""Small feature stores."""

from pathlib import Path

from roundelay.core.progress import Silent
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.features.compute import AudioFolder, compute_features
from roundelay_speech.features.fbank import FbankConfig
from roundelay_speech.features.store import FeatureStore
from support.corpora import recorded

CONFIG = FbankConfig(num_bins=12)


def some_utterances(folder: Path) -> list[Utterance]:
    """Write five utterances by two speakers, of different lengths; return them."""
    return [
        recorded(folder, name, seconds)
        for name, seconds in (("s2-a", 0.4), ("s1-a", 0.5), ("s2-b", 0.3), ("s1-b", 0.025), ("s2-c", 0.6))
    ]


def compute(utterances: list[Utterance], folder: Path, **options: object) -> FeatureStore:
    return compute_features(utterances, folder / "f", CONFIG, Silent(), audio=AudioFolder(folder), **options)[0]  # type: ignore[arg-type]
