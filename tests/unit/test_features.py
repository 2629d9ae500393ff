"""The feature store: whole or absent, computed once, and what is in it is what was computed."""

import dataclasses
import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from roundelay.core.configure import build
from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay_speech.audio.reading import read_audio
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.features import compute as features_module
from roundelay_speech.features import parts
from roundelay_speech.features.compute import AudioFolder, compute_features
from roundelay_speech.features.fbank import FbankConfig, fbank
from roundelay_speech.features.partial import Partial
from roundelay_speech.features.parts import FeatureConfig, Filterbank
from roundelay_speech.features.store import FeatureStore, StoredPart
from support.corpora import RATE, recorded, speechlike, utterance
from support.damage import forget_checksums
from support.features import CONFIG, compute, some_utterances
from support.said import Said, refusal


@pytest.fixture
def some(tmp_path: Path) -> list[Utterance]:
    return some_utterances(tmp_path)


def test_every_utterance_is_where_the_index_says(tmp_path: Path, some: list[Utterance]) -> None:
    store = compute(some, tmp_path)
    lengths = [38, 48, 28, 1, 58]
    assert store.utterance_ids == tuple(u.id for u in some)
    assert store.offsets.tolist() == [0, 38, 86, 114, 115, 173]
    assert store.array.shape == (173, 12)
    assert store.array.dtype == np.float32
    for u, frames in zip(some, lengths, strict=True):
        expected = fbank(torch.from_numpy(read_audio(u, tmp_path)), RATE, CONFIG).numpy()
        np.testing.assert_array_equal(store.get(u.id), expected)
        assert store.frames(u.id) == frames
        assert store.span(u.id)[1] == frames
    assert store.sampling_rate == RATE
    assert build(FeatureConfig, store.config) == FeatureConfig((Filterbank(fbank=CONFIG),))
    assert store.parts == (StoredPart("fbank", 12),)
    assert store.frame_times(2).tolist() == [0.0125, 0.0225]


def test_statistics_are_over_all_frames_of_a_speaker(tmp_path: Path, some: list[Utterance]) -> None:
    store = compute(some, tmp_path)
    assert store.speakers.names == ("s1", "s2")
    for index, name in enumerate(store.speakers.names):
        frames = np.concatenate([store.get(u.id) for u in some if u.speaker == name]).astype(np.float64)
        np.testing.assert_allclose(store.speakers.mean[index], frames.mean(0), rtol=1e-6)
        np.testing.assert_allclose(store.speakers.std[index], frames.std(0), rtol=1e-5)
        assert store.speakers.frames[index] == len(frames)
        normal = np.concatenate([store.normalised(u.id) for u in some if u.speaker == name])
        np.testing.assert_allclose(normal.mean(0), 0, atol=1e-5)
        np.testing.assert_allclose(normal.std(0), 1, atol=1e-5)
    assert [store.speaker_of(u.id) for u in some] == [1, 0, 1, 0, 1]
    assert store.frame_speakers.tolist() == [1] * 38 + [0] * 48 + [1] * 28 + [0] + [1] * 58


def test_silence_is_not_divided_by_nothing(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "s-a.wav", np.zeros(4000), RATE)
    store = compute([utterance("s-a", "s-a.wav")], tmp_path)
    assert store.speakers.std.min() > 0
    assert np.isfinite(store.normalised("s-a")).all()


def written(folder: Path) -> int:
    return (folder / "f" / "features.npy").stat().st_mtime_ns


def test_computed_again_when_anything_changed(tmp_path: Path, some: list[Utterance]) -> None:
    compute(some, tmp_path)

    def changes(utterances: list[Utterance], config: FbankConfig = CONFIG) -> bool:
        before = written(tmp_path)
        compute_features(utterances, tmp_path / "f", config, Silent(), audio=AudioFolder(tmp_path))
        return written(tmp_path) != before

    assert not changes(some)
    assert changes(some[:-1])
    assert changes(some, dataclasses.replace(CONFIG, low_freq=50))
    assert changes([dataclasses.replace(u, speaker="s3") for u in some])
    assert not changes([dataclasses.replace(u, speaker="s3", text="NO") for u in some])
    assert changes(some)
    soundfile.write(tmp_path / "s1-a.wav", speechlike(0.5, RATE, "other"), RATE, subtype="PCM_16")
    assert changes(some)
    (tmp_path / "f" / "index.json").unlink()
    assert changes(some)


def test_several_processes_compute_the_same(tmp_path: Path, some: list[Utterance]) -> None:
    one = compute(some, tmp_path, workers=1)
    alone = np.array(one.array)
    shutil.rmtree(tmp_path / "f")
    np.testing.assert_array_equal(compute(some, tmp_path, workers=2).array, alone)


