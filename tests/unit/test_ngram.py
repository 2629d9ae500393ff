"""n-gram models: sums of probabilities, back-off arithmetic by hand, ARPA files that say where they are broken."""

import gzip
import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.errors import UserError
from roundelay_speech.decode.lm.arpa_file import LONGEST_LINE, read_arpa, to_text, write_arpa
from roundelay_speech.ngrams.estimate import Estimator, estimate
from roundelay_speech.ngrams.ngram import BEGIN, END, restrict

VOCABULARY = ["A", "B", "C", "D"]
sentences = st.lists(st.lists(st.sampled_from([*VOCABULARY, "OTHER"]), max_size=6), min_size=1, max_size=8)


def histories(order: int) -> list[tuple[str, ...]]:
    """Every history of fewer than `order` words, with and without the sentence begin."""
    plain = [h for n in range(order) for h in itertools.product(VOCABULARY, repeat=n)]
    return plain + [(BEGIN, *h) for h in plain if len(h) < order - 1]


@given(sentences, st.integers(1, 3), st.floats(0.05, 0.95))
def test_probabilities_sum_to_one_after_every_history(data: list[list[str]], order: int, discount: float) -> None:
    model = estimate(data, VOCABULARY, Estimator(order, discount=discount))
    for history in histories(order):
        total = sum(10 ** model.log10_probability(word, history) for word in [*VOCABULARY, END])
        assert total == pytest.approx(1.0, abs=1e-9), history


@given(sentences, st.integers(1, 3))
def test_file_holds_the_model(data: list[list[str]], order: int) -> None:
    """Reading back gives the same probabilities to the six decimals an ARPA file has."""
    import tempfile  # noqa: PLC0415  a fixture would be shared by all examples

    model = estimate(data, VOCABULARY, Estimator(order))
    with tempfile.TemporaryDirectory() as folder:
        write_arpa(Path(folder) / "lm.arpa", model)
        again = read_arpa(Path(folder) / "lm.arpa")
    for history, word in itertools.product(histories(order), [*VOCABULARY, END]):
        assert again.log10_probability(word, history) == pytest.approx(model.log10_probability(word, history), abs=3e-6)


def test_bigram_by_hand() -> None:
    """Sentences `A B` and `A C`, discount 0.5, V = {A, B, C, D, </s>}.

    Counts without <s>: A 2, B 1, C 1, </s> 2, together 6, of 4 kinds.
    P(A) = 1.5/6 + 0.5*4/6/5 = 0.25 + 1/15;  P(B) = 0.5/6 + 1/15 = 0.15;  P(D) = 1/15.
    After A: seen twice, B and C once each: bow = 0.5*2/2 = 0.5;  P(B|A) = 0.5/2 + 0.5 * 0.15 = 0.325;  P(D|A) = 0.5/15.
    D is never a history: P(B|D) = P(B).
    """
    model = estimate([["A", "B"], ["A", "C"]], VOCABULARY, Estimator(2, discount=0.5))
    for word, history, p in [
        ("A", [], 0.25 + 1 / 15),
        ("B", [], 0.15),
        ("D", [], 1 / 15),
        ("B", ["A"], 0.325),
        ("D", ["A"], 0.5 / 15),
        ("B", ["D"], 0.15),
        ("A", [BEGIN], 1.5 / 2 + 0.25 * (0.25 + 1 / 15)),
        ("B", ["C", "D", "A"], 0.325),  # only the last word counts
    ]:
        assert 10 ** model.log10_probability(word, history) == pytest.approx(p), (word, history)


def test_back_off_through_a_file_by_hand(tmp_path: Path) -> None:
    """A trigram file: the weights of `A B` and of `B` are paid on the way from `A B C` down to `C`."""
    (tmp_path / "lm.arpa").write_text(ARPA)
    model = read_arpa(tmp_path / "lm.arpa")
    assert model.order == 3
    assert model.log10_probability("B", [BEGIN, "A"]) == -0.1  # <s> A B is listed
    assert model.log10_probability("C", ["A", "B"]) == -0.3 - 0.2 - 0.9  # weights of A B, then B, then P(C)
    assert model.log10_probability("B", ["C", "A"]) == -0.25  # C A is no bigram: nothing to pay
    assert model.log10_probability("X", ["A"]) == -math.inf
    assert model.perplexity([["A", "B"]]) == pytest.approx(10 ** ((0.15 + 0.1 + (0.3 + 0.2 + 0.8)) / 3))


