"""Pronunciations of words that no dictionary has, learned from one: n-grams over pairs of letters and phones.

A word and its phones are one sequence of pairs (Bisani and Ney 2008, "Joint-sequence models for grapheme-to-phoneme
conversion"): PH|F O|OW NE|N. `letter_phone` cuts the dictionary into pairs, `pair_ngram` counts which pairs follow
which, and the best sequence whose letters are those of the word is searched for with a beam.

n-grams over symbols as an automaton: interpolated modified Kneser-Ney (ngrams/estimate.py), arrays throughout.

Every node of the automaton is a history h that something follows, every arc an n-gram with its finished p, and from
every node but the empty one a back-off arc leads to the shorter history. Since the finished p of an n-gram is never
below its value by way of the shorter history, the best path through arcs and back-off arcs has the very score of the
n-gram.

Legend: V different symbols, A arcs, N nodes.
"""

import dataclasses
import gzip
import hashlib
import json
import math
import unicodedata
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.files import MOST_TEXT, atomic_write, read_packed
from roundelay.core.progress import Progress, Silent
from roundelay_speech.data.arrays import Float64
from roundelay_speech.lexicon.letter_phone import Pair, align_letters
from roundelay_speech.lexicon.lexicon import Lexicon, MissingWord, Pronunciation
from roundelay_speech.ngrams.estimate import Estimator, count, model_of
from roundelay_speech.ngrams.ngram import BEGIN, END, NEVER, ROOT

Ints = npt.NDArray[np.int64]

EMPTY, START = 0, 1  # nodes: no history; the beginning of a sequence
FINAL = -1  # where the end of a sequence leads
_NATS = np.log(10.0)


@dataclass(frozen=True, eq=False)
class Automaton:
    """An n-gram automaton: histories and their followers; costs are in nats."""

    symbols: int  # V
    # source, symbol, target, cost: (A,) of every arc; symbol V is the end of a sequence, its target FINAL.
    source: Ints
    symbol: Ints
    target: Ints
    cost: Float64
    # shorter, back_off: (N,) the node of the shorter history (EMPTY's is itself) and the cost of going there.
    shorter: Ints
    back_off: Float64
    length: Ints  # (N,) symbols of each history


def estimate_automaton(sequences: Sequence[Sequence[int]], symbols: int, order: int) -> Automaton:
    """Estimate an automaton of order 2 or more from the n-grams of sequences of symbols 0 to V - 1."""
    words = (*map(str, range(symbols)), END, BEGIN)
    levels = count((map(str, sequence) for sequence in sequences), words, order)
    model = model_of(Estimator(method="kneser-ney"), words, levels, symbols + 1)
    followed = np.zeros(len(model.key) + 1, bool)
    followed[model.parent[1:]] = True
    begin = int(model.node([BEGIN]))
    nodes = np.flatnonzero(followed)
    nodes = np.concatenate([[ROOT, begin], nodes[(nodes != ROOT) & (nodes != begin)]])
    number = np.zeros(len(followed), np.int64)
    number[nodes] = np.arange(len(nodes))
    history = np.arange(len(followed))  # the longest suffix of each n-gram that something follows
    while len(todo := np.flatnonzero(~followed[history])):
        history[todo] = model.shorter[history[todo]]
    length = np.repeat(np.arange(len(model.counts) + 1), [1, *model.counts])
    arcs = 1 + np.flatnonzero(model.log10 > NEVER)
    return Automaton(
        symbols,
        source=number[model.parent[arcs]],
        symbol=model.last[arcs],
        target=np.where(model.last[arcs] == symbols, FINAL, number[history[arcs]]),
        cost=-_NATS * model.log10[arcs - 1],
        shorter=number[history[model.shorter[nodes]]],
        back_off=-_NATS * model.weight[nodes],
        length=length[nodes],
    )


