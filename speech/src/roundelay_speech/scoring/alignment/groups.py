"""Word errors by speaker, by subset and by the groups of a file, and sclite's table of them."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from roundelay_speech.scoring.alignment.counts import ErrorCounts, Score, UtteranceScore
from roundelay_speech.scoring.formats.trn import speaker_of


@dataclass(frozen=True)
class Group:
    """The group of an utterance: its speaker, its part of the test set (`swb`, `callhm`), if there are parts, and the
    speaker's gender, if known."""

    speaker: str
    subset: str | None = None
    gender: str | None = None


GENDERS = {"f": "women", "m": "men"}
NOT_SAID = "not said"
"""Name for utterances that are in no group."""
Groups = Mapping[str, Group]
"""The group of each utterance, by id."""


def group_of(utterance: str, groups: Groups) -> Group:
    """Return the group of an utterance; one that is not listed has the speaker with whose name its own begins."""
    return groups.get(utterance) or Group(speaker_of(utterance))


def by_speaker(result: Score, groups: Groups) -> dict[str, Score]:
    """Return the score of each speaker, in alphabetical order."""
    return _split(result, lambda utterance: group_of(utterance, groups).speaker)


def by_subset(result: Score, groups: Groups) -> dict[str, Score]:
    """Return the score of each subset, in alphabetical order; empty where no utterance has one."""
    return _split(result, lambda utterance: group_of(utterance, groups).subset or "", "no subset")


def by_gender(result: Score, groups: Groups) -> dict[str, Score]:
    """Return the scores of women and of men; empty where no utterance says whose it is."""
    return _split(result, lambda utterance: GENDERS.get((group_of(utterance, groups).gender or "")[:1].lower(), ""))


def by_map(result: Score, groups: Groups, names: Mapping[str, str]) -> dict[str, Score]:
    """Return the score of each group of `names`, by utterance or by speaker; empty if it names none of them. Names are
    compared without regard to case; an utterance's comes before its speaker's."""
    folded = {name.casefold(): group for name, group in names.items()}

    def group(utterance: str) -> str:
        speaker = group_of(utterance, groups).speaker
        known = (utterance, utterance.removeprefix(f"{speaker}-"), speaker)
        return next((folded[name.casefold()] for name in known if name.casefold() in folded), "")

    return _split(result, group)


def _split(result: Score, key: Callable[[str], str], rest: str = NOT_SAID) -> dict[str, Score]:
    """Return the score of each group, and that of the `rest`, whose key is empty; nothing where that is all."""
    parts: dict[str, list[UtteranceScore]] = {}
    for utterance in result.utterances:
        parts.setdefault(key(utterance.id), []).append(utterance)
    without = parts.pop("", None)
    found = {name: Score(tuple(parts[name])) for name in sorted(parts)}
    return {**found, rest: Score(tuple(without))} if found and without else found


COLUMNS = ("# Snt", "# Wrd", "Corr", "Sub", "Del", "Ins", "Err", "S.Err")


def percentages(result: Score) -> tuple[float, ...]:
    """Return the numbers of a row of sclite's table: two counts, then percentages of words, the last of utterances."""
    e, utterances = result.errors, len(result.utterances)
    of_words = (_percent(n, e) for n in (e.correct, e.sub, e.del_, e.ins, e.total))
    return utterances, e.ref, *of_words, 100.0 * result.wrong_utterances / max(utterances, 1)


def _percent(number: int, errors: ErrorCounts) -> float:
    if errors.ref == 0:
        return float("inf") if number else 0.0
    return 100.0 * number / errors.ref


def sclite_table(parts: Mapping[str, Score], total: Score, title: str = "", first: str = "SPKR") -> str:
    """Return a table as sclite prints it: a row per speaker (or other part), the sum, and the rows' mean, deviation and
    median.

    The deviation is that of a sample (n - 1); of a single row it is 0.
    """
    rows = {name: percentages(part) for name, part in parts.items()}
    columns = list(zip(*rows.values(), strict=True))
    below: dict[str, Sequence[float]] = {
        "Mean": [statistics.fmean(column) for column in columns],
        "S.D.": [_deviation(column) for column in columns],
        "Median": [statistics.median(column) for column in columns],
    }
    names = max(len(name) for name in (*rows, "Sum/Avg", first))
    lines = [_cells(first, [f"{column:>6}" for column in COLUMNS], names)]
    width = len(lines[0]) - 2
    body = [_cells(name, _numbers(row, whole=True), names) for name, row in rows.items()]
    foot = [_cells(name, _numbers(row, whole=False), names) for name, row in below.items()]
    middle = f"|{'-' * (names + 2)}+{'-' * 15}+{'-' * (width - names - 19)}|"
    double = f"|{'=' * width}|"
    head = [f"|{title[:width]:^{width}}|", f"|{'-' * width}|"] if title else []
    total_row = _cells("Sum/Avg", _numbers(percentages(total), whole=True), names)
    lines = [
        f",{'-' * width}.",
        *head,
        *lines,
        middle,
        *body,
        double,
        total_row,
        double,
        *foot,
        f"`{'-' * width}'",
    ]
    return "\n".join(lines)


def _deviation(column: Sequence[float]) -> float:
    finite = [value for value in column if value < float("inf")]
    return statistics.stdev(finite) if len(finite) > 1 else 0.0


def _numbers(row: Sequence[float], *, whole: bool) -> list[str]:
    counts = [f"{value:6.0f}" if whole else f"{value:6.1f}" for value in row[:2]]
    return counts + [f"{value:6.1f}" for value in row[2:]]


def _cells(name: str, cells: Sequence[str], width: int) -> str:
    return f"| {name:<{width}} | {' '.join(cells[:2])} | {' '.join(cells[2:])} |"
