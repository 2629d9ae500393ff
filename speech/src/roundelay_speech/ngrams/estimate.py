r"""From text to an n-gram model: absolute discounting and modified Kneser-Ney, both interpolated; cut-offs, pruning.

Both estimators are one recursion (Chen and Goodman 1998, eq. 14 and 26). With a(h w) the count of n-gram h w, h' the
history h without its oldest word, V the vocabulary with the sentence end, and discounts D > 0,

    P(w | h) = max(a(h w) - D, 0) / a(h) + bow(h) P(w | h'),   a(h) = sum_w a(h w),   bow(h) = sum_w D / a(h),
    P(w)     = max(a(w) - D, 0) / a      + bow   1 / |V|.

Each line sums to one over V because the lower order gives back the mass taken off the seen words. An ARPA file
stores P for the seen n-grams and bow for the histories, which is exactly this model: for an unseen n-gram the first
term is zero and back-off multiplies bow(h) P(w | h').

  absolute     (Ney, Essen and Kneser 1994) a is how often the n-gram occurs, D one number for all.
  kneser-ney   (Chen and Goodman 1998, section 4.1.6) below the highest order, a(h w) is how many different words occur
               before h w, or how often h w occurs if it begins with <s>, before which nothing does. D depends on a:
               with n_k the number of n-grams of the order with a = k, and Y = n1 / (n1 + 2 n2),
                   D1 = 1 - 2 Y n2/n1    for a = 1,
                   D2 = 2 - 3 Y n3/n2    for a = 2,
                   D3 = 3 - 4 Y n4/n3    for a >= 3,
               or 1/2, 1, 3/2 where the text is too small or too odd for these to lie between 0 and a.

Cut-offs: an n-gram that occurs fewer than k times gives all of its a to bow(h). It still counts in a(h) and in the n_k.

Pruning (Stolcke 1998): an n-gram is left out if the model without it, its histories' weights set anew, has a perplexity
larger by less than a given share; a history counts as often as it occurs in the text, or as a given model says.

Legend: V words with sentence marks, T places of the running text.
"""

from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay_speech.ngrams.ngram import ABSENT, BEGIN, END, MAX_ORDER, NEVER, RESERVED, ROOT, Arpa, Floats

Method = Literal["absolute", "kneser-ney"]
Whole = npt.NDArray[np.integer]  # of four bytes, where the text is shorter than 2^31 words
FALLBACK = (0.5, 1.0, 1.5)  # discounts of counts 1, 2, 3 and more where a text does not give its own


@dataclass(frozen=True)
class Estimator:
    """Options of estimating an n-gram model from text."""

    order: int = 2  # the longest n-grams
    method: Method = "absolute"  # absolute or kneser-ney
    discount: float = 0.75  # of absolute discounting, between 0 and 1
    # how often n-grams of order 1, 2, ... must occur to be listed; orders that are not named: once. Of 1-grams none is
    # left out.
    cutoffs: tuple[int, ...] = ()
    # n-grams that matter less to the perplexity than this share are left out; 0 for none. 1e-8 is little.
    prune: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.order <= MAX_ORDER:
            raise UserError(
                f"Language model order {self.order} is not one of 1 to {MAX_ORDER}. For more, give an ARPA file."
            )
        if not 0.0 < self.discount < 1.0:
            raise UserError(
                f"Language model discount {self.discount} is not between 0 and 1 (both excluded); 0.75 is usual."
            )
        if list(self.cutoffs) != sorted(self.cutoffs) or any(cutoff < 1 for cutoff in self.cutoffs):
            raise UserError(
                f"Cut-offs {list(self.cutoffs)}: give numbers from 1 that do not fall with the order, for example "
                "[1, 1, 2]; an n-gram cannot be kept without its beginning."
            )
        if not 0.0 <= self.prune < 1.0:
            raise UserError(f"Pruning threshold {self.prune} is not between 0 and 1; 1e-9 to 1e-6 is usual.")

    def cutoff(self, order: int) -> int:
        """Return the number of times an n-gram of this order must occur."""
        return self.cutoffs[min(order, len(self.cutoffs)) - 1] if self.cutoffs and order > 1 else 1


@dataclass(frozen=True, eq=False)
class Counted:
    """The different n-grams of one order in a text, as arrays with one entry for each, sorted by (prefix, word)."""

    # prefix, suffix: places, one order below, of the n-gram without its last and its first word (of 1-grams: 0).
    prefix: Whole
    suffix: Whole
    word: Whole  # the last word
    count: Whole  # how often it occurs
    begins: npt.NDArray[np.bool_]  # whether it begins with <s>


