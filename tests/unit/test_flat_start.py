"""From a flat start to alignments, on a corpus whose every frame is known."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay_speech.data.arrays import Float32
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.hmm.alignment import FIT_FILE, LOG, TREE, Alignment, AlignSummary
from roundelay_speech.hmm.flat_start import AlignConfig, Unfinished, kept_in, train_alignments
from roundelay_speech.hmm.gmm import load_mixtures
from roundelay_speech.hmm.task import ModelScores, RealignConfig, Task, realign, scratch_folder
from roundelay_speech.hmm.tree import windows
from roundelay_speech.prepared import Corpus
from support.damage import forget_checksums
from support.said import Said
from support.toy_corpus import QUICK, SIZES, Truth, toy_corpus

ALONE = RealignConfig(workers=1)
Made = tuple[Corpus, FeatureStore, Truth, Alignment]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("toy")
    corpus, store, truth = toy_corpus(folder, seed=1)
    train_alignments(corpus, store, QUICK, folder / "ali", Silent())
    return corpus, store, truth, Alignment.load(folder / "ali")


def test_known_phones_come_back(made: Made) -> None:
    _, store, truth, alignment = made
    labels = np.concatenate([truth[name] for name in store.utterance_ids])
    assert (alignment.phones == labels[:, 0]).mean() > 0.98
    assert (alignment.states == labels[:, 1]).mean() > 0.94


def test_pdfs_are_those_of_the_tying(made: Made) -> None:
    _, store, _, alignment = made
    assert alignment.pdf.dtype == np.int32
    assert alignment.num_pdfs == alignment.tying.num_pdfs == alignment.summary.num_pdfs <= 40
    for name in store.utterance_ids:
        first, frames = store.span(name)
        own = slice(first, first + frames)
        context = windows(alignment.phones[own], alignment.states[own])
        assert (alignment.pdf[own] == alignment.tying.table[tuple(context.T)]).all()
    assert alignment.counts().sum() == len(alignment.pdf)


def test_summary_and_log(made: Made) -> None:
    _, _, truth, alignment = made
    summary = alignment.summary
    assert summary.utterances == summary.aligned == SIZES
    assert summary.failed == {}
    silence = np.concatenate([truth[f"train-{i}"][:, 0] == 1 for i in range(SIZES["train"])]).mean()
    assert summary.silence_share == pytest.approx(silence, abs=0.02)
    lines = [json.loads(line) for line in (alignment.folder / "log.jsonl").read_text().splitlines()]
    assert [line["stage"] for line in lines] == ["monophones"] * 8 + ["triphones"] * 3
    likelihoods = [line["log_likelihood"] for line in lines if "log_likelihood" in line]
    assert likelihoods[6] > likelihoods[0]
    assert not list(alignment.folder.glob(".*"))  # nothing is left behind


def test_workers_change_nothing(made: Made, tmp_path: Path) -> None:
    corpus, store, _, alignment = made
    train_alignments(corpus, store, dataclasses.replace(QUICK, workers=2), tmp_path, Silent())
    again = Alignment.load(tmp_path)
    assert np.array_equal(again.pdf, alignment.pdf)
    assert again.tree == alignment.tree


def test_a_finished_alignment_is_not_made_again(made: Made) -> None:
    corpus, store, _, alignment = made
    summary = train_alignments(corpus, store, dataclasses.replace(QUICK, workers=2), alignment.folder, Silent())
    assert summary.again
    assert summary == alignment.summary
    assert "there already" in str(summary)
    with pytest.raises(UserError, match="differs in tied_states, seed"):
        train_alignments(corpus, store, dataclasses.replace(QUICK, tied_states=41, seed=1), alignment.folder, Silent())
    other = dataclasses.replace(corpus, splits=corpus.splits | {"dev": corpus.splits["dev"][1:]})
    with pytest.raises(UserError, match="differs in utterances"):
        train_alignments(other, store, QUICK, alignment.folder, Silent())


def test_utterances_too_short_are_named_and_left_out(tmp_path: Path) -> None:
    corpus, store, _ = toy_corpus(tmp_path, short=3)
    summary = train_alignments(corpus, store, QUICK, tmp_path / "ali", Silent())
    assert set(summary.failed) == {"train-0", "train-1", "train-2"}
    assert all(reason.startswith("too short: 2 frames") for reason in summary.failed.values())
    assert summary.aligned == SIZES | {"train": SIZES["train"] - 3}
    assert "left out: train-0 (too short: 2 frames" in str(summary)
    alignment = Alignment.load(tmp_path / "ali")
    assert (alignment.pdf[:6] == -1).all()
    assert (alignment.pdf[6:] >= 0).all()
    assert (alignment.phones[:6] == 0).all()


def test_realignment_with_the_truth_is_the_truth(made: Made, tmp_path: Path) -> None:
    corpus, store, truth, alignment = made

    def loglikes_of(name: str) -> Float32:
        labels = truth[name]
        pdf = alignment.tying.table[tuple(windows(labels[:, 0], labels[:, 1]).T)]
        scores = np.full((len(labels), alignment.num_pdfs), -8.0, np.float32)
        scores[np.arange(len(labels)), pdf] = 0.0
        return scores

    summary = realign(
        corpus, store, alignment, ModelScores(loglikes_of, "truth"), out=tmp_path, progress=Silent(), config=ALONE
    )
    again = Alignment.load(tmp_path)
    labels = np.concatenate([truth[name] for name in store.utterance_ids])
    assert (again.phones == labels[:, 0]).mean() > 0.99  # tied states leave some boundaries open
    assert summary.made_by == "truth"
    assert summary.changed_share == pytest.approx(float((again.pdf != alignment.pdf).mean()))
    assert again.tree == alignment.tree
    others = ModelScores(loglikes_of, "other")
    with pytest.raises(UserError, match=r"differs in models \(made by truth\)"):
        realign(corpus, store, alignment, others, out=tmp_path, progress=Silent(), config=ALONE)


def test_unusable_loglikes_name_the_utterance(made: Made, tmp_path: Path) -> None:
    corpus, store, _, alignment = made
    for scores, message in [
        (np.zeros((1, alignment.num_pdfs), np.float32), "train-0: log-likelihoods are"),
        (np.full((store.frames("train-0"), alignment.num_pdfs), np.nan, np.float32), "train-0: .*NaN"),
    ]:
        given: dict[str, Float32] = dict.fromkeys(store.utterance_ids, scores)
        scores_of = ModelScores(given.__getitem__, "x")
        with pytest.raises(UserError, match=message):
            realign(corpus, store, alignment, scores_of, out=tmp_path, progress=Silent(), config=ALONE)


def test_broken_alignment_is_named(made: Made, tmp_path: Path) -> None:
    corpus, store, *_ = made
    with pytest.raises(UserError, match="no alignment here"):
        Alignment.load(tmp_path)
    train_alignments(corpus, store, QUICK, tmp_path, Silent())
    whole = (tmp_path / "alignment.npy").read_bytes()
    for name in ("alignment.npy", "phones.npy", "states.npy", "tree.json"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:150] + bytes([content[150] ^ 1]) + content[151:])
        with pytest.raises(UserError, match=rf"{name}: damaged, .*Delete {tmp_path} and align again"):
            Alignment.load(tmp_path)
        (tmp_path / name).write_bytes(content)
    forget_checksums(tmp_path / "align.json")
    assert len(Alignment.load(tmp_path).pdf) == len(store.array)
    (tmp_path / "alignment.npy").write_bytes(whole[:-400])
    with pytest.raises(UserError, match="broken alignment"):
        Alignment.load(tmp_path)
    np.save(tmp_path / "alignment.npy", np.zeros(3, np.int32))
    with pytest.raises(UserError, match="do not belong together"):
        Alignment.load(tmp_path)


def test_bad_options_are_listed_together() -> None:
    with pytest.raises(UserError, match=r"(?s)tied_states is 0.*beam is 0"):
        AlignConfig(tied_states=0, beam=0)
    with pytest.raises(UserError, match=r"retry_beam is 5"):
        AlignConfig(retry_beam=5)


def test_leftovers_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".aligning-999999999").mkdir()
    (tmp_path / f".aligning-{os.getppid()}").mkdir()  # of a run that lives
    with scratch_folder(tmp_path) as folder:
        assert {path.name for path in tmp_path.iterdir()} == {folder.name, f".aligning-{os.getppid()}"}
    assert not folder.exists()


def test_words_that_were_not_said_are_named_and_left_out(made: Made, tmp_path: Path) -> None:
    """Every frame of two utterances speaks for silence alone: whoever begins to speak falls out of the widest beam."""
    corpus, store, _, alignment = made
    silence = np.unique(alignment.tying.table[:, 1])

    def loglikes_of(name: str) -> Float32:
        first, frames = store.span(name)
        scores = np.full((frames, alignment.num_pdfs), -1000.0, np.float32)
        if name in ("train-3", "dev-1"):
            scores[:, silence] = 0.0
        else:
            scores[np.arange(frames), alignment.pdf[first : first + frames]] = 0.0
        return scores

    def again(folder: str, share: float) -> AlignSummary:
        return realign(
            corpus,
            store,
            alignment,
            ModelScores(loglikes_of, "silence"),
            out=tmp_path / folder,
            progress=Silent(),
            config=dataclasses.replace(ALONE, failure_share=share),
        )

    summary = again("some", 0.1)
    assert set(summary.failed) == {"train-3", "dev-1"}
    assert summary.aligned == SIZES | {"train": SIZES["train"] - 1, "dev": SIZES["dev"] - 1}
    assert "left out: train-3 (no path: speech and words do not match" in str(summary)
    first, frames = store.span("train-3")
    assert (Alignment.load(tmp_path / "some").pdf[first : first + frames] == -1).all()
    with pytest.raises(UserError, match=r"2 utterances of 72 cannot be aligned \(2 x no path\); 1 % may be left out"):
        again("fewer", 0.01)
    assert not (tmp_path / "fewer" / "align.json").exists()


def test_fewer_tied_states_than_asked_for_are_explained(made: Made) -> None:
    summary = made[3].summary

    def told(asked: int) -> str:
        return str(dataclasses.replace(summary, config={**summary.config, "tied_states": asked}))

    assert "asked for" not in told(summary.num_pdfs)
    assert "(9999 asked for: no further split leaves 20 frames on both sides and gains 100 nats" in told(9999)
    assert "(3 asked for: every state of every phone has one at least)" in told(3)


def test_held_out_utterances_with_unknown_words_do_not_stop_the_run(tmp_path: Path) -> None:
    """Preparing with `skip` was consent to leave them out; they are named all the same."""
    corpus, store, _ = toy_corpus(tmp_path)
    test = [dataclasses.replace(u, text=f"{u.text} ALIEN") for u in corpus.splits["test"][1:]]
    splits = corpus.splits | {"test": [corpus.splits["test"][0], *test]}
    summary = train_alignments(
        dataclasses.replace(corpus, splits=splits, on_missing_words="skip"),
        store,
        dataclasses.replace(QUICK, failure_share=0.0),
        tmp_path / "ali",
        Silent(),
    )
    assert summary.aligned == SIZES | {"test": 1}
    assert summary.failed == {u.id: "has words that are not in the lexicon" for u in test}
    guessed = dataclasses.replace(
        corpus, splits=splits, on_missing_words="guess", held_out_words={"ALIEN": (("AA", "N"),)}
    )
    config = dataclasses.replace(QUICK, mono_passes=3, mono_realign=(1, 2), failure_share=1.0)
    assert train_alignments(guessed, store, config, tmp_path / "guessed", Silent()).failed == {}


class Killed(BaseException):
    """The death of a process, at a place of its work."""


@pytest.mark.parametrize("at", [3, 9])
def test_an_interrupted_alignment_goes_on_to_the_same_bits(
    made: Made, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after a pass of monophones, and two later; after the first of triphones, and the last."""
    corpus, store, _, whole = made
    keep, passes = Unfinished.keep, 0

    def until(*given: object) -> None:
        nonlocal passes
        keep(*given)  # type: ignore[arg-type]
        passes += 1
        if passes in (at, at + 2):
            raise Killed

    monkeypatch.setattr(Unfinished, "keep", until)
    runs = 0
    while not (tmp_path / "align.json").exists():
        runs += 1
        try:
            train_alignments(corpus, store, QUICK, tmp_path, Silent())
        except Killed:
            assert kept_in(tmp_path)
    assert runs == 3
    assert passes == 11  # no pass was made twice
    for name in ("mono.npz", "gmm.npz"):
        one, other = load_mixtures(whole.folder / name), load_mixtures(tmp_path / name)
        assert all(np.array_equal(getattr(one, key), getattr(other, key)) for key in ("weights", "means", "variances"))
    for name in (LOG, "align.json", TREE, FIT_FILE):
        assert (tmp_path / name).read_bytes() == (whole.folder / name).read_bytes()
    assert not (tmp_path / "unfinished").exists()


def test_what_is_kept_of_another_or_damaged_is_begun_anew(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, store, _, whole = made
    keep = Unfinished.keep

    def once(*given: object) -> None:
        keep(*given)  # type: ignore[arg-type]
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Unfinished, "keep", once)
        with pytest.raises(Killed):
            train_alignments(corpus, store, QUICK, tmp_path, Silent())
    other = Task.of(corpus, store, "gmm", dataclasses.replace(QUICK, seed=1).deciding())
    assert Unfinished.of(tmp_path, other)[1].endswith("is of another corpus, configuration or version: begun anew")
    file = tmp_path / "unfinished/mixtures-monophones-1.npz"
    file.write_bytes(file.read_bytes()[:-1])
    said = Said()
    train_alignments(corpus, store, QUICK, tmp_path, said)
    assert any("egun anew" in note for note in said.lines)
    assert (tmp_path / "align.json").read_bytes() == (whole.folder / "align.json").read_bytes()
