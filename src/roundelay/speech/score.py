"""Word error rate: counts that add up, the `%WER` line, trn files, and a readable record of every error.

Words are aligned by smallest edit distance (insertion, deletion and substitution cost 1 each; kaldialign). Alignments
of equal cost may split the same total differently between the three kinds; the total, hence the rate, is unique.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import kaldialign

from roundelay.core.errors import UserError
from roundelay.core.files import write_text

Texts = Mapping[str, Sequence[str]]
"""Words by utterance id."""

Pair = tuple[str | None, str | None]
"""(reference word, hypothesis word); None on the side where a word is missing."""

GAP = "***"  # how a missing word is shown, as sclite does
SHOWN = 10  # culprits listed in an error message


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
    def wer(self) -> float:
        """Word error rate in percent; infinite when there are errors but no reference word."""
        if self.ref == 0:
            return math.inf if self.total else 0.0
        return 100.0 * self.total / self.ref

    def __str__(self) -> str:
        """`%WER 7.39 [ 3885 / 52576, 505 ins, 330 del, 3050 sub ]`, the line Kaldi prints."""
        return f"%WER {self.wer:.2f} [ {self.total} / {self.ref}, {self.ins} ins, {self.del_} del, {self.sub} sub ]"


@dataclass(frozen=True)
class UtteranceScore:
    """One utterance: its errors and the alignment they were counted on."""

    id: str
    errors: ErrorCounts
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class Score:
    """All utterances of a split, in the order of the references."""

    utterances: tuple[UtteranceScore, ...]

    @property
    def errors(self) -> ErrorCounts:
        """Summed over utterances."""
        return sum((utterance.errors for utterance in self.utterances), ErrorCounts())

    @property
    def wrong_utterances(self) -> int:
        """Utterances with at least one error."""
        return sum(utterance.errors.total > 0 for utterance in self.utterances)

    def __str__(self) -> str:
        """The `%WER` line and the `%SER` line (utterances with an error)."""
        wrong, total = self.wrong_utterances, len(self.utterances)
        return f"{self.errors}\n%SER {100.0 * wrong / max(total, 1):.2f} [ {wrong} / {total} ]"


def align_words(ref: Sequence[str], hyp: Sequence[str]) -> tuple[Pair, ...]:
    """A cheapest alignment of two word sequences, as (reference, hypothesis) pairs in order."""
    words = [*dict.fromkeys([*ref, *hyp])]  # numbered, so that no word can be mistaken for the gap
    number = {word: i for i, word in enumerate(words)}
    pairs = kaldialign.align([number[w] for w in ref], [number[w] for w in hyp], -1)
    return tuple((words[r] if r >= 0 else None, words[h] if h >= 0 else None) for r, h in pairs)


def count_errors(pairs: Iterable[Pair]) -> ErrorCounts:
    """The errors an alignment shows."""
    ins = del_ = sub = ref = 0
    for r, h in pairs:
        ref += r is not None
        ins += r is None
        del_ += h is None
        sub += r is not None and h is not None and r != h
    return ErrorCounts(ins, del_, sub, ref)


def score(refs: Texts, hyps: Texts, missing: Literal["error", "empty"] = "error") -> Score:
    """Compare hypotheses with references.

    Args:
        missing: what an utterance without a hypothesis means: "error" refuses to score (a decoding that lost utterances
            would look better or worse than it is), "empty" counts all of its words as deleted.

    Raises:
        UserError: no references; hypotheses missing (unless "empty"); hypotheses of utterances that have no reference.
    """
    if not refs:
        raise UserError("There is nothing to score: the reference has no utterance.")
    lost = [utterance for utterance in refs if utterance not in hyps]
    if lost and missing == "error":
        raise UserError(
            f"{len(lost)} of {len(refs)} utterances have no hypothesis: {_listed(lost)}. "
            "Decode them, or ask for missing hypotheses to count as empty (every word deleted)."
        )
    strange = [utterance for utterance in hyps if utterance not in refs]
    if strange:
        raise UserError(
            f"{len(strange)} hypotheses belong to utterances without a reference: {_listed(strange)}. "
            "Score against the split that was decoded."
        )
    utterances = []
    for utterance, ref in refs.items():
        pairs = align_words(ref, hyps.get(utterance, ()))
        utterances.append(UtteranceScore(utterance, count_errors(pairs), pairs))
    return Score(tuple(utterances))


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def confusions(result: Score) -> list[tuple[Pair, int]]:
    """All errors by kind, the most frequent first, ties in alphabetical order."""
    counts = Counter(pair for utterance in result.utterances for pair in utterance.pairs if pair[0] != pair[1])
    return sorted(counts.items(), key=lambda item: (-item[1], item[0][0] or "", item[0][1] or ""))


def write_trn(path: Path, texts: Texts, speakers: Mapping[str, str] | None = None) -> None:
    """Write `words (speaker-utterance)`, a line per utterance, as sclite reads them (`-i spu_id`).

    Args:
        speakers: speaker by utterance id. The speaker is put in front unless the id begins with it already.
    """
    lines = []
    for utterance, words in texts.items():
        speaker = (speakers or {}).get(utterance, "")
        known = not speaker or utterance.startswith((f"{speaker}-", f"{speaker}_"))
        name = utterance if known else f"{speaker}-{utterance}"
        lines.append(" ".join([*words, f"({name})"]))
    write_text(path, "".join(f"{line}\n" for line in lines))


def read_trn(path: Path) -> dict[str, list[str]]:
    """Read a trn file: words by the name in the brackets.

    Raises:
        UserError: the file is missing, a line has no `(name)` at its end, or a name comes twice; names file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. `roundelay decode` writes ref.trn and hyp.trn.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}).") from error
    texts: dict[str, list[str]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        match = re.fullmatch(r"(.*)\(([^()\s]+)\)\s*", line)
        if match is None:
            raise UserError(f"{path}:{number}: expected `words (speaker-utterance)`, found {line!r}.")
        if match[2] in texts:
            raise UserError(f"{path}:{number}: utterance {match[2]} comes twice. Keep one of its lines.")
        texts[match[2]] = match[1].split()
    return texts


def alignment_text(result: Score, most_frequent: int = 30) -> str:
    """Every error in its place, for people: the totals, the most frequent errors, then each utterance in columns.

    In the `Eval` row S, I and D mark substituted, inserted and deleted words; faultless utterances keep one line.
    """
    parts = [str(result), "", "Most frequent errors (count, reference -> hypothesis)"]
    parts += [f"{n:6}  {_shown(r)} -> {_shown(h)}" for (r, h), n in confusions(result)[:most_frequent]] or ["  none"]
    for utterance in result.utterances:
        parts += ["", f"{utterance.id}  {utterance.errors}"]
        if utterance.errors.total == 0:
            parts.append("OK:   " + " ".join(ref or "" for ref, _ in utterance.pairs))
            continue
        rows: tuple[list[str], list[str], list[str]] = ([], [], [])
        for ref, hyp in utterance.pairs:
            column = _shown(ref), _shown(hyp), _mark(ref, hyp)
            width = max(map(len, column))
            for row, cell in zip(rows, column, strict=True):
                row.append(cell.ljust(width))
        parts += [
            f"{name:5} {' '.join(row)}".rstrip() for name, row in zip(("REF:", "HYP:", "Eval:"), rows, strict=True)
        ]
    return "\n".join(parts) + "\n"


def _shown(word: str | None) -> str:
    return GAP if word is None else word


def _mark(ref: str | None, hyp: str | None) -> str:
    if ref is None:
        return "I"
    if hyp is None:
        return "D"
    return "" if ref == hyp else "S"
