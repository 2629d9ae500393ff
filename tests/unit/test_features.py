"""The feature store: whole or absent, computed once, and what is in it is what was computed."""

import dataclasses
import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay.speech import features as features_module
from roundelay.speech.audio import read_audio
from roundelay.speech.corpus.manifest import Utterance
from roundelay.speech.features import FbankConfig, FeatureStore, compute_features, fbank
from support.corpora import RATE, recorded, speechlike, utterance

CONFIG = FbankConfig(num_bins=12)


@pytest.fixture
def some(tmp_path: Path) -> list[Utterance]:
    """Five utterances by two speakers, of different lengths."""
    return [
        recorded(tmp_path, name, seconds)
        for name, seconds in (("s2-a", 0.4), ("s1-a", 0.5), ("s2-b", 0.3), ("s1-b", 0.025), ("s2-c", 0.6))
    ]


def compute(utterances: list[Utterance], folder: Path, **options: object) -> FeatureStore:
    return compute_features(utterances, folder / "f", CONFIG, Silent(), audio_folder=folder, **options)[0]  # type: ignore[arg-type]


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
    assert FbankConfig(**store.config) == CONFIG


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


def test_the_array_is_read_only_and_readable_without_pickle(tmp_path: Path, some: list[Utterance]) -> None:
    store = compute(some, tmp_path)
    assert isinstance(store.array, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        store.array[0, 0] = 0
    for name in ("features.npy", "speakers.npz"):
        np.load(tmp_path / "f" / name, allow_pickle=False)


def written(folder: Path) -> int:
    return (folder / "f" / "features.npy").stat().st_mtime_ns


def test_computed_once(tmp_path: Path, some: list[Utterance], monkeypatch: pytest.MonkeyPatch) -> None:
    first = compute(some, tmp_path)
    before = written(tmp_path)
    monkeypatch.setattr(features_module, "fbank", None)  # whoever computes again fails
    monkeypatch.setattr(features_module, "check_audio", None)
    again = compute(some, tmp_path)
    assert written(tmp_path) == before
    np.testing.assert_array_equal(again.array, first.array)


def test_computed_again_when_anything_changed(tmp_path: Path, some: list[Utterance]) -> None:
    compute(some, tmp_path)

    def changes(utterances: list[Utterance], config: FbankConfig = CONFIG) -> bool:
        before = written(tmp_path)
        compute_features(utterances, tmp_path / "f", config, Silent(), audio_folder=tmp_path)
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
    with pytest.raises(UserError) as error:
        compute(bad, tmp_path)
    message = str(error.value)
    assert "2 of 4 utterances cannot be used" in message
    assert "s1-short: " in message
    assert "24 ms are shorter than one frame of 25 ms" in message
    assert "s1-loud: " in message
    assert "the features of frame 23 are NaN or infinite" in message
    store, left_out = compute_features(bad, tmp_path / "f", CONFIG, Silent(), audio_folder=tmp_path, on_bad="skip")
    assert store.utterance_ids == (some[0].id, some[1].id)
    assert [one.id for one in left_out] == ["s1-short", "s1-loud"]
    assert store.array.shape == (38 + 48, 12)
    assert np.isfinite(store.array).all()
    again = compute_features(bad, tmp_path / "f", CONFIG, Silent(), audio_folder=tmp_path, on_bad="skip")
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
    assert sorted(p.name for p in (tmp_path / "f").iterdir()) == ["features.npy", "index.json", "speakers.npz"]
    assert FeatureStore.open(tmp_path / "f").utterance_ids == tuple(u.id for u in some)


def test_a_kill_between_files_leaves_no_store(
    tmp_path: Path, some: list[Utterance], monkeypatch: pytest.MonkeyPatch
) -> None:
    compute(some, tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(features_module, "_write_speakers", killed)
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
    np.save(folder / "features.npy", np.zeros((5, 12), np.float32))
    with pytest.raises(UserError, match="do not belong together"):
        FeatureStore.open(folder)
    (folder / "features.npy").write_bytes(whole)
    (folder / "speakers.npz").unlink()
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
