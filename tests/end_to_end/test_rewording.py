"""Other words for a packed model, without training."""

from pathlib import Path

import numpy as np
import pytest

from roundelay.cli import main
from roundelay.core.streams import stream
from roundelay_speech.decode.lm.arpa_file import read_arpa
from roundelay_speech.ngrams.ngram import NEVER
from roundelay_speech.packed.model import Model, load_model
from roundelay_speech.packed.rewording import with_unigrams
from support import beeps


def heard(model: Model, *sentences: list[str]) -> list[str]:
    """Words that the model finds in the sentences of one speaker."""
    rng = stream(3, "said")
    said = [beeps.say(words, rng).astype(np.float32) for words in sentences]
    return [one.text for one in model.recognise_pieces(said, times=False)]


def test_a_word_that_is_added_is_recognised(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(beeps.WORDS, "TESS", ["T", "EH", "S"])
    sentences = [["YES", "NO"], ["TESS"], ["GO", "TESS"], ["STAY"]]
    assert "TESS" not in " ".join(heard(load_model(packed), *sentences))
    Path("words.txt").write_text("tess T EH S\n\nGO\n")
    assert main(["pack", str(packed), "--words", "words.txt", "--out", "model"]) == 0
    assert "a model of 5 words" in " ".join(capsys.readouterr().out.split())
    model = load_model(Path("model"))
    assert heard(model, *sentences) == [" ".join(words) for words in sentences]
    assert model.card["word_errors"] == {}
    assert model.packed.search == load_model(packed).packed.search
    assert main(["verify", "model"]) == 0


def test_another_grammar(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("GO GO\nSTAY GO\nGO STAY STAY\n")
    assert main(["pack", str(packed), "--set", "decode.text=[text.txt]", "decode.order=3", "--out", "model"]) == 0
    model = load_model(Path("model"))
    assert model.lexicon.words == ("GO", "STAY")
    assert model.card["vocabulary"]["grammar_order"] == 3
    assert heard(model, ["GO", "STAY"], ["STAY", "GO"]) == ["GO STAY", "STAY GO"]


def test_words_that_cannot_be_added_are_all_named(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_text("HELLO\nWORLD W ER\n<s> S\n")
    pack = ["pack", str(packed), "--out", "model"]
    for arguments, messages in (
        (
            [*pack, "--words", "words.txt"],
            (
                "words.txt:1: HELLO has no pronunciation",
                "words.txt:2: WORLD has phones",
                "words.txt:3: <s> is reserved",
            ),
        ),
        (pack, ("is packed already. Give --words FILE",)),
        ([*pack, "--set", "decode.beam=3"], ("only its grammar can be set",)),
        ([*pack, "--set", "decode.order=3"], ("needs decode.text or decode.arpa",)),
        ([*pack[:2], str(packed), *pack[2:], "--words", "words.txt"], ("without further runs",)),
    ):
        assert main(arguments) == 2
        told = " ".join(capsys.readouterr().err.split())
        assert all(message in told for message in messages)
    assert list(tmp_path.iterdir()) == [tmp_path / "words.txt"]


def test_added_words_are_as_likely_as_the_others_and_change_nothing_else(packed: Path) -> None:
    model = read_arpa(packed / "lm.arpa.gz")
    more = with_unigrams(model, ["TESS", "GO"])
    before, after = model.grams, more.grams
    assert set(after[0]) - set(before[0]) == {("TESS",)}
    mean = np.mean([log10 for log10, _ in before[0].values() if log10 > NEVER])
    log10, backoff = after[0].pop(("TESS",))
    assert log10 == pytest.approx(mean)
    assert backoff == 0.0
    assert after == before
    assert with_unigrams(model, ["GO"]) is model
