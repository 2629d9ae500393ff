"""A corpus taken to Kaldi's formats and brought back as features alone goes the whole way to words."""

import json
from pathlib import Path

import numpy as np

from roundelay.cli import main
from roundelay_speech.prepared import load_corpus


def test_features_without_audio_lead_to_the_same_words(inside: Path) -> None:
    assert main(["export", "kaldi", "data", "--out", "exported", "--features"]) == 0
    for split in ("train", "dev", "test"):
        (inside / "exported" / split / "wav.scp").unlink()
    assert (
        main(["prepare", "kaldi", "--source", "exported", "--lexicon", "exported/lexicon.txt", "--data", "given"]) == 0
    )
    corpus = load_corpus(inside / "given")
    assert not corpus.audio
    before, after = load_corpus(inside / "data").features(), corpus.features()
    np.testing.assert_array_equal(after.array, before.array)
    assert after.utterance_ids == before.utterance_ids
    overrides = ["corpus=given", "alignment=given-alignment"]
    assert main(["align", "recipe.yaml", *overrides]) == 0
    # The statistics of speakers went through sums and back: a frame at a boundary may fall to the other side.
    ours, theirs = (np.load(inside / folder / "phones.npy") for folder in ("given-alignment", "alignment"))
    assert (ours == theirs).mean() > 0.99
    assert main(["train", "recipe.yaml", "--exp", "given-run", "--strategy", "sgd", *overrides]) == 0
    assert main(["decode", "given-run"]) == 0
    assert json.loads((inside / "given-run" / "results.json").read_text())["wer"]["test"]["wer"] <= 10
