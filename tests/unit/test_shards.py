"""Features in shards: the array of all, whatever the number of shards; folders that can be copied one by one."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.checksums import verify
from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay_speech.corpus.build import change_features
from roundelay_speech.data.joined import UNIT, FilePiece, JoinedFiles, let_go, read_ahead
from roundelay_speech.data.manifest import read_manifest
from roundelay_speech.features.cutting import cut_into_shards, even_cuts
from roundelay_speech.features.fbank import FbankConfig
from roundelay_speech.features.parts import only_fbank
from roundelay_speech.features.shards import MANIFEST, ROWS, SHARD, SHARDS
from roundelay_speech.hmm.gmm import all_cepstra
from roundelay_speech.prepared import Corpus, load_corpus
from support.corpora import kaldi_corpus, prepared

TEXTS = {
    "dev": {"s3-a": "GO YES"},
    "train": {f"s{speaker}-{take}": "YES NO" for speaker in (1, 2) for take in range(4)},
    "test": {"s4-a": "NO", "s4-b": "GO"},
}
BEHIND = 2 * UNIT  # bytes of a file that lie in the middle of the whole


def prepare(source: Path, data: Path, shards: int | None) -> Corpus:
    return prepared(source, data, *TEXTS, max_bad_share=1.0, shards=shards)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kaldi_corpus(tmp_path_factory.mktemp("speech") / "source", TEXTS)


@given(sizes=st.lists(st.integers(1, 2000), min_size=1, max_size=40), before=st.integers(0, 3), data=st.data())
def test_cuts_are_even_and_none_is_empty(sizes: list[int], before: int, data: st.DataObject) -> None:
    offsets = np.concatenate([[0], np.cumsum([7] * before + sizes)])
    shards = data.draw(st.integers(1, len(sizes)))
    cuts = even_cuts(offsets, before, before + len(sizes), shards)
    assert [cut[0] for cut in cuts] == [before, *(cut[1] for cut in cuts[:-1])]
    assert cuts[-1][1] == before + len(sizes)
    assert all(begin < end for begin, end in cuts)
    frames = [int(offsets[end] - offsets[begin]) for begin, end in cuts]
    assert len(cuts) == shards
    assert max(frames) <= sum(sizes) / shards + 2 * max(sizes)


def test_files_are_one_array_and_what_is_missing_is_zero(tmp_path: Path) -> None:
    whole = np.random.default_rng(0).standard_normal((3 * UNIT // 16 + 5, 4)).astype(np.float32)
    content = whole.tobytes()
    for name, begin, end in (("a", 0, UNIT), ("c", BEHIND, 4 * UNIT)):
        (tmp_path / name).write_bytes(content[begin:end].ljust(end - begin, b"\0"))
    pieces = [FilePiece(tmp_path / "a", 0, UNIT), FilePiece(tmp_path / "c", BEHIND, 4 * UNIT)]
    array = JoinedFiles(pieces, len(content)).array(*whole.shape)
    expected = whole.copy()
    expected[UNIT // 16 : BEHIND // 16] = 0
    assert np.array_equal(array, expected)
    assert not array.flags.writeable
    read_ahead(array, [0, UNIT // 16, len(array) - 3], [10, BEHIND // 16, len(array)])  # missing rows are no error
    let_go(array, [0], [len(array)])
    assert np.array_equal(array[::7], expected[::7])
    (tmp_path / "a").write_bytes(content[: UNIT - 1])
    with pytest.raises(ValueError, match=r"/a: 65535 bytes, not 65536"):
        JoinedFiles(pieces, len(content))


@pytest.mark.parametrize("shards", [1, 3, 8])
def test_a_corpus_in_shards_is_the_corpus(source: Path, tmp_path: Path, shards: int) -> None:
    plain, cut = (prepare(source, tmp_path / name, n) for name, n in (("plain", None), ("cut", shards)))
    store, other = plain.features(), cut.features()
    assert np.array_equal(other.array, store.array)
    assert np.array_equal(other.offsets, store.offsets)
    assert other.utterance_ids == store.utterance_ids
    assert cut.splits == plain.splits
    folder = other.folder / SHARDS
    assert not (other.folder / "features.npy").exists()
    assert len(list(folder.glob("train-*"))) == len(other.shards) == shards
    lines = [u.id for path in sorted(folder.glob("train-*")) for u in read_manifest(path / MANIFEST)]
    assert lines == [u.id for u in cut.splits["train"]]
    assert not [found for found in verify(folder) if found.fault]


def test_cut_anew_or_not_nothing_is_computed_again(source: Path, tmp_path: Path) -> None:
    before = np.array(prepare(source, tmp_path, 2).features().array)
    folder = load_corpus(tmp_path).features().folder / SHARDS
    state = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    again = prepare(source, tmp_path, None)  # as they are
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == state
    assert again.features().shards
    other = prepare(source, tmp_path, 4)
    assert np.array_equal(other.features().array, before)
    assert len(list(folder.glob("train-*"))) == 4


def test_new_features_are_in_one_file_again(source: Path, tmp_path: Path) -> None:
    prepare(source, tmp_path, 2)
    changed = change_features(tmp_path, only_fbank(FbankConfig(num_bins=40, low_freq=60.0)), Silent())
    store = changed.features()
    assert not store.shards
    assert not (store.folder / SHARDS).exists()


def test_what_an_interrupted_cut_has_written_stays(source: Path, tmp_path: Path) -> None:
    plain = prepare(source, tmp_path, None)
    before = np.array(plain.features().array)

    class Killed(Silent):
        def advance(self, n: int = 1, note: str = "") -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut_into_shards(plain.features(), plain.utterances, plain.splits["train"], 3, Killed())
    assert np.array_equal(load_corpus(tmp_path).features().array, before), "until the end it is as it was"
    (first,) = (plain.features().folder / SHARDS).glob(f"*/{SHARD}")
    state = first.stat().st_mtime_ns
    done = prepare(source, tmp_path, 3)
    assert first.stat().st_mtime_ns == state
    assert np.array_equal(done.features().array, before)


def test_with_some_shards_a_corpus_is_a_smaller_one(source: Path, tmp_path: Path) -> None:
    whole = prepare(source, tmp_path, 4)
    store = whole.features()
    shutil.rmtree(store.folder / SHARDS / "train-002-of-004")
    some = load_corpus(tmp_path)
    assert some.absent_shards == (2,)
    gone = [u.id for u in whole.splits["train"] if u.id not in {v.id for v in some.splits["train"]}]
    shard = store.shards[2]
    assert gone == list(store.utterance_ids[shard.first : shard.end])
    assert some.transcripts("train") == whole.transcripts("train"), "the text of all shards is here"
    left = some.features()
    for utterance in some.utterances:
        assert np.array_equal(left.get(utterance.id), store.get(utterance.id))
    with pytest.raises(UserError, match="in shard 2 of 4, which is not here"):
        left.get(gone[0])
    with pytest.raises(UserError, match="shards 2 of 4 are not here, and cepstra are normalised over all utterances"):
        all_cepstra(left)
    with pytest.raises(UserError, match="not all of its shards are here"):
        change_features(tmp_path, only_fbank(FbankConfig(num_bins=8)), Silent())


def test_what_does_not_belong_together_is_named(source: Path, tmp_path: Path) -> None:
    folder = prepare(source, tmp_path / "data", 2).features().folder
    other = prepare(source, tmp_path / "other", 4).features().folder / SHARDS
    shutil.copytree(folder, tmp_path / "kept")

    def refused(match: str) -> None:
        with pytest.raises(UserError, match=match):
            load_corpus(tmp_path / "data").features()
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "kept", folder)

    first = folder / SHARDS / "train-000-of-002"
    shutil.rmtree(first)
    shutil.copytree(other / "train-000-of-004", first)
    refused("train-000-of-002: a shard of other features")
    (first / ROWS).write_bytes((first / ROWS).read_bytes()[:-1])
    refused(r"train-000-of-002/rows.f32: \d+ bytes")
    shutil.rmtree(folder / SHARDS / "held-out-1")
    refused("held-out-1: missing .* Every host needs it")
    for path in (folder / SHARDS).glob("train-*"):
        shutil.rmtree(path)
    refused("none of the 2 shards")
    with pytest.raises(UserError, match="Ask for 1 to 8"):
        prepare(source, tmp_path / "data", 9)
