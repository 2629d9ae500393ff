"""Adaptation to speakers by the command line: transforms, vectors, a network on them, speakers it has never heard."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import yaml

from roundelay.cli import main
from roundelay.core.errors import UserError
from roundelay_speech.adapt.folder import ADAPTED
from roundelay_speech.audio.reading import read_audio
from roundelay_speech.commands.adaptations import command_of_features
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.features.parts import Matrices
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.hmm.gmm import load_mixtures, save_mixtures
from roundelay_speech.packed.folder import write_packed
from roundelay_speech.packed.growing import GrowingScores
from roundelay_speech.packed.model import load_model
from roundelay_speech.prepared import load_corpus
from roundelay_speech.scoring.formats.trn import read_trn
from roundelay_speech.transcription.live import Latencies, Live
from support.beeps import prepare_beeps, write_beeps

SMALL = {
    "dimension": 12,
    "sat_rounds": 1,
    "em_rounds": 2,
    "passes": 1,
    "min_frames": 50,
    "ivector_dimension": 4,
    "ivector_gaussians": 8,
    "ivector_rounds": 3,
    "workers": 1,
}


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapted")
    prepare_beeps(folder)
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe | {"adapt": SMALL}))
    with chdir(folder):
        assert main(["adapt", "recipe.yaml"]) == 0
    return folder


@pytest.fixture
def there(adapted: Path) -> Iterator[Path]:
    with chdir(adapted):
        yield adapted


def test_every_utterance_has_a_matrix_and_a_vector(there: Path) -> None:
    corpus = load_corpus(Path("data"))
    store = FeatureStore.open(Path("data/fbank40"))
    transformed = Matrices.open(Path("adaptation/fmllr.scp"))
    vectors = Matrices.open(Path("adaptation/ivector.scp"))
    for utterance in corpus.utterances:
        assert transformed.get(utterance.id).shape == (store.frames(utterance.id), 12)
        assert vectors.get(utterance.id).shape == (1, 4)
    held_out = [u for u in corpus.splits["test"] if u.speaker == "test0"]
    assert len({vectors.get(u.id).tobytes() for u in held_out}) == 1  # one of the speaker
    assert len({vectors.get(u.id).tobytes() for u in corpus.splits["train"]}) > 4  # one of each utterance
    told = json.loads(Path("adaptation/adaptation.json").read_text())
    assert told["speakers"] == 6
    assert all(text.startswith("%WER") for some in told["summaries"].values() for text in some)


def test_a_network_trained_on_them_hears_new_speakers(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_beeps(Path("others"), seed=7)
    prepare = ["prepare", "kaldi", "--source", str(source), "--lexicon", str(source / "dict.txt"), "--data", "new"]
    assert main(prepare) == 0
    assert main(["features", "data", "--features", "adaptation/features.yaml"]) == 0
    assert [(part.name, part.width) for part in load_corpus(Path("data")).features().parts] == [
        ("fmllr", 12),
        ("logmel", 40),
        ("ivector", 4),
    ]
    assert main(["train", "recipe.yaml", "--exp", "net", "training.runtime=sim"]) == 0
    assert main(["decode", "net"]) == 0
    assert json.loads(Path("net/results.json").read_text())["wer"]["test"]["wer"] <= 10
    capsys.readouterr()

    assert main(["decode", "net", "--corpus", "new", "--out", "heard"]) == 2
    assert "its features are not those" in " ".join(capsys.readouterr().err.split())
    assert main(["adapt", "recipe.yaml", "--corpus", "new", "--out", "adaptation-new"]) == 0
    assert main(["features", "new", "--features", "adaptation-new/features.yaml"]) == 0
    assert main(["decode", "net", "--corpus", "new", "--out", "heard"]) == 0
    for split in ("dev", "test"):
        rate = float(Path(f"heard/decode/{split}/wer.txt").read_text().split()[1])
        assert rate <= 10


def test_features_by_other_models_are_refused(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = yaml.safe_load(Path("adaptation-new/features.yaml").read_text())
    given["parts"][2]["made_by"] = "somebody"
    Path("other.yaml").write_text(yaml.safe_dump(given))
    assert main(["features", "new", "--features", "other.yaml"]) == 0
    capsys.readouterr()
    assert main(["decode", "net", "--corpus", "new", "--out", "heard-other"]) == 2
    assert "ivector was made by other models (somebody)" in " ".join(capsys.readouterr().err.split())


def test_nothing_is_done_twice_and_an_interrupted_run_goes_on(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adapt", "recipe.yaml"]) == 0
    assert "there already" in capsys.readouterr().out
    before = {name: Path(f"adaptation/{name}").read_bytes() for name in ("fmllr.ark", "ivector.ark")}
    shutil.copytree("adaptation", "half")
    for name in ("adaptation.json", "fmllr.ark", "vectors.json", "ivector.ark"):
        Path("half", name).unlink()
    made = Path("half/models.json").stat().st_mtime_ns
    assert main(["adapt", "recipe.yaml", "adaptation=half", "adapt.workers=2"]) == 0
    assert Path("half/models.json").stat().st_mtime_ns == made
    for name, content in before.items():
        assert Path("half", name).read_bytes() == content


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["adapt.dimension=10"], "differs in adapt.dimension"),
        (["adapt.ivector_rounds=2"], "differs in adapt.ivector_rounds"),
        (["adapt.passes=0"], "adapt.passes is 0: give a whole number of 1 or more"),
        (["adaptation=rescored", "decode.rescore=lm.arpa"], "Leave it out here: decode.rescore=null"),
        (["adaptation=rescored", "decode.rescore_order=3"], "Leave it out here: decode.rescore_order=0"),
        (["--corpus", "data"], "give --out DIR"),
        (["--out", "x"], "--out is for --corpus"),
        (["adaptation=nothing", "--corpus", "data", "--out", "x"], "nothing: no finished adaptation here"),
    ],
)
def test_what_cannot_be_is_refused(
    there: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["adapt", "recipe.yaml", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_speakers_with_little_speech_are_named(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["adapt", "recipe.yaml", "--corpus", "new", "--out", "little"]
    assert main([*run, "adapt.min_frames=1000000", "adapt.per=utterance", "adapt.ivector_dimension=0"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "80 transforms of 80 are the identity" in printed
    first, second = (json.loads(Path("little/adaptation.json").read_text())["summaries"][s] for s in ("dev", "test"))
    assert first
    assert second
    utterance = load_corpus(Path("new")).splits["dev"][0].id
    assert np.isfinite(Matrices.open(Path("little/fmllr.scp")).get(utterance)).all()
    assert not Path("little/ivector.scp").exists()


def test_models_of_another_alignment_are_refused(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["realign", "net", "--out", "again", "--workers", "1"]) == 0
    run = ["adapt", "recipe.yaml", "--corpus", "new", "--out", "later", "alignment=again", "adaptation=adaptation"]
    assert main(run) == 2
    assert "differs in alignment" in " ".join(capsys.readouterr().err.split())
    assert not Path("later").exists()


def test_the_next_command_keeps_copies_at_other_speeds(there: Path) -> None:
    shutil.copytree("data", "copies")
    without = command_of_features(Path("copies"), Path("adaptation/features.yaml"))
    assert without == "roundelay features copies --features adaptation/features.yaml"
    assert main(["features", "copies", "--speed", "0.9", "1.1"]) == 0
    assert command_of_features(Path("copies"), Path("adaptation/features.yaml")) == f"{without} --speed 0.9 1.1"


@pytest.fixture(scope="module")
def moved(adapted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that hears transforms, packed and moved to where nothing else is; its run is `plain`, decoded."""
    with chdir(adapted):
        parts = yaml.safe_load(Path("adaptation/features.yaml").read_text())["parts"]
        Path("transforms.yaml").write_text(yaml.safe_dump({"parts": parts[:2]}))
        assert main(["features", "data", "--features", "transforms.yaml"]) == 0
        assert main(["train", "recipe.yaml", "--exp", "plain", "training.runtime=sim"]) == 0
        words = ["--set", "decode.scale=0.008", "decode.word_costs=[0]"]  # so little of the sound that there are errors
        assert main(["decode", "plain", *words]) == 0
        assert main(["pack", "plain", "--out", "model", *words]) == 0
        return Path(shutil.move("model", tmp_path_factory.mktemp("moved") / "model"))


