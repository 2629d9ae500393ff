"""Words against words, as decoding left them: errors by utterance, speaker and group; confused words; paired tests.

Bisani and Ney, ICASSP 2004 (bootstrap over utterances); Gillick and Cox, ICASSP 1989 (matched pairs), here with whole
utterances as segments; Holm 1979 (several comparisons at once).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from roundelay.core.errors import UserError
from roundelay.core.files import parse_json
from roundelay.core.records import PHONES_FILE, UTTERANCES_FILE
from roundelay.reports.series import Series

WordPair = tuple[str | None, str | None]
"""A word of the reference and one of the hypothesis; None: inserted, or deleted."""

SAMPLES = 2000


@dataclass(frozen=True)
class ScoredUtterance:
    """One utterance as it was recognised and scored."""

    id: str
    speaker: str
    gender: str | None
    subset: str | None
    pairs: tuple[WordPair, ...]
    forgiven: frozenset[int]  # places of pairs that differ and are right all the same

    @property
    def wrong(self) -> list[WordPair]:
        """Pairs of words that are errors."""
        return [pair for place, pair in enumerate(self.pairs) if pair[0] != pair[1] and place not in self.forgiven]

    @property
    def words(self) -> int:
        """Number of words in the reference."""
        return sum(ref is not None for ref, _ in self.pairs)


@dataclass(frozen=True)
class Rate:
    """Word error rate in percent with a 95 % interval (bootstrap over utterances); None for fewer than two."""

    errors: float
    words: int
    interval: tuple[float, float] | None

    @property
    def wer(self) -> float:
        """Word error rate in percent; NaN without words."""
        return 100 * self.errors / self.words if self.words else math.nan


@dataclass(frozen=True)
class Difference:
    """One series compared with another on the same utterances; below 0, the first has fewer errors."""

    wer: float  # percent absolute
    interval: tuple[float, float]  # 95 %
    p: float  # two-sided; matched pairs of utterances


def utterances_of(folder: Path, split: str) -> tuple[ScoredUtterance, ...]:
    """Return the utterances of a decoded split of a run; empty if an older version decoded it, or it was not decoded.

    Raises:
        UserError: the file is damaged.
    """
    file = folder / "decode" / split / UTTERANCES_FILE
    if not file.is_file():
        return ()
    stat = file.stat()
    return _read(file, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=256)
def _read(file: Path, _changed: int, _size: int) -> tuple[ScoredUtterance, ...]:
    found = []
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            found.append(_utterance(parse_json(line)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{file}:{number}: damaged ({error}). Decode the run again.") from None
    return tuple(found)


def _utterance(fields: Any) -> ScoredUtterance:
    pairs = tuple((None if r is None else str(r), None if h is None else str(h)) for r, h in fields["pairs"])
    gender, subset = fields.get("gender"), fields.get("subset")
    return ScoredUtterance(
        str(fields["id"]),
        str(fields["speaker"]),
        None if gender is None else str(gender),
        None if subset is None else str(subset),
        pairs,
        frozenset(int(place) for place in fields.get("forgiven", ())),
    )


def phones_of(folder: Path, split: str) -> Counter[WordPair]:
    """Return counts of the confused phones of a decoded split; empty if decoding did not note them.

    Raises:
        UserError: the file is damaged.
    """
    file = folder / "decode" / split / PHONES_FILE
    if not file.is_file():
        return Counter()
    try:
        return Counter(
            {
                (None if r is None else str(r), None if h is None else str(h)): int(n)
                for r, h, n in parse_json(file.read_bytes())["confused"]
            }
        )
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{file}: damaged ({error}). Decode the run again.") from None


def recognised(series: Series, split: str) -> list[tuple[ScoredUtterance, ...]]:
    """Return the utterances of each run of a series; empty if any run has none."""
    found = [utterances_of(run.folder, split) for run in series.runs]
    return found if all(found) else []


def errors_by_utterance(runs: Sequence[Sequence[ScoredUtterance]]) -> dict[str, tuple[float, int]]:
    """Return errors (mean of the runs) and reference words by utterance id, of utterances that all runs have."""
    together: dict[str, list[ScoredUtterance]] = {}
    for run in runs:
        for u in run:
            together.setdefault(u.id, []).append(u)
    return {
        name: (sum(len(u.wrong) for u in some) / len(some), some[0].words)
        for name, some in together.items()
        if len(some) == len(runs)
    }


def rate(counts: Iterable[tuple[float, int]]) -> Rate:
    """Return the word error rate of utterances, from (errors, reference words) of each."""
    some = list(counts)
    errors, words = sum(e for e, _ in some), sum(w for _, w in some)
    if len(some) < 2 or not words:
        return Rate(errors, words, None)
    draws = _draws([(e, 0.0, float(w)) for e, w in some])
    return Rate(errors, words, draws)


def difference(a: Mapping[str, tuple[float, int]], b: Mapping[str, tuple[float, int]]) -> Difference | None:
    """Compare the errors of `a` and `b`; return None unless both have the same utterances, at least two."""
    if a.keys() != b.keys() or len(a) < 2 or not (words := sum(w for _, w in a.values())):
        return None
    rows = [(a[name][0], b[name][0], float(a[name][1])) for name in sorted(a)]
    apart = [x - y for x, y, _ in rows]
    mean = sum(apart) / len(apart)
    spread = math.sqrt(sum((one - mean) ** 2 for one in apart) / (len(apart) - 1))
    z = mean / (spread / math.sqrt(len(apart))) if spread else 0.0
    return Difference(100 * sum(apart) / words, _draws(rows), math.erfc(abs(z) / math.sqrt(2)))


def _draws(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Return the middle 95 % of 100 (a - b) / words over resampled rows of (a, b, words)."""
    # Here, for the first interval: a page without words is made without numpy.
    import numpy as np  # noqa: PLC0415

    from roundelay.core.streams import stream  # noqa: PLC0415

    table = np.array(rows)
    picked = stream(0, "report").multinomial(len(rows), np.full(len(rows), 1 / len(rows)), SAMPLES).astype(float)
    sums = picked @ table
    low, high = np.quantile(100 * (sums[:, 0] - sums[:, 1]) / np.maximum(sums[:, 2], 1), [0.025, 0.975])
    return float(low), float(high)


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number: the chance of any false alarm is then the p of each."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    found, least = [1.0] * len(values), 0.0
    for rank, place in enumerate(order):
        least = max(least, min(1.0, values[place] * (len(values) - rank)))
        found[place] = least
    return found


def confused(runs: Iterable[Sequence[ScoredUtterance]]) -> Counter[WordPair]:
    """Count how often each wrong pair of words occurs."""
    return Counter(pair for run in runs for u in run for pair in u.wrong)


def grouped(
    runs: Sequence[Sequence[ScoredUtterance]], of: Callable[[ScoredUtterance], str | None]
) -> dict[str, list[tuple[float, int]]]:
    """Return (errors, words) of the utterances of each group, as `of` names it, without utterances of no group."""
    counts = errors_by_utterance(runs)
    found: dict[str, list[tuple[float, int]]] = {}
    for u in runs[0] if runs else ():
        if u.id in counts and (name := of(u)) is not None:
            found.setdefault(name, []).append(counts[u.id])
    return found
