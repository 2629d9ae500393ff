"""Cuts that the package lhotse must load: what is prepared of them is what lhotse itself makes, sample by sample."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from roundelay.core.errors import UserError
from roundelay_speech.corpus.formats.export import write_part
from roundelay_speech.corpus.formats.lhotse import find_parts, read_part
from roundelay_speech.corpus.formats.lhotse_loading import LhotseOptions
from roundelay_speech.data.manifest import Utterance
from support.corpora import RATE, recorded, speechlike

SECONDS = 2.0


@pytest.fixture(scope="module")
def lhotse() -> Any:
    return pytest.importorskip("lhotse", reason="lhotse is an extra: pip install 'roundelay[lhotse]'")


@pytest.fixture
def cut(lhotse: Any, tmp_path: Path) -> Any:
    """A cut of a recording of two channels, with a supervision on each; its path is relative."""
    both = np.stack([speechlike(SECONDS, RATE, name) for name in "ab"], 1)
    soundfile.write(tmp_path / "r.wav", both, RATE, subtype="PCM_16")
    recording = lhotse.Recording.from_file(tmp_path / "r.wav", recording_id="r")
    recording.sources[0].source = "r.wav"
    whole = recording.to_cut()
    whole.supervisions = [
        lhotse.SupervisionSegment("a", "r", 0.25, 0.5, channel=0, text="YES", speaker="uma", gender="f"),
        lhotse.SupervisionSegment("b", "r", 1.0, 0.75, channel=1, text="NO  YES"),
    ]
    return whole


def mono(cut: Any) -> Any:
    """Its first channel."""
    (first, _) = cut.to_mono()
    return first


def read(folder: Path, cuts: list[Any], options: LhotseOptions | None = None) -> dict[str, Utterance]:
    """Utterances of cuts that were written as JSON, by id."""
    (folder / "cuts_train.jsonl").write_text("".join(json.dumps(one.to_dict()) + "\n" for one in cuts))
    found, left_out = read_part(
        find_parts(folder)["train"], folder, "error", options or LhotseOptions(folder / "lhotse")
    )
    assert not left_out
    return {one.id: one for one in found}


def samples(utterance: Utterance) -> np.ndarray[Any, np.dtype[np.float32]]:
    found, rate = soundfile.read(utterance.path, dtype="float32", always_2d=True)
    assert rate == utterance.sampling_rate
    first = round(utterance.start * rate)
    own: np.ndarray[Any, np.dtype[np.float32]] = found[first : first + utterance.num_samples, utterance.channel]
    return own


def expected(folder: Path, cut: Any, row: int = 0) -> dict[str, Any]:
    """Samples of each supervision as lhotse loads them."""
    whole = cut.with_recording_path_prefix(folder)
    return {s.id: whole.truncate(offset=s.start, duration=s.duration).load_audio()[row] for s in whole.supervisions}


@pytest.mark.parametrize("kind", ["speed", "rate", "volume", "padded", "mixed"])
def test_samples_are_those_that_lhotse_makes(cut: Any, tmp_path: Path, kind: str) -> None:
    if kind == "rate":
        pytest.importorskip("scipy")
    one = mono(cut)
    made = {
        "speed": lambda: one.perturb_speed(1.25),
        "rate": lambda: one.resample(2 * RATE),
        "volume": lambda: one.perturb_volume(0.5, affix_id=False),
        "padded": lambda: one.pad(duration=SECONDS + 1),
        "mixed": lambda: one.mix(one.drop_supervisions(), offset_other_by=0.25, snr=10),
    }[kind]()
    found, wanted = read(tmp_path, [made]), expected(tmp_path, made)
    assert found.keys() == wanted.keys() != set()
    for name, utterance in found.items():
        np.testing.assert_array_equal(samples(utterance), wanted[name])
        assert Path(utterance.path).parent == tmp_path / "lhotse"
        assert (utterance.text, utterance.speaker, utterance.gender) == ("YES", "uma", "f")


def test_channels_are_told_apart(cut: Any, tmp_path: Path) -> None:
    """With a transform by lhotse, without one by the file; where a supervision names several, one is chosen."""
    loud = cut.perturb_volume(0.5, affix_id=False)
    for made in (cut, loud):
        found = read(tmp_path, [made])
        plain = {name: samples(one) for name, one in found.items()}
        wanted = {"a": expected(tmp_path, made)["a"], "b": expected(tmp_path, made, 1)["b"]}
        assert plain.keys() == {"a", "b"}
        for name, one in plain.items():
            np.testing.assert_array_equal(one, wanted[name])
    loud.supervisions[0].channel = [0, 1]
    with pytest.raises(UserError, match=r"a: .*spoken on several channels \(0, 1\); only one is read"):
        read(tmp_path, [loud])
    second = read(tmp_path, [loud], LhotseOptions(tmp_path / "lhotse", channel=1))
    np.testing.assert_array_equal(samples(second["a"]), expected(tmp_path, loud, 1)["a"])


def test_recordings_and_supervisions(lhotse: Any, cut: Any, tmp_path: Path) -> None:
    """A recording to be transformed beside one that is a file: each supervision from its own channel."""
    quiet = cut.recording.perturb_volume(0.5, affix_id=False)
    lhotse.RecordingSet.from_recordings([quiet]).to_file(tmp_path / "recordings_train.jsonl.gz")
    lhotse.SupervisionSet.from_segments(cut.supervisions).to_file(tmp_path / "supervisions_train.jsonl.gz")
    found, _ = read_part(find_parts(tmp_path)["train"], tmp_path, "error", LhotseOptions(tmp_path / "made"))
    both, _ = soundfile.read(tmp_path / "r.wav", dtype="float32")
    for utterance, row, first in zip(found, (0, 1), (0.25, 1.0), strict=True):
        piece = both[round(first * RATE) :][: utterance.num_samples, row]
        np.testing.assert_allclose(samples(utterance), 0.5 * piece, atol=1e-6)


def test_lhotse_reads_what_is_exported(lhotse: Any, tmp_path: Path) -> None:
    written = [recorded(tmp_path, name) for name in "ab"]
    write_part(tmp_path / "out", "train", written, tmp_path)
    cuts = lhotse.CutSet.from_file(tmp_path / "out/cuts_train.jsonl.gz")
    lhotse.validate(cuts, read_data=True)
    for cut, utterance in zip(cuts, written, strict=True):
        (supervision,) = cut.supervisions
        own = samples(replace(utterance, path=str(tmp_path / utterance.path)))
        np.testing.assert_array_equal(cut.load_audio()[0], own)
        assert (supervision.text, supervision.speaker) == (utterance.text, utterance.speaker)
    recordings = lhotse.RecordingSet.from_file(tmp_path / "out/recordings_train.jsonl.gz")
    lhotse.validate_recordings_and_supervisions(
        recordings, lhotse.SupervisionSet.from_file(tmp_path / "out/supervisions_train.jsonl.gz"), read_data=True
    )


def test_a_command_runs_only_if_that_is_asked_for(cut: Any, tmp_path: Path) -> None:
    one = mono(cut)
    one.recording.sources[0].type = "command"
    one.recording.sources[0].source = f"cat {tmp_path / 'r.wav'}"
    with pytest.raises(UserError, match=r"is no file but a command; `--allow-pipes` runs it"):
        read(tmp_path, [one])
    found = read(tmp_path, [one], LhotseOptions(tmp_path / "lhotse", commands=True))
    both, _ = soundfile.read(tmp_path / "r.wav", dtype="float32")
    np.testing.assert_array_equal(samples(found["a"]), both[RATE // 4 : RATE // 4 + RATE // 2, 0])


def test_audio_is_made_once(cut: Any, tmp_path: Path) -> None:
    one = mono(cut).perturb_volume(0.5, affix_id=False)
    made = Path(read(tmp_path, [one])["a"].path)
    manifest = tmp_path / "cuts_train.jsonl"
    before = made.stat().st_mtime_ns
    read_part({"cuts": manifest}, tmp_path, "error", LhotseOptions(tmp_path / "lhotse"))
    assert made.stat().st_mtime_ns == before
    other = mono(cut).perturb_volume(0.25, affix_id=False)
    assert Path(read(tmp_path, [other])["a"].path) != made


@pytest.mark.parametrize("broken", ["gone", "odd"])
def test_what_lhotse_cannot_load_is_named(cut: Any, tmp_path: Path, broken: str) -> None:
    one = mono(cut).perturb_volume(0.5, affix_id=False)
    if broken == "gone":
        (tmp_path / "r.wav").unlink()
        wanted = r"cuts_train\.jsonl:1: lhotse cannot make its audio: "
    else:
        one.recording.transforms[0] = {"name": "Nonsense", "kwargs": {}}
        wanted = r"cuts_train\.jsonl:1: lhotse cannot "
    with pytest.raises(UserError, match=wanted):
        read(tmp_path, [one])


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (tmp_path / "cuts.jsonl").write_text(json.dumps({"id": "m", "type": "MixedCut", "tracks": []}) + "\n")
    with pytest.raises(
        UserError, match=r"m: .*cuts\.jsonl:1: a MixedCut; the package lhotse makes its audio \(pip inst"
    ):
        read_part({"cuts": tmp_path / "cuts.jsonl"}, tmp_path, "error", LhotseOptions(tmp_path / "made"))


def test_an_address_is_never_opened(tmp_path: Path) -> None:
    source = {"type": "url", "channels": [0], "source": "https://example.org/r.wav"}
    recording = {"id": "r", "sources": [source], "sampling_rate": RATE, "num_samples": RATE, "duration": 1.0}
    track = {"cut": {"id": "c", "recording": recording, "type": "MonoCut"}, "offset": 0.0}
    (tmp_path / "cuts.jsonl").write_text(json.dumps({"id": "m", "type": "MixedCut", "tracks": [track]}) + "\n")
    with pytest.raises(UserError, match=r"a MixedCut; a recording that is a url must become a file first"):
        read_part({"cuts": tmp_path / "cuts.jsonl"}, tmp_path, "error", LhotseOptions(tmp_path / "made", commands=True))
