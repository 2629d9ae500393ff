"""Packed models: a folder that is moved away from everything else recognises as the runs did that it was made of."""

import functools
import json
import math
import multiprocessing
import os
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.torch
import torch

from roundelay.cli import main
from roundelay.core.checksums import file_checksum, write_checked
from roundelay.core.configure import build
from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay.core.folders import PACKED
from roundelay.core.records import Evaluation, Results, of_kind, read_events
from roundelay_speech.audio.reading import read_audio
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.decode.graphs.graph import FST_FILE, GRAPH_FILE, PHONES_FILE, WORDS_FILE
from roundelay_speech.decode.lm.arpa_file import read_arpa, write_arpa
from roundelay_speech.decode.parallel import Decoders
from roundelay_speech.ngrams.ngram import restrict
from roundelay_speech.packed import card
from roundelay_speech.packed.folder import write_packed
from roundelay_speech.packed.hearing import ENOUGH_FRAMES, PieceFeatures
from roundelay_speech.packed.making import new_folder
from roundelay_speech.packed.model import Model, Transcript, load_model
from roundelay_speech.prepared import Corpus, load_corpus
from roundelay_speech.scoring.formats.ctm import read_ctm
from roundelay_speech.scoring.formats.trn import read_trn, trn_name
from roundelay_speech.scoring.reliability import Reliability
from roundelay_speech.trained import MODEL, MODEL_META
from support.beeps import write_beeps
from support.corpora import write_lines

Float32 = npt.NDArray[np.float32]
QUICK = ["training.runtime=sim", "schedule.max_epochs=2"]


@pytest.fixture(scope="module")
def home(folder: Path, packed: Path) -> Path:
    """Two runs of the corpus, decoded, and packed: one of them alone, and both together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "recipe.yaml", "--exp", "exp/packed/two", "training.seed=1", *QUICK]) == 0
        together = ["exp/packed/one", "--with", "exp/packed/two:0.5", "--out", "exp/packed/both"]
        assert main(["decode", *together]) == 0
        assert main(["pack", "exp/packed/one:2", "exp/packed/two", "--out", "exp/packed/pair"]) == 0
    return packed.parent


@pytest.fixture
def model(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """The model of one run, moved to where nothing else is."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(home / "model", "model")
    return load_model(Path("model"))


@pytest.fixture
def corpus(folder: Path) -> Corpus:
    return load_corpus(folder / "data")


def speech(corpus: Corpus, utterances: Sequence[Utterance]) -> list[Float32]:
    return [read_audio(u, corpus.folder) for u in utterances]


def by_speaker(corpus: Corpus, split: str) -> dict[str, list[Utterance]]:
    found: dict[str, list[Utterance]] = {}
    for utterance in corpus.splits[split]:
        found.setdefault(utterance.speaker, []).append(utterance)
    return found


def transcribed(model: Model, corpus: Corpus, split: str) -> dict[str, Transcript]:
    """Transcripts by the names of utterances in trn files, speaker by speaker."""
    result = {}
    for some in by_speaker(corpus, split).values():
        for utterance, transcript in zip(some, model.recognise_pieces(speech(corpus, some), exact=True), strict=True):
            result[trn_name(utterance.id, utterance.speaker)] = transcript
    return result


def test_a_packing_takes_what_decode_found_with_the_same_options(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home.parent.parent)
    named = ["--set", "decode.vocabulary=transcripts", "decode.word_costs=[0,0.5]"]
    assert main(["decode", "exp/packed/two", *named]) == 0
    monkeypatch.setattr(card, "recognise", lambda *_, **__: pytest.fail("decoded again"))
    assert main(["pack", "exp/packed/two", "--out", str(tmp_path / "model"), *named]) == 0


def results(said: str) -> list[str]:
    """The lines with word errors, without the speed."""
    return [re.sub(r"[\d.]+ x real time", "", line) for line in said.splitlines() if "%WER" in line]