ARPA = """made by hand
\\data\\
ngram 1=5
ngram 2=2
ngram 3=1

\\1-grams:
-99 <s> -0.05
-0.8 </s>
-0.5 A -0.4
-0.7 B -0.2
-0.9 C

\\2-grams:
-0.15 <s> A -0.6
-0.25 A B -0.3

\\3-grams:
-0.1 <s> A B

\\end\\
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("\\data\\", "", 21, "ends before"),
        ("ngram 2=2", "ngram 2=3", 18, "promises 3 2-grams and there are 2"),
        ("ngram 2=2", "ngram 3=2", 4, "expected `ngram 2=COUNT`"),
        ("-0.7 B -0.2", "-0.7 B x", 11, "not numbers"),
        ("-0.7 B -0.2", "0.7 B -0.2", 11, "0 or less"),
        ("-0.7 B -0.2", "nan B -0.2", 11, "0 or less"),
        ("-0.7 B -0.2", "-0.7 A -0.2", 11, "comes twice"),
        ("-0.25 A B -0.3", "-0.25 A Z", 16, "'Z' is not among the 1-grams"),
        ("-0.25 A B -0.3", "-0.25 A", 16, "2 words"),
        ("-0.1 <s> A B", "-0.1 <s> A B -0.3", 19, "3 words"),
        ("\\3-grams:", "\\4-grams:", 18, "expected .3-grams:"),
        ("\\end\\", "", 21, "ends before"),
        ("-0.8 </s>", "-0.8 Z", 14, "</s> not among"),
    ],
)
def test_broken_file_names_the_line(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    path = tmp_path / "lm.arpa"
    path.write_text(ARPA.replace(old, new))
    with pytest.raises(UserError, match=f"^{path}:{line}: .*{message}"):
        read_arpa(path)


def test_words_outside_the_lexicon_are_reported_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "lm.arpa").write_text(ARPA)
    restricted = restrict(read_arpa(tmp_path / "lm.arpa"), ["B", "C", "UNUSED"])
    assert restricted.missing == ("A",)
    assert "1 words of the language model are not in the lexicon" in restricted.describe()
    assert restricted.model.vocabulary == ["B", "C"]
    assert all("A" not in gram for level in restricted.model.grams for gram in level)
    with pytest.raises(UserError, match="share no word"):
        restrict(read_arpa(tmp_path / "lm.arpa"), ["a", "b"])


def test_grams_without_their_history_are_counted(tmp_path: Path) -> None:
    (tmp_path / "lm.arpa").write_text(ARPA.replace("-0.15 <s> A -0.6", "-0.15 <s> B -0.6"))  # <s> A B is left alone
    restricted = restrict(read_arpa(tmp_path / "lm.arpa"), ["A", "B", "C"])
    assert (restricted.missing, restricted.orphans, restricted.model.grams[2]) == ((), 1, {})
    assert "1 n-grams whose history is missing" in restricted.describe()


def test_shorter_history_may_be_missing(tmp_path: Path) -> None:
    """Pruned models: A B C is a 3-gram and B C no 2-gram. As a history it gives up A and B at once."""
    text = ARPA.replace("-0.1 <s> A B", "-0.1 A B C").replace("ngram 3=1", "ngram 3=1")
    (tmp_path / "lm.arpa").write_text(text)
    model = read_arpa(tmp_path / "lm.arpa")
    assert model.log10_probability("C", ["A", "B"]) == -0.1
    assert model.log10_probability("A", ["A", "B"]) == pytest.approx(-0.3 - 0.2 - 0.5)
    assert model.log10_probability("A", ["B", "C"]) == -0.5  # B C is no history: nothing to pay


def test_gzipped_file_is_read_and_its_damage_named(tmp_path: Path) -> None:
    path = tmp_path / "lm.arpa.gz"
    model = estimate([["A", "B"], ["A", "C"]], VOCABULARY, Estimator(3))
    write_arpa(path, model)
    assert to_text(read_arpa(path)) == to_text(model)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=f"{path}: damaged gzip file"):
        read_arpa(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=f"{path}: not UTF-8"):
        read_arpa(path)
    with pytest.raises(UserError, match="no such file"):
        read_arpa(tmp_path / "none.arpa")


@pytest.mark.parametrize(
    ("data", "vocabulary", "order", "discount", "message"),
    [
        ([], ["A"], 2, 0.75, "no sentence"),
        ([["A"]], ["A"], 6, 0.75, "order 6"),
        ([["A"]], ["A"], 2, 1.0, "discount 1.0"),
        ([["A"]], ["A", "<s>"], 2, 0.75, "<s> cannot be"),
    ],
)
def test_bad_requests(data: list[list[str]], vocabulary: list[str], order: int, discount: float, message: str) -> None:
    with pytest.raises(UserError, match=message):
        estimate(data, vocabulary, Estimator(order, discount=discount))


def test_text_is_sorted_and_repeatable() -> None:
    data = [["B", "A"], ["A"]]
    assert to_text(estimate(data, ["A", "B"])) == to_text(estimate(list(reversed(data)), {"B", "A"}))


def test_a_line_without_an_end_is_refused_and_not_held(tmp_path: Path) -> None:
    """A small packed file may hold one endless line."""
    path = tmp_path / "lm.arpa.gz"
    path.write_bytes(gzip.compress(b"\\data\\\n" + b"a" * (LONGEST_LINE + 2)))
    with pytest.raises(UserError, match=r"lm\.arpa\.gz:2: a line of more than 16,777,216 characters"):
        read_arpa(path)
