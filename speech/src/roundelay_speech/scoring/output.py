"""Scores for people: every error in its place, the most frequent errors, tables by speaker and subset."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay_speech.data.problems import counted, listing
from roundelay_speech.kaldi_io.tables import read_table
from roundelay_speech.scoring.alignment.align import Pair
from roundelay_speech.scoring.alignment.counts import Score, UtteranceScore, confusions
from roundelay_speech.scoring.alignment.groups import (
    GENDERS,
    Groups,
    by_gender,
    by_map,
    by_speaker,
    by_subset,
    sclite_table,
)
from roundelay_speech.scoring.normalise import Case, Rules, case_of_times, case_of_trn, cases_of_run
from roundelay_speech.scoring.resample import Unit, bootstrap, compare, gap

GENDER = "gender"  # the grouping that is no file
GAP = "***"  # how a missing word is shown, as sclite does


@dataclass(frozen=True)
class OutputOptions:
    """Options of the output of a score besides its `%WER` line."""

    interval: bool = False
    unit: Unit = "utterances"  # drawn for the interval, and to compare systems
    per_speaker: bool = False
    subsets: bool = False
    by: str = ""  # `gender`, or a file that gives utterances or speakers a group each
    table: bool = False
    confusions: int = 0  # how many of each kind
    errors: bool = False


def describe(name: str, result: Score, groups: Groups, wanted: OutputOptions) -> str:
    """Return the `%WER` line of a score, and all other output wanted.

    Raises:
        UserError: subsets or groups are wanted, and there are none; too few utterances or speakers for an interval.
    """
    unit = wanted.unit if wanted.interval else None
    lines = [f"{name}: {_line(result, groups, unit)}"]
    if wanted.subsets:
        parts = by_subset(result, groups)
        if not parts:
            raise UserError(f"{name}: no utterance has a subset. The manifest's field `subset`, or labels in an stm.")
        lines += _parts(parts, groups, unit)
    if wanted.by:
        parts = _grouped(name, result, groups, wanted.by)
        lines += _parts(parts, groups, unit)
        if wanted.by == GENDER and unit is not None:
            lines += _gap(parts, groups, unit)
    if wanted.per_speaker:
        lines += _parts(by_speaker(result, groups), {}, "utterances" if wanted.interval else None)
    if wanted.table:
        lines += ["", sclite_table(by_speaker(result, groups), result, name)]
        if parts := by_subset(result, groups):
            lines += ["", sclite_table(parts, result, name, "SUBSET")]
    if wanted.confusions:
        lines += ["", frequent_errors(result, wanted.confusions)]
    if wanted.errors:
        lines += ["", alignment_text(result)]
    return "\n".join(lines)


def _grouped(name: str, result: Score, groups: Groups, by: str) -> dict[str, Score]:
    if by == GENDER:
        if parts := by_gender(result, groups):
            return parts
        raise UserError(f"{name}: no speaker's gender is known. Give --by a file of genders, such as `spk2gender`.")
    problems: list[str] = []
    table = read_table(Path(by), problems)
    if problems:
        raise UserError(f"--by {by}: lines of `UTTERANCE GROUP` or `SPEAKER GROUP` are expected:\n{listing(problems)}")
    if parts := by_map(result, groups, table.values):
        return parts
    known = f"{result.utterances[0].id} for example" if result.utterances else "there are none"
    raise UserError(f"--by {by}: names none of the utterances of {name} ({known}), nor their speakers.")


def _line(result: Score, groups: Groups, unit: Unit | None) -> str:
    return str(result.errors) if unit is None else f"{result.errors}  {bootstrap(result, groups, unit)}"


def _parts(parts: dict[str, Score], groups: Groups, unit: Unit | None) -> list[str]:
    width = max(map(len, parts))
    return [f"  {name:<{width}}  {_part(part, groups, unit)}" for name, part in parts.items()]


def _part(part: Score, groups: Groups, unit: Unit | None) -> str:
    """Return the line of a part, without an interval if it is too small for one."""
    try:
        return _line(part, groups, unit)
    except UserError:
        return _line(part, groups, None)


def _gap(parts: Mapping[str, Score], groups: Groups, unit: Unit) -> list[str]:
    """Return a line on the difference between the error rates of women and men; nothing if there is no interval."""
    women, men = (parts.get(name) for name in GENDERS.values())
    if women is None or men is None:
        return []
    try:
        interval = gap(women, men, groups, unit)
    except UserError:  # too few for an interval
        return []
    return [f"  {' - '.join(GENDERS.values())}  {women.errors.wer - men.errors.wer:+.2f}  {interval}"]


def frequent_errors(result: Score, most: int) -> str:
    """Return the most frequent substitutions, deletions and insertions, each with its count."""
    found = confusions(result)
    kinds = (
        ("substitution", [(f"{r} -> {h}", n) for (r, h), n in found if r and h]),
        ("deletion", [(r, n) for (r, h), n in found if r and h is None]),
        ("insertion", [(h, n) for (r, h), n in found if h and r is None]),
    )
    lines = []
    for kind, items in kinds:
        some = items[:most]
        lines.append(counted(sum(n for _, n in items), kind) + (":" if some else ""))
        lines += [f"{n:6}  {shown}" for shown, n in some]
        if len(items) > most:
            lines.append(f"        and {len(items) - most} more, as rare or rarer")
    return "\n".join(lines)


def alignment_text(result: Score, most_frequent: int = 30) -> str:
    """Return every error in its place, for people: the totals, the most frequent errors, then each utterance in
    columns.

    In the `Eval` row S, I and D mark substituted, inserted and deleted words; faultless utterances keep one line.
    Optional words that are missing stand in round brackets, beside blanks.
    """
    parts = [str(result), "", "Most frequent errors (count, reference -> hypothesis)"]
    parts += [f"{n:6}  {_shown(r)} -> {_shown(h)}" for (r, h), n in confusions(result)[:most_frequent]] or ["  none"]
    for utterance in result.utterances:
        parts += ["", f"{utterance.id}  {utterance.errors}"]
        if utterance.errors.total == 0 and not utterance.forgiven:
            parts.append("OK:   " + " ".join(ref or "" for ref, _ in utterance.pairs))
        else:
            parts += _columns(utterance)
    return "\n".join(parts) + "\n"


def _columns(utterance: UtteranceScore) -> list[str]:
    rows: tuple[list[str], list[str], list[str]] = ([], [], [])
    for place, pair in enumerate(utterance.pairs):
        column = _column(pair, place in utterance.forgiven)
        width = max(map(len, column))
        for row, cell in zip(rows, column, strict=True):
            row.append(cell.ljust(width))
    return [f"{name:5} {' '.join(row)}".rstrip() for name, row in zip(("REF:", "HYP:", "Eval:"), rows, strict=True)]


def _column(pair: Pair, forgiven: bool) -> Sequence[str]:
    ref, hyp = pair
    if forgiven:
        optional = ref is None or hyp is None
        return [f"({word})" if optional and word else word or "" for word in pair] + [""]
    return _shown(ref), _shown(hyp), _mark(ref, hyp)


def _shown(word: str | None) -> str:
    return GAP if word is None else word


def _mark(ref: str | None, hyp: str | None) -> str:
    if ref is None:
        return "I"
    if hyp is None:
        return "D"
    return "" if ref == hyp else "S"


@dataclass(frozen=True)
class Asked:
    """The request of `roundelay score`: run directories, a pair of trn files, or a ctm against an stm; and perhaps
    another system."""

    runs: Sequence[Path] = ()
    ref: Path | None = None
    hyp: Path | None = None
    stm: Path | None = None
    ctm: Path | None = None
    other: Path | None = None  # a run directory where a run is scored, else hypotheses of the same format


def answers(asked: Asked, rules: Rules, wanted: OutputOptions) -> Iterator[str]:
    """Score everything asked for; yield a text for each case, with an empty line after those of several lines.

    Raises:
        UserError: a file lacks its partner, there is nothing to score, or more than one thing to compare; as the
            readers and `counts.score`.
    """
    cases = _cases(asked, rules)
    several = len(cases) > 1
    others = _others(asked, rules, cases)
    for case in cases:
        result = case.score(rules)
        text = describe(case.name, result, case.groups, wanted)
        if other := others.get(case.name):
            against = other.score(rules)
            text += f"\n{describe(other.name, against, case.groups, OutputOptions(wanted.interval, wanted.unit))}\n"
            text += str(compare(result, against, case.groups, wanted.unit))
        yield f"{text}\n" if several and "\n" in text else text


def _cases(asked: Asked, rules: Rules) -> list[Case]:
    for one, two, names in ((asked.ref, asked.hyp, "--ref and --hyp"), (asked.stm, asked.ctm, "--stm and --ctm")):
        if (one is None) != (two is None):
            raise UserError(f"score needs both {names}, or run directories.")
    cases = [case_of_trn(asked.ref, asked.hyp)] if asked.ref and asked.hyp else []
    cases += [case_of_times(asked.stm, asked.ctm, rules.missing)] if asked.stm and asked.ctm else []
    cases += [case for exp in asked.runs for case in cases_of_run(exp)]
    if not cases:
        raise UserError("score needs run directories, --ref and --hyp, or --stm and --ctm.")
    return cases


def _others(asked: Asked, rules: Rules, cases: Sequence[Case]) -> dict[str, Case]:
    """Return the cases of the other system, by the name of the case with which each is compared."""
    if asked.other is None:
        return {}
    sources = len(asked.runs) + (asked.ref is not None) + (asked.stm is not None)
    if sources != 1:
        raise UserError(f"--compare {asked.other}: give one system to compare it with; here are {sources}.")
    if asked.runs:
        there = {Path(case.name).parent.name: case for case in cases_of_run(asked.other)}
        pairs = {case.name: there.get(Path(case.name).parent.name) for case in cases}
        if not any(pairs.values()):
            raise UserError(f"{asked.other} and {asked.runs[0]} have no decoded split in common.")
        return {name: other for name, other in pairs.items() if other}
    if asked.ref:
        return {cases[0].name: case_of_trn(asked.ref, asked.other)}
    assert asked.stm is not None
    return {cases[0].name: case_of_times(asked.stm, asked.other, rules.missing)}
