"""Alignment of the letters of words with their phones: EM over pairs of a few letters and a few phones.

A pronunciation is cut into pairs, PH|F  O|OW  NE|N, each with a probability of its own; the cuts are not known, so EM
weighs all of them (the alignment of Bisani and Ney 2008 and of Jiampojamarn et al. 2007, here with pairs of one letter
and none to two phones, or of two letters and one phone):

    a(i, j) = sum over pairs (x|y) that end at letter i and phone j of a(i - |x|, j - |y|) p(x|y)      b(i, j) likewise
    c(x|y)  = sum over words and places of a(before) p(x|y) b(after) / a(end),         p(x|y) = c(x|y) / sum of all c

Words with equal numbers of letters and phones are computed together. Legend: N such words, L letters, P phones.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from roundelay_speech.data.arrays import Float64

Ints = npt.NDArray[np.int64]

MOVES = ((1, 1), (1, 0), (1, 2), (2, 1))
"""Possible numbers of letters and phones in a pair."""
LEAST = 1e-12  # probability below which a pair is as good as gone: keeps every word alignable

Pair = tuple[str, tuple[str, ...]]
"""A pair of letters and phones."""


@dataclass(frozen=True, eq=False)
class _Group:
    """The words of L letters and P phones each."""

    members: Ints  # (N,) their places in the list of words
    letters: int
    phones: int
    pairs: tuple[npt.NDArray[np.int32], ...]  # by move (x, y): (L + 1 - x, P + 1 - y, N), by where they begin


@dataclass(frozen=True, eq=False)
class Alignments:
    """The result of EM: the pairs of letters and phones of each word."""

    # of each word, in the order given; None for a word that has more phones than two for each letter.
    pairs: list[tuple[Pair, ...] | None]
    log_likelihoods: list[float]  # of all words together before each round, in nats; never falls


def align_letters(words: Sequence[tuple[str, tuple[str, ...]]], rounds: int = 8) -> Alignments:
    """Align the letters and phones of words by some rounds of EM; return the likeliest pairs."""
    alphabet, inventory = _ids(c for w, _ in words for c in w), _ids(p for _, phones in words for p in phones)
    groups, names = _groups(words, alphabet, inventory)
    probability = np.full(len(names), 1.0 / max(1, len(names)))
    history = []
    for _ in range(rounds):
        counts = np.zeros(len(names))
        total = 0.0
        for group in groups:
            total += _expect(group, probability, counts)
        history.append(total)
        probability = np.maximum(counts / counts.sum(), LEAST)
    letters, phones = list(alphabet), list(inventory)
    spelled = [_pair(int(name), letters, phones) for name in names]
    cuts: list[tuple[Pair, ...] | None] = [None] * len(words)
    for group in groups:
        best = _best(group, probability)
        for member, cut in zip(group.members, best, strict=True):
            cuts[int(member)] = tuple(spelled[pair] for pair in cut)
    return Alignments(cuts, history)


def _ids(symbols: object) -> dict[str, int]:
    return {symbol: i for i, symbol in enumerate(sorted(set(symbols)))}  # type: ignore[call-overload]


def _groups(
    words: Sequence[tuple[str, tuple[str, ...]]], alphabet: dict[str, int], inventory: dict[str, int]
) -> tuple[list[_Group], Ints]:
    """Group words by size; return the groups, and all possible pairs, as one number each (see `_pair`)."""
    by_size: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for place, (word, phones) in enumerate(words):
        if 0 < len(phones) <= 2 * len(word):
            by_size[len(word), len(phones)].append(place)
    a, f = len(alphabet) + 1, len(inventory) + 1  # 0: none
    used = np.zeros(a * a * f * f, bool)
    rough = []
    for (size, sounds), members in sorted(by_size.items()):
        letter = np.array([[alphabet[c] + 1 for c in words[m][0]] for m in members]).T  # (L, N)
        phone = np.array([[inventory[p] + 1 for p in words[m][1]] for m in members]).T  # (P, N)
        tables = []
        for x, y in MOVES:
            rows, columns = max(0, size + 1 - x), max(0, sounds + 1 - y)
            first, second = letter[:rows], letter[1 : rows + 1] if x == 2 else np.zeros((rows, 1), np.int64)
            one = phone[:columns] if y else np.zeros((columns, 1), np.int64)
            two = phone[1 : columns + 1] if y == 2 else np.zeros((columns, 1), np.int64)
            spelling, sound = first * a + second, one * f + two
            table = spelling[:, None] * (f * f) + sound[None]
            table = np.broadcast_to(table, (rows, columns, len(members)))
            used[table] = True
            tables.append(table.astype(np.int32))
        rough.append((np.array(members), size, sounds, tables))
    names = np.flatnonzero(used)
    compact = (np.cumsum(used) - 1).astype(np.int32)
    groups = [_Group(m, size, sounds, tuple(compact[t] for t in tables)) for m, size, sounds, tables in rough]
    return groups, names


def _pair(name: int, letters: Sequence[str], phones: Sequence[str]) -> Pair:
    """Return the pair that a number of `_groups` names."""
    a, f = len(letters) + 1, len(phones) + 1
    spelling, sound = divmod(name, f * f)
    spelled = "".join(letters[i - 1] for i in divmod(spelling, a) if i)
    return spelled, tuple(phones[i - 1] for i in divmod(sound, f) if i)


def _forward(group: _Group, scores: tuple[Float64, ...]) -> Float64:
    """Return the forward sums a(i, j) of a group of N words, (L + 1, P + 1, N)."""
    a = np.zeros((group.letters + 1, group.phones + 1, len(group.members)))
    a[0, 0] = 1.0
    for i in range(1, group.letters + 1):
        for j in range(group.phones + 1):
            for (x, y), score in zip(MOVES, scores, strict=True):
                if i >= x and j >= y:
                    a[i, j] += a[i - x, j - y] * score[i - x, j - y]
    return a


def _expect(group: _Group, probability: Float64, counts: Float64) -> float:
    """Add the expected counts of all pairs to `counts`; return the log-likelihood."""
    scores = tuple(probability[pairs] for pairs in group.pairs)
    a = _forward(group, scores)
    b = np.zeros_like(a)
    total = a[-1, -1]
    b[-1, -1] = 1.0 / total
    for i in range(group.letters - 1, -1, -1):
        for j in range(group.phones, -1, -1):
            for (x, y), score in zip(MOVES, scores, strict=True):
                if i + x <= group.letters and j + y <= group.phones:
                    b[i, j] += b[i + x, j + y] * score[i, j]
    for (x, y), score, pairs in zip(MOVES, scores, group.pairs, strict=True):
        if score.size:
            rows, columns = score.shape[:2]
            posterior = a[:rows, :columns] * score * b[x : x + rows, y : y + columns]
            counts += np.bincount(pairs.ravel(), posterior.ravel(), len(counts))
    return float(np.log(total).sum())


def _best(group: _Group, probability: Float64) -> list[list[int]]:
    """Return the pairs of the likeliest cut of each word."""
    scores = tuple(probability[pairs] for pairs in group.pairs)
    shape = group.letters + 1, group.phones + 1, len(group.members)
    best, came = np.zeros(shape), np.zeros(shape, np.int8)
    best[0, 0] = 1.0
    for i in range(1, group.letters + 1):
        for j in range(group.phones + 1):
            for move, ((x, y), score) in enumerate(zip(MOVES, scores, strict=True)):
                if i >= x and j >= y:
                    value = best[i - x, j - y] * score[i - x, j - y]
                    better = value > best[i, j]
                    best[i, j][better], came[i, j][better] = value[better], move
    cuts = []
    for n in range(len(group.members)):
        i, j = group.letters, group.phones
        cut = []
        while i:
            move = int(came[i, j, n])
            x, y = MOVES[move]
            i, j = i - x, j - y
            cut.append(int(group.pairs[move][i, j, n]))
        cuts.append(cut[::-1])
    return cuts
