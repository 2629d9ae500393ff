"""A packed model as Kaldi reads it: its graph finds the same words, by paths that Kaldi can follow; so does vosk."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import kaldifst
import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from roundelay.cli import main
from roundelay.core.files import read_json
from roundelay_speech.audio.reading import read_audio
from roundelay_speech.hmm.formats.kaldi_model import read_transition_model, read_tree
from roundelay_speech.packed.model import Model, load_model
from roundelay_speech.prepared import load_corpus
from roundelay_speech.search.beam import search
from support.nnet3 import AcousticModel, read_model

Float32 = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def written(packed: Path) -> Path:
    """The folder for Kaldi of a packed model, which lies beside it, as its run does."""
    assert main(["export", "kaldi", str(packed), "--out", str(packed.parent / "kaldi")]) == 0
    return packed.parent / "kaldi"


def scores_and_words(model: Model, folder: Path) -> dict[str, tuple[Float32, tuple[str, ...]]]:
    """Log-likelihoods of every test utterance, normalised by its speaker, and the words of the model."""
    corpus, found = load_corpus(folder / "data"), {}
    for speaker in sorted({u.speaker for u in corpus.splits["test"]}):
        some = [u for u in corpus.splits["test"] if u.speaker == speaker]
        features = [model.features(read_audio(u, corpus.folder)) for u in some]
        known = model.statistics(features, exact=True)
        for utterance, one in zip(some, features, strict=True):
            scores = model.scores(one, known)
            found[utterance.id] = scores, model.words(scores, times=False).words
    return found


def spoken(path: list[int], kaldi: AcousticModel) -> list[int]:
    """The phones of a path of transition-ids; each id must be one that may follow the one before."""
    phones: list[int] = []
    for before, now in zip([0, *path], path, strict=False):
        (phone, state, _), loops = kaldi.triples[(now - 1) // 2], now % 2 == 1
        if loops:  # of the two ways out of a state the loop is the first
            assert before in (now, now + 1), "a loop repeats the state that was entered"
        elif state:
            assert kaldi.triples[(before - 1) // 2][:2] == (phone, state - 1)
        else:
            assert before == 0 or kaldi.triples[(before - 1) // 2][1] == 2, "the phone before is at its end"
            phones.append(phone)
    return phones


def test_the_graph_finds_the_words_by_paths_that_spell_them(folder: Path, written: Path) -> None:
    model, kaldi = load_model(written.parent / "model"), read_model(written / "final.mdl")
    assert read_transition_model(written / "final.mdl").tuples == tuple((*one, one[2]) for one in kaldi.triples)
    pdf = np.repeat([one[2] for one in kaldi.triples], 2)  # of each transition-id
    graph = kaldifst.StdConstFst.read(str(written / "graph/HCLG.fst"))
    names = [line.split()[0] for line in (written / "graph/words.txt").read_text().splitlines()]
    phones = [line.split()[0] for line in (written / "graph/phones.txt").read_text().splitlines()]
    told = dict(re.findall(r"--(.*)=(.*)", (written / "conf/decode.conf").read_text()))
    beams = float(told["beam"]), int(told["max-active"])
    said = 0
    for scores, words in scores_and_words(model, folder).values():
        found = search(graph, float(told["acoustic-scale"]) * scores[:, pdf], *beams)
        assert found is not None
        path, numbers, *_ = found
        assert tuple(names[number] for number in numbers) == words
        of_path = [phones[phone] for phone in spoken(path, kaldi)]
        assert tuple(phone for phone in of_path if phone != "SIL") in spellings(model, words)
        said += len(words)
    assert said > 10


def spellings(model: Model, words: tuple[str, ...]) -> set[tuple[str, ...]]:
    """All pronunciations of a sentence."""
    found: set[tuple[str, ...]] = {()}
    for word in words:
        found = {(*before, *said) for before in found for said in model.lexicon.pronunciations[word]}
    return found


def test_files_belong_together(written: Path) -> None:
    kaldi, about = read_model(written / "final.mdl"), read_json(written / "about.json")
    tree = read_tree(written / "tree")
    assert (tree.width, tree.centre) == (3, 1)
    assert about["pdfs"] == len(kaldi.priors) == int((written / "graph/num_pdfs").read_text())
    assert kaldi.priors.sum() == pytest.approx(1.0, abs=1e-4)
    assert about["live"]
    assert (written / "cmvn_opts").read_text() == "--norm-means=true --norm-vars=true\n"
    own, graph = ((written / name).read_text().splitlines() for name in ("phones.txt", "graph/phones.txt"))
    assert graph[: len(own)] == own
    assert graph[len(own)].startswith("#0 ")
    live = read_model(written / "am/final.mdl")
    assert live.triples == kaldi.triples
    np.testing.assert_array_equal(live.priors, kaldi.priors)


ASKING_VOSK = """
import json, sys, soundfile, vosk
vosk.SetLogLevel(-1)
model = vosk.Model(sys.argv[1])
for path in sys.argv[2:]:
    samples, rate = soundfile.read(path, dtype="int16")
    recogniser = vosk.KaldiRecognizer(model, rate)
    recogniser.SetMaxAlternatives(1)
    recogniser.AcceptWaveform(samples.tobytes())
    print(json.loads(recogniser.FinalResult())["alternatives"][0]["text"])
"""


def test_vosk_finds_the_words(folder: Path, written: Path) -> None:
    """Kaldi's own reader, features, network and decoder, as vosk has them. It knows no speaker but the average one. It
    runs in a process of its own: it has another OpenFst in it than kaldifst."""
    if find_spec("vosk") is None:
        pytest.skip("pip install vosk: 7 MB with Kaldi in them, which only this test takes")
    model, paths, expected = load_model(written.parent / "model"), [], []
    for utterance in load_corpus(folder / "data").splits["test"]:
        paths.append(str(folder / "source/wav" / f"{utterance.id}.wav"))
        features = model.features(soundfile.read(paths[-1], dtype="float32")[0])
        expected.append(model.words(model.scores(features, model.usual), times=False).text)
    asked = [sys.executable, "-c", ASKING_VOSK, str(written), *paths]
    found = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=220).stdout
    assert found.splitlines() == expected
    assert sum(map(len, expected)) > 50


def test_runs_and_other_units_are_refused(folder: Path, written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = ["export", "kaldi", str(written.parent / "one"), "--out", str(written.parent / "none")]
    assert main(export) == 2
    assert "not a packed model. Pack it first: roundelay pack" in capsys.readouterr().err
    assert main(["export", "kaldi", str(written.parent / "model"), "--features", *export[3:]]) == 2
    assert "takes a model, which has no --split and no --features" in capsys.readouterr().err
    assert not (written.parent / "none").exists()
