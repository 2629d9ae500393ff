r"""n-gram language models with back-off (Katz 1987, as ARPA files have them), as arrays.

A model is a tree of words. The root is the empty history; a node is an n-gram, its parent the n-gram without its last
word. The node of h w holds log10 P(w | h) and the log10 weight that is paid when h w, as a history, does not know the
next word and gives up its oldest word. Nodes are numbered level by level (root 0, then 1-grams, 2-grams, ...), so
`key = parent * words + word` ascends over all nodes, and one binary search finds any n-gram: a million of them take
24 MB and no Python object.

Legend: V words with sentence marks, N n-grams of all orders.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError

BEGIN, END = "<s>", "</s>"
UNKNOWN = ("<unk>", "<UNK>")
RESERVED = (BEGIN, END, "<eps>", "#0")
MAX_ORDER = 5
NEVER = -99.0  # log10 probability that ARPA files give to <s>, which is only ever a history
ROOT = 0
ABSENT = -1

Gram = tuple[str, ...]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Arpa:
    """An n-gram model with back-off, as arrays over its n-grams (nodes)."""

    words: tuple[str, ...]  # the V words, sentence marks included; the position is the id. All of them are 1-grams
    counts: tuple[int, ...]  # how many n-grams there are of order 1, 2, ...; the first is V
    key: Ints  # (N,) parent node * V + last word, ascending; node i + 1 is described by place i
    log10: Floats  # (N,) log10 P(last word | the words before it)
    backoff: Floats  # (N,) log10 weight of giving up the oldest word; 0 where a file has none
    orphans: int = 0  # n-grams of the file that were left out because their history is none (pruning tools leave some)

    @property
    def order(self) -> int:
        return len(self.counts)

    @cached_property
    def word_ids(self) -> Mapping[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    @property
    def vocabulary(self) -> list[str]:
        """The words, without sentence marks and unknown-word tokens."""
        return [word for word in self.words if word not in (BEGIN, END, *UNKNOWN)]

    @cached_property
    def parent(self) -> Ints:
        """Parent of each node, (N + 1,): the node without its last word; the root's is itself."""
        return np.concatenate([[ROOT], self.key // len(self.words)])

    @cached_property
    def last(self) -> Ints:
        """Last word of each node, (N + 1,); -1 for the root."""
        return np.concatenate([[ABSENT], self.key % len(self.words)])

    @cached_property
    def shorter(self) -> Ints:
        """Node that each becomes without its oldest words, (N + 1,): its longest proper suffix that is a node."""
        result = np.zeros(len(self.key) + 1, np.int64)
        for level in self.levels()[1:]:
            result[level] = self.longest(result[self.parent[level]], self.last[level], result)
        return result

    @property
    def weight(self) -> Floats:
        """Back-off weight of each node, (N + 1,), log10; 0 for the root."""
        return np.concatenate([[0.0], self.backoff])

    def levels(self) -> list[slice]:
        """Return the nodes of each order."""
        ends = np.cumsum([1, *self.counts])
        return [slice(a, b) for a, b in pairwise(ends.tolist())]

    def child(self, node: Ints, word: Ints) -> Ints:
        """Return the children of nodes by words, ABSENT where there is none; arrays of one shape."""
        if not len(self.key):
            return np.full(np.shape(node), ABSENT)
        key = node * len(self.words) + word
        place = np.minimum(np.searchsorted(self.key, key), len(self.key) - 1)
        return np.where((self.key[place] == key) & (node != ABSENT) & (word != ABSENT), place + 1, ABSENT)

    def longest(self, history: Ints, word: Ints, shorter: Ints) -> Ints:
        """Return the longest suffix of (history, word) that is a node; the root if not even the word is one."""
        found, history = self.child(history, word), history.copy()
        while len(todo := np.flatnonzero((found == ABSENT) & (history != ROOT))):
            history[todo] = shorter[history[todo]]
            found[todo] = self.child(history[todo], word[todo])
        return np.where(found == ABSENT, ROOT, found)

    def conditional(self, history: Ints, word: Ints) -> Floats:
        """Return log10 P(word | history node) by back-off; -inf for a word that is no 1-gram."""
        paid, history = np.zeros(len(history)), history.copy()
        found = self.child(history, word)
        weight = self.weight
        while len(todo := np.flatnonzero((found == ABSENT) & (history != ROOT))):
            paid[todo] += weight[history[todo]]
            history[todo] = self.shorter[history[todo]]
            found[todo] = self.child(history[todo], word[todo])
        return np.where(found == ABSENT, -np.inf, paid + np.concatenate([[0.0], self.log10])[found])

    def node(self, words: Sequence[str]) -> int:
        """Return the node of a sequence of words, ABSENT if there is none."""
        node = np.array([ROOT])
        for word in words:
            node = self.child(node, np.array([self.word_ids.get(word, ABSENT)]))
        return int(node[0])

    def log10_probability(self, word: str, history: Sequence[str]) -> float:
        """Return log10 P(word | history) by back-off; -inf for a word outside the vocabulary."""
        context = list(history)[max(0, len(history) - self.order + 1) :]
        while context and self.node(context) == ABSENT:
            context = context[1:]
        return float(self.conditional(np.array([self.node(context)]), np.array([self.word_ids.get(word, ABSENT)]))[0])

    def perplexity(self, sentences: Iterable[Sequence[str]]) -> float:
        """Return the perplexity per word of sentences, sentence ends included; words outside the vocabulary are left
        out."""
        ids: list[int] = []
        for sentence in sentences:  # ABSENT in front of each: no history reaches beyond it
            ids += [ABSENT, *(self.word_ids.get(word, ABSENT) for word in (BEGIN, *sentence, END))]
        word = np.array(ids, np.int64)
        history = np.full(len(word), ROOT)  # of the next word; grows by one word a pass, as long as it is a node
        for back in range(self.order - 1, 0, -1):
            before = np.concatenate([np.full(back, ABSENT), word[:-back]]) if len(word) else word
            history = self.longest(history, before, self.shorter)
        predicted = (word != ABSENT) & (word != self.word_ids[BEGIN])
        log = self.conditional(history[predicted], word[predicted])
        return float(10.0 ** -log.mean()) if len(log) else math.nan

    def spelled(self) -> list[Ints]:
        """Return the word ids of all n-grams, an array (n-grams, n) for each order."""
        parent, last, first = self.parent, self.last, 0
        result: list[Ints] = []
        for level in self.levels():
            ids = last[level][:, None]
            if result:
                ids = np.concatenate([result[-1][parent[level] - first], ids], axis=1)
            result.append(ids)
            first = level.start
        return result

    @property
    def grams(self) -> tuple[dict[Gram, tuple[float, float]], ...]:
        """The n-grams of each order in words, with log10 probability and weight: for small models."""
        result = []
        for level, ids in zip(self.levels(), self.spelled(), strict=True):
            names = [tuple(self.words[i] for i in row) for row in ids.tolist()]
            place = slice(level.start - 1, level.stop - 1)
            values = zip(self.log10[place].tolist(), self.backoff[place].tolist(), strict=True)
            result.append(dict(zip(names, values, strict=True)))
        return tuple(result)


def build(
    words: Sequence[str], levels: Sequence[tuple[Ints, Floats, Floats]], orphans: int = 0
) -> tuple[Arpa, list[Ints]]:
    """Build a model from n-grams as word ids.

    Args:
        words: words by id.
        levels: for each order n the ids (n-grams, n), log10 probabilities and weights (n-grams,), in any order. All
            words are 1-grams, once each.

    Returns:
        The model, without n-grams whose history is no n-gram, and for each order the places of repeated n-grams (the
        later of the two).
    """
    keys, logs, weights, counts, twice = [np.zeros(0, np.int64)], [np.zeros(0)], [np.zeros(0)], [], []
    model = Arpa((*words,), (), keys[0], logs[0], weights[0])
    for ids, log, weight in levels:
        parent = np.zeros(len(ids), np.int64)
        for column in range(ids.shape[1] - 1):
            parent = model.child(parent, ids[:, column])
        key = parent * len(words) + ids[:, -1]
        rooted = np.flatnonzero(parent != ABSENT)
        orphans += len(ids) - len(rooted)
        rooted = rooted[np.argsort(key[rooted], kind="stable")]
        key = key[rooted]
        twice.append(rooted[1:][key[1:] == key[:-1]])
        keys.append(key)
        logs.append(log[rooted])
        weights.append(weight[rooted])
        counts.append(len(key))
        model = Arpa(
            (*words,), (*counts,), np.concatenate(keys), np.concatenate(logs), np.concatenate(weights), orphans
        )
    return model, twice


@dataclass(frozen=True)
class Restricted:
    """A model cut down to the words that can be decoded, and what was left out."""

    model: Arpa
    missing: tuple[str, ...]  # words of the model that the lexicon does not have, in alphabetical order

    @property
    def orphans(self) -> int:
        """Number of n-grams left out because their history is not an n-gram of the model."""
        return self.model.orphans

    def describe(self, shown: int = 10) -> str:
        """Return words on what was left out, for people; "" if nothing was."""
        parts = []
        if self.missing:
            more = f" and {len(self.missing) - shown} more" if len(self.missing) > shown else ""
            parts.append(
                f"{len(self.missing)} words of the language model are not in the lexicon and cannot be recognised: "
                f"{', '.join(self.missing[:shown])}{more}. Add their pronunciations to have them."
            )
        if self.orphans:
            parts.append(f"{self.orphans} n-grams whose history is missing were left out.")
        return " ".join(parts)


def restrict(model: Arpa, vocabulary: Collection[str]) -> Restricted:
    """Leave out every n-gram with a word outside the vocabulary; their probability is lost, not redistributed.

    Raises:
        UserError: no word is left.
    """
    known = {*vocabulary, BEGIN, END}
    missing = tuple(sorted(word for word in model.vocabulary if word not in known))
    keep_word = np.array([word in known for word in model.words])
    if not any(word in known for word in model.vocabulary):
        raise UserError(
            f"The language model and the lexicon share no word (language model: {', '.join(missing[:5])}...; "
            f"lexicon: {', '.join(sorted(vocabulary)[:5])}...). Do they agree on upper and lower case?"
        )
    if keep_word.all():
        return Restricted(model, missing)
    number = np.where(keep_word, np.cumsum(keep_word) - 1, ABSENT)
    levels = []
    for level, ids in zip(model.levels(), model.spelled(), strict=True):
        kept = keep_word[ids].all(axis=1)
        place = slice(level.start - 1, level.stop - 1)
        levels.append((number[ids[kept]], model.log10[place][kept], model.backoff[place][kept]))
    words = [word for word in model.words if word in known]
    return Restricted(build(words, levels, model.orphans)[0], missing)
