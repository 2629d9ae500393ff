"""`docs/claims.md`: every claim with its verdict, its rule and its numbers, made from catalogue and evidence alone; and
its figure, lines over a few values of a key, as an SVG file that stands alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path

import numpy as np

from roundelay.core.files import write_text
from roundelay.reports.charts import Axis, axis
from roundelay.reports.markup import render
from roundelay_lab.claims.claim import Check, Claim, Figure, load_claims
from roundelay_lab.claims.evidence import Evidence, fixed_before, judged, load_evidence, load_regime
from roundelay_lab.claims.rule import MORE_SEEDS, Judgement, Measured, Verdict, measured, sampled, seeds_that_decide

WIDTH, HEIGHT, TOP = 640.0, 340.0, 34.0
PAGE, DRAWN = "claims.md", "claims"
BESIDE = "dev, of one learner's"


@dataclass(frozen=True)
class Settled:
    """A claim with its evidence and the verdict."""

    claim: Claim
    evidence: Evidence | None
    judgement: Judgement
    regime: Evidence | None = None

    @property
    def short(self) -> str:
        """Words on the first check and on failed ones, with numbers; for an open claim, the work it would take."""
        if self.evidence is None:
            run = ["Its experiment has not been run."] if self.claim.experiment is not None else []
            return " ".join([*run, *self.claim.open.split()])
        told = [one for one in self.judgement.open if one.holds]
        told += [one for n, one in enumerate(self.judgement.shown) if n == 0 or not one.holds]
        words = {True: "", False: "not: ", None: "undecided: "}
        return "; ".join(f"{words[one.holds]}{one.check.says} ({shown(one.value)})" for one in told)

    @property
    def fixed(self) -> str:
        """A sentence on when the bounds of the claim's rule were written."""
        if self.evidence is None or fixed_before(self.claim, self.evidence):
            return "Its bounds were fixed before the experiment was run."
        return "Bounds among these were written when the table was known."

    @property
    def chance(self) -> str:
        """Chance of the same verdict under new seeds, with two digits; a dash without chance in the numbers."""
        found = self.judgement.chance
        return "–" if found is None else "> 0.99" if found > 0.99 else f"{found:.2f}"

    @property
    def sure(self) -> str:
        """Sentences on the chance of the same verdict, and on the seeds that an open claim would take."""
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
    """Return all claims with evidence and verdicts, by number."""
    found = []
    for claim in load_claims():
        evidence = load_evidence(claim)
        found.append(Settled(claim, evidence, judged(claim, evidence), load_regime(claim)))
    return found


def write_page(folder: Path) -> list[Path]:
    """Write the page and its figures below `folder`; return the files written."""
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
    words = {"shown": shown, "bound": _bound, "measured": measured_table}
    text = render("roundelay_lab.claims/claims.md", claims=all_claims, **words)
    return text.rstrip() + "\n"


def shown(value: float) -> str:
    """Return a number of a table as text; `diverged` for None and NaN."""
    return f"{value:.4g}" if isfinite(value) else "diverged"


def _bound(check: Check) -> str:
    bound = f"at most {check.at_most:g}" if check.at_most is not None else f"at least {check.at_least:g}"
    over = f", divided by that of {_selection(check.over)}" if check.over else ""
    which = {"every": "each", "any": "one", "median": "the median"}[check.take]
    return f"{check.says}: `{check.column}` of {_selection(check.rows)}{over}: {which} {bound}"


def _selection(rows: object) -> str:
    assert isinstance(rows, dict)
    words = [f"{k} {' or '.join(map(str, v)) if isinstance(v, list) else v}" for k, v in rows.items()]
    return f"({', '.join(words)})" if words else "all"


def measured_table(evidence: Evidence) -> list[list[str]]:
    """Return the titles of a table, then a row for each configuration: means, and their spread over seeds."""
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
    if beside := _beside_one_learner(evidence):
        columns.append(BESIDE)
        for key, cells in table.items():
            cells.append(beside.get(key, ""))
    return [[*keys, *columns], *([*map(str, key), *cells] for key, cells in table.items())]


def _beside_one_learner(evidence: Evidence) -> dict[tuple[object, ...], str]:
    """Return, by keys, the loss over that of one learner under the same seed, with its interval; empty without runs of
    one learner."""
    rows, keys = evidence.rows, evidence.keys
    alone = [row for row in rows if row.get("strategy") == "sgd" and "dev" in row]
    if not alone:
        return {}
    axes = [key for key in keys if key not in ("strategy", "learners")]
    same = [key for key in axes if {row.get(key) for row in rows} <= {row.get(key) for row in alone}]
    found, losses = {}, {one.configuration: one.mean for one in measured(rows, keys, "dev", {})}
    for one in measured(rows, keys, "dev", {}, {"strategy": "sgd"}, same):
        values = dict(one.configuration)
        low, high = (float(end[0, 0]) for end in sampled(np.array(one.values)[:, None], seeded=True).bounds())
        ratio = (
            f"{shown(one.mean)} ({shown(low)} to {shown(high)})" if isfinite(losses[one.configuration]) else shown(inf)
        )
        if values["strategy"] != "sgd":
            found[tuple(values.get(key, "") for key in keys)] = ratio
    return found


def draw(claim: Claim, evidence: Evidence) -> str:
    """Return the SVG of a claim's figure; "" if it has none. A run that diverged stands at the upper edge."""
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
    """Return the lines of a figure by name, each the measurements at values of x; and all these values in order."""
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
