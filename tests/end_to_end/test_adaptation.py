"""Adaptation to speakers by the command line: transforms, vectors, a network on them, speakers it has never heard."""

import json
import shutil
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
import yaml

from roundelay.cli import main
from roundelay_speech.commands.adaptations import command_of_features
from roundelay_speech.features.parts import Matrices
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.prepared import load_corpus
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
