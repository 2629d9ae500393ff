"""One call of `roundelay score`: its cases, each with what is wanted of it, and the comparison with another system."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay_speech.scoring.normalise import Case, Rules, case_of_times, case_of_trn, cases_of_run
from roundelay_speech.scoring.output import OutputOptions, describe
from roundelay_speech.scoring.resample import compare


@dataclass(frozen=True)
class Asked:
    """The request of the command: run directories, a pair of trn files, or a ctm against an stm; and perhaps another
    system."""

    runs: Sequence[Path] = ()
    ref: Path | None = None
    hyp: Path | None = None
    stm: Path | None = None
    ctm: Path | None = None
    other: Path | None = None  # a run directory where a run is scored, else hypotheses of the same format


def answers(asked: Asked, rules: Rules, wanted: OutputOptions) -> Iterator[str]:
    """Score everything and say it, a text per case, with an empty line after those of several lines.

    Raises:
        UserError: a file without its partner, nothing to score, more than one thing to compare; as the readers and
            `counts.score`.
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
    """Return the other system's cases, by the name of the case they are compared with."""
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
