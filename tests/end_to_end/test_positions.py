"""Models whose phones tell their place in the word: decoded, packed, given other words, trained on, for Kaldi."""

from dataclasses import replace
from pathlib import Path

import pytest

from roundelay.cli import main
from roundelay_speech.lexicon.lexicon import are_by_position
from roundelay_speech.packed.model import load_model
from roundelay_speech.prepared import load_corpus
from roundelay_speech.scoring.formats.ctm import Channel, TimedWord, read_ctm
from support.beeps import prepare_beeps


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, decoded with times, and the model packed of it."""
    folder = prepare_beeps(tmp_path_factory.mktemp("positions"), align={"position_dependent": True})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "recipe.yaml", "--exp", "exp", "training.runtime=sim", "schedule.max_epochs=3"]) == 0
        assert main(["decode", "exp", "--set", "decode.ctm=true"]) == 0
        assert main(["pack", "exp", "--set", "decode.ctm=true", "--out", "model"]) == 0
    return folder


def places(found: dict[Channel, list[TimedWord]]) -> dict[Channel, list[TimedWord]]:
    """Words and times alone: a packed model fits its confidences."""
    return {key: [replace(word, confidence=1.0) for word in words] for key, words in found.items()}


def test_times_of_words_are_those_of_decode(home: Path, tmp_path: Path) -> None:
    model = load_model(home / "model")
    assert are_by_position(model.columns.phones)
    evaluate = ["evaluate", str(home / "model"), "--data", str(home / "data"), "--out", str(tmp_path), "--workers", "1"]
    assert main(evaluate) == 0
    found = read_ctm(tmp_path / "test/hyp.ctm")
    assert places(found) == places(read_ctm(home / "exp/decode/test/hyp.ctm"))
    durations = {u.recording_id: u.duration for u in load_corpus(home / "data").splits["test"]}
    assert found
    for (recording, _), words in found.items():
        shares = [word.duration / durations[recording] for word in words]
        assert max(shares) < 0.95, "a word alone is not all of its recording, silence and all"


def test_other_words_and_another_voice(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grammar whose words lack some phones, and labels by the model's own tree."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("GO GO\nNO GO\n")
    assert main(["pack", str(home / "model"), "--set", "decode.text=[text.txt]", "--out", "fewer"]) == 0
    assert load_model(Path("fewer")).lexicon.words == ("GO", "NO")
    finetune = ["finetune", str(home / "model"), "--data", str(home / "data"), "--out", "more", "--epochs", "1"]
    assert main(finetune) == 0
    assert load_model(Path("more")).columns.phones == load_model(home / "model").columns.phones


def test_for_kaldi_phones_say_where_in_the_word_they_are(home: Path, tmp_path: Path) -> None:
    assert main(["export", "kaldi", str(home / "model"), "--out", str(tmp_path)]) == 0
    phones = [line.split() for line in (tmp_path / "phones.txt").read_text().splitlines()]
    ends = {"B": "begin", "E": "end", "I": "internal", "S": "singleton", "L": "nonword"}  # the last of SIL
    expected = [[number, ends[name[-1]]] for name, number in phones[1:]]
    boundaries = (tmp_path / "graph/phones/word_boundary.int").read_text().splitlines()
    assert [line.split() for line in boundaries] == expected
