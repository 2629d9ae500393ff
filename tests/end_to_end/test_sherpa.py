"""A model trained by CTC, exported for sherpa-onnx: it hears the same features, and finds the same words."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import yaml

from roundelay.cli import main
from roundelay_speech.exporting.utterance import utterance_scores
from roundelay_speech.features.store import SpeakerStats
from roundelay_speech.packed.model import load_model as load_packed
from roundelay_speech.prepared import load_corpus
from roundelay_speech.trained import load_model
from support.beeps import RECIPE, UNALIGNED

SECONDS_PER_ROW = 0.03
LOUD = 1000  # sherpa-onnx dithers with 1/32768, whatever its option says; what is normalised may be as loud as you like
# Alignment, training and export take some 25 s of a processor in all. Where many share it that was up to 240 s, and the
# usual limit ended six of fifteen runs in the middle of an export; every run that it did not end found all words.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def exported(folder: Path, tmp_path: Path) -> Path:
    """A model of characters, as sherpa-onnx takes it; the run lies beside it."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="ONNX is an extra: pip install 'roundelay[export]'")
    recipe = {**UNALIGNED, "corpus": str(folder / "data"), "units": "characters", "decode": RECIPE["decode"]}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert main(["train", str(tmp_path / "recipe.yaml"), "--exp", str(tmp_path / "exp")]) == 0
    assert main(["pack", str(tmp_path / "exp"), "--out", str(tmp_path / "model"), "--set", "decode.graph=ctc"]) == 0
    assert main(["export", "sherpa", str(tmp_path / "model"), "--out", str(tmp_path / "out")]) == 0
    return tmp_path / "out"


def test_sherpa_finds_the_words_of_our_searches(folder: Path, exported: Path) -> None:
    pytest.importorskip("sherpa_onnx", reason="pip install sherpa-onnx: 40 MB that only this test takes")
    corpus, read_off = ours(folder, exported.parent / "exp")
    packed, symbols = load_packed(exported.parent / "model"), (exported / "words.txt").read_text().split("\n")
    word = {int(line.split()[1]): line.split()[0] for line in symbols if line}
    greedy, by_graph = recogniser(exported), recogniser(exported, str(exported / "HLG.fst"))
    said, same = 0, []
    for utterance in [*corpus.splits["dev"], *corpus.splits["test"]]:
        samples, rate = soundfile.read(folder / "source/wav" / f"{utterance.id}.wav", dtype="float32")
        results = []
        for recognizer in (greedy, by_graph):
            stream = recognizer.create_stream()
            stream.accept_waveform(rate, LOUD * samples)
            recognizer.decode_stream(stream)
            results.append(stream.result)
        words, rows, scores = read_off(utterance.id)
        assert results[0].text.split() == words
        assert tuple(word[number] for number in results[1].words) == packed.words(scores, times=False).words
        found = np.rint(np.array(results[0].timestamps) / SECONDS_PER_ROW).tolist()
        same += [a == b for a, b in zip(found, rows, strict=True)]
        said += len(words)
    assert said > 20
    assert np.mean(same) > 0.9  # rounding may move a unit by a row where two columns are almost equal


def recogniser(folder: Path, graph: str = "") -> Any:
    """As docs/exporting.md says."""
    sherpa = pytest.importorskip("sherpa_onnx.lib._sherpa_onnx")
    about = json.loads((folder / "about.json").read_text())
    model = sherpa.OfflineModelConfig(
        wenet_ctc=sherpa.OfflineWenetCtcModelConfig(model=str(folder / "model.onnx")),
        tokens=str(folder / "tokens.txt"),
        model_type=about["model_type"],
    )
    features = sherpa.FeatureExtractorConfig(**about["sherpa_onnx"])
    search = sherpa.OfflineCtcFstDecoderConfig(graph=graph)
    return sherpa.OfflineRecognizer(
        sherpa.OfflineRecognizerConfig(feat_config=features, model_config=model, ctc_fst_decoder_config=search)
    )


def ours(folder: Path, exp: Path) -> Any:
    """The corpus, and what our greedy search reads off an utterance: its words, and the first row of each unit; and the
    scores."""
    model, corpus = load_model(exp), load_corpus(folder / "data")
    scores, store = utterance_scores(model, str(exp)), corpus.features()
    assert model.units is not None
    units = model.units

    def read_off(utterance: str) -> tuple[list[str], list[int], Any]:
        features = torch.from_numpy(np.array(store.get(utterance)))
        std = features.std(0, correction=0).clamp_min(SpeakerStats.STD_FLOOR)
        with torch.inference_mode():
            found = scores(features, features.mean(0), std).numpy()
        best = found.argmax(1).tolist()
        rows = [row for row, column in enumerate(best) if column and (row == 0 or column != best[row - 1])]
        return list(units.words([units.columns[best[row]] for row in rows])), rows, found

    return corpus, read_off