def test_all_bad_utterances_are_named(tmp_path: Path, some: list[Utterance]) -> None:
    short = recorded(tmp_path, "s1-short", 0.024)
    loud = speechlike(0.5, RATE)
    loud[2000] = 1e30
    soundfile.write(tmp_path / "s1-loud.wav", loud, RATE, subtype="FLOAT")
    bad = [some[0], short, utterance("s1-loud", "s1-loud.wav"), some[1]]
    message = refusal(compute, bad, tmp_path)
    assert "2 of 4 utterances cannot be used" in message
    assert "s1-short: " in message
    assert "24 ms are shorter than one frame of 25 ms" in message
    assert "s1-loud: " in message
    assert "holds samples up to 1e+30" in message
    store, left_out = compute_features(
        bad, tmp_path / "f", CONFIG, Silent(), audio=AudioFolder(tmp_path), on_bad="skip"
    )
    assert store.utterance_ids == (some[0].id, some[1].id)
    assert [one.id for one in left_out] == ["s1-short", "s1-loud"]
    assert store.array.shape == (38 + 48, 12)
    assert np.isfinite(store.array).all()
    again = compute_features(bad, tmp_path / "f", CONFIG, Silent(), audio=AudioFolder(tmp_path), on_bad="skip")
    assert again[1] == left_out
    with pytest.raises(UserError, match="2 of 4 utterances"):
        compute(bad, tmp_path)


def test_bad_input_costs_nothing_computed_before(tmp_path: Path, some: list[Utterance]) -> None:
    compute(some, tmp_path)
    before = written(tmp_path)
    with pytest.raises(UserError, match="no such file"):
        compute([*some, utterance("s1-none", "none.wav")], tmp_path)
    with pytest.raises(UserError, match="1 of 1 utterance cannot be used"):
        compute([utterance("s1-none", "none.wav")], tmp_path, on_bad="skip")
    compute(some, tmp_path)
    assert written(tmp_path) == before


def test_a_full_disk_leaves_the_old_store(
    tmp_path: Path, some: list[Utterance], monkeypatch: pytest.MonkeyPatch
) -> None:
    compute(some, tmp_path)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match=r"features\.npy: the disk is full"):
            compute(some[:2], tmp_path)
    assert FeatureStore.open(tmp_path / "f").utterance_ids == tuple(u.id for u in some)
    assert compute(some[:2], tmp_path).utterance_ids == (some[0].id, some[1].id)
    assert sorted(p.name for p in (tmp_path / "f").iterdir()) == ["features.npy", "index.json", "speakers.npz"]


