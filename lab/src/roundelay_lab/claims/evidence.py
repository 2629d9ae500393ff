"""Evidence: the table that an experiment came to, with everything it takes to run it again."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundelay.core.configure import build, plain
from roundelay.core.errors import UserError
from roundelay.core.files import read_json, write_text
from roundelay_lab.claims.claim import Claim
from roundelay_lab.claims.experiment import Row
from roundelay_lab.claims.rule import Judgement, Verdict, judge, landings


@dataclass(frozen=True)
class Evidence:
    """The evidence for a claim: the table of its experiment.

    definition  fingerprint of the experiment as it was
    bounds      fingerprint of the rule as it was when the experiment was run
    rows        rows that are judged
    tuning      trainings by which values were chosen
    seconds     seconds of all runs together
    """

    claim: str
    definition: str
    bounds: str
    verdict: str
    command: str
    seconds: float
    commit: str
    machine: str
    keys: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]
    tuning: tuple[dict[str, Any], ...] = ()


def load_evidence(claim: Claim) -> Evidence | None:
    """Return the evidence for a claim that comes with the package; None: there is none yet."""
    return _packaged(claim.name)


def load_regime(claim: Claim) -> Evidence | None:
    """Return the table of the claim's regime that comes with the package; None if there is none yet.

    Raises:
        UserError: the table is of another experiment.
    """
    found = None if claim.regime is None else _packaged(f"{claim.name}-regime")
    if found is not None and found.definition != claim.regime_definition:
        raise UserError(f"claim {claim.name}: its regime is of another experiment. Measure it again.")
    return found


def _packaged(name: str) -> Evidence | None:
    path = Path(__file__).parent / "evidence" / f"{name}.json"
    return read_evidence(path) if path.is_file() else None


def read_evidence(path: Path) -> Evidence:
    """Return the evidence in a file.

    Raises:
        UserError: the file is no evidence.
    """
    return build(Evidence, read_json(path), str(path))


def write_evidence(evidence: Evidence, path: Path) -> None:
    """Write the evidence as JSON, a line for each row."""
    value = plain(evidence)
    lines = [f" {json.dumps(key)}: {json.dumps(value[key])}" for key in value if key not in ("rows", "tuning")]
    for key, rows in (("rows", evidence.rows), ("tuning", evidence.tuning)):
        if rows:
            body = ",\n".join(f"  {json.dumps(row)}" for row in rows)
            lines.append(f' "{key}": [\n{body}\n ]')
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def judged(claim: Claim, evidence: Evidence | None) -> Judgement:
    """Return the verdict on a claim by its evidence; without evidence it is open.

    Raises:
        UserError: the evidence is of another experiment.
    """
    if claim.rule is None or evidence is None:
        return Judgement(Verdict.OPEN)
    if evidence.definition != claim.definition:
        raise UserError(f"claim {claim.name}: its evidence is of another experiment. Run it again.")
    return judge(claim.rule, evidence.rows, evidence.keys)


def fixed_before(claim: Claim, evidence: Evidence) -> bool:
    """Return True if the bounds of a claim's rule were written before its experiment was run."""
    return claim.fixed == "before" and evidence.bounds == claim.bounds


def landed(claim: Claim, rows: list[Row]) -> list[str] | None:
    """Return a sentence for each configuration of a rerun that is outside the stated spread of the package's evidence;
    None if the package has none."""
    evidence = load_evidence(claim)
    if evidence is None or evidence.definition != claim.definition:
        return None
    return landings(claim, evidence.rows, rows, evidence.keys)
