"""Spelling to sound: laws of EM and n-grams, rules put into a language are found, files are whole or refused."""

import gzip
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.cli import main
from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.lexicon.g2p import (
    EMPTY,
    FINAL,
    START,
    Automaton,
    G2p,
    estimate_automaton,
    g2p_of,
    guess_missing,
    load_g2p,
    save_g2p,
    train_g2p,
)
from roundelay_speech.lexicon.letter_phone import align_letters
from roundelay_speech.lexicon.lexicon import Lexicon, MissingWord, parse_lexicon
from roundelay_speech.prepared import load_corpus
from support.corpora import kaldi_corpus
from support.spelling import hold_out, judge, spelled_lexicon


@pytest.fixture(scope="module")
def lexicon() -> Lexicon:
    return spelled_lexicon(2500)


@pytest.fixture(scope="module")
def model(lexicon: Lexicon) -> G2p:
    return train_g2p(hold_out(lexicon)[0], order=4)


# alignment of letters and phones --------------------------------------------------------------------------------------


def test_em_never_loses_likelihood_and_cuts_are_the_words(lexicon: Lexicon) -> None:
    words = [(w.casefold(), p) for w in lexicon.words for p in lexicon.pronunciations[w]]
    found = align_letters([*words, ("a", ("A", "B", "C"))], rounds=6)
    assert all(b >= a - 1e-6 for a, b in itertools.pairwise(found.log_likelihoods))
    assert found.log_likelihoods[-1] > found.log_likelihoods[0]
    assert found.pairs[-1] is None  # more than two phones a letter
    for (word, phones), cut in zip(words, found.pairs, strict=False):
        assert cut is not None
        assert "".join(letters for letters, _ in cut) == word
        assert tuple(p for _, some in cut for p in some) == phones


def test_one_round_by_hand() -> None:
    """AB as X: A|X B|-, A|- B|X or AB|X. From equal probabilities the single pair is likeliest."""
    found = align_letters([("ab", ("X",))], rounds=1)
    assert found.log_likelihoods == [pytest.approx(math.log(2 / 25 + 1 / 5))]  # five pairs, each 1/5
    assert found.pairs == [(("ab", ("X",)),)]


# n-grams --------------------------------------------------------------------------------------------------------------


def probabilities(automaton: Automaton, node: int) -> np.ndarray:
    """(V + 1,) of every symbol, and the end, after the history of a node."""
    own = automaton.source == node
    p = np.zeros(automaton.symbols + 1)
    if node != EMPTY:
        p = np.exp(-automaton.back_off[node]) * probabilities(automaton, int(automaton.shorter[node]))
    p[automaton.symbol[own]] = np.exp(-automaton.cost[own])
    return p


def sequences(seed: int, symbols: int = 5, count: int = 200) -> list[list[int]]:
    rng = stream(seed, "sequences")
    chain = rng.dirichlet(np.full(symbols, 0.3), symbols)
    found = []
    for _ in range(count):
        sequence = [int(rng.integers(symbols))]
        while rng.random() < 0.8:
            sequence.append(int(rng.choice(symbols, p=chain[sequence[-1]])))
        found.append(sequence)
    return [*found, list(range(symbols))]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 5), st.sampled_from([3, 40, 300]))
def test_probabilities_sum_to_one_after_every_history(seed: int, order: int, count: int) -> None:
    automaton = estimate_automaton(sequences(seed, count=count), 5, order)
    assert automaton.length[START] == 1
    assert set(automaton.length) == set(range(order))
    for node in range(len(automaton.shorter)):
        assert probabilities(automaton, node).sum() == pytest.approx(1.0)
    assert (automaton.target[automaton.symbol == 5] == FINAL).all()
    # A history in full is never less sure of what it has seen than by way of the shorter one.
    for source, symbol, cost in zip(automaton.source, automaton.symbol, automaton.cost, strict=True):
        if source != EMPTY:
            shorter = probabilities(automaton, int(automaton.shorter[source]))[symbol]
            assert cost <= automaton.back_off[source] - math.log(shorter) + 1e-9


