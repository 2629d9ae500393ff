"""A finished run serves from anywhere: from another working directory, moved, its corpus changed, on another corpus."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from roundelay.cli import main
from roundelay_speech.recipes.recipe import kept_recipe
from support.beeps import write_beeps
from support.damage import forget_checksums


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of its own with corpus, alignment and a recorded run, all named by relative paths."""
    home = tmp_path_factory.mktemp("home") / "first"
    home.mkdir()
    for name in ("data", "alignment", "source"):
        shutil.copytree(folder / name, home / name)
    shutil.copy(folder / "recipe.yaml", home)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert main(["train", "recipe.yaml", "--exp", "exp/one", "--record", "schedule.max_epochs=2"]) == 0
        assert main(["decode", "exp/one"]) == 0
    return home


@pytest.fixture
def moved(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same elsewhere, and nothing where it was; the working directory is a third place."""
    place = tmp_path / "second" / "place"
    place.parent.mkdir()
    shutil.copytree(trained, place)
    (tmp_path / "third").mkdir()
    monkeypatch.chdir(tmp_path / "third")
    aside = trained.with_name("aside")
    trained.rename(aside)
    yield place
    aside.rename(trained)


def words(exp: Path) -> bytes:
    return (exp / "decode/test/hyp.trn").read_bytes()


def test_from_another_working_directory(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["decode", str(trained / "exp/one"), "--out", "out"]) == 0
    assert words(Path("out")) == words(trained / "exp/one")
    assert main(["replay", str(trained / "exp/one")]) == 0


def test_run_and_corpus_moved_together(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exp = str(moved / "exp/one")
    assert main(["decode", exp, "--out", "out"]) == 0
    assert words(Path("out")) == words(moved / "exp/one")
    assert main(["replay", exp]) == 0
    assert "bit for bit" in " ".join(capsys.readouterr().out.split())
    assert main(["realign", exp, "--out", "again", "--workers", "1"]) == 0


def test_a_training_goes_on_where_it_was_moved_to(moved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(moved / "exp")
    paths = ["corpus=../data", "alignment=../alignment"]
    train = ["train", "../recipe.yaml", "--exp", "one", "--record", "schedule.max_epochs=2"]
    assert main([*train, *paths]) == 0
    shutil.copytree("../data", "data")
    assert main([*train, "corpus=data", "alignment=../alignment"]) == 2  # a corpus of that name, but another one


def test_a_run_of_an_earlier_version_is_found_from_the_folders_above(moved: Path) -> None:
    (moved / "exp/one/place.json").unlink()
    recipe = kept_recipe(moved / "exp/one")
    assert recipe.corpus.resolve() == (moved / "data").resolve()
    assert main(["decode", str(moved / "exp/one"), "--out", "out"]) == 0


def test_absolute_paths_move_too(moved: Path) -> None:
    path = moved / "exp/one/recipe.yaml"
    recipe = yaml.safe_load(path.read_text())
    before = Path(json.loads((moved / "exp/one/place.json").read_text())["working_directory"])
    path.write_text(yaml.safe_dump(recipe | {"corpus": str(before / "data")}))
    assert kept_recipe(moved / "exp/one").corpus.resolve() == (moved / "data").resolve()


def test_a_run_without_its_corpus_says_where_it_was_looked_for(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = words(moved / "exp/one")
    shutil.rmtree(moved / "exp/one/decode")
    shutil.move(moved / "data", moved / "elsewhere")
    assert main(["decode", str(moved / "exp/one")]) == 2
    message = capsys.readouterr().err
    assert "its corpus, `data` in its recipe, is not found" in message
    assert str(moved / "data") in message
    assert "roundelay prepare" not in message
    assert main(["decode", str(moved / "exp/one"), "--corpus", str(moved / "elsewhere")]) == 0
    assert "changed" not in capsys.readouterr().out
    assert words(moved / "exp/one") == found


def test_everything_is_checked_before_anything_is_decoded(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (moved / "exp/one/results.json").stat().st_mtime_ns
    (moved / "x.wav").write_bytes(b"RIFF")
    assert main(["decode", str(moved / "exp/one"), str(moved / "x.wav")]) == 2
    captured = capsys.readouterr()
    assert "x.wav: not a run directory (a file)" in captured.err
    assert "%WER" not in captured.out
    assert (moved / "exp/one/results.json").stat().st_mtime_ns == before


def test_features_changed_since_do_not_lose_the_run(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exp, data = str(moved / "exp/one"), moved / "data"
    assert main(["features", str(data), "--bins", "23", "--workers", "1"]) == 0
    assert main(["decode", exp, "--out", "out"]) == 0  # the features it was trained on are still there
    assert words(Path("out")) == words(moved / "exp/one")
    assert main(["replay", exp]) == 2
    assert "fbank of 23" in capsys.readouterr().err
    shutil.rmtree(data / "fbank40")
    assert main(["decode", exp, "--out", "out"]) == 2
    message = capsys.readouterr().err
    assert "fbank of 23" in message
    assert "fbank of 40" in message
    assert f"roundelay features {data} --bins 40" in " ".join(message.split()).replace(
        "../second/place/data", str(data)
    )


def test_another_corpus_is_heard_with_the_runs_own_words(
    moved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_beeps(tmp_path / "other", seed=7)
    text = (source / "train/text").read_text().replace("STAY", "NO")  # its language is another
    (source / "train/text").write_text(text)
    prepare = ["prepare", "kaldi", "--source", str(source), "--lexicon", str(source / "dict.txt"), "--data", "new"]
    assert main([*prepare, "--workers", "1"]) == 0
    exp = str(moved / "exp/one")
    graphs = {p.name for p in (moved / "alignment/graphs").iterdir()}
    assert main(["decode", exp, "--corpus", "new"]) == 2
    assert "needs a folder for the results: give --out DIR" in capsys.readouterr().err
    assert main(["decode", exp, "--corpus", "new", "--out", "out"]) == 0
    assert "words and language model of" in " ".join(capsys.readouterr().out.split())
    assert {p.name for p in (moved / "alignment/graphs").iterdir()} == graphs
    assert "STAY" in words(Path("out")).decode()
    assert main(["decode", exp, "--set", "corpus=new", "--out", "out"]) == 2
    assert "give --corpus DIR" in capsys.readouterr().err
    assert main([*prepare, "--data", "slow", "--rate", "8000", "--workers", "1"]) == 0
    assert main(["decode", exp, "--corpus", "slow", "--out", "out"]) == 2
    message = capsys.readouterr().err
    assert "audio at 8,000 Hz, the model's at 16,000 Hz" in message
    assert "--rate 16000" in message


def test_words_changed_since_are_said(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lexicon = moved / "data/lexicon.txt"
    lexicon.write_text(lexicon.read_text().replace("STAY", "STAYED"))
    forget_checksums(moved / "data/corpus.json")  # it is meant
    main(["decode", str(moved / "exp/one"), "--out", "out"])
    out = " ".join(capsys.readouterr().out.split())
    assert "has changed since the model was trained: the lexicon (4 words then, 4 now)" in out
    assert "words said are not among the words that can be recognised" in out
