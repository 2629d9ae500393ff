"""`docs/claims.md`: every claim with its verdict, its rule and its numbers, made from catalogue and evidence alone; and
its figure, lines over a few values of a key, as an SVG file that stands alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import isfinite
from pathlib import Path

from roundelay.core.files import write_text
from roundelay.reports.axes import Axis, axis
from roundelay.reports.markup import render
from roundelay.reports.numbers import seconds
from roundelay_lab.claims.claim import Check, Claim, Figure, load_claims
from roundelay_lab.claims.evidence import Evidence, fixed_before, judged, load_evidence
from roundelay_lab.claims.experiment import Mixing, Part, Printed, Scenarios, Trainings
from roundelay_lab.claims.rule import MORE_SEEDS, Checked, Judgement, Measured, Verdict, measured, seeds_that_decide

WIDTH, HEIGHT, TOP = 640.0, 340.0, 34.0
PAGE, DRAWN = "claims.md", "claims"
HEAD = """\
# What the papers claim, and what came out here

Each claim is one file of [the catalogue](../lab/src/roundelay_lab/claims/catalogue): citation, experiment, and the
rule that makes a verdict of its table. Experiments were fixed before they were run; whether the bounds of the rule
were, each section says. `roundelay claims` prints the list below, `roundelay claims run NAME` runs one again and says
whether it lands within the spread that its file states, and `roundelay claims write` makes this page of catalogue and
evidence. Numbers are means over seeds ± standard deviation of one run.

**How a verdict is made.** Bounds are asked of intervals of means, of ratios to a run of the same seed: two standard
errors, or what Student's distribution asks for (2.9 with three seeds), so that of effects that are none at most one
in twenty passes. A clause *holds* if the interval lies within its bound, *fails* if it lies beyond, and is
*undecided* otherwise. **Shown**: all clauses hold. **Refuted**: one of those that refute holds. Both only if as many
new seeds would say the same with a chance of 0.95 or more, by the means and spreads that the seeds leave possible
([intervals.py](../lab/src/roundelay_lab/claims/intervals.py) has equations and sources). **Not shown**: a clause
fails, and nothing refutes. **Open**: the seeds do not decide, or the experiment cannot tell. Chance: that as many new
seeds would say what these say. This way of judging is of 2026-11-25, when all tables of that day were known. A
refuted claim is as good as a shown one. Each says what happens at this size, with these networks and this much
speech, and no more.

Trainings run in the simulator with real gradients, unless the experiment says processes for few learners. Synchronous
strategies have the same bits either way; asynchronous ones follow a virtual clock in the simulator instead of a real
one, so that they repeat. On processes each run of theirs is a sample.
"""


@dataclass(frozen=True)
class Settled:
    """A claim with its evidence and the verdict."""

    claim: Claim
    evidence: Evidence | None
    judgement: Judgement

    @property
    def short(self) -> str:
        """The first check, and those that do not hold, with their numbers; of an open one, what it would take."""
        if self.evidence is None:
            run = ["Its experiment has not been run."] if self.claim.experiment is not None else []
            return " ".join([*run, *self.claim.open.split()])
        told = [one for one in self.judgement.open if one.holds]
        told += [one for n, one in enumerate(self.judgement.shown) if n == 0 or not one.holds]
        words = {True: "", False: "not: ", None: "undecided: "}
        return "; ".join(f"{words[one.holds]}{one.check.says} ({shown(one.value)})" for one in told)

    @property
    def chance(self) -> str:
        """Chance of the same verdict under new seeds, in two digits; where there is none in the numbers, a dash."""
        found = self.judgement.chance
        return "–" if found is None else "> 0.99" if found > 0.99 else f"{found:.2f}"

    @property
    def sure(self) -> str:
        """Sentences on that chance, and on the seeds that an open claim would take."""
        found = self.judgement
        if found.chance is None:
            exact = self.evidence is not None and all(row.get("seed") is None for row in self.evidence.rows)
            return "There is no chance in these numbers: another run has the same." if exact else ""
        chance = self.chance.replace(">", "more than")
        if found.here is found.verdict:
            told = f"As many new seeds would say `{found.verdict.value}` with a chance of {chance}."
        else:
            told = f"These seeds say `{found.here.value}`; as many new ones would with a chance of {chance}."
        if found.verdict is not Verdict.OPEN or any(one.holds for one in found.open):
            return told
        assert self.claim.rule is not None
        assert self.evidence is not None
        seeds = seeds_that_decide(self.claim.rule, self.evidence.rows, self.evidence.keys)
        if seeds is None:
            return f"{told} {MORE_SEEDS[-1]} seeds would not decide it, if means and spreads stay."
        return f"{told} About {seeds} seeds would decide it, if means and spreads stay."


def settled() -> list[Settled]:
    """Return all claims, by number."""
    found = []
    for claim in load_claims():
        evidence = load_evidence(claim)
        found.append(Settled(claim, evidence, judged(claim, evidence)))
    return found


def write_page(folder: Path) -> list[Path]:
    """Write the page and its figures below `folder`; the files written."""
    all_claims = settled()
    written = [folder / PAGE]
    write_text(written[0], page(all_claims))
    for one in all_claims:
        if one.evidence is not None and (svg := draw(one.claim, one.evidence)):
            written.append(folder / DRAWN / f"{one.claim.name}.svg")
            write_text(written[-1], svg)
    return written


def page(all_claims: Sequence[Settled]) -> str:
    """Return the page's text."""
    rows = ["| | claim | verdict | chance | in short | seconds |", "|---|---|---|---|---|---|"]
    for one in all_claims:
        claim, verdict = one.claim, one.judgement.verdict.value
        took = seconds(one.evidence.seconds) if one.evidence else "–"
        rows.append(
            f"| {claim.number} | [{claim.title}](#{claim.number}-{claim.name}) | **{verdict}** | {one.chance} "
            f"| {one.short} | {took} |"
        )
    return "\n".join([HEAD, *rows, "", *(_section(one) for one in all_claims)])


