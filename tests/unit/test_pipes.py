"""Commands of wav.scp: run only when allowed, within limits; a failure names utterance, command and what it said."""

import os
from pathlib import Path

import pytest
import soundfile

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay_speech.audio.pipes import Failed, Pipes, run_pipes
from roundelay_speech.corpus.formats.kaldi import KaldiOptions, read_data_dir
from support.corpora import RATE, kaldi_corpus, prepared, speechlike, write_lines
from support.said import refusal


def run(folder: Path, command: str, **limits: float) -> Path | Failed:
    return run_pipes({"r": command}, folder, 0.0, Pipes(folder / "piped", **limits), Silent())["r"]  # type: ignore[arg-type]


def reason(folder: Path, command: str, **limits: float) -> str:
    failed = run(folder, command, **limits)
    assert isinstance(failed, Failed)
    assert not list((folder / "piped").iterdir())
    return failed.reason


def test_a_command_is_run_where_that_is_allowed(tmp_path: Path) -> None:
    corpus = kaldi_corpus(tmp_path / "c", {"train": {"s-1": "YES", "s-2": "NO"}})
    plain = read_data_dir(corpus / "train", corpus).utterances
    write_lines(corpus / "train" / "wav.scp", {"s-1": "cat wav/s-1.wav | cat |", "s-2": "wav/s-2.wav"})
    with pytest.raises(UserError, match=r"wav\.scp:1: s-1 is a pipe (.|\n)*`--allow-pipes`"):
        read_data_dir(corpus / "train", corpus)
    assert not (tmp_path / "piped").exists()
    piped = read_data_dir(corpus / "train", corpus, KaldiOptions(pipes=Pipes(tmp_path / "piped"))).utterances
    assert [(u.id, u.num_samples, u.sampling_rate) for u in piped] == [
        (u.id, u.num_samples, u.sampling_rate) for u in plain
    ]
    assert piped[1] == plain[1]
    assert Path(piped[0].path).parent == tmp_path / "piped"
    assert Path(piped[0].path).read_bytes() == (corpus / "wav" / "s-1.wav").read_bytes()


def test_prepared_once_nothing_runs_again(tmp_path: Path) -> None:
    corpus = kaldi_corpus(tmp_path / "c", {"train": {"s-1": "YES"}})
    write_lines(corpus / "train" / "wav.scp", {"s-1": f"echo x >> {tmp_path}/runs; cat wav/s-1.wav |"})

    def prepare() -> Path:
        made = prepared(corpus, tmp_path / "data", "train", allow_pipes=True)
        return Path(made.splits["train"][0].path)

    path = prepare()
    assert path.parent == tmp_path / "data" / "piped"
    assert prepare() == path
    assert (tmp_path / "runs").read_text() == "x\n"
    later = path.stat().st_mtime + 10
    os.utime(corpus / "train" / "wav.scp", (later, later))  # wav.scp has changed since
    prepare()
    assert (tmp_path / "runs").read_text() == "x\nx\n"


def test_lengths_that_a_pipe_could_not_fill_in(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", speechlike(0.5, RATE), RATE, subtype="PCM_16")
    whole = (tmp_path / "a.wav").read_bytes()
    at = whole.index(b"data") + 4
    for length in (0, 0x7FFFF000, 0xFFFFFFFF):
        (tmp_path / "a.wav").write_bytes(whole[:at] + length.to_bytes(4, "little") + whole[at + 4 :])
        made = run(tmp_path, f"cat a.wav; : {length} |")
        assert isinstance(made, Path)
        assert made.read_bytes() == whole


def test_failures_say_command_status_and_what_was_said(tmp_path: Path) -> None:
    text = reason(tmp_path, "echo it is broken >&2; echo half; exit 3 |")
    assert text == "its command `echo it is broken >&2; echo half; exit 3` failed with status 3; it said: it is broken"
    assert "failed with status 1; it said nothing" in reason(tmp_path, "false | cat |")  # any part of a pipe
    assert "wrote nothing" in reason(tmp_path, "true |")
    assert "failed with status 127" in reason(tmp_path, "no-such-command-here |")
    assert "was ended by SIGTERM" in reason(tmp_path, "kill $$ |")
    assert len(reason(tmp_path, "yes complaint | head -c 100000 >&2; exit 1 |")) < 1000


def test_limits_of_time_and_size(tmp_path: Path) -> None:
    assert "did not end within 0.2 s and was stopped" in reason(tmp_path, "sleep 1000 |", seconds=0.2)
    assert "SIGXFSZ" in reason(tmp_path, "exec cat /dev/zero |", gigabytes=0.001)


def test_a_command_that_fails_is_a_bad_utterance(tmp_path: Path) -> None:
    corpus = kaldi_corpus(tmp_path / "c", {"train": {"s-1": "YES", "s-2": "NO", "s-3": "NO"}})
    write_lines(
        corpus / "train" / "wav.scp", {"s-1": "echo oh >&2; false |", "s-2": "echo no sound |", "s-3": "wav/s-3.wav"}
    )
    options = KaldiOptions(pipes=Pipes(tmp_path / "piped"))
    message = refusal(read_data_dir, corpus / "train", corpus, options)
    assert "2 of 3 utterances cannot be used" in message
    at = f"{corpus}/train/wav.scp"
    assert f"s-1: {at}:1: its command `echo oh >&2; false` failed with status 1; it said: oh" in message
    assert f"s-2: {at}:2: its command `echo no sound |`: " in message
    kept = read_data_dir(corpus / "train", corpus, KaldiOptions("skip", options.pipes))
    assert [u.id for u in kept.utterances] == ["s-3"]
    assert [one.id for one in kept.left_out] == ["s-1", "s-2"]
