"""Estimators against their equations spelled out with dictionaries; pruning against the divergence summed by hand."""

import itertools
import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.ngrams.estimate import FALLBACK, Estimator, estimate
from roundelay_speech.ngrams.ngram import BEGIN, END, Arpa

VOCABULARY = ["A", "B", "C", "D"]
PREDICTED = [*VOCABULARY, END]
texts = st.lists(st.lists(st.sampled_from([*VOCABULARY, "OTHER"]), max_size=6), min_size=1, max_size=10)
Gram = tuple[str, ...]


def random_text(sentences: int) -> list[list[str]]:
    """Enough text for every count of counts: words follow each other unevenly."""
    rng = stream(0, "text")
    table = rng.dirichlet(np.full(len(VOCABULARY), 0.4), size=(len(VOCABULARY), len(VOCABULARY)))
    result = []
    for _ in range(sentences):
        words = [0, 1]
        while rng.random() < 0.8:
            words.append(int(rng.choice(len(VOCABULARY), p=table[words[-2], words[-1]])))
        result.append([VOCABULARY[w] for w in words[1:]])
    return result


class ByDefinition:
    """Interpolated modified Kneser-Ney as Chen and Goodman write it, n-gram by n-gram, with nothing remembered."""

    def __init__(self, sentences: list[list[str]], order: int, cutoffs: tuple[int, ...] = ()) -> None:
        self.order = order
        self.raw: Counter[Gram] = Counter()
        for sentence in sentences:
            words = (BEGIN, *sentence, END)
            for n in range(1, order + 1):
                for i in range(len(words) - n + 1):
                    gram = words[i : i + n]
                    if all(w in PREDICTED or w == BEGIN for w in gram):
                        self.raw[gram] += 1
        self.kept = {g for g, c in self.raw.items() if len(g) == 1 or not cutoffs or c >= cutoffs[len(g) - 1]}
        before: dict[Gram, set[str]] = defaultdict(set)
        for gram in self.raw:
            before[gram[1:]].add(gram[0])
        self.a = {
            gram: count if len(gram) == order or gram[0] == BEGIN else max(1, len(before[gram]))
            for gram, count in self.raw.items()
            if gram != (BEGIN,)
        }
        self.discount = {}
        for n in range(1, order + 1):
            n1, n2, n3, n4 = (sum(a == k for g, a in self.a.items() if len(g) == n) for k in (1, 2, 3, 4))
            d = [0.5, 1.0, 1.5]
            if n1 and n2 and n3 and n4:
                y = n1 / (n1 + 2 * n2)
                own = [1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
                d = own if all(0 < x < k for k, x in enumerate(own, 1)) else d
            self.discount[n] = d

    def probability(self, word: str, history: Gram) -> float:
        history = history[max(0, len(history) - self.order + 1) :]
        lower = 1 / len(PREDICTED) if not history else self.probability(word, history[1:])
        after = {g: a for g, a in self.a.items() if g[:-1] == history}
        if not after:
            return lower
        d = self.discount[len(history) + 1]
        taken = {g: d[min(a, 3) - 1] if g in self.kept else a for g, a in after.items()}
        own = after.get((*history, word), 0) - taken.get((*history, word), 0)
        return (own + sum(taken.values()) * lower) / sum(after.values())


def histories(order: int) -> list[Gram]:
    plain = [h for n in range(order) for h in itertools.product(VOCABULARY, repeat=n)]
    return plain + [(BEGIN, *h) for h in plain if len(h) < order - 1]


def assert_sums_to_one(model: Arpa, order: int) -> None:
    for history in histories(order):
        total = sum(10 ** model.log10_probability(word, history) for word in PREDICTED)
        assert total == pytest.approx(1.0, abs=1e-8), history


@given(texts, st.integers(1, 4))
def test_small_texts_agree_with_the_definition(data: list[list[str]], order: int) -> None:
    model, reference = estimate(data, VOCABULARY, Estimator(order, "kneser-ney")), ByDefinition(data, order)
    for history, word in itertools.product(histories(order)[::3], PREDICTED):
        expected = reference.probability(word, history)
        assert 10 ** model.log10_probability(word, history) == pytest.approx(expected, rel=1e-9), (word, history)


@pytest.mark.parametrize("cutoffs", [(), (1, 1, 2), (1, 2, 3), (1, 1, 1, 2)])
def test_a_larger_text_with_its_own_discounts(cutoffs: tuple[int, ...]) -> None:
    order = max(3, len(cutoffs))
    data = random_text(120)
    reference = ByDefinition(data, order, cutoffs)
    assert reference.discount[3] != [*FALLBACK]  # or the discounts' own equations are not tested
    model = estimate(data, VOCABULARY, Estimator(order, "kneser-ney", cutoffs=cutoffs))
    for history, word in itertools.product(histories(order)[::2], PREDICTED):
        expected = reference.probability(word, history)
        assert 10 ** model.log10_probability(word, history) == pytest.approx(expected, rel=1e-9), (word, history)
    assert model.counts[2] == sum(len(g) == 3 for g in reference.kept)
    assert_sums_to_one(model, order)


@given(texts, st.integers(2, 4), st.sampled_from(["absolute", "kneser-ney"]), st.floats(1e-6, 0.5))
def test_pruned_models_sum_to_one(data: list[list[str]], order: int, method: str, threshold: float) -> None:
    whole = estimate(data, VOCABULARY, Estimator(order, method))  # type: ignore[arg-type]
    pruned = estimate(data, VOCABULARY, Estimator(order, method, prune=threshold))  # type: ignore[arg-type]
    assert_sums_to_one(pruned, order)
    assert all({*few} <= {*many} for few, many in zip(pruned.grams, whole.grams, strict=False))
    for gram in (g for level in pruned.grams[1:] for g in level):
        assert gram[:-1] in pruned.grams[len(gram) - 2]


def test_pruning_leaves_out_what_changes_the_perplexity_least() -> None:
    """Of each bigram: the divergence of the model from the one without it, summed over all words by hand."""
    data, vocabulary = random_text(60), [*VOCABULARY, "E", "F"]  # of which two do not occur
    predicted = [*vocabulary, END]
    whole = estimate(data, vocabulary, Estimator(2, "kneser-ney"))
    seen = Counter(word for sentence in data for word in (BEGIN, *sentence))
    total = sum(len(sentence) + 2 for sentence in data)  # as a share of all words and marks
    change = {}
    for history, word in whole.grams[1]:
        p = {w: 10 ** whole.log10_probability(w, [history]) for w in predicted}
        lower = {w: 10 ** whole.log10_probability(w, []) for w in predicted}
        kept = [w for w in predicted if (history, w) in whole.grams[1] and w != word]
        weight = (1 - sum(p[w] for w in kept)) / (1 - sum(lower[w] for w in kept))
        without = {w: p[w] if w in kept else weight * lower[w] for w in predicted}
        divergence = sum(p[w] * math.log(p[w] / without[w]) for w in predicted)
        change[history, word] = math.expm1(seen[history] / total * divergence)
    ordered = sorted(change.values())
    for threshold in [math.sqrt(a * b) for a, b in itertools.pairwise(ordered[2::3]) if 0 < a < 0.99 * b]:
        pruned = estimate(data, vocabulary, Estimator(2, "kneser-ney", prune=threshold))
        left = set(pruned.grams[1]) if pruned.order == 2 else set()
        assert left == {gram for gram, by in change.items() if by >= threshold}


def test_perplexity_is_that_of_single_words() -> None:
    """Unknown words are no prediction, and no history reaches across them or into the sentence before."""
    model = estimate(random_text(50), VOCABULARY, Estimator(3, "kneser-ney"))
    sentences = [["A", "B", "OTHER", "C"], [], ["D", "OTHER"]]
    logs = []
    for sentence in sentences:
        words = [BEGIN, *sentence, END]
        logs += [model.log10_probability(w, words[:i]) for i, w in enumerate(words) if w in PREDICTED]
    assert model.perplexity(sentences) == pytest.approx(10 ** -np.mean(logs))
    assert math.isnan(model.perplexity([]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 6}, "order 6"),
        ({"discount": 0.0}, "discount 0.0"),
        ({"cutoffs": (1, 3, 2)}, r"Cut-offs \[1, 3, 2\]"),
        ({"cutoffs": (0,)}, "Cut-offs"),
        ({"prune": 1.0}, "threshold 1.0"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Estimator(**options)  # type: ignore[arg-type]
