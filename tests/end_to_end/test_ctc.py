"""CTC from recordings to words: no alignment, whatever the units, decoded with a graph and without one."""

import json
import re
from pathlib import Path

import pytest
import yaml

from roundelay.cli import main
from roundelay_speech.audio.reading import audio_path, read_audio
from roundelay_speech.packed.model import load_model as load_packed
from roundelay_speech.prepared import load_corpus
from roundelay_speech.trained import load_model
from support.beeps import UNALIGNED, WORDS


@pytest.fixture(scope="module")
def exp(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without an alignment, on phones; the recipe lies beside it."""
    place = tmp_path_factory.mktemp("ctc")
    write_recipe(place / "recipe.yaml", folder)
    assert main(["train", str(place / "recipe.yaml"), "--exp", str(place / "exp")]) == 0
    return place / "exp"


def write_recipe(path: Path, folder: Path) -> None:
    path.write_text(yaml.safe_dump({**UNALIGNED, "corpus": str(folder / "data")}))


def told(exp: Path, split: str = "test") -> dict[str, object]:
    return dict(json.loads((exp / "decode" / split / "decode.json").read_text()))


def test_words_by_the_graph(exp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trained, decoded and scored; the run has its units and its graph, and nothing else is needed."""
    assert main(["decode", str(exp)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "units read off" in shown
    wer = json.loads((exp / "results.json").read_text())["wer"]["test"]["wer"]
    assert wer < 20
    assert float(str(told(exp)["unit_error_rate"])) < 30
    units = [line.split() for line in (exp / "units.txt").read_text().splitlines()]
    phones = sorted({phone for said in WORDS.values() for phone in said})
    assert units == [[name, str(column)] for column, name in enumerate(["<blk>", *phones])]
    model = load_model(exp)
    assert model.units is not None
    assert list(model.units.columns) == [name for name, _ in units]
    assert len(list((exp / "graphs").iterdir())) == 1


def test_dev_chooses_what_a_blank_costs(exp: Path, tmp_path: Path) -> None:
    """The lowest of costs that are equally good; one that drowns all words is not taken."""
    chosen = ["decode.graph={name: ctc, blank_costs: [300, 0, 1]}", "decode.scale=1", "decode.word_costs=[0, 1]"]
    assert main(["decode", str(exp), "--out", str(tmp_path), "--set", *chosen]) == 0
    assert told(tmp_path)["blank_cost"] in (0, 1)


@pytest.mark.parametrize("units", ["characters", "{name: bpe, size: 12}"])
def test_words_that_units_spell(
    units: str, exp: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without lexicon and language model, and with both; packed, and given another word."""
    run = tmp_path / "exp"
    assert main(["train", str(exp.parent / "recipe.yaml"), f"units={units}", "--exp", str(run)]) == 0
    assert main(["status", str(run)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"epoch 2 dev CTC loss of an utterance [\d.]+ utterances right [\d.]+ %", said)
    assert not re.search("frame|accuracy|entropy", said)
    for search in ("greedy", "prefixes", "words"):
        out = tmp_path / search
        chosen = f"decode.graph={{name: ctc, search: {search}}}"
        assert main(["decode", str(run), "--out", str(out), "--set", chosen]) == 0
        errors = (out / "decode/test/wer.txt").read_text()
        assert float(errors.split()[1]) < (20 if search == "words" else 60), errors
    packed = ["pack", str(run), "--set", "decode.graph=ctc", "--decoded", str(tmp_path / "words")]
    assert main([*packed, "--out", str(tmp_path / "model")]) == 0
    assert evaluated(tmp_path / "model", folder, tmp_path) == hypotheses(tmp_path / "words")
    new = tmp_path / "new.txt"
    more = ["pack", str(tmp_path / "model"), "--words", str(new), "--out", str(tmp_path / "more")]
    new.write_text("SO\nJAZZ\n")
    assert main(more) == 2
    assert "new.txt:2: JAZZ cannot be written in the units" in " ".join(capsys.readouterr().err.split())
    new.write_text("so\nNEY\n")
    assert main(more) == 0
    assert {"SO", "NEY"} <= set(load_packed(tmp_path / "more").lexicon.words)


def test_utterances_too_short_for_their_units_are_named(
    exp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of scores that stand for 160 ms are too few for whoever speaks fast."""
    train = ["train", str(exp.parent / "recipe.yaml"), "model.subsampling=16", "schedule.max_epochs=1"]
    assert main([*train, "--exp", str(tmp_path / "exp")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"\d+ utterances left out: train\d-\d+: too short for its transcript: \d+ rows", shown), shown


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("train", ["training.minibatch_unit=frames"], "training.minibatch_unit=sequences"),
        ("train", ["model={name: dnn}"], "whole utterances"),
        ("train", ["training.objective=cross-entropy"], "model.subsampling is 3"),
        ("train", ["training.objective=cross-entropy", "model.subsampling=1"], "has no alignment"),
        ("train", ["units=words"], "units.name is 'words'"),
        ("decode", ["decode.graph=hmm"], "Give decode.graph=ctc"),
        ("decode", ["decode.ctm=true"], "decode.ctm"),
        ("decode", ["decode.graph={name: ctc, blank_costs: [0, 1]}", "decode.scale=1"], "give decode.graph.blank_cost"),
        ("decode", ["decode.graph={name: ctc, search: greedy}"], "spell no words"),
        ("decode", ["decode.graph={name: ctc, search: greedy}", "decode.nbest=3"], "decode.nbest"),
    ],
)
def test_what_cannot_be(
    command: str, arguments: list[str], message: str, exp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = [str(exp.parent / "recipe.yaml"), "--exp", str(tmp_path / "exp")]
    assert main([command, *(train if command == "train" else [str(exp), "--set"]), *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_run_starts_from_another_with_the_same_units(
    exp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = ["train", str(exp.parent / "recipe.yaml"), "schedule.max_epochs=1", "--init", str(exp)]
    assert main([*train, "--exp", str(tmp_path / "same")]) == 0
    assert main([*train, "units=characters", "--exp", str(tmp_path / "other")]) == 2
    assert "other targets" in " ".join(capsys.readouterr().err.split())
    assert main([*train, "units=characters", "init.output=new", "--exp", str(tmp_path / "new")]) == 0


# Packed ---------------------------------------------------------------------------------------------------------------


def hypotheses(out: Path) -> bytes:
    return (out / "decode/test/hyp.trn").read_bytes()


def evaluated(model: Path, folder: Path, tmp_path: Path) -> bytes:
    """The words that a packed model finds in the test split, as hyp.trn has them."""
    evaluate = ["evaluate", str(model), "--data", str(folder / "data"), "--split", "test", "--workers", "1"]
    assert main([*evaluate, "--out", str(tmp_path / "evaluated")]) == 0
    assert not (tmp_path / "evaluated/test/hyp.ctm").exists()
    return (tmp_path / "evaluated/test/hyp.trn").read_bytes()


@pytest.fixture(scope="module")
def model(exp: Path) -> Path:
    """The run, decoded with a cost of blanks and packed, where nothing else is."""
    charged = ["--set", "decode.graph={name: ctc, blank_cost: 1}", "decode.scale=1"]
    assert main(["decode", str(exp), *charged, "--out", str(exp.parent / "charged")]) == 0
    out = exp.parent / "packed/model"
    assert main(["pack", str(exp), *charged, "--decoded", str(exp.parent / "charged"), "--out", str(out)]) == 0
    return out


def test_a_packed_model_finds_the_words_of_decode(exp: Path, model: Path, folder: Path, tmp_path: Path) -> None:
    assert evaluated(model, folder, tmp_path) == hypotheses(exp.parent / "charged")
    assert load_packed(model).packed.search.blank_cost == 1
    assert not (model / "tree.json").exists()


def test_packed_scores_are_charged_for_blanks(exp: Path, folder: Path, tmp_path: Path) -> None:
    """A cost that drowns all words does so in the packed model too."""
    charged = ["--set", "decode.graph={name: ctc, blank_cost: 300}", "decode.scale=1"]
    assert main(["pack", str(exp), *charged, "--out", str(tmp_path / "model")]) == 0
    errors = json.loads((tmp_path / "model/card.json").read_text())["word_errors"]["test"]["wer"]
    assert errors > 20  # without it there are fewer
    evaluated(tmp_path / "model", folder, tmp_path)
    told = json.loads((tmp_path / "evaluated/test/evaluation.json").read_text())
    assert told["wer"] == errors


def test_recordings_transcribed_without_times_of_words(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words share the time of their segment and have no confidence; formats of times alone are refused."""
    corpus = load_corpus(folder / "data")
    utterance = corpus.splits["test"][0]
    found = load_packed(model).recognise(read_audio(utterance, corpus.folder))
    assert found.words
    assert found.timed == ()
    path = str(audio_path(utterance, corpus.folder))
    transcribe = ["transcribe", str(model), path, "--format"]
    capsys.readouterr()
    assert main([*transcribe, "json"]) == 0
    (segment,) = json.loads(capsys.readouterr().out)["segments"]
    assert segment["text"] == found.text
    assert [segment["words"][0]["start"], segment["words"][-1]["end"]] == [segment["start"], segment["end"]]
    assert not any("confidence" in word for word in segment["words"])
    for name in ("srt", "trn"):
        assert main([*transcribe, name]) == 0
        assert found.words[0] in capsys.readouterr().out
    assert main([*transcribe, "ctm"]) == 2
    assert "needs the times of words" in " ".join(capsys.readouterr().err.split())
    assert main([*transcribe, "txt", "--stream"]) == 0
    assert found.text in capsys.readouterr().out


def test_a_packed_model_is_trained_on(
    model: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Units need no alignment."""
    out = tmp_path / "model"
    finetune = ["finetune", str(model), "--data", str(folder / "data"), "--out", str(out), "--epochs", "2"]
    assert main(finetune) == 0
    before, after = map(
        float, re.findall(r"loss ([\d.]+) before, ([\d.]+) after", " ".join(capsys.readouterr().out.split()))[0]
    )
    assert after < before
    assert load_packed(out).hearings[0].model.units == load_packed(model).hearings[0].model.units
    assert main(["verify", str(out)]) == 0
    errors = evaluated(out, folder, tmp_path)
    assert set(errors) == set(evaluated(model, folder, tmp_path))


def test_what_cannot_be_packed(exp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = ["pack", "--out", str(tmp_path / "model"), str(exp)]
    assert main([*pack, "--set", "decode.graph=hmm"]) == 2
    assert "Give --set decode.graph=ctc" in " ".join(capsys.readouterr().err.split())
    assert main([*pack, "--set", "decode.graph={name: ctc, search: greedy}"]) == 2
    assert "finds words of a lexicon by a graph" in " ".join(capsys.readouterr().err.split())
