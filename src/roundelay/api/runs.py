"""Runs from Python: load_run, report. Neither loads torch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundelay.core.configure import read_yaml
from roundelay.core.errors import UserError
from roundelay.core.records import CurvePoint, Evaluation, Record, Results, Segment, Staleness, of_kind, read_events
from roundelay.reports.page import write_report

Curve = Mapping[str, NDArray[Any]]
"""Columns of equally many points, by name."""


@dataclass(frozen=True)
class LoadedRun:
    """A run directory in memory: its recipe, records and results.

    Attributes:
        folder: the directory.
        recipe: every option of the run, by section.
        events: all records, in the order they were written.
        results: the summary, with the word error rates where it was decoded; None until training has ended.
    """

    folder: Path
    recipe: Mapping[str, Any]
    events: tuple[Record, ...]
    results: Results | None

    @cached_property
    def curves(self) -> Mapping[str, Curve]:
        """Curves as arrays: `within_epochs`, some hundred points an epoch; `train`, a point a segment; and one of each
        evaluated split, `dev` for example, a point an evaluation. Columns are named as the fields of the records;
        `wall_s` and `frames` give the time of each point."""
        found = {
            "within_epochs": _columns(of_kind(self.events, CurvePoint)),
            "train": _columns(of_kind(self.events, Segment)),
        }
        ages = of_kind(self.events, Staleness)
        if len(ages) == len(found["train"].get("epoch", ())):
            found["train"] = {**found["train"], "staleness": np.array([one.mean for one in ages])}
        evaluations = of_kind(self.events, Evaluation)
        for split in dict.fromkeys(one.split for one in evaluations):
            found[split] = _columns(one for one in evaluations if one.split == split)
        return found

    def __repr__(self) -> str:
        if self.results is None:
            return f"<run {self.folder}: not finished, {len(self.events)} records>"
        rates = [f"{split} {one.wer:.2f} % words wrong" for split, one in self.results.wer.items()]
        losses = [f"{split} {loss:.4f} nats" for split, loss in self.results.frame_cross_entropy.items()]
        return f"<run {self.folder}: {self.results.label}, {', '.join(rates or losses)}>"


def load_run(exp: Path | str) -> LoadedRun:
    """Return the run in the directory `exp`, finished or not.

    Raises:
        UserError: not a run directory, or a damaged one; names the file.
    """
    folder = Path(exp)
    if not (folder / "events.jsonl").is_file():
        raise UserError(f"{folder}: not a run directory (no events.jsonl in it). Give what `train` was given as exp.")
    recipe = read_yaml(folder / "recipe.yaml") if (folder / "recipe.yaml").is_file() else {}
    return LoadedRun(
        folder,
        recipe,
        tuple(read_events(folder / "events.jsonl")),
        Results.read(folder) if (folder / Results.FILE).is_file() else None,
    )


def report(
    exps: Path | str | Sequence[Path | str], out: Path | str = "report.html", target_loss: float | None = None
) -> Path:
    """Write one self-contained HTML page about runs; return its path.

    Args:
        target_loss: held-out loss (nats per frame) to which times are compared; None: one that all runs reached.

    Raises:
        UserError: a folder is no run directory; the page cannot be written.
    """
    folders = [exps] if isinstance(exps, str | Path) else exps
    return write_report([Path(folder) for folder in folders], Path(out), target_loss)


def _columns(records: Iterable[Record]) -> Curve:
    """Return one array for each field that is a number in all records; a number that some lack is NaN there."""
    every = list(records)
    names = [field.name for field in fields(every[0])] if every else []
    columns = {name: [getattr(record, name) for record in every] for name in names}
    known = {
        name: [float("nan") if value is None else value for value in some]
        for name, some in columns.items()
        if any(value is not None for value in some)
    }
    return {name: np.array(some) for name, some in known.items() if all(isinstance(v, int | float) for v in some)}
