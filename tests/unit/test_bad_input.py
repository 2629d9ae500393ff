"""Damaged files: each is read as something sound, or refused with its name and a place; nothing else can happen."""

import dataclasses
import gzip
import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from roundelay.core.progress import Silent
from roundelay_speech.audio.reading import AudioError, audio_length, read_audio, read_header
from roundelay_speech.corpus.formats.export import write_part
from roundelay_speech.corpus.formats.kaldi import KaldiOptions, read_data_dir
from roundelay_speech.corpus.formats.lhotse import read_part
from roundelay_speech.corpus.formats.matrices import store_matrices
from roundelay_speech.data.manifest import problems_of, read_manifest, write_manifest
from roundelay_speech.decode.lm.arpa_file import read_arpa, write_arpa
from roundelay_speech.hmm.formats.kaldi_model import read_transition_model, read_tree
from roundelay_speech.hmm.formats.textgrid import Interval, TextGrid, Tier, read_textgrid, write_textgrid
from roundelay_speech.kaldi_io.objects import read_archive, write_archive
from roundelay_speech.lexicon.lexicon import parse_lexicon, read_lexicon
from roundelay_speech.ngrams.estimate import Estimator, estimate
from support import kaldi_files
from support.corpora import DICTIONARY, RATE, kaldi_corpus, speechlike, utterance, write_lines
from support.kaldi_files import TOPOLOGY, TREE, TRIPLES
from support.mutations import damaged, may_be_refused
from support.named_corpora import sphere

fuzz = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = kaldi_corpus(tmp_path_factory.mktemp("bad") / "c", {"train": {"s-1": "YES NO", "s-2": "GO", "s-3": "NO"}})
    train = folder / "train"
    write_lines(train / "segments", {"s-1": "s-1 0.1 0.3", "s-2": "s-2 0 -1", "s-3": "s-1 0.25 0.5"})
    write_lines(train / "spk2gender", {"s": "f"})
    write_lines(train / "spk2utt", {"s": "s-1 s-2 s-3"})
    write_lines(train / "utt2dur", {"s-1": "0.2", "s-2": "0.5", "s-3": "0.25"})
    write_lines(train / "reco2dur", {"s-1": "0.5", "s-2": "0.5"})
    return folder


TABLES = ["wav.scp", "text", "utt2spk", "segments", "spk2gender", "spk2utt", "utt2dur", "reco2dur"]


@fuzz
@given(data=st.data(), name=st.sampled_from(TABLES))
def test_data_directories(corpus: Path, data: st.DataObject, name: str) -> None:
    path = corpus / "train" / name
    whole = path.read_bytes()
    path.write_bytes(data.draw(damaged(whole)))
    try:
        with may_be_refused(rf"{corpus}/train/[a-z0-9.]+:(\d+:)? "):
            read = read_data_dir(corpus / "train", corpus, KaldiOptions("skip"))
            assert not [problem for u in read.utterances for problem in problems_of(u)]
            for one in read.left_out:
                assert one.reason.startswith(f"{one.id}: {corpus}/train/")
    finally:
        path.write_bytes(whole)


@pytest.fixture(scope="module")
def given_features(corpus: Path) -> Path:
    """Data directories with features and statistics instead of audio."""
    folder = corpus.parent / "given"
    train = folder / "train"
    rng = np.random.default_rng(5)
    matrices = {f"s-{n}": rng.standard_normal((4 + n, 3)).astype(np.float32) for n in (1, 2, 3)}
    sums = np.array([[0.5, 0.2, 0.1, 9], [9, 9, 9, 0]])
    write_archive(train / "feats.ark", matrices.items(), scp=train / "feats.scp")
    write_archive(train / "cmvn.ark", [("s", sums)], scp=train / "cmvn.scp", text=True)
    write_lines(train / "text", dict.fromkeys(matrices, "YES"))
    write_lines(train / "utt2spk", dict.fromkeys(matrices, "s"))
    (train / "frame_shift").write_text("0.01\n")
    return folder


@fuzz
@given(data=st.data(), name=st.sampled_from(["feats.scp", "feats.ark", "cmvn.scp", "cmvn.ark", "frame_shift"]))
def test_given_features(given_features: Path, data: st.DataObject, name: str) -> None:
    """From scripts and archives to the feature store."""
    train = given_features / "train"
    path = train / name
    whole = path.read_bytes()
    path.write_bytes(data.draw(damaged(whole)))
    try:
        with may_be_refused(rf"{given_features}/train/[a-z0-9_.]+(:\d+:|:| ?\[|`)|of the features|[0-9]+ speaker"):
            read = read_data_dir(train, given_features, KaldiOptions("skip"))
            for one in read.left_out:
                assert one.reason.startswith(f"{one.id}: {train}/")
            if read.utterances:
                assert read.matrices is not None
                rate = read.utterances[0].sampling_rate
                store = store_matrices(read.utterances, given_features / "store", read.matrices, Silent(), rate)
                assert np.isfinite(store.array).all()
                assert np.isfinite(store.speakers.mean).all()
                assert (store.speakers.std > 0).all()
                assert [store.frames(u.id) * rate for u in read.utterances] == [
                    pytest.approx(u.num_samples * 1000 / read.matrices.frame_shift_ms) for u in read.utterances
                ]
    finally:
        path.write_bytes(whole)


