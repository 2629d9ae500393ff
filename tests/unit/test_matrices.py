"""Corpora of given features: feats.scp and cmvn.scp, read, prepared, exported and read again."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay_speech.corpus.build import prepare_kaldi
from roundelay_speech.corpus.formats.export import export_kaldi, export_lhotse
from roundelay_speech.corpus.options import Preparation, PrepareOptions
from roundelay_speech.hmm.gmm import all_cepstra
from roundelay_speech.kaldi_io.locations import read_scp
from roundelay_speech.kaldi_io.objects import read_matrix, write_archive
from roundelay_speech.prepared import Corpus, load_corpus
from support.corpora import DICTIONARY, kaldi_corpus, write_lines
from support.said import refusal

Float32 = npt.NDArray[np.float32]
FRAMES = {"train": {"s1-a": 20, "s1-b": 12, "s2-a": 30}, "dev": {"s3-a": 7, "s2-z": 9}}


def features(frames: Mapping[str, int], width: int = 5) -> dict[str, Float32]:
    rng = np.random.default_rng(sum(frames.values()))
    return {name: (3 + 2 * rng.standard_normal((n, width))).astype(np.float32) for name, n in frames.items()}


def given_corpus(folder: Path, splits: Mapping[str, Mapping[str, Float32]], statistics: bool = False) -> Path:
    """Data directories with feats.scp and no audio."""
    for split, matrices in splits.items():
        place = folder / split
        write_archive(place / "feats.ark", matrices.items(), scp=place / "feats.scp")
        write_lines(place / "text", dict.fromkeys(matrices, "YES NO"))
        write_lines(place / "utt2spk", {name: name.split("-")[0] for name in matrices})
        if statistics:
            write_archive(place / "cmvn.ark", cmvn(matrices).items(), scp=place / "cmvn.scp")
    (folder / "words.dic").write_text(DICTIONARY)
    return folder


def cmvn(matrices: Mapping[str, Float32]) -> dict[str, npt.NDArray[np.float64]]:
    """As compute-cmvn-stats."""
    sums: dict[str, npt.NDArray[np.float64]] = {}
    for name, matrix in matrices.items():
        double = matrix.astype(np.float64)
        own = np.stack([np.append(double.sum(0), len(double)), np.append((double**2).sum(0), 0)])
        speaker = name.split("-")[0]
        sums[speaker] = sums.get(speaker, np.zeros_like(own)) + own
    return sums


def prepare(source: Path, data: Path, lexicon: str = "words.dic", **options: object) -> Corpus:
    splits = {
        folder.name: folder.name for folder in sorted(source.iterdir(), reverse=True) if (folder / "text").exists()
    }
    return prepare_kaldi(
        source,
        source / lexicon,
        splits,
        Preparation(data, "toy", options=PrepareOptions(**options)),  # type: ignore[arg-type]
        Silent(),
    )


@pytest.mark.parametrize("statistics", [False, True])
def test_features_are_taken_as_they_are(tmp_path: Path, statistics: bool) -> None:
    """And statistics of a speaker who is in two splits are those of both, given or computed."""
    splits = {split: features(frames) for split, frames in FRAMES.items()}
    corpus = prepare(given_corpus(tmp_path / "c", splits, statistics), tmp_path / "data")
    assert corpus == load_corpus(tmp_path / "data")
    assert not corpus.audio
    store = corpus.features()
    for matrices in splits.values():
        for name, matrix in matrices.items():
            np.testing.assert_array_equal(store.get(name), matrix)
    both = np.concatenate([splits["train"]["s2-a"], splits["dev"]["s2-z"]]).astype(np.float64)
    mean, std = store.speaker_stats("s2-z")
    np.testing.assert_allclose(mean, both.mean(0), rtol=1e-6)
    np.testing.assert_allclose(std, both.std(0), rtol=1e-6)
    utterance = corpus.splits["train"][0]
    assert (utterance.id, utterance.num_samples, utterance.sampling_rate, utterance.duration) == ("s1-a", 20, 100, 0.2)


@settings(max_examples=15)
@given(
    frames=st.dictionaries(st.sampled_from(["s1-a", "s1-b", "s2-a", "s3-a"]), st.integers(1, 30), min_size=1),
    width=st.integers(1, 6),
    shift=st.sampled_from([10.0, 12.5, 11.0]),
)
def test_written_and_read_back(
    tmp_path_factory: pytest.TempPathFactory, frames: dict[str, int], width: int, shift: float
) -> None:
    folder = tmp_path_factory.mktemp("round")
    first = prepare(
        given_corpus(folder / "c", {"train": features(frames, width)}), folder / "one", frame_shift_ms=shift
    )
    export_kaldi(first, folder / "out", Silent())
    second = prepare(folder / "out", folder / "two", "lexicon.txt")
    one, two = first.features(), second.features()
    np.testing.assert_array_equal(one.array, two.array)
    np.testing.assert_allclose(one.speakers.mean, two.speakers.mean, rtol=1e-6)
    np.testing.assert_allclose(one.speakers.std, two.speakers.std, rtol=1e-5)
    assert one.utterance_ids == two.utterance_ids
    for a, b in zip(first.utterances, second.utterances, strict=True):
        assert (a.id, a.start, a.duration, a.speaker, a.text) == (b.id, b.start, b.duration, b.speaker, b.text)
    export_kaldi(second, folder / "again", Silent())
    for name in ("text", "utt2spk", "spk2utt", "utt2num_frames", "frame_shift"):
        assert (folder / "out/train" / name).read_bytes() == (folder / "again/train" / name).read_bytes()


def test_preparing_again_copies_nothing_unless_something_changed(tmp_path: Path) -> None:
    splits = {"train": features(FRAMES["train"])}
    source = given_corpus(tmp_path / "c", splits)
    prepare(source, tmp_path / "data")
    index = tmp_path / "data" / "feats" / "index.json"
    before = index.stat().st_mtime_ns
    prepare(source, tmp_path / "data")
    assert index.stat().st_mtime_ns == before
    given_corpus(tmp_path / "c", {"train": {name: 2 * matrix for name, matrix in splits["train"].items()}})
    store = prepare(source, tmp_path / "data").features()
    np.testing.assert_array_equal(store.get("s1-a"), 2 * splits["train"]["s1-a"])


def test_bad_features_are_bad_utterances(tmp_path: Path) -> None:
    matrices = features(FRAMES["train"] | {"s4-a": 5, "s4-b": 5, "s4-c": 5})
    matrices["s4-a"] = np.zeros((0, 0), np.float32)
    matrices["s4-b"][3, 2] = np.nan
    matrices["s4-c"] = np.ones((4, 7), np.float32)
    source = given_corpus(tmp_path / "c", {"train": matrices})
    message = refusal(prepare, source, tmp_path / "data")
    assert "3 of 6 utterances cannot be used" in message
    for name, why in {"s4-a": "has no frames", "s4-b": "frame 3 holds NaN", "s4-c": "7 features a frame"}.items():
        (line,) = [line for line in message.splitlines() if f" {name}: " in line]
        assert why in line
        assert "feats.scp:" in line
    corpus = prepare(source, tmp_path / "data", on_bad="skip", max_bad_share=0.5)
    assert [u.id for u in corpus.splits["train"]] == list(FRAMES["train"])
    assert [one.id for one in corpus.left_out["train"]] == ["s4-a", "s4-b", "s4-c"]


def test_statistics_that_are_none(tmp_path: Path) -> None:
    source = given_corpus(tmp_path / "c", {"train": features(FRAMES["train"])}, statistics=True)
    scp = source / "train" / "cmvn.scp"
    places = read_scp(scp)
    write_lines(scp, {"s1": places["s1"]})
    with pytest.raises(UserError, match=r"utt2spk:3: s2 is not in cmvn\.scp"):
        prepare(source, tmp_path / "data")
    write_lines(scp, {"s1": places["s1"], "s2": read_scp(source / "train" / "feats.scp")["s2-a"]})
    with pytest.raises(UserError, match=r"s2: .*: 30 x 5 numbers, not sums of 5 features"):
        prepare(source, tmp_path / "data")
    for row, column, value in ((0, 5, 0.0), (0, 5, -4.0), (0, 1, np.nan), (1, 1, 1e300)):
        sums = cmvn(features(FRAMES["train"]))
        sums["s2"][row, column] = value
        write_archive(source / "train" / "cmvn.ark", sums.items(), scp=scp)
        with pytest.raises(UserError, match=r"1 speaker without usable statistics(.|\n)*s2: .*cmvn.ark:"):
            prepare(source, tmp_path / "data")
    assert not (tmp_path / "data" / "corpus.json").exists()


def test_durations_that_do_not_fit(tmp_path: Path) -> None:
    source = given_corpus(tmp_path / "c", {"train": features(FRAMES["train"])})
    write_lines(source / "train" / "segments", {"s1-a": "r 1.0 1.2", "s1-b": "r 2.0 2.12", "s2-a": "r 3 3.9"})
    with pytest.raises(UserError, match=r"segments:3: lasts 0\.9 s, but has 30 frames, 0\.3 s at 10 ms each"):
        prepare(source, tmp_path / "data")
    (source / "train" / "segments").unlink()
    write_lines(source / "train" / "utt2dur", {"s1-a": "0.2", "s1-b": "1.12"})
    with pytest.raises(UserError, match=r"utt2dur:2: lasts 0\.12 s, not 1\.12 s; is it cut short"):
        prepare(source, tmp_path / "data")


def test_a_filterbank_is_known_by_its_neighbours(tmp_path: Path) -> None:
    """Gaussians get the cepstra of a filterbank, and other features as they are, with deltas."""
    rng = np.random.default_rng(2)
    apart = rng.standard_normal((60, 20)).astype(np.float32)
    together = (rng.standard_normal((60, 1)) + 0.5 * apart).astype(np.float32)
    for name, matrix in {"apart": apart, "together": together}.items():
        source = given_corpus(tmp_path / name, {"train": {"s-1": matrix, "s-2": matrix[:40]}})
        store = prepare(source, tmp_path / f"{name}-data", frame_shift_ms=20).features()
        assert [(part.width, part.filterbank) for part in store.parts] == [(20, name == "together")]
        assert (store.frame_shift, store.frame_length) == (0.02, 0.05)
        cepstra = all_cepstra(store)
        assert cepstra.shape == (100, 39)
        if name == "apart":
            plain = store.array[:, :13]
            np.testing.assert_allclose(cepstra[:, :13], (plain - plain.mean(0)) / plain.std(0), atol=1e-3)
    narrow = given_corpus(tmp_path / "narrow", {"train": {"s-1": apart[:, :4]}})
    assert all_cepstra(prepare(narrow, tmp_path / "narrow-data").features()).shape == (60, 12)


def test_features_though_there_is_audio(tmp_path: Path) -> None:
    corpus = kaldi_corpus(tmp_path / "c", {"train": {"s-1": "YES", "s-2": "NO"}})
    matrices = features({"s-1": 48, "s-2": 48}, 9)
    write_archive(corpus / "train" / "feats.ark", matrices.items(), scp=corpus / "train" / "feats.scp")
    taken = prepare(corpus, tmp_path / "data", "lang/words.dic", given_features=True)
    assert taken.audio
    np.testing.assert_array_equal(taken.features().get("s-2"), matrices["s-2"])
    assert taken.splits["train"][0].sampling_rate == 8000
    computed = prepare(corpus, tmp_path / "other", "lang/words.dic")
    assert computed.features().array.shape == (96, 40)
    export_kaldi(taken, tmp_path / "out", Silent(), features=True)
    assert (tmp_path / "out" / "train" / "wav.scp").exists()
    place = read_scp(tmp_path / "out" / "train" / "feats.scp")["s-1"]
    np.testing.assert_array_equal(read_matrix(place), matrices["s-1"])


def test_all_splits_or_none(tmp_path: Path) -> None:
    corpus = kaldi_corpus(tmp_path / "c", {"train": {"s-1": "YES"}, "dev": {"t-1": "YES"}})
    write_archive(corpus / "dev" / "feats.ark", features({"t-1": 4}).items(), scp=corpus / "dev" / "feats.scp")
    (corpus / "dev" / "wav.scp").unlink()
    with pytest.raises(UserError, match=r"features are given .* but not for train"):
        prepare(corpus, tmp_path / "data", "lang/words.dic")


def test_no_recordings_for_lhotse(tmp_path: Path) -> None:
    corpus = prepare(given_corpus(tmp_path / "c", {"train": features({"s1-a": 4})}), tmp_path / "data")
    with pytest.raises(UserError, match="has features and no audio"):
        export_lhotse(corpus, tmp_path / "out")