def test_a_kill_between_files_leaves_no_store(
    tmp_path: Path, some: list[Utterance], monkeypatch: pytest.MonkeyPatch
) -> None:
    compute(some, tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(features_module, "write_speakers", killed)
        with pytest.raises(KeyboardInterrupt):
            compute(some[:2], tmp_path)
    with pytest.raises(UserError, match="no features here"):
        FeatureStore.open(tmp_path / "f")
    assert compute(some[:2], tmp_path).utterance_ids == (some[0].id, some[1].id)


def test_broken_stores_are_refused(tmp_path: Path, some: list[Utterance]) -> None:
    compute(some, tmp_path)
    folder = tmp_path / "f"
    whole = (folder / "features.npy").read_bytes()
    (folder / "features.npy").write_bytes(whole[:-40])
    with pytest.raises(UserError, match="broken features"):
        FeatureStore.open(folder)
    for damaged in (b"", whole[:5], whole[:10] + b"(" * 118 + whole[128:]):
        (folder / "features.npy").write_bytes(damaged)
        with pytest.raises(UserError, match=r"broken features \(features\.npy"):
            FeatureStore.open(folder)
    np.save(folder / "features.npy", np.zeros((5, 12), np.float32))
    with pytest.raises(UserError, match="do not belong together"):
        FeatureStore.open(folder)
    (folder / "features.npy").write_bytes(whole)
    statistics = (folder / "speakers.npz").read_bytes()
    (folder / "speakers.npz").write_bytes(statistics[:200] + bytes([statistics[200] ^ 1]) + statistics[201:])
    with pytest.raises(UserError, match=r"speakers\.npz: damaged, .*Delete .* and run `roundelay prepare` again"):
        FeatureStore.open(folder)
    (folder / "speakers.npz").unlink()
    with pytest.raises(UserError, match=r"speakers\.npz: missing"):
        FeatureStore.open(folder)
    forget_checksums(folder / "index.json")
    with pytest.raises(UserError, match="broken features"):
        FeatureStore.open(folder)
    assert len(compute(some, tmp_path).array) == 173


def test_unknown_utterances_and_mixed_input(tmp_path: Path, some: list[Utterance]) -> None:
    store = compute(some, tmp_path)
    assert "s1-a" in store
    assert "x" not in store
    with pytest.raises(UserError, match="no features of utterance x"):
        store.get("x")
    with pytest.raises(UserError, match="1 utterance ids occur more than once"):
        compute([some[0], some[0]], tmp_path)
    with pytest.raises(UserError, match="must have one sampling rate"):
        compute([some[0], dataclasses.replace(some[1], sampling_rate=16000)], tmp_path)
    with pytest.raises(UserError, match="no utterances"):
        compute([], tmp_path)


# Interrupted ----------------------------------------------------------------------------------------------------------


def counted(monkeypatch: pytest.MonkeyPatch, stop_after: int | None = None) -> list[int]:
    """Note the samples of every utterance whose features are computed; at a number of them, an interrupt."""
    seen: list[int] = []

    def noted(wave: torch.Tensor, rate: int, config: FbankConfig, warp: float) -> torch.Tensor:
        if len(seen) == stop_after:
            raise KeyboardInterrupt
        seen.append(len(wave))
        return fbank(wave, rate, config, warp)

    monkeypatch.setattr(parts, "fbank", noted)
    return seen


@pytest.mark.parametrize("damage", ["none", "torn line", "lost bytes", "changed bytes"])
def test_what_is_finished_is_not_computed_again(
    tmp_path: Path, some: list[Utterance], monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """A kill in the middle of a line costs one utterance."""
    whole = compute(some, tmp_path / "")
    expected, statistics = np.array(whole.array), whole.speakers
    shutil.rmtree(tmp_path / "f")
    counted(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        compute(some, tmp_path)
    with pytest.raises(UserError, match="no features here"):
        FeatureStore.open(tmp_path / "f")
    journal, partial = tmp_path / "f" / "partial.jsonl", tmp_path / "f" / "partial.f32"
    content = bytearray(partial.read_bytes())
    if damage == "torn line":
        journal.write_bytes(journal.read_bytes()[:-5])
    elif damage != "none":
        partial.write_bytes(content[:-40] if damage == "lost bytes" else content[:-1] + b"x")
    seen = counted(monkeypatch)
    store = compute(some, tmp_path)
    assert seen == [u.num_samples for u in some[3 if damage == "none" else 2 :]]
    np.testing.assert_array_equal(store.array, expected)
    np.testing.assert_array_equal(store.speakers.mean, statistics.mean)
    np.testing.assert_array_equal(store.speakers.std, statistics.std)
    assert sorted(p.name for p in (tmp_path / "f").iterdir()) == ["features.npy", "index.json", "speakers.npz"]


def test_a_mended_file_is_computed_and_the_rest_kept(
    tmp_path: Path, some: list[Utterance], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = (tmp_path / "s1-a.wav").read_bytes()
    (tmp_path / "s1-a.wav").write_bytes(good[:100])
    with pytest.raises(UserError, match="1 of 5 utterances cannot be used"):
        compute(some, tmp_path)
    (tmp_path / "s1-a.wav").write_bytes(good)
    seen = counted(monkeypatch)
    store = compute(some, tmp_path)
    assert seen == [some[1].num_samples]
    for u in some:  # in their order, although they were not computed in it
        expected = fbank(torch.from_numpy(read_audio(u, tmp_path)), RATE, CONFIG).numpy()
        np.testing.assert_array_equal(store.get(u.id), expected)


def test_two_at_once_are_refused(tmp_path: Path, some: list[Utterance]) -> None:
    with (
        Partial.opened(tmp_path / "f"),
        pytest.raises(UserError, match="another process is computing these features"),
    ):
        compute(some, tmp_path)


def test_a_store_of_the_first_version_is_read(tmp_path: Path, some: list[Utterance]) -> None:
    compute(some, tmp_path)
    index = tmp_path / "f" / "index.json"
    old = json.loads(index.read_text()) | {"config": dataclasses.asdict(CONFIG), "version": 1}
    for name in ("parts", "frame_shift", "frame_length", "checksums"):
        del old[name]
    index.write_text(json.dumps(old))
    assert FeatureStore.open(tmp_path / "f").parts == (StoredPart("fbank", 12),)


def test_long_work_is_announced_with_how_long_it_will_take(
    tmp_path: Path, some: list[Utterance], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it begins, and of what is left of it; short work is not."""
    told = Said()

    def computed() -> None:
        compute_features(some, tmp_path / "f", CONFIG, told, audio=AudioFolder(tmp_path), workers=1)

    computed()
    assert not any("roughly" in line for line in told.lines)
    monkeypatch.setattr("roundelay_speech.features.compute.HOURS_A_SECOND", 1e-9)
    shutil.rmtree(tmp_path / "f")
    counted(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        computed()
    (line,) = (line for line in told.lines if "roughly" in line)
    assert line.startswith("0.0 hours of audio by 1 process will take roughly ")
    counted(monkeypatch)
    computed()
    assert any(line.startswith("features of 3 utterances are there; ") for line in told.lines)
