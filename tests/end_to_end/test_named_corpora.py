"""The recipes of the large corpora on miniature trees of their layouts: prepare, align, train, decode."""

import hashlib
import tarfile
from pathlib import Path

import pytest

from roundelay.cli import main
from roundelay.core.files import read_json
from roundelay_speech.corpus import download
from roundelay_speech.corpus.download import Remote
from roundelay_speech.corpus.readers import librispeech as librispeech_reader
from roundelay_speech.prepared import load_corpus
from support.beeps import RECIPE
from support.corpora import kaldi_corpus
from support.named_corpora import CMU_STYLE, librispeech, switchboard
from support.odd_server import odd_server, ranged, refusing, truncated, whole

SECTIONS = ("align", "model", "training", "schedule", "decode")
SMALL = ["training.runtime=sim", "decode.order=2"]
SMALL += [f"{of}.{key}={value}" for of in SECTIONS for key, value in RECIPE[of].items()]  # type: ignore[attr-defined]
ANOTHER = ("model.", "training.minibatch=", "schedule.")
SMALL_BLSTM = [
    *(text for text in SMALL if not text.startswith(ANOTHER)),
    "model={name: blstm, layers: 1, cells: 32, bottleneck: 16, chunk: 21, context: 0, dropout: 0}",
    "optimizer=adam",
    "training.minibatch=6",
    "schedule.learning_rate=0.002",
    "schedule.base_minibatch=2",
    "schedule.warmup_epochs=1",
    "schedule.max_epochs=4",
]


def through(recipe: str, prepare: list[str], small: list[str] = SMALL) -> dict[str, dict[str, float]]:
    """Word errors by split."""
    assert main(["prepare", *prepare]) == 0
    assert main(["align", recipe, *small]) == 0
    assert main(["train", recipe, "--exp", "exp/run", *small]) == 0
    assert main(["decode", "exp/run"]) == 0
    found: dict[str, dict[str, float]] = read_json(Path("exp/run/results.json"))["wer"]
    return found


def test_librispeech(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parts = {"train-clean-100": [1, 2], "train-other-500": [3], "dev-clean": [4], "test-clean": [5], "test-other": [6]}
    librispeech(tmp_path / "source", parts, utterances=20)
    (tmp_path / "lexicon.txt").write_text(CMU_STYLE)
    wer = through("librispeech", ["librispeech", "--source", "source", "--lexicon", "lexicon.txt"])
    assert set(wer) == {"dev", "test-clean", "test-other"}
    assert all(errors["wer"] <= 20 and errors["ref"] >= 20 for errors in wer.values())


def test_switchboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    source = switchboard(tmp_path / "source", calls=5, turns=20)
    prepare = ["switchboard", "--source", str(source / "LDC97S62"), "--also", str(source / "swb_ms98_transcriptions")]
    prepare += ["--also", str(source / "LDC2002S09"), "--also", str(source / "LDC2002T43")]
    wer = through("switchboard", prepare, SMALL_BLSTM)
    assert set(wer) == {"dev", "test"}
    assert wer["dev"]["wer"] <= 20
    # The reference has an "uh" of every other turn, which nobody said.
    assert wer["test"]["del"] + wer["test"]["sub"] >= 10
    assert wer["test"]["wer"] <= 50
    capsys.readouterr()
    assert main(["score", "exp/run", "--subsets"]) == 0
    out = capsys.readouterr().out
    assert "swb" in out
    assert "callhm" in out


def test_download_and_prepare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two archives and a dictionary from a server that breaks off once; nothing is loaded a second time."""
    monkeypatch.chdir(tmp_path)
    librispeech(tmp_path / "published", {"train-clean-5": [1, 2], "dev-clean-2": [3, 4]}, utterances=2)
    packed, digests = [], {}
    for part in ("train-clean-5", "dev-clean-2"):
        with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as tar:
            for name in (part, "SPEAKERS.TXT"):
                tar.add(tmp_path / "published" / "LibriSpeech" / name, f"LibriSpeech/{name}")
        packed.append((tmp_path / "packed.tar.gz").read_bytes())
        digests[part] = f"md5:{hashlib.md5(packed[-1]).hexdigest()}"
    with odd_server() as server:
        monkeypatch.setattr(download, "OPENSLR", server.address)
        monkeypatch.setattr(librispeech_reader, "MINI_DIGESTS", digests)
        monkeypatch.setattr(librispeech_reader, "CMUDICT", Remote(server.url("cmudict.dict")))
        answers = [truncated(packed[0], 5000, ETag='"1"'), ranged(packed[0], '"1"'), whole(packed[1])]
        server.answers = [*answers, whole(CMU_STYLE.encode()), refusing(404)]
        assert main(["prepare", "mini-librispeech", "--download"]) == 0
        assert len(server.requests) == 4
        assert main(["prepare", "mini-librispeech", "--download", "--source", "downloads/mini-librispeech"]) == 0
        assert len(server.requests) == 4
        assert "mini-librispeech is ready in data/mini-librispeech" in capsys.readouterr().out
        assert main(["prepare", "mini-librispeech", "--download", "--source", "elsewhere"]) == 2
    assert "train-clean-5.tar.gz: the server answers 404" in capsys.readouterr().err
    corpus = load_corpus(Path("data/mini-librispeech"))
    assert {split: len(us) for split, us in corpus.splits.items()} == {"train": 4, "dev": 2, "test": 2}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["fsdd"], "prepare fsdd needs --source, the folder that holds the corpus or --download"),
        (["switchboard"], "prepare switchboard needs --source, the folder that holds the corpus."),
        (["switchboard", "--download"], "switchboard is not free to load"),
        (["librispeech", "--source", "."], "needs --lexicon"),
        (["fsdd", "--source", ".", "--split", "train=x"], "has no use for --split"),
        (["an4", "--source", ".", "--lexicon", "x"], "has no use for --lexicon"),
        (["librispeech", "--source", ".", "--also", "x"], "has no use for --also"),
        (["kaldi", "--source", ".", "--lexicon", "x", "--also", "x"], "has no use for --also; it is for switchboard"),
        (["kaldi", "--source", "."], "prepare kaldi needs --lexicon, a pronunciation dictionary"),
        (["kaldi", "--download"], "kaldi is not free to load"),
        (["lhotse"], "prepare lhotse needs --source, the folder that holds the corpus."),
        (["demo", "--source", "."], "prepare demo has no use for --source"),
        (["librispeech", "--source", ".", "--vocabulary-size", "5"], "--vocabulary-size needs --vocabulary"),
        (["librispeech", "--source", ".", "--split", "train"], "write NAME=FOLDER"),
    ],
)
def test_options_that_do_not_fit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["prepare", *arguments]) == 2
    assert named in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_vocabulary_for_a_corpus_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of the text and those that are trained on can be recognised; a held-out word beyond them is an error."""
    monkeypatch.chdir(tmp_path)
    splits = {"train": {"a-1": "YES NO", "b-1": "NO"}, "dev": {"c-1": "GO"}, "test": {"d-1": "STOP"}}
    kaldi_corpus(tmp_path / "source", splits)
    (tmp_path / "source/lang/words.dic").write_text("YES Y EH S\nNO N OW\nGO G OW\nSTOP S T AA P\n")
    (tmp_path / "text").write_text("GO GO\n")
    prepare = ["prepare", "kaldi", "--source", "source", "--lexicon", "source/lang/words.dic", "--data", "data/mine"]
    assert main([*prepare, "--vocabulary", "text"]) == 0
    assert set(load_corpus(Path("data/mine")).lexicon.words) == {"YES", "NO", "GO"}
