"""Runs a claim's experiment, row by row; rows that are there already are only read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roundelay.core.errors import UserError
from roundelay.core.files import read_json, write_json
from roundelay.reports.numbers import seconds
from roundelay.run_directory import commit, machine
from roundelay.runtime.base import wall_clock
from roundelay_lab.claims.claim import Claim
from roundelay_lab.claims.evidence import Evidence, write_evidence
from roundelay_lab.claims.experiment import Found, Mixing, Piece, Printed, Row, Scenarios, Trainings
from roundelay_lab.claims.noise import noise_pieces
from roundelay_lab.claims.rule import judge, said
from roundelay_lab.claims.simulations import mixing_pieces, printed_pieces, scenario_pieces
from roundelay_lab.claims.speech import ClaimFolders, Ways, train_all, train_regime

EVIDENCE = "evidence.json"


def run_claim(claim: Claim, folders: ClaimFolders, ways: Ways) -> Evidence | None:
    """Run the missing rows of a claim's experiment below `folders.out`; write the evidence there, in the folder NAME.

    Returns None if interrupted: the same call then goes on.

    Raises:
        UserError: the claim has no experiment; the folder holds one of another definition; an error of the experiment.
    """
    if claim.experiment is None or claim.rule is None:
        raise UserError(f"claim {claim.name} cannot be settled here. {claim.open}")
    folder, keys = folders.out / claim.name, claim.experiment.keys
    match claim.experiment:
        case Trainings() as experiment:
            found = train_all(experiment, folders, ways)
        case Printed() as experiment:
            found = _run(printed_pieces(experiment), Kept(folder / "rows.json", claim.definition), ways)
        case Scenarios() as experiment:
            found = _run(scenario_pieces(experiment), Kept(folder / "rows.json", claim.definition), ways)
        case Mixing() as experiment:
            found = _run(mixing_pieces(experiment), Kept(folder / "rows.json", claim.definition), ways)
    if found is None:
        return None
    verdict = judge(claim.rule, found.rows, keys).verdict.value
    told = {"definition": claim.definition, "bounds": claim.bounds, "verdict": verdict, "command": claim.command}
    return _written(folder, claim, keys, found, told)


def run_regime(claim: Claim, folders: ClaimFolders, ways: Ways) -> Evidence | None:
    """Measure the missing rows of a claim's regime below `folders.out`; write its table there, in the folder
    NAME-regime.

    Returns None if interrupted: the same call then goes on.

    Raises:
        UserError: the claim has no regime; the folder holds one of another definition; trainings failed.
    """
    experiment, regime = claim.experiment, claim.regime
    if regime is None or not isinstance(experiment, Trainings):
        raise UserError(f"claim {claim.name} has no regime to measure.")
    cells = train_regime(experiment, regime, folders, ways)
    if cells is None:
        return None
    folder = folders.out / f"{claim.name}-regime"
    found = _run(noise_pieces(regime, cells), Kept(folder / "rows.json", claim.regime_definition), ways)
    if found is None:
        return None
    told = {"definition": claim.regime_definition, "bounds": "", "verdict": "", "command": claim.regime_command}
    return _written(folder, claim, regime.keys, found, told)


def _written(folder: Path, claim: Claim, keys: tuple[str, ...], found: Found, told: dict[str, str]) -> Evidence:
    """Write evidence into the folder, and return it; `told` are its definition, bounds, verdict and command."""
    evidence = Evidence(
        claim=claim.name,
        seconds=round(found.seconds, 1),
        commit=commit(),
        machine=machine(),
        keys=keys,
        rows=tuple(found.rows),
        tuning=tuple(found.tuning),
        **told,
    )
    write_evidence(evidence, folder / EVIDENCE)
    return evidence


class Kept:
    """The file of an experiment's rows that are done.

    Raises:
        UserError: the file is of another experiment.
    """

    def __init__(self, path: Path, definition: str) -> None:
        self._path, self._definition = path, definition
        self._done: list[dict[str, Any]] = []
        if path.exists():
            content = read_json(path)
            if content["definition"] != definition:
                raise UserError(
                    f"{path.parent} holds rows of this claim as it was defined before. "
                    "Remove it, or give another --out."
                )
            self._done = content["done"]

    @property
    def folder(self) -> Path:
        """The folder of the file."""
        return self._path.parent

    @property
    def seconds(self) -> float:
        """Seconds of all rows together."""
        return float(sum(one["seconds"] for one in self._done))

    def find(self, key: Row) -> Row | None:
        """Return the row with this key; None if it is not done."""
        return next((one["row"] for one in self._done if one["key"] == key), None)

    def keep(self, key: Row, row: Row, took: float) -> None:
        """Add a row to the file, with the seconds it took."""
        self._done.append({"key": key, "row": row, "seconds": took})
        write_json(self._path, {"definition": self._definition, "done": self._done})


def _run(pieces: Sequence[Piece], kept: Kept, ways: Ways) -> Found | None:
    """Compute the rows of all pieces that are not kept yet; return all rows, None if interrupted."""
    rows: list[Row] = []
    worked: list[float] = []
    for number, piece in enumerate(pieces, 1):
        row = kept.find(piece.key)
        if row is None:
            if ways.interrupt.asked:
                return None
            began = wall_clock()
            row = piece.work(ways.progress)
            took = wall_clock() - began
            kept.keep(piece.key, row, round(took, 2))
            worked.append(took)
            left = sum(kept.find(other.key) is None for other in pieces)
            about = f"; about {seconds(left * sum(worked) / len(worked))} to go" if left else ""
            ways.announce(f"{number}/{len(pieces)} {said(tuple(piece.key.items()))}: {_told(row)}{about}")
        rows.append({**piece.key, **row})
    if not worked:
        ways.announce(f"all {len(rows)} rows are there already; remove {kept.folder} to work them out again")
    return Found(rows, [], kept.seconds)


def _told(row: Row) -> str:
    return ", ".join(f"{key} {'diverged' if value is None else format(value, '.4g')}" for key, value in row.items())