def test_a_packed_model_hears_the_transforms_and_words_of_decode(there: Path, moved: Path, tmp_path: Path) -> None:
    """Of speakers with speech enough; the transforms in the model are those in the adaptation's files."""
    model, corpus, spoken = load_model(moved), load_corpus(there / "data"), dict[str, list[Utterance]]()
    transforms, decoded = Matrices.open(there / "adaptation/fmllr.scp"), read_trn(there / "plain/decode/test/hyp.trn")
    assert any(decoded[u.id] != u.words for u in corpus.splits["test"])
    for u in corpus.splits["test"]:
        spoken.setdefault(u.speaker, []).append(u)
    said: dict[str, list[str]] = {}
    for speaker, some in spoken.items():
        samples = [read_audio(u, there / "data") for u in some]
        heard = [model.features(one) for one in samples]
        exact, known = model.statistics(heard, exact=True), model.statistics(heard)
        assert not exact.unadapted
        assert not known.unadapted
        for u, one in zip(some, heard, strict=True):
            (matrix,) = exact.heard(one).of_network
            np.testing.assert_allclose(matrix[:, :12], transforms.get(u.id), rtol=1e-3, atol=1e-3)
            assert list(model.of_features(one, known, believing="all").words) == decoded[u.id]
        (tmp_path / "wav" / speaker).mkdir(parents=True)
        for u, sound, words in zip(some, samples, model.recognise_pieces(samples), strict=True):
            soundfile.write(tmp_path / "wav" / speaker / f"{u.id}.wav", sound, model.sample_rate)
            said[u.id] = list(words.words)
    wav, out = str(tmp_path / "wav"), tmp_path / "said"
    assert main(["transcribe", str(moved), wav, "--speaker", "folder", "--out", str(out), "--workers", "1"]) == 0
    assert {path.stem: path.read_text().split() for path in out.rglob("*.txt")} == said
    out = tmp_path / "found"
    assert main(["evaluate", str(moved), "--data", str(there / "data"), "--out", str(out), "--workers", "1"]) == 0
    for split in ("dev", "test"):
        assert read_trn(out / split / "hyp.trn") == read_trn(there / f"plain/decode/{split}/hyp.trn")


