"""`roundelay report --audio`: the sound of decoded utterances is found in the corpus of their run."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile

import roundelay_speech
from roundelay.cli import main
from roundelay.core.errors import UserError
from roundelay.core.files import write_text
from roundelay.core.records import UTTERANCES_FILE
from roundelay_speech.commands.heard import listener
from support.corpora import kaldi_corpus
from support.fake_runs import Fake, write_run

DEMO = Path(roundelay_speech.__file__).with_name("recipes") / "demo.yaml"
SPLITS = {"train": {"a-1": "YES", "b-1": "GO"}, "dev": {"c-1": "YES"}, "test": {"d-1": "GO NO", "e-1": "NO"}}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = kaldi_corpus(tmp_path_factory.mktemp("corpus") / "source", SPLITS)
    data = source.parent / "data"
    how = ["--source", str(source), "--lexicon", str(source / "lang" / "words.dic"), "--data", str(data)]
    assert main(["prepare", "kaldi", *how]) == 0
    return data


def decoded(folder: Path, corpus: Path) -> Path:
    recipe = DEMO.read_text(encoding="utf-8").replace("demo/data", str(corpus)).replace("demo/alignment", str(folder))
    run = write_run(folder, Fake(recipe=recipe))
    u = {"id": "d-1", "speaker": "d", "gender": None, "subset": None, "pairs": [["GO", "NO"]], "forgiven": []}
    write_text(run / "decode" / "test" / UTTERANCES_FILE, json.dumps(u) + "\n")
    write_text(run / "decode" / "test" / "hyp.ctm", "d-1 1 0.10 0.20 NO 0.9\nother 1 0.1 0.1 YES\n")
    return run


def test_the_page_plays_what_was_said(prepared: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert main(["report", str(decoded(tmp_path, prepared)), "--audio", "--out", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    (sound,) = re.findall(r'src="data:audio/flac;base64,([^"]+)"', text)
    played, rate = soundfile.read(io.BytesIO(base64.b64decode(sound)))
    said, _ = soundfile.read(prepared.parent / "source" / "wav" / "d-1.wav")
    assert rate == 8000
    assert np.array_equal(played, said)
    assert 'style="left:20.00%;width:40.00%">NO</span>' in text  # 0.1 to 0.3 s of 0.5 s


def test_a_run_that_was_not_decoded_is_named(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = decoded(tmp_path, prepared)
    (run / "decode" / "test" / UTTERANCES_FILE).unlink()
    assert main(["report", str(run), "--audio", "--out", str(tmp_path / "report.html")]) == 0
    assert "`roundelay decode" in " ".join(capsys.readouterr().err.split())


def test_a_corpus_that_moved_is_named_and_found(prepared: Path, tmp_path: Path) -> None:
    run = decoded(tmp_path, tmp_path / "gone")
    with pytest.raises(UserError, match="--corpus DIR"):
        listener([run], None)
    assert listener([run], prepared)(run, "test", "d-1") is not None
    assert listener([run], prepared)(run, "test", "nobody") is None
    assert listener([run], prepared)(run, "nowhere", "d-1") is None