def test_an_interrupted_decoding_goes_on(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings that were tried and splits that are done are not decoded again, and all results are the same."""
    monkeypatch.chdir(home.parent.parent)
    decode = ["decode", "exp/packed/one", "--with", "exp/packed/two", "--set"]
    decode += ["decode.scale=0.2", "decode.word_costs=[0,0.5]"]
    assert main([*decode, "--out", str(tmp_path / "whole")]) == 0
    said = capsys.readouterr().out
    search, calls = Decoders.search, list[str]()

    def until(most: int) -> None:
        def counted(*given: object, **more: object) -> object:
            if len(calls) == most:
                raise KeyboardInterrupt
            calls.append("")
            return search(*given, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(Decoders, "search", counted)

    until(1)  # of two costs of a word, and two splits
    assert main([*decode, "--out", str(tmp_path / "parts")]) == 130
    assert "interrupted; everything so far (1 settings tried) is in" in capsys.readouterr().err
    until(3)
    assert main([*decode, "--out", str(tmp_path / "parts")]) == 130
    assert "(2 settings tried and the words of dev)" in capsys.readouterr().err
    until(9)
    assert main([*decode, "--out", str(tmp_path / "parts")]) == 0
    assert len(calls) == 4
    assert not (tmp_path / "parts/decode/unfinished.json").exists()
    told = capsys.readouterr().out
    assert results(told.replace("parts", "whole")) == results(said)
    assert "was tried on dev; a" in told  # one of two costs of a word is at an edge
    for file in ("dev/hyp.trn", "test/hyp.trn", "test/wer.txt"):
        assert (tmp_path / "parts/decode" / file).read_bytes() == (tmp_path / "whole/decode" / file).read_bytes()


def test_transcripts_are_written_as_those_of_the_models_corpus(
    home: Path, model: Model, corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    """`evaluate` gives the word errors of `decode` on the same speech, as it was before it was prepared."""
    source = Path("raw")
    source.mkdir()
    spoken = corpus.splits["test"]
    said = {u.id: f"<cough> {u.text.capitalize()}." for u in spoken}
    files = {"text": said, "wav.scp": {u.id: str(Path(u.path).resolve()) for u in spoken}}
    files["utt2spk"] = {u.id: u.speaker for u in spoken}
    for name, values in files.items():
        write_lines(source / name, values)
    evaluate = ["evaluate", "model", "--data", "raw", "--no-times", "--workers", "1"]
    assert main(evaluate) == 0
    assert "--clean-transcripts" in capsys.readouterr().out
    write_packed(model.folder, replace(model.packed, cleaned=True))
    assert main(evaluate) == 0
    found = capsys.readouterr().out
    errors = (home / "one/decode/test/wer.txt").read_text().split("[")[1].split(",")[0]
    assert f"[{errors}," in found
    assert f"{len(spoken)} x marks of noises and pauses" in found
    assert main([*evaluate, "--no-clean-transcripts"]) == 0
    assert f"[{errors}," not in capsys.readouterr().out
    reference = ["transcribe", "model", str(spoken[0].path), "--ref", "raw/one"]
    write_lines(source / "one", {Path(spoken[0].path).stem: said[spoken[0].id]})
    assert main(reference) == 0
    assert f"/ {len(spoken[0].words)}" in capsys.readouterr().err


def test_features_are_those_of_the_corpus_bit_for_bit(model: Model, corpus: Corpus) -> None:
    store = corpus.features()
    for utterance in corpus.utterances[::7]:
        (found,) = model.features(read_audio(utterance, corpus.folder)).of_network
        assert np.array_equal(found, store.get(utterance.id))


def test_statistics_are_those_of_the_corpus_where_there_is_speech_enough(model: Model, corpus: Corpus) -> None:
    store = corpus.features()
    for speaker, some in by_speaker(corpus, "train").items():
        assert sum(store.frames(u.id) for u in some) >= ENOUGH_FRAMES
        ((mean, std),) = model.statistics([model.features(one) for one in speech(corpus, some)]).of_network
        at = store.speakers.names.index(speaker)
        assert np.array_equal(mean, store.speakers.mean[at])
        assert np.array_equal(std, store.speakers.std[at])


def test_word_times_and_confidences_are_those_of_decode(home: Path, model: Model, corpus: Corpus) -> None:
    times = read_ctm(home / "one/decode/test/hyp.ctm")
    heard = transcribed(model, corpus, "test")
    for utterance in corpus.splits["test"]:
        found = heard[trn_name(utterance.id, utterance.speaker)].timed
        expected = times.get((utterance.recording_id, "1"), [])
        assert [word.word for word in found] == [word.word for word in expected]
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.start == pytest.approx(theirs.start, abs=1e-3)
            assert ours.duration == pytest.approx(theirs.duration, abs=1e-3)
            assert ours.confidence == pytest.approx(theirs.confidence, abs=1e-4)


def test_several_models_with_weights(home: Path, corpus: Corpus) -> None:
    model = load_model(home / "pair")
    assert [hearing.weight for hearing in model.hearings] == pytest.approx([2 / 3, 1 / 3])
    found = transcribed(model, corpus, "test")
    assert {name: list(t.words) for name, t in found.items()} == read_trn(home / "both/decode/test/hyp.trn")
    told = read_json(home / "both/decode/test/decode.json")
    assert model.packed.search.scale == told["acoustic_scale"]


def test_networks_that_hear_different_features(
    home: Path, folder: Path, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "data", tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    assert main(["features", "data", "--bins", "23", "--workers", "1"]) == 0
    paths = ["corpus=data", f"alignment={folder / 'alignment'}"]
    assert main(["train", str(folder / "recipe.yaml"), "--exp", "narrow", *paths, *QUICK]) == 0
    one = str(home / "one")
    assert main(["decode", one, "--with", "narrow", "--out", "both"]) == 0
    assert main(["pack", one, "narrow", "--out", "model", "--decoded", "both"]) == 0
    shutil.rmtree("data")
    model = load_model(Path("model"))
    assert [part.shape[1] for part in model.features(np.ones(16000, np.float32)).of_network] == [40, 23]
    found = transcribed(model, corpus, "test")
    assert {name: list(t.words) for name, t in found.items()} == read_trn(Path("both/decode/test/hyp.trn"))


def test_a_second_pass_belongs_to_the_model(
    home: Path, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fewer = restrict(read_arpa(home / "model/lm.arpa.gz"), ["YES", "NO", "GO"]).model
    write_arpa(Path("large.arpa.gz"), fewer)
    grammar = ["--set", "decode.rescore=large.arpa.gz", "decode.scale=0.2", "decode.word_costs=[0]"]
    assert main(["decode", str(home / "one"), *grammar, "--out", "twice"]) == 0
    assert main(["pack", str(home / "one"), *grammar, "--out", "model", "--decoded", "twice"]) == 0
    Path("large.arpa.gz").unlink()
    found = transcribed(load_model(Path("model")), corpus, "test")
    assert {name: list(t.words) for name, t in found.items()} == read_trn(Path("twice/decode/test/hyp.trn"))
    assert [len(t.timed) for t in found.values()] == [len(t.words) for t in found.values()]
    Path("words.txt").write_text("TESS T EH S\n")
    assert main(["pack", "model", "--words", "words.txt", "--out", "more"]) == 2
    assert "which knows no other words" in " ".join(capsys.readouterr().err.split())
    Path("model/rescore").unlink()
    with pytest.raises(UserError, match="rescore: missing"):
        load_model(Path("model"))


@pytest.mark.parametrize("workers", [1, 2])
def test_many_recordings_come_in_order(model: Model, corpus: Corpus, workers: int) -> None:
    some = list(by_speaker(corpus, "test").items())
    said = [(name, speech(corpus, part)) for name, part in some]
    recordings = [("nothing", []), *said, ("short", [np.zeros(9, np.float32)])]
    found = list(model.recognise_many(recordings, workers, exact=True))
    assert [name for name, _ in found] == [name for name, _ in recordings]
    alone = transcribed(model, corpus, "test")
    for (_, utterances), (_, transcripts) in zip(some, found[1:-1], strict=True):
        assert transcripts == [alone[trn_name(u.id, u.speaker)] for u in utterances]
    assert found[0][1] == []
    assert found[-1][1] == [Transcript()]


def test_loudness_does_not_matter(model: Model, corpus: Corpus) -> None:
    """Of little speech too: the average speaker that stands for what is missing is as loud as the recording."""
    samples = read_audio(corpus.splits["test"][0], corpus.folder)
    features = model.features(samples), model.features(samples * np.float32(0.25))
    assert len(features[0]) < ENOUGH_FRAMES
    normal = []
    for one in features:
        ((mean, std),) = model.statistics([one]).of_network
        normal.append((one.of_network[0] - mean) / std)
    assert normal[0] == pytest.approx(normal[1], abs=0.02)


def test_samples_that_are_none(model: Model) -> None:
    with pytest.raises(UserError, match="float32 between -1 and 1"):
        model.recognise(np.zeros(16000, np.int16))
    with pytest.raises(UserError, match="one channel"):
        model.recognise(np.zeros((2, 16000), np.float32))
    broken = np.zeros(16000, np.float32)
    broken[7] = np.nan
    with pytest.raises(UserError, match=r"a\.wav: Sample 7 is NaN"):
        list(model.recognise_many([("a.wav", [broken])], 1))
    assert model.recognise(np.zeros(100, np.float32)) == Transcript()


def test_the_card(home: Path) -> None:
    card = read_json(home / "pair/card.json")
    assert [(run["name"], run["network"]) for run in card["runs"]] == [("one", "dnn"), ("two", "dnn")]
    line = (home / "both/decode/test/wer.txt").read_text().split("%WER ")[1].split()[0]
    assert card["word_errors"]["test"]["wer"] == pytest.approx(float(line), abs=0.005)
    assert card["word_errors"]["test"]["words"] == sum(map(len, read_trn(home / "both/decode/test/ref.trn").values()))
    assert "of the test" in (home / "model/README.md").read_text()
    assert main(["verify", str(home / "pair")]) == 0


def test_the_card_and_evaluate_say_how_true_confidences_are(
    home: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both are those of words as `transcribe` would give them: on the card each utterance by itself."""
    card = read_json(home / "model/card.json")
    assert set(card["confidences"]) == {"test"}  # not dev, which they are fitted to
    words = sum(map(len, read_trn(home / "one/decode/test/hyp.trn").values()))
    assert card["confidences"]["test"]["words"] == pytest.approx(words, abs=3)
    text = (home / "model/README.md").read_text()
    assert "- test: " in text.split("Confidences of words, fitted on dev")[1]
    assert ("confidences.svg" in text) == (home / "model/confidences.svg").is_file()
    evaluate = ["evaluate", str(home / "model"), "--data", str(folder / "data"), "--split", "test", "--workers", "1"]
    assert main([*evaluate, "--out", str(tmp_path)]) == 0
    told = read_json(tmp_path / "test/evaluation.json")["confidences"]
    assert told["words"] == words
    assert f"confidences: {build(Reliability, told, '')}" in capsys.readouterr().out
    other = ["pack", str(home / "model"), "--out", str(tmp_path / "b"), "--set"]
    (folder / "words.txt").write_text("YES NO\n")
    assert main([*other, f"decode.text=[{folder / 'words.txt'}]"]) == 0
    assert "Confidences" not in (tmp_path / "b/README.md").read_text()
    assert not (tmp_path / "b/confidences.svg").exists()


def test_damage_is_named(model: Model) -> None:
    """Of every file; what counts as damage: tests/unit/test_checksums.py."""
    for name in ("packed.json", "HCLG.fst", "lexicon.txt", "tree.json", "card.json"):
        path = model.folder / name
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] + b"~" + content[len(content) // 2 + 1 :])
        with pytest.raises(UserError, match=rf"{name}.*roundelay pack"):
            load_model(model.folder)
        path.write_bytes(content)
    for name in ("model.json", "model.safetensors"):
        path = model.folder / "acoustic-1" / name
        content = path.read_bytes()
        path.write_bytes(content[:-9] + b"x" * 9)
        with pytest.raises(UserError, match=f"{name}: damaged"):
            load_model(model.folder)
        path.write_bytes(content)
    load_model(model.folder)


def checked_anew(folder: Path) -> None:
    """Write all checksums of a packed model again, as somebody would who meant harm."""
    for path in folder.glob("acoustic-*"):
        write_checked(path / MODEL_META, json.loads((path / MODEL_META).read_text()), [MODEL])
    graph = json.loads((folder / GRAPH_FILE).read_text())
    write_checked(folder / GRAPH_FILE, graph, [FST_FILE, WORDS_FILE, PHONES_FILE])
    told = json.loads((folder / PACKED).read_text())
    told["below"] = {name: file_checksum(folder / name) for name in told["below"]}
    beside = [path.name for path in folder.iterdir() if path.is_file() and path.name != PACKED]
    write_checked(folder / PACKED, told, beside)


def changed(path: Path, keys: str, value: Any) -> None:
    """Change one value of a JSON file, named by the keys that lead to it."""
    told = json.loads(path.read_text())
    *way, last = keys.split(".")
    here = functools.reduce(lambda inside, key: inside[int(key) if key.isdigit() else key], way, told)
    here[last] = value(here[last]) if callable(value) else value
    path.write_text(json.dumps(told))


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        ("sampling_rate", 7, "sampling_rate is 7: expected 1000 to 192000"),
        ("networks.0.weight", -1, "weight is -1"),
        ("networks.0.weight", math.nan, r"networks\[0\]\.weight is None: expected a number"),
        ("networks.0.usual_std", lambda some: [-1.0, *some[1:]], "usual_std is -1"),
        ("networks.0.usual_mean", lambda some: some[1:], r"features, and packed\.json the means of others"),
        ("networks.0.features.parts.0.fbank.num_bins", 100_000, "num_bins is 100000"),
        ("networks.0.features.parts.0.fbank.frame_shift_ms", 0, "frame_shift_ms is 0"),
        ("search.scale", 0, "scale is 0"),
        ("search.beam", 1e9, "beam is 1e[+]09"),
        ("search.max_active", 1, "max_active is 1"),
        ("search.silence_probability", 1, "silence_probability is 1"),
        ("version", 99, "a packed model of format 99"),
    ],
)
def test_settings_that_no_packing_writes(model: Model, keys: str, value: Any, message: str) -> None:
    """Refused by name, though all checksums fit."""
    checked_anew(model.folder)
    load_model(model.folder)
    changed(model.folder / PACKED, keys, value)
    checked_anew(model.folder)
    with pytest.raises(UserError, match=message):
        load_model(model.folder)


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        ("model.layers", 10**9, "layers is 1000000000, more than its tensors have"),
        ("model.width", 10**9, "width is 1000000000, more than its tensors have"),
        ("states", lambda states: states + 1, "not the model model.json describes"),
        ("parts.0.width", lambda width: 2 * width, "not the model model.json describes"),
    ],
)
def test_a_network_larger_than_its_tensors(model: Model, keys: str, value: Any, message: str) -> None:
    """Refused before there is room made for it."""
    changed(model.folder / "acoustic-1" / MODEL_META, keys, value)
    checked_anew(model.folder)
    with pytest.raises(UserError, match=message):
        load_model(model.folder)