def shown(value: float) -> str:
    """Return a number of a table; what is no number diverged."""
    return f"{value:.4g}" if isfinite(value) else "diverged"


def _section(one: Settled) -> str:
    claim, cited = one.claim, one.claim.citation
    lines = [f"## {claim.number} {claim.name}", "", f"**{claim.title}: {one.judgement.verdict.value}.**", ""]
    lines += [f"{cited.says.strip()} ({cited.paper}, {cited.place})", ""]
    if claim.experiment is not None:
        lines += [f"**Experiment.** {_about(claim)}", ""]
        lines += [f"**Known before.** {claim.known.strip()}", ""] if claim.known else []
        lines += [f"**Rule.** {_fixed(one)} Shown if all of these hold:", ""]
        assert claim.rule is not None
        found = one.judgement
        lines += [*_bounds(claim.rule.shown, found.shown), "", "Refuted if one of these holds:", ""]
        lines += [*_bounds(claim.rule.refuted, found.refuted), ""]
        if claim.rule.open:
            lines += ["Open if one of these holds, for then the experiment cannot tell:", ""]
            lines += [*_bounds(claim.rule.open, found.open), ""]
        lines += [f"**Chance.** {one.sure}", ""] if one.sure else []
    if one.evidence is None:
        lines += [f"**Open.** {one.short}", ""]
    else:
        lines += [*_table(one.evidence), ""]
        if claim.figure is not None:
            lines += [f"![{claim.title}]({DRAWN}/{claim.name}.svg)", ""]
        landing = "; ".join(
            f"`{a.column}` within {100 * a.within:g} %" + (f" (above {a.broken:g}: equal)" if a.broken else "")
            for a in claim.landing
        )
        lines += [
            f"`{one.evidence.command}`: {seconds(one.evidence.seconds)} on {one.evidence.machine}, commit "
            f"{one.evidence.commit}. A rerun lands, configuration by configuration, with {landing}.",
            "",
        ]
        lines += [f"**What it would take to say more.** {claim.open.strip()}", ""] if claim.open else []
    if claim.limits:
        lines += [f"**What this does not say.** {claim.limits.strip()}", ""]
    return "\n".join(lines)


def _about(claim: Claim) -> str:
    match claim.experiment:
        case Printed() as e:
            return f"Printed numbers beside those of the simulator (`roundelay published {e.what}`)."
        case Scenarios() as e:
            return (
                f"Simulator: {e.rounds} minibatches a learner, gradient {e.gradient:g} s (jitter {e.jitter:g}), "
                f"exchange {e.exchange:g} s, allreduce of two {e.allreduce:g} s; learner 1 slower by `factor`; "
                f"seeds {_list(e.seeds)}."
            )
        case Mixing() as e:
            return f"Simulator: rows that gradient noise alone moves, {e.rounds} rounds; seeds {_list(e.seeds)}."
        case Trainings() as e:
            parts = "; ".join(_part(part) for part in e.parts)
            settings = " ".join(f"`{text}`" for text in e.overrides)
            where = f", up to {e.processes_up_to} learners on processes" if e.processes_up_to else ""
            return f"Recipe `{e.recipe}` with {settings}, {e.seeds} seeds{where}. {parts}."
    raise AssertionError(claim.name)


def _part(part: Part) -> str:
    """Return a grid of trainings in words."""
    more = [f"`{text}`" for text in part.overrides] + [f"tuned on dev of seed 0: `{text}`" for text in part.tune]
    return ", ".join((f"`sgd` and {_list(part.strategies)} with {_list(part.learners)} learners", *more))


def _list(values: Sequence[object]) -> str:
    return ", ".join(str(value) for value in values)