@fuzz
@given(data=st.data())
def test_manifests(corpus: Path, data: st.DataObject) -> None:
    path = corpus / "m.jsonl"
    write_manifest(path, [utterance("a-1", "a.wav", gender="f"), utterance("a-2", "a.wav", start=0.25)])
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    with may_be_refused(rf"{path}(:\d+: |: not UTF-8 text \(byte \d+)"):
        read = read_manifest(path)
        write_manifest(path, read)
        assert read_manifest(path) == read


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@fuzz
@given(
    value=JSON | st.integers(10**300, 10**310),
    field=st.sampled_from([f.name for f in dataclasses.fields(utterance("a", "b"))]),
)
def test_manifests_with_any_value(corpus: Path, value: object, field: str) -> None:
    path = corpus / "v.jsonl"
    fields = dataclasses.asdict(utterance("a-1", "a.wav")) | {field: value}
    path.write_text(json.dumps(fields) + "\n")
    with may_be_refused(f"{path}:1: "):
        write_manifest(path, read_manifest(path))


@fuzz
@given(data=st.data(), kind=st.sampled_from(["cuts", "recordings", "supervisions"]), packed=st.booleans())
def test_lhotse_manifests(corpus: Path, data: st.DataObject, kind: str, packed: bool) -> None:
    folder = corpus / "lhotse"
    write_part(folder, "x", [utterance("s-1", "wav/s-1.wav", gender="f"), utterance("s-2", "wav/s-2.wav")], corpus)
    path = folder / f"{kind}_x.jsonl.gz"
    whole = path.read_bytes()
    path.write_bytes(data.draw(damaged(whole)) if packed else gzip.compress(data.draw(damaged(gzip.decompress(whole)))))
    kinds = (
        {"cuts": path} if kind == "cuts" else {k: folder / f"{k}_x.jsonl.gz" for k in ("recordings", "supervisions")}
    )
    with may_be_refused(rf"{folder}/\w+_x\.jsonl\.gz(:\d+)?: "):
        kept, left_out = read_part(kinds, corpus, "skip")
        assert not [problem for u in kept for problem in problems_of(u)]
        for one in left_out:
            assert re.match(rf"{re.escape(one.id)}: {folder}/\w+_x\.jsonl\.gz:\d+: ", one.reason)


@fuzz
@given(value=JSON, place=st.sampled_from(["cut", "recording", "source", "supervision"]), data=st.data())
def test_lhotse_cuts_with_any_value(corpus: Path, value: object, place: str, data: st.DataObject) -> None:
    folder = corpus / "lhotse-any"
    write_part(folder, "x", [utterance("s-1", "wav/s-1.wav", gender="f")], corpus)
    path = folder / "cuts_x.jsonl"
    cut = json.loads(gzip.decompress((folder / "cuts_x.jsonl.gz").read_bytes()))
    record = {
        "cut": cut,
        "recording": cut["recording"],
        "source": cut["recording"]["sources"][0],
        "supervision": cut["supervisions"][0],
    }[place]
    record[data.draw(st.sampled_from(sorted(record)))] = value
    path.write_text(json.dumps(cut) + "\n")
    with may_be_refused(f"{path}"):
        kept, _ = read_part({"cuts": path}, corpus, "skip")
        assert not [problem for u in kept for problem in problems_of(u)]