@pytest.mark.parametrize("prior", [lambda prior: prior[1:], lambda prior: prior * math.nan])
def test_a_network_of_another_graph(model: Model, prior: Callable[[torch.Tensor], torch.Tensor]) -> None:
    path = model.folder / "acoustic-1" / MODEL
    tensors = safetensors.torch.load(path.read_bytes())
    path.write_bytes(safetensors.torch.save({**tensors, "prior": prior(tensors["prior"]).clone()}))
    checked_anew(model.folder)
    with pytest.raises(UserError, match="acoustic-1: its prior is not"):
        load_model(model.folder)


def test_words_that_a_terminal_would_obey(model: Model) -> None:
    path = model.folder / WORDS_FILE
    lines = path.read_text().splitlines()
    word, number = lines[3].split()
    for character in ("\x1b[2J", "\x07", "\u202e"):
        lines[3] = f"{word}{character} {number}"
        path.write_text("\n".join(lines) + "\n")
        checked_anew(model.folder)
        with pytest.raises(UserError, match=r"words\.txt:\d+: '.*' has control characters"):
            load_model(model.folder)


def test_a_card_that_is_none(model: Model) -> None:
    (model.folder / "card.json").write_text("[]")
    checked_anew(model.folder)
    with pytest.raises(UserError, match=r"card\.json: not an object of JSON"):
        load_model(model.folder)