def exhaustive(model: G2p, letters: str) -> dict[tuple[str, ...], float]:
    """The cost of the best way to every pronunciation, by trying all."""
    a = model.automaton
    columns = (a.source.tolist(), a.symbol.tolist(), a.cost.tolist(), a.target.tolist())
    arc = {(s, w): (c, t) for s, w, c, t in zip(*columns, strict=True)}
    found: dict[tuple[str, ...], float] = {}

    def step(node: int, symbol: int) -> tuple[float, int]:
        if (node, symbol) in arc:
            return arc[node, symbol]
        cost, target = step(int(a.shorter[node]), symbol)
        return cost + float(a.back_off[node]), target

    def walk(rest: str, node: int, cost: float, phones: tuple[str, ...]) -> None:
        if not rest:
            total = cost + step(node, a.symbols)[0]
            found[phones] = min(total, found.get(phones, math.inf))
        for symbol, (chunk, sound) in enumerate(model.pairs):
            if rest and rest.startswith(chunk):
                more, target = step(node, symbol)
                walk(rest[len(chunk) :], target, cost + more, phones + sound)

    walk(letters, START, 0.0, ())
    return found


@pytest.mark.parametrize("word", ["ca", "shoe", "xice", "thoo"])
def test_the_search_finds_the_best_of_all(model: G2p, word: str) -> None:
    everything = exhaustive(model, word)
    best = sorted((cost, phones) for phones, cost in everything.items() if phones)
    guesses = model.pronounce(word, n=3)
    assert guesses[0].phones == best[0][1]
    for guess, (cost, _) in zip(guesses, best, strict=False):
        assert guess.cost == pytest.approx(cost)
        assert guess.cost == pytest.approx(everything[guess.phones])
    assert len({guess.phones for guess in guesses}) == len(guesses)


# words ----------------------------------------------------------------------------------------------------------------


def test_rules_are_learned(lexicon: Lexicon, model: G2p) -> None:
    held_out = hold_out(lexicon)[1]
    score = judge(model, held_out)
    assert score.words == len(held_out.words) > 60
    assert score.word_error_rate <= 3
    assert score.phone_error_rate <= 1


def test_errors_are_counted_to_the_nearest_pronunciation(model: G2p) -> None:
    right = model.pronounce("shoop")[0].phones
    reference = Lexicon({"SHOOP": (("B", "B", "B"), (*right, "B")), "1": (("AH", "B"),)})
    score = judge(model, reference)
    assert (score.words, score.wrong, score.phones, score.errors) == (2, 2, len(right) + 1 + 2, 1 + 2)


def test_parts_of_a_dictionary_are_all_of_it(lexicon: Lexicon) -> None:
    rest, held = hold_out(lexicon, 0.2)
    assert not set(rest.words) & set(held.words)
    assert {**rest.pronunciations, **held.pronunciations} == lexicon.pronunciations
    assert 0.15 < len(held.words) / len(lexicon.words) < 0.25


def test_what_a_spelling_is(model: G2p) -> None:
    plain = model.pronounce("SHOOP")
    assert model.pronounce("shoop") == model.pronounce("Shöop") == model.pronounce("SHO-OP") == plain != []
    for word in ("3D", "", "---", "ЖУК", "QUIZ"):  # the dictionary has no Q, U, Z
        assert model.pronounce(word) == []


def test_too_small_a_dictionary() -> None:
    with pytest.raises(UserError, match=r"has 3 words to learn spelling from; 500 are the least"):
        train_g2p(Lexicon({"YES": (("Y",),), "NO": (("N",),), "<NOISE>": (("SPN",),), "3D": (("D",),), "A": (("A",),)}))


def test_a_file_gives_the_same_guesses(model: G2p, tmp_path: Path) -> None:
    save_g2p(tmp_path / "g2p.json.gz", model)
    again = load_g2p(tmp_path / "g2p.json.gz")
    assert again.trained_on == model.trained_on
    for word in ("shoop", "cince", "bathoxe"):
        assert [g.phones for g in again.pronounce(word)] == [g.phones for g in model.pronounce(word)]
    save_g2p(tmp_path / "again.gz", again)
    assert (tmp_path / "again.gz").read_bytes() == (tmp_path / "g2p.json.gz").read_bytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: value | {"version": 99},
        lambda value: {k: v for k, v in value.items() if k != "arcs"},
        lambda value: value | {"pairs": value["pairs"][:3]},
        lambda value: value | {"arcs": [part[:-1] if i else part for i, part in enumerate(value["arcs"])]},
        lambda value: value | {"nodes": [[len(value["nodes"][0]) - 1] * len(value["nodes"][0]), *value["nodes"][1:]]},
        lambda value: value | {"nodes": value["nodes"][:2]},
        lambda value: [value],
        lambda value: value | {"arcs": [[2**70] * len(part) for part in value["arcs"]]},
        lambda value: value | {"nodes": [[-(2**70)], *value["nodes"][1:]]},
    ],
)
def test_a_broken_file_is_refused(model: G2p, tmp_path: Path, damage: object) -> None:
    path = tmp_path / "g2p.json.gz"
    save_g2p(path, model)
    value = json.loads(gzip.decompress(path.read_bytes()))
    path.write_bytes(gzip.compress(json.dumps(damage(value)).encode()))  # type: ignore[operator]
    with pytest.raises(UserError, match=r"g2p.json.gz: not a pronunciation model"):
        load_g2p(path)