G2P_VERSION = 1
ORDER = 6
LEAST_WORDS = 500
"""Fewest words of a dictionary from which spelling can be learned."""
SPELLING_BEAM = 10.0  # nats
WIDEST = 60  # histories that go on from one letter to the next

_NOBODY = Silent()
_Arcs = Mapping[tuple[int, str], list[tuple[float, Pronunciation, int]]]


@dataclass(frozen=True)
class Guess:
    """A pronunciation and its cost: -log of the joint probability of spelling and phones, in nats."""

    phones: Pronunciation
    cost: float


@dataclass(frozen=True, eq=False)
class G2p:
    """A trained model of pronunciations: an n-gram over pairs of letters and phones."""

    trained_on: str  # digest of the dictionary and the order, to know the model of a dictionary again
    pairs: tuple[Pair, ...]  # by the symbols of the automaton
    automaton: Automaton  # n-gram over the pairs
    _cache: dict[str, _Arcs] = field(default_factory=dict, repr=False)

    def pronounce(self, word: str, n: int = 1) -> list[Guess]:
        """Return the best `n` pronunciations of a word, the best first; fewer, or none, if the model knows no more.

        Case, and marks on letters that the dictionary never has (é), are ignored; so is punctuation it never has
        (HIGH-FLOWN is HIGHFLOWN). A word with another unknown letter or a digit has no pronunciation.
        """
        letters = self._letters(word)
        return self._search(letters, n) if letters else []

    def _letters(self, word: str) -> str:
        known = {c for letters, _ in self.pairs for c in letters}
        kept = []
        for c in spelling(word):
            if c in known:
                kept.append(c)
            elif c.isalnum():
                return ""
        return "".join(kept)

    def _search(self, letters: str, n: int) -> list[Guess]:
        """Search the best pronunciations of letters, by number of letters read and history; arcs read one or two
        letters, back-off arcs none."""
        arcs, shorter, back_off = self._arcs, self.automaton.shorter, self.automaton.back_off
        length = self.automaton.length
        # By letters read: node -> phones -> cost.
        reached: list[defaultdict[int, dict[Pronunciation, float]]] = [
            defaultdict(dict) for _ in range(len(letters) + 1)
        ]
        reached[0][START][()] = 0.0
        ends: dict[Pronunciation, float] = {}
        for place, here in enumerate(reached):
            best = min((cost for paths in here.values() for cost in paths.values()), default=math.inf)
            alive = sorted(here, key=lambda node: min(here[node].values()))[:WIDEST]
            waiting: dict[int, dict[Pronunciation, float]] = {}
            for node in alive:
                paths = {phones: cost for phones, cost in here[node].items() if cost <= best + SPELLING_BEAM}
                if paths:
                    waiting[node] = _best(paths, n)
            chunks = [letters[place : place + size] for size in (1, 2) if place + size <= len(letters)] or [""]
            # Long histories first: mass that backs off from one joins those that are there.
            levels: defaultdict[int, list[int]] = defaultdict(list)
            for node in waiting:
                levels[int(length[node])].append(node)
            for level in range(max(levels, default=0), -1, -1):
                for node in levels[level]:
                    paths = waiting[node]
                    for chunk in chunks:
                        for cost, phones, target in arcs.get((node, chunk), ()):
                            onto = ends if target == FINAL else reached[place + len(chunk)][target]
                            _join(onto, paths, phones, cost)
                    if node != EMPTY:
                        lower = int(shorter[node])
                        if lower not in waiting:
                            waiting[lower] = {}
                            levels[int(length[lower])].append(lower)
                        _join(waiting[lower], paths, (), float(back_off[node]))
                        waiting[lower] = _best(waiting[lower], n)
        ordered = sorted(ends.items(), key=lambda item: (item[1], item[0]))
        return [Guess(phones, cost) for phones, cost in ordered if phones][:n]

    @property
    def _arcs(self) -> _Arcs:
        """Arcs by node and letters: (cost, phones, target) of every arc that reads them; the end reads none."""
        if "arcs" not in self._cache:
            arcs: defaultdict[tuple[int, str], list[tuple[float, Pronunciation, int]]] = defaultdict(list)
            a, named = self.automaton, (*self.pairs, ("", ()))
            for source, symbol, target, cost in zip(
                a.source.tolist(), a.symbol.tolist(), a.target.tolist(), a.cost.tolist(), strict=True
            ):
                letters, phones = named[symbol]
                arcs[source, letters].append((cost, phones, target))
            self._cache["arcs"] = arcs
        return self._cache["arcs"]


