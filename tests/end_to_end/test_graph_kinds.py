"""`roundelay decode` with graphs for models with a blank, from log-probabilities that are made of the transcripts."""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from roundelay.cli import main
from roundelay.core.streams import stream
from roundelay_speech.decode.lm.arpa_file import write_arpa
from roundelay_speech.hmm.alignment import Alignment
from roundelay_speech.kaldi_io.objects import write_archive
from roundelay_speech.ngrams.estimate import estimate
from roundelay_speech.prepared import load_corpus
from support.beeps import RECIPE, WORDS


def write_scores(path: Path, columns: list[str], units: Callable[[str], list[str]]) -> None:
    """Log-probabilities in which the units of every transcript stand out, each for two frames, with a blank behind it
    where the same unit follows; `columns` begins with the blank."""
    rng, found = stream(0, "ctc"), {}
    for utterance in itertools.chain(*(load_corpus(Path("data")).splits[split] for split in ("dev", "test"))):
        said = [columns.index(unit) for word in utterance.text.split() for unit in units(word)]
        following = itertools.pairwise([*said, 0])
        row = [0, *itertools.chain(*([one, one, *([0] if one == after else [])] for one, after in following))]
        scores = rng.normal(size=(len(row), len(columns)))
        scores[np.arange(len(row)), row] += 6
        found[utterance.id] = (scores - np.log(np.exp(scores).sum(1, keepdims=True))).astype(np.float32)
    write_archive(path, found.items())


