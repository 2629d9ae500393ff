"""Parts of features stand side by side in the store."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay_speech.audio.reading import read_audio
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.features.compute import AudioFolder, compute_features
from roundelay_speech.features.fbank import fbank
from roundelay_speech.features.parts import External, FeatureConfig, Filterbank
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.kaldi_io.objects import write_archive
from support.corpora import RATE
from support.features import CONFIG, some_utterances
from support.said import refusal


@pytest.fixture
def some(tmp_path: Path) -> list[Utterance]:
    return some_utterances(tmp_path)


def merged(folder: Path, **changes: object) -> FeatureConfig:
    fmllr = External(name="fmllr", source=folder / "fmllr.scp")
    vector = External(name="ivector", source=folder / "ivectors", every=0, spliced=False)
    config = FeatureConfig((fmllr, Filterbank(name="logmel", fbank=CONFIG), vector))
    return dataclasses.replace(config, **changes)  # type: ignore[arg-type]


def matrices(folder: Path, some: list[Utterance]) -> dict[str, npt.NDArray[np.float32]]:
    """fMLLR of 5 features in an archive with a script file, vectors of 3 as .npy files."""
    rng = np.random.default_rng(0)
    lengths = {u.id: CONFIG.num_frames(u.num_samples, RATE) for u in some}
    found = {name: rng.normal(size=(frames, 5)).astype(np.float32) for name, frames in lengths.items()}
    write_archive(folder / "fmllr.ark", found.items(), scp=folder / "fmllr.scp")
    (folder / "ivectors").mkdir()
    for place, name in enumerate(lengths):
        np.save(folder / "ivectors" / f"{name}.npy", np.full(3, place, np.float32))
    return found


def test_parts_stand_side_by_side(tmp_path: Path, some: list[Utterance]) -> None:
    fmllr = matrices(tmp_path, some)
    config = merged(tmp_path)
    assert config.folder == "fmllr-logmel12-ivector"
    for workers in (1, 2):
        store, _ = compute_features(
            some, tmp_path / f"{workers}", config, Silent(), audio=AudioFolder(tmp_path), workers=workers
        )
        assert [(p.name, p.width, p.deltas, p.normalise, p.spliced, p.filterbank) for p in store.parts] == [
            ("fmllr", 5, 0, "none", True, False),
            ("logmel", 12, 2, "speaker", True, True),
            ("ivector", 3, 0, "none", False, False),
        ]
        assert store.columns == {"fmllr": slice(0, 5), "logmel": slice(5, 17), "ivector": slice(17, 20)}
        assert store.filterbank() == slice(5, 17)
        for place, u in enumerate(some):
            found = store.get(u.id)
            np.testing.assert_array_equal(found[:, :5], fmllr[u.id])
            wave = torch.from_numpy(read_audio(u, tmp_path))
            np.testing.assert_array_equal(found[:, 5:17], fbank(wave, RATE, CONFIG).numpy())
            assert (found[:, 17:] == place).all()
            np.testing.assert_array_equal(store.normalised(u.id)[:, :5], fmllr[u.id])
        logmel = np.concatenate([store.normalised(u.id)[:, 5:17] for u in some if u.speaker == "s1"])
        np.testing.assert_allclose(logmel.mean(0), 0, atol=1e-5)


def test_rows_for_several_frames(tmp_path: Path, some: list[Utterance]) -> None:
    """As Kaldi's online i-vectors: a row for every 10 frames, the last for what is left."""
    rows = {u.id: -(-CONFIG.num_frames(u.num_samples, RATE) // 10) for u in some}
    columns: dict[str, Any] = {name: np.arange(n, dtype=np.float32)[:, None] for name, n in rows.items()}
    np.savez(tmp_path / "v.npz", **columns)
    vectors = External(name="ivector", source=tmp_path / "v.npz", every=10)
    config = FeatureConfig((Filterbank(fbank=CONFIG), vectors))
    store, _ = compute_features(some, tmp_path / "f", config, Silent(), audio=AudioFolder(tmp_path))
    for u in some:
        assert store.get(u.id)[:, 12].tolist() == [t // 10 for t in range(store.frames(u.id))]
    shorter = FeatureConfig((Filterbank(fbank=CONFIG), dataclasses.replace(vectors, every=1)))
    with pytest.raises(UserError, match=r"s2-a: its parts differ in frames: fbank 38, ivector 4"):
        compute_features(some, tmp_path / "g", shorter, Silent(), audio=AudioFolder(tmp_path))


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("name", ["v.scp", "v.ark"])
def test_vectors_of_utterances_and_speakers(tmp_path: Path, some: list[Utterance], name: str, text: bool) -> None:
    """Kaldi's vectors, of a speaker where the utterance has none of its own; rows of other lengths are its own only."""
    vectors = {"s1": [1.0, 2], "s2": [3.0, 4], "s2-a": [5.0, 6]}
    arrays = {key: np.array(value, np.float32) for key, value in vectors.items()}
    write_archive(tmp_path / "v.ark", arrays.items(), scp=tmp_path / "v.scp", text=text)
    part = External(name="ivector", source=tmp_path / name, every=0)
    config = FeatureConfig((Filterbank(fbank=CONFIG), part))
    store, _ = compute_features(some, tmp_path / "f", config, Silent(), audio=AudioFolder(tmp_path))
    for u in some:
        assert (store.get(u.id)[:, 12:] == vectors.get(u.id, vectors[u.speaker])).all()
    by_row = FeatureConfig((Filterbank(fbank=CONFIG), dataclasses.replace(part, every=10)))
    with pytest.raises(UserError, match=r"s1-a: not in .*v\."):
        compute_features(some, tmp_path / "g", by_row, Silent(), audio=AudioFolder(tmp_path))


def test_matrices_that_do_not_fit_are_named(tmp_path: Path, some: list[Utterance]) -> None:
    fmllr = matrices(tmp_path, some)
    del fmllr["s2-a"]
    fmllr["s1-a"] = fmllr["s1-a"][:-2]
    fmllr["s2-b"][3, 1] = np.nan
    write_archive(tmp_path / "fmllr.ark", fmllr.items(), scp=tmp_path / "fmllr.scp")
    (tmp_path / "ivectors" / "s1-b.npy").write_bytes(b"\x93NUMPY rubbish")

    def run(config: FeatureConfig, **options: str) -> tuple[FeatureStore, list[str]]:
        store, left_out = compute_features(
            some,
            tmp_path / "f",
            config,
            Silent(),
            audio=AudioFolder(tmp_path),
            **options,  # type: ignore[arg-type]
        )
        return store, [one.id for one in left_out]

    said = refusal(run, merged(tmp_path))
    for part in (
        "4 of 5 utterances cannot be used",
        f"s2-a: not in {tmp_path / 'fmllr.scp'}",
        "s1-a: its parts differ in frames: logmel 48, fmllr 46",
        "fmllr.scp: row 3 holds NaN or infinity",
        "s1-b: ",
    ):
        assert part in said
    store, left_out = run(merged(tmp_path, tolerance=2), on_bad="skip")
    assert left_out == ["s2-a", "s2-b", "s1-b"]
    assert store.frames("s1-a") == 46
    with pytest.raises(UserError, match="the name is there twice"):
        FeatureConfig((Filterbank(), Filterbank()))
    with pytest.raises(UserError, match="deltas is 3"):
        FeatureConfig((Filterbank(deltas=3),))
    with pytest.raises(UserError, match=r"not a \.scp, \.ark, \.npz file nor a folder"):
        run(FeatureConfig((External(source=tmp_path / "s1-a.wav"),)))