def _join(
    onto: dict[Pronunciation, float], paths: Mapping[Pronunciation, float], phones: Pronunciation, cost: float
) -> None:
    for before, so_far in paths.items():
        key = before + phones
        if so_far + cost < onto.get(key, math.inf):
            onto[key] = so_far + cost


def _best(paths: dict[Pronunciation, float], n: int) -> dict[Pronunciation, float]:
    return paths if len(paths) <= n else dict(sorted(paths.items(), key=lambda item: (item[1], item[0]))[:n])


def spelling(word: str) -> str:
    """Return a word's letters as the model sees them: lower case, accents separate from letters."""
    return unicodedata.normalize("NFKD", word.casefold())


def _is_spelled(word: str) -> bool:
    """Return True if a word's letters say something about its sound: not so for <NOISE> or 3D."""
    return any(map(str.isalpha, word)) and all(c.isalpha() or unicodedata.combining(c) or c in "'’.-_" for c in word)


def train_g2p(lexicon: Lexicon, *, order: int = ORDER, progress: Progress = _NOBODY) -> G2p:
    """Train a model on all pronunciations of a dictionary.

    Raises:
        UserError: fewer than LEAST_WORDS words to learn from.
    """
    spoken = [
        (spelling(word), phones)
        for word, variants in sorted(lexicon.pronunciations.items())
        if _is_spelled(word)
        for phones in variants
    ]
    words = len({word for word, _ in spoken})
    if words < LEAST_WORDS:
        raise UserError(
            f"The lexicon has {words} words to learn spelling from; {LEAST_WORDS} are the least that teach any, and "
            "100,000 teach it well. Add the missing words by hand, or use a larger dictionary."
        )
    progress.start("learning to pronounce", 2)
    found = align_letters(spoken)
    progress.advance()
    cuts = [cut for cut in found.pairs if cut is not None]
    pairs = tuple(sorted({pair for cut in cuts for pair in cut}))
    number = {pair: i for i, pair in enumerate(pairs)}
    automaton = estimate_automaton([[number[pair] for pair in cut] for cut in cuts], len(pairs), order)
    progress.finish()
    return G2p(digest(lexicon, order), pairs, automaton)


def digest(lexicon: Lexicon, order: int = ORDER) -> str:
    """Return a digest that identifies a dictionary, and the model learned from it."""
    return hashlib.blake2b(f"{G2P_VERSION} {order}\n{lexicon.to_text()}".encode(), digest_size=16).hexdigest()


# on disk --------------------------------------------------------------------------------------------------------------


def save_g2p(path: Path, model: G2p) -> None:
    """Write a model as compressed JSON."""
    a = model.automaton
    value = {
        "version": G2P_VERSION,
        "trained_on": model.trained_on,
        "pairs": [[letters, list(phones)] for letters, phones in model.pairs],
        "arcs": [a.source.tolist(), a.symbol.tolist(), a.target.tolist(), [round(c, 4) for c in a.cost.tolist()]],
        "nodes": [a.shorter.tolist(), [round(c, 4) for c in a.back_off.tolist()], a.length.tolist()],
    }
    with atomic_write(path) as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
        packed.write(json.dumps(value, separators=(",", ":")).encode())