@pytest.fixture
def exp(inside: Path, tmp_path: Path) -> Path:
    """A recipe is all that is used of a run where scores are given."""
    (tmp_path / "exp").mkdir()
    places = {name: str(inside / name) for name in ("data", "alignment")}
    recipe = {**RECIPE, "corpus": places["data"], "alignment": places["alignment"]}
    (tmp_path / "exp" / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return tmp_path / "exp"


def errors(out: Path) -> int:
    told = json.loads((out / "decode/test/decode.json").read_text())
    assert told["options"]["graph"]["name"] == "ctc"
    text = (out / "decode/test/wer.txt").read_text()
    return int(text.split("[")[1].split("/")[0])


def test_phones_and_a_blank(exp: Path, tmp_path: Path) -> None:
    """The columns that no file names: the blank, then the phones of the alignment but silence."""
    columns = ["<blk>", *Alignment.load(Path("alignment")).tying.phones[1:]]
    write_scores(tmp_path / "scores.ark", columns, WORDS.__getitem__)
    decode = ["decode", str(exp), "--scores", str(tmp_path / "scores.ark"), "--out", str(tmp_path / "out")]
    assert main([*decode, "--set", "decode.graph=ctc", "decode.scales=[1]", "decode.nbest=2"]) == 0
    assert errors(tmp_path / "out") == 0
    assert (tmp_path / "out/decode/test/nbest.txt").stat().st_size
    assert not (exp / "decode").exists()
    said = {u.id: u.text.split() for u in load_corpus(Path("data")).splits["test"]}
    units = [line.split() for line in (tmp_path / "out/decode/test/units.txt").read_text().splitlines()]
    assert units == [[name, *(unit for word in words for unit in WORDS[word])] for name, words in said.items()]


def test_two_passes_find_what_one_finds(exp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bigram: as the grammar of the graph, and as the model that a unigram's lattices are rescored with, given in a
    file or made of the texts of the unigram."""
    corpus = load_corpus(Path("data"))
    bigram = estimate([text.split() for text in corpus.transcripts("train")], corpus.lexicon.words)
    write_arpa(tmp_path / "bigram.arpa.gz", bigram)
    columns = ["<blk>", *Alignment.load(Path("alignment")).tying.phones[1:]]
    write_scores(tmp_path / "scores.ark", columns, WORDS.__getitem__)
    common = ["decode.graph=ctc", "decode.scale=0.5", "decode.beam=20", "decode.lattice_beam=7", "decode.nbest=1"]
    found = {}
    for name, options in (
        ("one", ["decode.arpa=bigram.arpa.gz"]),
        ("two", ["decode.order=1", "decode.rescore=bigram.arpa.gz", "decode.lattice=true"]),
        ("texts", ["decode.order=1", "decode.rescore_order=2"]),
        ("alone", ["decode.order=1"]),
        ("pruned", ["decode.arpa=bigram.arpa.gz", "decode.prune=0.5"]),
    ):
        out, given = tmp_path / name, [option.replace("bigram", str(tmp_path / "bigram")) for option in options]
        arguments = ["decode", str(exp), "--scores", str(tmp_path / "scores.ark"), "--out", str(out), "--set"]
        assert main([*arguments, *common, *given]) == 0
        folder = out / "decode/test"
        found[name] = [line.split() for line in (folder / "nbest.txt").read_text().splitlines()]
    told = json.loads((tmp_path / "two/decode/test/decode.json").read_text())
    assert told["rescored_with"] == "bigram.arpa.gz"
    assert told["not_rescored_utterances"] == 0
    assert "rescoring with bigram.arpa.gz" in capsys.readouterr().out.replace("\n", " ")
    for name in ("two", "texts"):
        assert [line[3:] for line in found[name]] == [line[3:] for line in found["one"]]
        for one, two in zip(found["one"], found[name], strict=True):
            assert float(two[2]) == pytest.approx(float(one[2]), abs=2e-3)
    assert [line[2] for line in found["alone"]] != [line[2] for line in found["two"]]
    # Nothing but 1-grams is worth half of the perplexity.
    assert [line[3:] for line in found["pruned"]] == [line[3:] for line in found["alone"]]


def test_a_model_to_rescore_with_that_is_not_there_is_named_before_a_graph_is_made(
    exp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graphs = sorted(Path("alignment/graphs").iterdir())
    options = ["decode.graph=ctc", "decode.silence_probability=0.123", "decode.rescore=nowhere.arpa"]
    assert main(["decode", str(exp), "--scores", "scores.ark", "--out", str(tmp_path), "--set", *options]) == 2
    assert "nowhere.arpa: cannot be read" in " ".join(capsys.readouterr().err.split())
    assert sorted(Path("alignment/graphs").iterdir()) == graphs


def test_characters_and_a_boundary(exp: Path, tmp_path: Path) -> None:
    columns = ["-", *sorted({c for word in WORDS for c in word}), "|"]
    (tmp_path / "units.txt").write_text("".join(f"{unit} {i}\n" for i, unit in enumerate(columns)))
    write_scores(tmp_path / "scores.ark", columns, lambda word: [*word, "|"])
    chosen = {"name": "ctc", "units": str(tmp_path / "units.txt"), "blank": "-", "spelled": True, "boundary": "|"}
    recipe = yaml.safe_load((exp / "recipe.yaml").read_text())
    recipe["decode"] = {**recipe["decode"], "graph": chosen, "scale": 1.0}
    (exp / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    decode = ["decode", str(exp), "--scores", str(tmp_path / "scores.ark"), "--out", str(tmp_path / "out")]
    assert main(decode) == 0
    assert errors(tmp_path / "out") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "decode.graph=ctc"], "tied states, which are decoded with decode.graph=hmm.* --scores"),
        (["--set", "decode.graph=rnnt"], "decode.graph.name is 'rnnt'.* hmm, ctc"),
        (["--scores", "none.scp"], "give --out"),
        (["--scores", "none.scp", "--out", "out"], "none.scp"),
        (["--scores", "{wide}", "--out", "out"], "expected .T > 0"),
        (["--scores", "{wide}", "--out", "out", "--set", "decode.graph=ctc", "decode.ctm=true"], "decode.ctm"),
        (["--scores", "{wide}", "--out", "out", "--with", "{exp}"], "leave --with out"),
        (["--set", "decode.rescore_order=3", "decode.rescore=lm.arpa"], "decode.rescore gives one. Leave one"),
    ],
)
def test_what_cannot_be_decoded(
    arguments: list[str], message: str, exp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ["<blk>", *Alignment.load(Path("alignment")).tying.phones[1:]]
    write_scores(tmp_path / "wide.ark", columns, WORDS.__getitem__)
    for name in ("model.safetensors", "model.json"):
        (exp / name).touch()  # a trained run, as far as is looked before anything is read
    places = {"{wide}": str(tmp_path / "wide.ark"), "{exp}": str(exp), "out": str(tmp_path / "out")}
    assert main(["decode", str(exp), *(places.get(word, word) for word in arguments)]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert re.search(message, shown), shown
