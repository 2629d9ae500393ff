"""`roundelay transcribe`: a packed model and recordings become what `decode` finds in them."""

import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import numpy as np
import pytest
import soundfile

from roundelay.cli import main
from roundelay_speech.audio.reading import audio_path, read_audio
from roundelay_speech.packed.folder import EVIDENCE_FILE, write_packed
from roundelay_speech.packed.model import Believing, Model, load_model
from roundelay_speech.prepared import load_corpus
from roundelay_speech.scoring.formats.trn import read_trn
from support.strange_noises import STRANGE, strange


@pytest.fixture(scope="module")
def home(folder: Path, packed: Path) -> Path:
    """A run that is decoded and packed, and its test split as files, in a folder for each speaker."""
    corpus = load_corpus(folder / "data")
    for utterance in corpus.splits["test"]:
        target = packed.parent / "test" / utterance.speaker / f"{utterance.id}.wav"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(audio_path(utterance, corpus.folder), target)
    return packed.parent


@pytest.fixture
def at(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of runs; the model is moved to where nothing else is, which is where commands run."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(home / "model", "model")
    return home


def decoded(home: Path, what: str) -> dict[str, list[str]]:
    return read_trn(home / f"one/decode/test/{what}.trn")


def test_words_and_errors_are_those_of_decode(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ref = str(at / "one/decode/test/ref.trn")
    call = ["transcribe", "model", str(at / "test"), "--speaker", "folder", "--format", "trn", "--ref", ref]
    assert main(call) == 0
    out, err = capsys.readouterr()
    Path("hyp.trn").write_text(out)
    assert [" ".join(w) for w in read_trn(Path("hyp.trn")).values()] == [
        " ".join(decoded(at, "hyp")[key]) for key in sorted(decoded(at, "hyp"))
    ]
    assert (at / "one/decode/test/wer.txt").read_text().split("]")[0] in err
    assert "x real time on one core" in err


def test_alternatives_and_words_to_favour(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The words stay as they are without; a favoured word costs less by its bonus; processes say the same."""
    call = ["transcribe", "model", str(at / "test"), "--format", "json"]
    assert main(call) == 0
    plain = [json.loads(line)["segments"] for line in capsys.readouterr().out.splitlines()]
    assert main([*call, "--nbest", "5"]) == 0
    asked = [json.loads(line)["segments"] for line in capsys.readouterr().out.splitlines()]
    name, costs = plain[0][0]["words"][0]["word"], []
    for (before,), (segment,) in zip(plain, asked, strict=True):
        strings = segment.pop("alternatives")
        costs.append((strings[0]["text"], strings[0]["cost"]))
        assert strings[0]["text"] == segment["text"]
        assert [one["cost"] for one in strings] == sorted(one["cost"] for one in strings)
        assert len({one["text"] for one in strings}) == len(strings) <= 5
        for word in segment["words"]:
            others = word.pop("alternatives")
            assert word["word"] not in (one["word"] for one in others)
            assert sum(one["confidence"] for one in others) <= 1.0005 - word["confidence"]
        assert segment == before
    outputs = []
    for workers in ("1", "2"):
        favoured = ["--favour", f"{name.lower()}, xyzzy", "--bonus", "2.5", "--workers", workers]
        assert main([*call, "--nbest", "5", *favoured]) == 0
        out, err = capsys.readouterr()
        assert "--favour: not in the model's vocabulary: xyzzy" in err
        outputs.append(out)
    assert outputs[0] == outputs[1]
    for line, (text, cost) in zip(outputs[0].splitlines(), costs, strict=True):
        first = json.loads(line)["segments"][0]["alternatives"][0]
        times = text.split().count(name)
        assert (first["text"], first["cost"]) == (text, pytest.approx(cost - 2.5 * times, abs=0.02))
    for wrong, why in ((["--nbest", "2"], "--format json"), (["--bonus", "2"], "--favour WORDS")):
        assert main([*call[:-2], *wrong]) == 2
        assert why in capsys.readouterr().err


def test_noise_does_not_become_words(at: Path) -> None:
    """Of kinds that packing does not know, at levels from faint to loud; the search alone finds words in them. A model
    whose evidence is not there, as of earlier versions, says so, and refuses words that last too long."""
    model = load_model(Path("model"))
    noises = [strange(kind, 3.0, model.sample_rate, 0, level) for kind in STRANGE for level in (-40.0, -10.0)]
    noises += [np.zeros(size, np.float32) for size in (500, 1600, 48000)]
    heard = [(one, model.statistics([one])) for one in map(model.features, noises)]

    def words(of: Model, believing: Believing) -> int:
        return sum(len(of.of_features(*one, times=False, believing=believing).words) for one in heard)

    assert model.caveats == []
    searched = words(model, "all")
    assert searched >= 20
    assert words(model, "said") <= searched / 10
    (Path("model") / EVIDENCE_FILE).unlink()
    write_packed(Path("model"), model.packed)
    earlier = load_model(Path("model"))
    assert "packed by a version" in earlier.caveats[0]
    assert words(earlier, "said") < searched


def test_a_list_goes_on_where_it_was_left(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted((at / "test").rglob("*.wav"))[:4]
    Path("bad.wav").write_text("RIFF no sound")
    Path("list.txt").write_text("".join(f"{path}\n" for path in (files[0], "bad.wav", "gone.flac", *files[1:])))
    call = ["transcribe", "model", "list.txt", "--out", "out", "--format", "json"]
    assert main(call) == 1
    said = capsys.readouterr().out
    assert "2 of 6 recordings could not be transcribed:" in said
    assert f"{Path('bad.wav')}: cannot be read as audio" in said
    assert "gone.flac: no such file" in said
    written = {path.name: path.stat().st_mtime_ns for path in Path("out").glob("*.json")}
    assert set(written) == {f"{path.stem}.json" for path in files} | {"settings.json"}
    Path("out", f"{files[2].stem}.json").unlink()
    assert main(call) == 1
    assert "3 of them transcribed before" in capsys.readouterr().out
    again = {path.name: path.stat().st_mtime_ns for path in Path("out").glob("*.json")}
    assert {name for name in again if again[name] != written[name]} == {f"{files[2].stem}.json"}
    assert main([*call, "--pause", "1"]) == 2
    assert "were made with pause 0.5, not 1" in capsys.readouterr().err


def test_standard_input_and_other_rates(
    at: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stereo recording on standard input, each channel by itself; and one at twice the rate."""
    corpus = load_corpus(at.parents[1] / "data")
    one, other = corpus.splits["test"][:2]
    waves = [read_audio(u, corpus.folder) for u in (one, other)]
    rate, length = one.sampling_rate, max(map(len, waves))
    both = np.stack([np.pad(wave, (0, length - len(wave))) for wave in waves], 1)
    buffer = BytesIO()
    soundfile.write(buffer, both, rate, format="WAV", subtype="FLOAT")
    buffer.seek(0)
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(buffer))
    assert main(["transcribe", "model", "-", "--format", "json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["name"], one["channel"]) for one in found] == [("stdin@1", 1), ("stdin@2", 2)]
    soundfile.write("one.wav", waves[0], rate, subtype="FLOAT")
    soundfile.write("twice.wav", np.repeat(waves[0], 2), 2 * rate, subtype="FLOAT")
    soundfile.write("half.wav", waves[0][::2], rate // 2, subtype="FLOAT")
    texts = {}
    for name in ("one", "twice", "half"):
        assert main(["transcribe", "model", f"{name}.wav"]) == 0
        texts[name], err = capsys.readouterr()
        assert ("where the model hears" in err) == (name == "half")
    assert texts["one"] == texts["twice"] != ""
    assert f"{found[0]['text']}\n" == texts["one"]


def test_a_served_model_is_asked_and_ended(at: Path) -> None:
    """The words over HTTP are those of the command; SIGINT ends it, also in the background of a shell, where it is
    ignored at first."""
    path = sorted((at / "test").rglob("*.wav"))[0]
    command = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]
    command += [sys.executable, "-m", "roundelay", "serve", "model", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = re.search(r"http://127\.0\.0\.1:(\d+)/", server.stdout.readline())
            assert address
            connection = http.client.HTTPConnection("127.0.0.1", int(address[1]), timeout=60)
            body = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
            body += path.read_bytes() + b"\r\n--x--\r\n"
            headers = {"Content-Type": "multipart/form-data; boundary=x"}
            connection.request("POST", "/v1/audio/transcriptions", body, headers)
            found = json.loads(connection.getresponse().read())
            server.send_signal(signal.SIGINT)
            assert server.wait(60) == 130
        finally:
            server.kill()
    assert main(["transcribe", "model", str(path), "--format", "json", "--out", "one"]) == 0
    assert found == {"text": json.loads(Path("one", f"{path.stem}.json").read_text())["text"]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model", "one.wav", "two.wav", "--format", "srt"], "a file holds one transcript. Give --out DIR"),
        (["model", "one.wav", "--ref", "none"], "--ref none: no such file"),
        (["nothing", "one.wav"], "nothing"),
        (["model", "none.txt"], "none.txt: no such file"),
        (["model", "one.wav", "--rate", "8000"], "give --stream"),
        (["model", "one.wav", "--channel", "0"], "'0' is not a whole number of 1 or more"),
    ],
)
def test_slips(at: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        soundfile.write(f"{name}.wav", np.zeros(8000), 8000)
    assert main(["transcribe", *words]) == 2
    assert message in capsys.readouterr().err
