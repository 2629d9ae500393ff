"""Word error rate: counts that add up, and the `%WER` line."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from roundelay.core.errors import UserError
from roundelay_speech.data.problems import counted, named
from roundelay_speech.scoring.alignment.align import FEWEST, Costs, Pair, WordAlignment, align_networks, align_words
from roundelay_speech.scoring.alignment.marks import MarkError, WordNetwork, is_fragment, marked_network

Texts = Mapping[str, Sequence[str]]
"""Words by utterance id."""


@dataclass(frozen=True)
class ErrorCounts:
    """Insertions, deletions, substitutions, and the number of reference words they are counted against."""

    ins: int = 0
    del_: int = 0
    sub: int = 0
    ref: int = 0

    def __add__(self, other: "ErrorCounts") -> "ErrorCounts":
        return ErrorCounts(self.ins + other.ins, self.del_ + other.del_, self.sub + other.sub, self.ref + other.ref)

    @property
    def total(self) -> int:
        """Errors of all three kinds."""
        return self.ins + self.del_ + self.sub

    @property
    def correct(self) -> int:
        """Reference words that are neither substituted nor deleted."""
        return self.ref - self.del_ - self.sub

    @property
    def wer(self) -> float:
        """Word error rate in percent; infinite when there are errors but no reference word."""
        if self.ref == 0:
            return math.inf if self.total else 0.0
        return 100.0 * self.total / self.ref

    def __str__(self) -> str:
        """Return `%WER 7.39 [ 3885 / 52576, 505 ins, 330 del, 3050 sub ]`, the line Kaldi prints."""
        return f"%WER {self.wer:.2f} [ {self.total} / {self.ref}, {self.ins} ins, {self.del_} del, {self.sub} sub ]"


@dataclass(frozen=True)
class UtteranceScore:
    """The score of one utterance: its errors, and the alignment on which they were counted.

    `forgiven` are the positions of pairs that differ but are right (see `align.WordAlignment`).
    """

    id: str
    errors: ErrorCounts
    pairs: tuple[Pair, ...]
    forgiven: frozenset[int] = frozenset()

    @property
    def wrong(self) -> list[Pair]:
        """The pairs that are errors, in order."""
        return [pair for place, pair in enumerate(self.pairs) if pair[0] != pair[1] and place not in self.forgiven]


@dataclass(frozen=True)
class Score:
    """The score of a split: its utterances, in the order of the references."""

    utterances: tuple[UtteranceScore, ...]

    @property
    def errors(self) -> ErrorCounts:
        """Errors summed over utterances."""
        return sum((utterance.errors for utterance in self.utterances), ErrorCounts())

    @property
    def wrong_utterances(self) -> int:
        """Number of utterances with at least one error."""
        return sum(utterance.errors.total > 0 for utterance in self.utterances)

    def __str__(self) -> str:
        """Return the `%WER` line and the `%SER` line (utterances with an error)."""
        wrong, total = self.wrong_utterances, len(self.utterances)
        return f"{self.errors}\n%SER {100.0 * wrong / max(total, 1):.2f} [ {wrong} / {total} ]"


def count_errors(pairs: Iterable[Pair], forgiven: frozenset[int] = frozenset()) -> ErrorCounts:
    """Count the errors of an alignment.

    An optional word that is missing counts among the reference words, as correct (sclite's convention).
    """
    ins = del_ = sub = ref = 0
    for place, (r, h) in enumerate(pairs):
        ref += r is not None
        if place not in forgiven:
            ins += r is None
            del_ += h is None
            sub += r is not None and h is not None and r != h
    return ErrorCounts(ins, del_, sub, ref)


def score(
    refs: Texts,
    hyps: Texts,
    missing: Literal["error", "empty"] = "error",
    *,
    marked: bool = False,
    costs: Costs = FEWEST,
) -> Score:
    """Score hypotheses against references. Names of utterances that differ only in case are the same, as in sclite.

    Args:
        missing: the treatment of an utterance without a hypothesis: "error" refuses to score (a decoding that lost
            utterances would look better or worse than it is), "empty" counts all of its words as deleted.
        marked: True if `{ a / b }`, `(word)` and `word-` are alternatives, optional words and fragments (see `marks`);
            else they are words like others.
        costs: costs of the alignment.

    Raises:
        UserError: no references; hypotheses missing (unless "empty"); hypotheses of utterances that have no reference;
            marks that do not fit together.
    """
    if not refs:
        raise UserError("There is nothing to score: the reference has no utterance.")
    hyps = _renamed(hyps, refs)
    lost = [utterance for utterance in refs if utterance not in hyps]
    if lost and missing == "error":
        raise UserError(
            f"{len(lost)} of {counted(len(refs), 'utterance')} have no hypothesis: {named(lost)}. "
            "Decode them, or ask for missing hypotheses to count as empty (every word deleted)."
        )
    strange = [utterance for utterance in hyps if utterance not in refs]
    if strange:
        raise UserError(
            f"{len(strange)} hypotheses belong to utterances without a reference: {named(strange)}. "
            "Score against the split that was decoded."
        )
    return Score(tuple(_one(utterance, ref, hyps.get(utterance, ()), marked, costs) for utterance, ref in refs.items()))


def _renamed(hyps: Texts, refs: Texts) -> Texts:
    """Return hypotheses under the names in the reference. Of several for one utterance, the one with the same spelling
    counts."""
    taken: dict[str, str] = {}
    for name, known in known_as(hyps, refs).items():
        if name == known or (known not in hyps and known not in taken):
            taken[known] = name
        else:
            taken[name] = name  # stays strange, and is named
    return {known: hyps[name] for known, name in taken.items()}


def _one(utterance: str, ref: Sequence[str], hyp: Sequence[str], marked: bool, costs: Costs) -> UtteranceScore:
    if marked:
        refs, hyps = _network(utterance, "reference", ref), _network(utterance, "hypothesis", hyp)
        plain_ref, plain_hyp = refs.chain, hyps.chain
        if plain_ref is None or plain_hyp is None or any(map(is_fragment, (*plain_ref, *plain_hyp))):
            found = align_networks(refs, hyps, costs, fragments=True)
            return UtteranceScore(utterance, count_errors(found.pairs, found.forgiven), found.pairs, found.forgiven)
        ref, hyp = plain_ref, plain_hyp
    found = WordAlignment(align_words(ref, hyp, costs))
    return UtteranceScore(utterance, count_errors(found.pairs), found.pairs)


def _network(utterance: str, side: str, words: Sequence[str]) -> WordNetwork:
    try:
        return marked_network(words)
    except MarkError as error:
        raise UserError(f"{utterance}: in the {side} `{' '.join(words)}` {error}.") from error


def confusions(result: Score) -> list[tuple[Pair, int]]:
    """Return all errors by kind, the most frequent first, ties in alphabetical order."""
    counts = Counter(pair for utterance in result.utterances for pair in utterance.wrong)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0][0] or "", item[0][1] or ""))


N = TypeVar("N", str, tuple[str, str])


def known_as(names: Iterable[N], reference: Iterable[N]) -> dict[N, N]:
    """Return the name that the reference has for each of `names`: the same, or the one that differs in case alone.

    Names spelled alike come first, so that two names of the reference that differ in case stay two. A name with no
    match, or several, stays unchanged.
    """
    exact = dict.fromkeys(reference)
    folded: dict[N, list[N]] = {}
    for name in exact:
        folded.setdefault(_folded(name), []).append(name)
    found = {}
    for name in names:
        near = folded.get(_folded(name), [])
        found[name] = near[0] if name not in exact and len(near) == 1 else name
    return found


def _folded(name: N) -> N:
    return name.casefold() if isinstance(name, str) else (name[0].casefold(), name[1].casefold())