def test_cut_files_are_refused(model: G2p, tmp_path: Path) -> None:
    path = tmp_path / "g2p.json.gz"
    save_g2p(path, model)
    whole = path.read_bytes()
    for part in (b"", whole[:5], whole[: len(whole) // 2], whole[:-4], b"text", whole[:100] + b"!" + whole[101:]):
        path.write_bytes(part)
        with pytest.raises(UserError, match=r"not a pronunciation model"):
            load_g2p(path)


# missing words --------------------------------------------------------------------------------------------------------


def test_guesses_are_listed(lexicon: Lexicon, tmp_path: Path) -> None:
    missing = [MissingWord("SHOOPEN", 3, "utt-1"), MissingWord("4X", 1, "utt-2")]
    extended, text = guess_missing(missing, lexicon, tmp_path / "g2p.json.gz")
    assert set(extended.words) - set(lexicon.words) == {"SHOOPEN"}
    assert extended.phones == lexicon.phones
    lines = text.splitlines()
    assert lines[1] == ";;; 4X: cannot be guessed (1 x, first in utt-2)"
    assert lines[2].startswith("SHOOPEN SH UW P EH N # 3 x, first in utt-1; cost ")
    assert parse_lexicon(text, "guesses").pronunciations["SHOOPEN"] == extended.pronunciations["SHOOPEN"]
    assert guess_missing([], lexicon, tmp_path / "none") == (lexicon, "")
    assert not (tmp_path / "none").exists()


def test_a_model_is_kept_for_its_dictionary(lexicon: Lexicon, tmp_path: Path) -> None:
    path = tmp_path / "g2p.json.gz"
    first = g2p_of(lexicon, path)
    written = path.stat().st_mtime_ns
    assert g2p_of(lexicon, path).trained_on == first.trained_on
    assert path.stat().st_mtime_ns == written
    assert g2p_of(spelled_lexicon(2000, seed=1), path).trained_on != first.trained_on
    assert path.stat().st_mtime_ns != written


def test_prepare_guesses_words_of_the_training_transcripts(
    lexicon: Lexicon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A word that only held-out sentences have is guessed to align them; the recogniser's lexicon does not get it."""
    known, alien = sorted(lexicon.words)[:2], "SHOOPEN"
    texts = {
        "train": {"s1-a": f"{known[0]} {alien}", "s1-b": f"{known[1]} 4X", "s2-a": known[0]},
        "dev": {"s3-a": "THOOPISH"},
        "test": {"s4-a": f"{known[0]} THOOPISH"},
    }
    source = kaldi_corpus(tmp_path / "source", texts)
    (source / "lang" / "words.dic").write_text(lexicon.to_text())

    def prepare(policy: str) -> str:
        arguments = ["--source", str(source), "--lexicon", str(source / "lang/words.dic"), "--on-missing-words", policy]
        assert main(["prepare", "kaldi", "--max-bad-share=1", "--data", str(tmp_path / "data"), *arguments]) == 0
        return " ".join(capsys.readouterr().out.split())

    assert "1 pronunciation was guessed from spelling; see" in prepare("guess")
    corpus = load_corpus(tmp_path / "data")
    assert corpus.guessed == 1
    assert set(corpus.lexicon.words) - set(lexicon.words) == {alien}
    assert [u.id for u in corpus.splits["train"]] == ["s1-a", "s2-a"]
    assert [one.id for one in corpus.left_out["train"]] == ["s1-b"]
    assert set(corpus.held_out_words) == {"THOOPISH"}
    assert corpus.alignable("test") == corpus.splits["test"]
    assert set(corpus.alignment_lexicon.words) == {*corpus.lexicon.words, "THOOPISH"}
    assert "THOOPISH TH UW P IH SH # 2 x, first in s3-a" in (tmp_path / "data" / "held_out_lexicon.txt").read_text()
    listed = (tmp_path / "data" / "guessed_lexicon.txt").read_text()
    assert "SHOOPEN SH UW P EH N # 1 x, first in s1-a" in listed
    assert ";;; 4X: cannot be guessed (1 x, first in s1-b)" in listed
    assert "guessed" not in prepare("skip")
    corpus = load_corpus(tmp_path / "data")
    assert (corpus.guessed, corpus.held_out_words, corpus.alignable("test")) == (0, {}, [])
    assert not list((tmp_path / "data").glob("guessed*"))