def test_what_is_no_packed_model(home: Path, model: Model) -> None:
    with pytest.raises(UserError, match=f"roundelay pack {home / 'one'} --out MODEL"):
        load_model(home / "one")
    with pytest.raises(UserError, match="no such folder"):
        load_model(home / "nowhere")
    path = model.folder / PACKED
    path.write_text(path.read_text().replace('"version": 1', '"version": 99'))
    with pytest.raises(UserError, match=r"packed\.json"):
        load_model(model.folder)


def test_decode_says_what_takes_a_packed_model(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decode", "model"]) == 2
    assert "a packed model, not a run directory. `roundelay evaluate`" in " ".join(capsys.readouterr().err.split())


def test_nothing_is_left_of_a_pack_that_failed(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model"
    assert main(["pack", str(home / "one"), "--out", str(out), "--decoded", str(home / "both")]) == 2
    assert "of other runs or weights" in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []
    assert main(["pack", str(home / "one"), "--out", str(home)]) == 2
    assert "exists: give --out another folder" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(UserError, match="exists: give --out another"), new_folder(tmp_path / "by two"):
        (tmp_path / "by two").mkdir()  # by another command, meanwhile


# New speech -----------------------------------------------------------------------------------------------------------


def score_line(folder: Path) -> str:
    return (folder / "wer.txt").read_text().splitlines()[0]


def test_evaluate_gives_the_word_error_rate_of_decode(home: Path, model: Model, folder: Path) -> None:
    assert main(["evaluate", "model", "--data", str(folder / "data"), "--out", "out", "--workers", "1"]) == 0
    for split in ("dev", "test"):
        for name in ("ref.trn", "hyp.trn", "wer.txt", "groups.json", "ref.stm", "errors.txt"):
            assert Path("out", split, name).read_bytes() == (home / "one/decode" / split / name).read_bytes()
    ours, theirs = (read_ctm(folder / "test/hyp.ctm") for folder in (Path("out"), home / "one/decode"))
    assert ours.keys() == theirs.keys()
    for place, words in ours.items():  # confidences are made true
        assert [replace(word, confidence=None) for word in words] == [
            replace(w, confidence=None) for w in theirs[place]
        ]
    assert read_json(Path("out/test/evaluation.json"))["digest"] == model.digest


def test_a_kaldi_directory_with_words_in_another_case(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_beeps(tmp_path / "new", seed=7)
    text = source / "test/text"
    lines = [line.partition(" ") for line in text.read_text().splitlines()]
    text.write_text("".join(f"{name} {words.lower()}\n" for name, _, words in lines))
    evaluate = ["evaluate", "model", "--data", "new/test", "--workers", "1", "--no-times"]
    assert main([*evaluate, "--out", "out"]) == 0
    words = sum(len(line[2].split()) for line in lines)
    told = " ".join(capsys.readouterr().out.split())
    assert f"{words} of {words} words said are not among the words that can be recognised" in told
    assert f"{words} of them are, in another case: --ignore-case" in told
    assert main([*evaluate, "--out", "folded", "--ignore-case", "--per-speaker"]) == 0
    assert "test0: %WER" in capsys.readouterr().out
    assert read_json(Path("folded/test/evaluation.json"))["unknown_words"] == 0
    assert float(score_line(Path("folded/test")).split()[1]) < float(score_line(Path("out/test")).split()[1])


def test_speech_without_words_and_speakers(model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_beeps(tmp_path / "new", seed=7)
    for name in ("text", "utt2spk"):
        (source / "test" / name).unlink()
    prepare = ["prepare", "kaldi", "--source", str(source), "--lexicon", str(source / "dict.txt"), "--data", "data"]
    assert main(prepare) == 2
    assert "recognises speech without transcripts" in " ".join(capsys.readouterr().err.split())
    evaluate = ["evaluate", "model", "--data", "new/test", "--workers", "1"]
    assert main([*evaluate, "--out", "out"]) == 0
    assert "10 utterances without transcripts" in " ".join(capsys.readouterr().out.split())
    assert len(read_trn(Path("out/test/hyp.trn"))) == 10
    assert read_ctm(Path("out/test/hyp.ctm"))
    assert not Path("out/test/ref.trn").exists()
    (source / "test/text").write_text("test0-000 YES\n")
    assert main(evaluate) == 2
    assert "9 of 10 utterances have no words" in " ".join(capsys.readouterr().err.split())


def test_a_signal_ends_evaluate_and_its_processes(
    model: Model, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while they recognise; as that of `timeout`, it would otherwise leave them and their semaphores."""
    features = Model.features

    def signalled(self: Model, samples: Float32) -> PieceFeatures:
        os.kill(os.getpid(), signal.SIGTERM)
        return features(self, samples)

    monkeypatch.setattr(Model, "features", signalled)
    command = ["evaluate", "model", "--data", str(folder / "data"), "--split", "test", "--workers", "2"]
    assert main(command) == 128 + signal.SIGTERM
    assert "ended by SIGTERM; nothing is kept without --out" in " ".join(capsys.readouterr().err.split())
    assert main([*command, "--out", "words"]) == 128 + signal.SIGTERM
    assert "splits that were finished are in words" in " ".join(capsys.readouterr().err.split())
    assert multiprocessing.active_children() == []


def test_data_that_cannot_be_evaluated(model: Model, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(folder / "data")
    for arguments, message in (
        (["--data", "nowhere"], "nowhere: no such file or folder"),
        (["--data", "model"], "neither corpus.json nor wav.scp is in it"),
        (["--data", data, "--split", "tset"], "has no split tset, only train, dev, test"),
    ):
        assert main(["evaluate", "model", *arguments]) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_a_training_starts_from_a_packed_model(
    home: Path, model: Model, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [f"corpus={folder / 'data'}", f"alignment={folder / 'alignment'}"]
    train = ["train", str(folder / "recipe.yaml"), *QUICK, *paths]
    assert main([*train, "--exp", "on", "--init", "model", "schedule.max_epochs=1"]) == 0
    started = of_kind(read_events(Path("on/events.jsonl")), Evaluation)[0]
    finished = Results.from_json(read_json(home / "one/results.json"))
    assert started.cross_entropy == pytest.approx(finished.frame_cross_entropy["dev"])
    assert main([*train, "--exp", "pair", "--init", str(home / "pair")]) == 2
    assert "a packed model of several networks. Give one of them" in " ".join(capsys.readouterr().err.split())