def _fixed(one: Settled) -> str:
    if one.evidence is None or fixed_before(one.claim, one.evidence):
        return "Its bounds were fixed before the experiment was run."
    return "Bounds among these were written when the table was known."


def _bounds(checks: Sequence[Check], found: Sequence[Checked]) -> list[str]:
    return [f"- {_bound(check)}{_found(one)}" for check, one in zip_longest(checks, found)]


def _bound(check: Check) -> str:
    bound = f"at most {check.at_most:g}" if check.at_most is not None else f"at least {check.at_least:g}"
    over = f", divided by that of {_selection(check.over)}" if check.over else ""
    which = {"every": "each", "any": "one", "median": "the median"}[check.take]
    return f"{check.says}: `{check.column}` of {_selection(check.rows)}{over}: {which} {bound}"


def _selection(rows: object) -> str:
    assert isinstance(rows, dict)
    words = [f"{k} {' or '.join(map(str, v)) if isinstance(v, list) else v}" for k, v in rows.items()]
    return f"({', '.join(words)})" if words else "all"


def _found(one: Checked | None) -> str:
    if one is None:
        return ""
    side = "at least" if one.check.at_least is not None else "at most"
    edge = f" (interval: {side} {shown(one.edge)})" if isfinite(one.edge) and one.edge != one.value else ""
    words = {True: "holds", False: "fails", None: "undecided"}
    return f" → **{shown(one.value)}**{edge}, {words[one.holds]}"


def _table(evidence: Evidence) -> list[str]:
    keys = evidence.keys
    columns = list(dict.fromkeys(k for row in evidence.rows for k in row if k not in (*keys, "seed")))
    table: dict[tuple[object, ...], list[str]] = {}
    for column in columns:
        for one in measured(evidence.rows, keys, column, {}):
            values = dict(one.configuration)
            cells = table.setdefault(tuple(values.get(key, "") for key in keys), [])
            having = [
                row for row in evidence.rows if all(row.get(k) == v for k, v in one.configuration) and column in row
            ]
            spread = f" ± {one.sd:.2g}" if one.sd else ""
            cells.append(f"{shown(one.mean)}{spread}" if having else "")
    lines = [f"| {' | '.join((*keys, *columns))} |", "|" + "---|" * (len(keys) + len(columns))]
    return lines + [f"| {' | '.join((*map(str, key), *cells))} |" for key, cells in table.items()]


def draw(claim: Claim, evidence: Evidence) -> str:
    """Return the SVG of a claim's figure; empty where it has none. A run that diverged stands at the upper edge."""
    if claim.figure is None:
        return ""
    figure = claim.figure
    families, xs = _lines(figure, evidence)
    values = [v for line in families.values() for _, m in line for v in (m.mean, *m.values) if isfinite(v)]
    bottom = HEIGHT - 44
    y = axis(values, bottom, TOP)
    left = y.margin + 4
    x = Axis(0, max(1, len(xs) - 1), left + 20, WIDTH - 24, tuple(range(len(xs))), label=lambda at: f"{xs[round(at)]}")
    lines = []
    for line in families.values():
        ordered = sorted(((xs.index(value), one) for value, one in line), key=lambda pair: pair[0])
        points = [(x.place(at), y.place(one.mean) if isfinite(one.mean) else TOP - 6) for at, one in ordered]
        seeds = [[y.place(v) for v in one.values if isfinite(v)] for _, one in ordered]
        lines.append((points, [(max(ends), min(ends)) if len(ends) > 1 else None for ends in seeds]))
    what = figure.title or f"{figure.y} by {figure.x}"
    drawn = render(
        "roundelay_lab.claims/claim.svg",
        **{"width": WIDTH, "height": HEIGHT + 8 + 20 * sum(map(bool, families)), "label": f"{claim.title}: {what}"},
        **{"x": x, "y": y, "left": left, "bottom": bottom, "what": what, "below": figure.x},
        **{"lines": lines, "names": [*families]},
    )
    return f"{drawn}\n"


def _lines(figure: Figure, evidence: Evidence) -> tuple[dict[str, list[tuple[object, Measured]]], list[object]]:
    """Return lines by name, what was measured at each value of x; and these values in order."""
    found = measured(evidence.rows, evidence.keys, figure.y, figure.rows, figure.over, figure.same)
    groups: dict[str, list[tuple[object, Measured]]] = {}
    for one in found:
        keys = dict(one.configuration)
        if figure.x in keys:
            name = ", ".join(_word(key, keys[key]) for key in figure.lines if key in keys)
            groups.setdefault(name, []).append((keys[figure.x], one))
    xs = list(dict.fromkeys(x for points in groups.values() for x, _ in points))
    if all(isinstance(x, int | float) for x in xs):
        xs.sort(key=float)  # type: ignore[arg-type]
    return groups, xs


def _word(key: str, value: object) -> str:
    return f"{value} learners" if key == "learners" else str(value) if isinstance(value, str) else f"{key} {value}"