def load_g2p(path: Path) -> G2p:
    """Read the file of `save_g2p`.

    Raises:
        UserError: the file is missing, or is no model.
    """
    try:
        value = json.loads(read_packed(path, MOST_TEXT))
        if value["version"] != G2P_VERSION:
            raise ValueError("of another version of Roundelay")
        pairs = tuple((str(letters), tuple(str(p) for p in phones)) for letters, phones in value["pairs"])
        source, symbol, target = (np.array(part, np.int64) for part in value["arcs"][:3])
        cost = np.array(value["arcs"][3], np.float64)
        shorter, length = (np.array(value["nodes"][i], np.int64) for i in (0, 2))
        back_off = np.array(value["nodes"][1], np.float64)
        automaton = Automaton(len(pairs), source, symbol, target, cost, shorter, back_off, length)
        if not _whole(automaton):
            raise ValueError("its parts do not belong together")
        return G2p(str(value["trained_on"]), pairs, automaton)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file.") from None
    except (
        OSError,
        EOFError,
        zlib.error,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise UserError(f"{path}: not a pronunciation model ({error}). Delete it; it is made again.") from error


def _whole(a: Automaton) -> bool:
    nodes = len(a.shorter)
    return (
        len(a.source) == len(a.symbol) == len(a.target) == len(a.cost) > 0
        and nodes == len(a.back_off) == len(a.length) > START
        and all(values.ndim == 1 for values in (a.source, a.symbol, a.target, a.cost, a.shorter, a.back_off, a.length))
        and bool(np.isfinite(a.cost).all() and np.isfinite(a.back_off).all())
        and 0 <= a.source.min() <= a.source.max() < nodes
        and 0 <= a.symbol.min() <= a.symbol.max() <= a.symbols
        and FINAL <= a.target.min() <= a.target.max() < nodes
        # Shorter histories are shorter: the search comes to an end.
        and bool((a.length[1:] > a.length[a.shorter[1:]]).all() and a.length[EMPTY] == 0)
        and 0 <= a.shorter.min() <= a.shorter.max() < nodes
    )


def g2p_of(lexicon: Lexicon, cache: Path, progress: Progress = _NOBODY) -> G2p:
    """Return the model of a dictionary, from the file `cache` if it has that, else trained and written to it."""
    if cache.is_file():
        model = load_g2p(cache)
        if model.trained_on == digest(lexicon):
            return model
    model = train_g2p(lexicon, progress=progress)
    save_g2p(cache, model)
    return model


# words of transcripts that the lexicon does not have ------------------------------------------------------------------


def guess_missing(
    missing: Sequence[MissingWord], lexicon: Lexicon, cache: Path, progress: Progress = _NOBODY
) -> tuple[Lexicon, str]:
    """Guess the pronunciations of missing words; return the lexicon with them, and the guesses alone as text in CMU's
    format, each with a comment.

    Words that cannot be guessed stay missing, and are named in comments.

    Args:
        cache: the file where the trained model is kept (see `g2p_of`).

    Raises:
        UserError: the lexicon is too small to learn from.
    """
    if not missing:
        return lexicon, ""
    model = g2p_of(lexicon, cache, progress)
    found = {m: guess[0] for m in missing if (guess := model.pronounce(m.word))}
    lines = [";;; Pronunciations guessed from spelling; see the words for yourself. Cost: -log probability, in nats."]
    for m in sorted(missing, key=lambda m: m.word):
        seen = f"{m.count} x, first in {m.first}"
        if m in found:
            lines.append(f"{m.word} {' '.join(found[m].phones)} # {seen}; cost {found[m].cost:.1f}")
        else:
            lines.append(f";;; {m.word}: cannot be guessed ({seen})")
    added = {m.word: (guess.phones,) for m, guess in found.items()}
    extended = dataclasses.replace(lexicon, pronunciations={**lexicon.pronunciations, **added})
    return extended, "".join(f"{line}\n" for line in lines)