def estimate(sentences: Iterable[Sequence[str]], vocabulary: Collection[str], how: Estimator = Estimator()) -> Arpa:
    """Estimate a model from sentences by the equations at the top of this file.

    n-grams that hold a word outside the vocabulary are left out of the counts.

    Raises:
        UserError: no sentence; a reserved word in the vocabulary.
    """
    if reserved := sorted(set(vocabulary) & {*RESERVED}):
        raise UserError(
            f"{', '.join(reserved)} cannot be words of the lexicon: language models reserve them. Remove them."
        )
    words = tuple(sorted({*vocabulary, BEGIN, END}))
    levels = count(sentences, words, how.order)
    end, begin = words.index(END), words.index(BEGIN)
    if not levels[0].count[end]:
        raise UserError("There is no sentence to estimate a language model from.")
    model = model_of(how, words, levels, begin)
    return prune(model, how.prune, _history_share(model, levels)) if how.prune else model


def count(sentences: Iterable[Iterable[str]], words: Sequence[str], order: int) -> list[Counted]:
    """Count the n-grams of orders 1 to `order`; all words are listed as 1-grams, also those that do not occur."""
    ids = {word: i for i, word in enumerate(words)}
    begin, end = ids.pop(BEGIN), ids.pop(END)
    running = array("i")
    for sentence in sentences:
        running.append(begin)
        running.extend(ids.get(word, ABSENT) for word in sentence)
        running.append(end)
    word = np.frombuffer(running, np.intc) if running else np.zeros(0, np.intc)
    # Place of the n-gram that begins at each place of the text, among the different ones of its order; ABSENT: none.
    place = word.astype(np.int32 if len(word) < 2**31 else np.int64)
    seen = np.bincount(word[word != ABSENT], minlength=len(words))
    zeros = np.zeros(len(words), np.int64)
    levels = [Counted(zeros, zeros, np.arange(len(words)), seen, np.arange(len(words)) == begin)]
    for n in range(2, order + 1):
        starts = np.flatnonzero(place[: max(0, len(word) - n + 1)] != ABSENT)
        starts = starts[(word[starts + n - 1] != ABSENT) & (word[starts + n - 2] != end)]
        key = place[starts] * np.int64(len(words)) + word[starts + n - 1]
        ordered = np.argsort(key, kind="stable")
        starts, key = starts[ordered], key[ordered]
        del ordered  # each is as long as the text
        new = np.diff(key, prepend=-1) != 0
        first, unique = np.flatnonzero(new), key[new]
        del key
        prefix, last = (unique // len(words)).astype(place.dtype), (unique % len(words)).astype(np.intc)
        suffix, times = place[starts[first] + 1], np.diff(first, append=len(starts)).astype(place.dtype)
        place[:] = ABSENT
        place[starts] = np.cumsum(new, dtype=place.dtype) - 1
        levels.append(Counted(prefix, suffix, last, times, levels[-1].begins[prefix]))
    return levels


def adjusted_counts(levels: Sequence[Counted], method: Method) -> list[Whole]:
    """Return the adjusted count a of each n-gram, by order.

    n-grams whose left neighbours are all outside the vocabulary count as seen after one word.
    """
    if method == "absolute":
        return [level.count for level in levels]
    adjusted = []
    for level, longer in pairwise(levels):
        before = np.bincount(longer.suffix, minlength=len(level.count))
        adjusted.append(np.where(level.begins, level.count, np.maximum(before, level.count > 0)))
    return [*adjusted, levels[-1].count]


def discounts(adjusted: Whole) -> tuple[float, float, float]:
    """Return the discounts D1, D2, D3 of modified Kneser-Ney, from the adjusted counts of all n-grams of an order."""
    n1, n2, n3, n4 = (int((adjusted == k).sum()) for k in (1, 2, 3, 4))
    if not (n1 and n2 and n3):
        return FALLBACK
    y = n1 / (n1 + 2 * n2)
    found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    return found if all(0 < d < k for k, d in enumerate(found, 1)) and n4 else FALLBACK


def model_of(how: Estimator, words: tuple[str, ...], levels: Sequence[Counted], begin: int) -> Arpa:
    """Make the model of counted n-grams, with as many orders as there are levels, not pruned.

    Args:
        words: words by id.
        begin: the id of <s>.
    """
    adjusted = adjusted_counts(levels, how.method)
    adjusted[0] = np.where(levels[0].begins, 0, adjusted[0])  # <s> is never predicted
    probability = np.full(len(words), 1.0 / (len(words) - 1))
    keys, logs, weights, counts = [], [], [], []
    node = np.array([ROOT])  # of each n-gram one order below, ABSENT: not listed
    for n, (level, a) in enumerate(zip(levels, adjusted, strict=True), 1):
        if how.method == "absolute":
            discount = np.minimum(how.discount, a)
        else:
            predicted = a[a > 0] if n == 1 else a
            discount = np.concatenate([[0.0], discounts(predicted)])[np.minimum(a, 3)]
        kept = level.count >= how.cutoff(n) if n > 1 else np.ones(len(a), bool)
        histories = len(levels[n - 2].count) if n > 1 else 1
        total = np.bincount(level.prefix, a, minlength=histories)
        given_back = np.bincount(level.prefix, np.where(kept, discount, a), minlength=histories)
        bow = np.divide(given_back, total, out=np.ones(histories), where=total > 0)
        own = np.divide(np.where(kept, a - discount, 0.0), total[level.prefix], out=np.zeros(len(a)), where=a > 0)
        lower = probability[level.suffix] if n > 1 else probability
        probability = own + bow[level.prefix] * lower
        if n > 1:
            weights.append(np.log10(bow)[node != ABSENT])
        if n == 1:
            probability[begin] = 0.0
        keys.append(node[level.prefix[kept]] * len(words) + level.word[kept])
        with np.errstate(divide="ignore"):
            logs.append(np.log10(probability[kept]))
        counts.append(int(kept.sum()))
        first = 1 + sum(counts[:-1])
        node = np.full(len(a), ABSENT)
        node[kept] = np.arange(first, first + counts[-1])
    weights.append(np.zeros(counts[-1]))
    log = np.concatenate(logs)
    log[begin] = NEVER
    return Arpa(words, tuple(counts), np.concatenate(keys), log, np.concatenate(weights))


def _history_share(model: Arpa, levels: Sequence[Counted]) -> Floats:
    """Return the number of occurrences in the text of each node (N + 1,), as a share of its words."""
    found: list[Floats] = [np.array([levels[0].count.sum()], float)]
    node = np.array([ROOT])
    for level, span in zip(levels, model.levels(), strict=True):
        here = model.child(node[level.prefix], level.word.astype(np.int64))
        times = np.zeros(span.stop - span.start)
        times[here[here != ABSENT] - span.start] = level.count[here != ABSENT]
        found.append(times)
        node = here
    share: Floats = np.concatenate(found) / levels[0].count.sum()
    return share


def share_of_histories(model: Arpa) -> Floats:
    """Return the probability (N + 1,) of each node as a history, by the model itself: the product of the probabilities
    of its words (Stolcke 1998). A sentence begins as often as it ends."""
    share = np.concatenate([[1.0], np.where(model.log10 > NEVER, 10.0**model.log10, 0.0)])
    begin, end = (model.node([mark]) for mark in (BEGIN, END))
    share[begin] = share[end]
    for level in model.levels()[1:]:
        share[level] *= share[model.parent[level]]
    return share


def prune(model: Arpa, threshold: float, share: Floats) -> Arpa:
    """Prune n-grams, longest first, that change the perplexity by a share of less than `threshold`.

    Args:
        share: (N + 1,) probability of each node as a history.
    """
    levels = model.levels()
    keep = np.ones(len(model.key) + 1, bool)
    log = np.concatenate([[0.0], model.log10]) * np.log(10)
    probability, lower = np.exp(log), np.zeros(len(log))
    for level in levels[1:]:
        lower[level] = model.conditional(model.shorter[model.parent[level]], model.last[level]) * np.log(10)
    size = len(log)
    for level in reversed(levels[1:]):
        history = model.parent[level]
        p, q = probability[level], np.exp(lower[level])
        seen, below = np.bincount(history, p, minlength=size), np.bincount(history, q, minlength=size)
        free, room = np.maximum(1 - seen[history], 1e-12), np.maximum(1 - below[history], 1e-12)
        # Of the model without the n-gram, the weight of its history; then the divergence of the two models.
        weight, without = np.log(free / room), np.log((free + p) / (room + q))
        change = -share[history] * (p * (lower[level] + without - log[level]) + (without - weight) * free)
        needed = np.bincount(model.parent[keep & (np.arange(size) >= level.stop)], minlength=size)[level] > 0
        keep[level] = needed | (np.expm1(change) >= threshold)
    return _without(model, keep)


def _without(model: Arpa, keep: npt.NDArray[np.bool_]) -> Arpa:
    """Return the model with only the nodes in the mask `keep` (N + 1,), and back-off weights so that histories sum to
    one."""
    kept, number = np.flatnonzero(keep)[1:], np.cumsum(keep) - 1
    counts = [int(keep[level].sum()) for level in model.levels()]
    while not counts[-1]:
        counts.pop()
    key = number[model.parent[kept]] * len(model.words) + model.last[kept]
    pruned = Arpa(model.words, tuple(counts), key, model.log10[kept - 1], np.zeros(len(kept)))
    for level in pruned.levels()[1:]:  # a weight needs those of shorter histories
        history = pruned.parent[level]
        p = 10.0 ** pruned.log10[level.start - 1 : level.stop - 1]
        q = 10.0 ** pruned.conditional(pruned.shorter[history], pruned.last[level])
        seen, below = np.bincount(history, p), np.bincount(history, q)
        those = np.unique(history)
        weight = np.maximum(1 - seen[those], 1e-12) / np.maximum(1 - below[those], 1e-12)
        pruned.backoff[those - 1] = np.log10(weight)
    return pruned