REALS: dict[str, npt.NDArray[Any]] = {"s-1": np.arange(6, dtype=np.float32).reshape(3, 2), "s-2": np.ones((2, 2))}
GRID = TextGrid(0, 1.5, (Tier("words", (Interval(0, 0.5, ""), Interval(0.5, 1.5, 'say "no"'))),))
SPHERE = [0.3 * np.sin(np.arange(50.0))] * 2
FILES: dict[str, tuple[Callable[[Path, bool], object], Callable[[Path], object], str]] = {
    "tree": (lambda path, _: kaldi_files.write_tree(path, 3, 1, TREE), read_tree, "{}"),
    "model": (
        lambda path, tuples: kaldi_files.write_model(path, TOPOLOGY, TRIPLES, tuples),
        read_transition_model,
        "{}",
    ),
    "matrices": (
        lambda path, text: write_archive(path, REALS.items(), text=text),
        lambda path: list(read_archive(path, "matrix")),
        "^{}: byte ",
    ),
    "vectors": (
        lambda path, text: write_archive(path, [(key, one.ravel()) for key, one in REALS.items()], text=text),
        lambda path: list(read_archive(path, "vector")),
        "^{}: byte ",
    ),
    "integers": (
        lambda path, text: write_archive(path, [("s-1", np.arange(6)), ("s-2", np.arange(4))], text=text),
        lambda path: list(read_archive(path, "ints")),
        "^{}: byte ",
    ),
    "grid": (lambda path, _: write_textgrid(path, GRID), read_textgrid, "{}"),
    "sphere": (lambda path, _: sphere(path, SPHERE), read_header, "{}"),
    "arpa": (
        lambda path, _: write_arpa(path, estimate([["A", "B"], ["A"]], ["A", "B"], Estimator(3))),
        read_arpa,
        "{}",
    ),
}
"""Of a kind of file: what writes one, in its text form or not, what reads it, and what a refusal says of its path."""


@pytest.mark.parametrize("kind", FILES)
@fuzz
@given(data=st.data(), text=st.booleans(), packed=st.booleans())
def test_files_of_models(corpus: Path, kind: str, data: st.DataObject, text: bool, packed: bool) -> None:
    write, read, said = FILES[kind]
    path = corpus / kind
    write(path, text)
    whole = path.read_bytes()
    if packed and kind in ("matrices", "vectors", "integers", "arpa"):
        path, whole = path.with_suffix(".gz"), gzip.compress(whole)
    path.write_bytes(data.draw(damaged(whole)))
    with may_be_refused(said.format(path)):
        read(path)


@fuzz
@given(data=st.data())
def test_lexicons(corpus: Path, data: st.DataObject) -> None:
    path = corpus / "d.dic"
    text = f"{DICTIONARY}YES(2) Y AE S  # said so\n;;; a comment\nRE-DO R IY D UW\n".encode()
    path.write_bytes(data.draw(damaged(text)))
    with may_be_refused(rf"{path}(:\d+: |: not UTF-8 text \(byte \d+|: no words)"):
        lexicon = read_lexicon(path)
        assert parse_lexicon(lexicon.to_text(), "again") == lexicon


@fuzz
@example("A(2)(3) B\n").via("two numbers")
@example(" ;;;A B\nC D\n").via("a comment after a blank")
@given(text=st.text(st.sampled_from("AB()12#; \t\n\0\r\x1c\u2028"), max_size=30))
def test_lexicons_of_odd_characters(text: str) -> None:
    """Read, written and read again a lexicon is the same."""
    with may_be_refused(r"words\.dic:(\d+:)? "):
        lexicon = parse_lexicon(text, "words.dic")
        assert parse_lexicon(lexicon.to_text(), "again").pronunciations == lexicon.pronunciations


FORMATS = {"NIST": "PCM_16", "WAV": "PCM_16", "FLAC": "PCM_16", "AIFF": "PCM_16", "OGG": "VORBIS"}


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("sounds")
    for form, subtype in FORMATS.items():
        soundfile.write(folder / form, speechlike(0.5, RATE), RATE, format=form, subtype=subtype)
    return {form: (folder / form).read_bytes() for form in FORMATS}


@fuzz
@given(data=st.data(), form=st.sampled_from(sorted(FORMATS)), head=st.booleans())
def test_sounds(corpus: Path, sounds: dict[str, bytes], data: st.DataObject, form: str, head: bool) -> None:
    """All the samples that were asked for come, or an error with the name of the file."""
    path = corpus / "sound"
    whole = sounds[form]
    # Half of the time only the header is damaged, which is where the lies are.
    size = 200 if head else len(whole)
    path.write_bytes(data.draw(damaged(whole[:size])) + whole[size:])
    for samples in (RATE // 2, None):
        with may_be_refused(str(path)):
            rate, there = audio_length(path)
            wanted = min(samples or there, there)
            asked = utterance("a-1", "sound", sampling_rate=rate, num_samples=wanted, duration=wanted / rate)
            assert len(read_audio(asked, corpus)) == wanted


def test_a_header_that_declares_days_takes_no_memory(tmp_path: Path, sounds: dict[str, bytes]) -> None:
    """A FLAC file whose header claims 2^36 - 1 samples."""
    content = bytearray(sounds["FLAC"])
    content[21] |= 0x0F
    content[22:26] = b"\xff" * 4
    (tmp_path / "a.flac").write_bytes(content)
    try:
        rate, samples = audio_length(tmp_path / "a.flac")
    except AudioError:
        return
    tracemalloc.start()
    with pytest.raises(AudioError, match=r"a\.flac"):
        read_audio(utterance("a", "a.flac", num_samples=samples, duration=samples / rate), tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20