def test_too_little_speech_keeps_the_identity_and_is_said(
    there: Path, moved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, one = load_model(moved), load_corpus(there / "data").splits["test"][0]
    samples = read_audio(one, there / "data")[: model.sample_rate // 3]
    assert model.statistics([model.features(samples)]).unadapted
    soundfile.write(tmp_path / "short.wav", samples, model.sample_rate)
    (tmp_path / "short.txt").write_text(one.words[0])
    assert main(["transcribe", str(moved), str(tmp_path / "short.wav")]) == 0
    assert "0.3 s of it came with too little speech of the speaker to adapt to" in capsys.readouterr().err
    assert main(["evaluate", str(moved), "--data", str(tmp_path), "--no-times", "--workers", "1"]) == 0
    assert "too little speech to adapt to" in capsys.readouterr().out


def test_a_stream_adapts_as_it_grows(there: Path, moved: Path) -> None:
    """Final words are those of the same samples at once after the same utterances, the scores so far those of the whole
    with the transform of the utterances before."""
    model, corpus = load_model(moved), load_corpus(there / "data")
    spoken = [u for u in corpus.splits["test"] if u.speaker == corpus.splits["test"][0].speaker]
    samples = [read_audio(u, there / "data") for u in spoken]
    samples = [samples[0][: round(0.45 * model.sample_rate)], *samples]  # the first too short to adapt to
    pause, latencies = np.zeros(model.sample_rate, np.float32), Latencies()
    live = Live(model, latencies=latencies)
    updates = [one for piece in samples for one in live.push(np.concatenate([piece, pause]))]
    final = [one for one in [*updates, *live.finish()] if one.final]
    found = model.recognise_pieces(samples)
    assert [word.word for one in final for word in one.segment.words] == [word for one in found for word in one.words]
    assert latencies.unadapted == 1
    assert any("to adapt to" in line for line in latencies.report())

    features = model.features(samples[1])
    like = model.statistics([model.features(one) for one in samples[2:]])
    known = model.statistics([features], like=like)
    assert not known.unadapted
    growing, whole = GrowingScores(model, known), model.scores(features, known)
    scores = np.concatenate([growing.push(part) for part in np.array_split(samples[1], 7)])
    np.testing.assert_allclose(scores, whole[: len(scores)], rtol=1e-3, atol=1e-3)
    assert len(whole) - len(scores) == 4 + 3 + 4  # frames beside those of transforms and of the network, and of deltas


def test_packs_that_cannot_be(there: Path, moved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["features", "data", "--features", "adaptation/features.yaml"]) == 0
    assert main(["pack", "net", "--out", str(tmp_path / "refused")]) == 2
    assert "not computed from audio alone (ivector" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "refused").exists()

    def broken(change: Callable[[Path], object], message: str) -> None:
        model = tmp_path / "broken"
        shutil.copytree(moved, model)
        change(model)
        with pytest.raises(UserError, match=message):
            load_model(model)
        shutil.rmtree(model)

    def other_states(model: Path) -> None:
        packed = load_model(model).packed
        mixtures = load_mixtures(model / ADAPTED)
        fewer = replace(mixtures, first=mixtures.first[:-1])
        save_mixtures(model / ADAPTED, fewer)
        write_packed(model, packed)

    broken(lambda model: (model / ADAPTED).write_bytes(b"x"), "adapted.npz")
    broken(lambda model: (model / ADAPTED).unlink(), "adapted.npz")
    broken(other_states, "not of its [0-9]+ tied states")
    broken(lambda model: write_packed(model, replace(load_model(model).packed, version=3)), "format 3")
    broken(lambda model: write_packed(model, replace(load_model(model).packed, adaptation=None)), "transforms of speak")
