"""Results of benchmarks/two_hosts.py --to-loss as files: all numbers as JSON, a table as markdown. Written after every
cell, so that a grid that was interrupted goes on by the same command."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from two_hosts_predicted import Link


class Setting(NamedTuple):
    """A link and the speeds of learners, in which all ways are compared."""

    rate: str
    delay: float
    slower: float


@dataclass
class Cell:
    """One training by one way.

    Attributes:
        mode: the way.
        number: number of the round, from 0.
        failed: the reason why there are no results; empty if there are.
        steps: steps a second of both learners.
        alone: steps a second of both without talk, before this cell and before the next.
        curve: seconds of training, and the held-out loss (nats) of the mean of both models then.
        predicted: throughput over that of never talking, by the simulator.
        learning_rate: learning rate of both learners; None: that of the task.
    """

    mode: str
    setting: Setting
    number: int
    failed: str = ""
    steps: tuple[float, float] = (math.nan, math.nan)
    alone: list[tuple[float, float]] = field(default_factory=list)
    curve: list[tuple[float, float]] = field(default_factory=list)
    predicted: float | None = None
    learning_rate: float | None = None

    @property
    def key(self) -> tuple[str, Setting, int, float | None]:
        return self.mode, self.setting, self.number, self.learning_rate

    @property
    def ratio(self) -> float:
        """Steps a second of both learners, over those of both without talk."""
        apart = statistics.mean(sum(both) for both in self.alone) if self.alone else math.nan
        return sum(self.steps) / apart

    @property
    def last(self) -> float:
        """Held-out loss at the end of training."""
        return self.curve[-1][1] if self.curve else math.nan

    def seconds_to(self, target: float) -> float | None:
        """Return the seconds until the loss `target` was reached, on straight lines between looks; None: it was not."""
        before: tuple[float, float] | None = None
        for at, loss in self.curve:
            if loss <= target:
                if before is None or before[1] == loss:
                    return at
                part = (before[1] - target) / (before[1] - loss) if math.isfinite(before[1]) else 1.0
                return before[0] + part * (at - before[0])
            before = at, loss
        return None


class Results:
    """The results of all cells, kept in a folder.

    Args:
        told: everything that the numbers depend on; results of another command are refused.
    """

    def __init__(self, out: Path, told: Mapping[str, Any], target: float | None = None) -> None:
        from roundelay.core.files import read_json

        self._out, self._told, self._target = out, dict(told), target
        self.cells: dict[tuple[str, Setting, int, float | None], Cell] = {}
        if (out / "results.json").is_file():
            there = read_json(out / "results.json")
            if there["told"] != self._told:
                differs = [key for key in self._told if there["told"].get(key) != self._told[key]]
                raise SystemExit(f"{out} has results of another command ({', '.join(differs)}): give another --out.")
            for one in there["cells"]:
                cell = cell_of(one)
                self.cells[cell.key] = cell

    def add(self, cell: Cell) -> None:
        """Add a cell, and write all files."""
        self.cells[cell.key] = cell
        self.write()

    def write(self) -> None:
        """Write the JSON of all numbers, and the table."""
        from roundelay.core.files import write_json, write_text

        self._out.mkdir(parents=True, exist_ok=True)
        write_json(self._out / "results.json", {"told": self._told, "cells": [_plain(c) for c in self.cells.values()]})
        write_text(self._out / "table.md", self.table())

    def target(self, setting: Setting) -> float:
        """Return the loss that all ways are to reach: as told, or the lowest that one host alone, at its best learning
        rate, has at the end of every round."""
        if self._target is not None:
            return self._target
        alone = [cell for cell in self.cells.values() if cell.mode == "alone" and cell.curve]
        same = [cell for cell in alone if cell.setting == setting] or alone
        rates = {cell.learning_rate for cell in same}
        ends = (max(cell.last for cell in same if cell.learning_rate == rate) for rate in rates)
        return min(ends, default=math.nan)

    def table(self) -> str:
        """Return the tables as markdown, one for each setting."""
        parts = []
        for setting in dict.fromkeys(cell.setting for cell in self.cells.values()):
            rows: dict[str, list[Cell]] = {}
            for cell in self.cells.values():
                if cell.setting == setting:
                    rows.setdefault(cell.mode, []).append(cell)
            target = self.target(setting)
            parts.append(_one_table(setting, target, [Row(mode, cells, target) for mode, cells in rows.items()]))
        facts = "; ".join(f"{name} {value}" for name, value in self._told.items())
        return "\n\n".join([*parts, facts]) + "\n"


class Row:
    """One way in one setting, at its best learning rate: that by which it comes to the target first, or, where it
    never does, nearest to it.

    Attributes:
        best: cells of that learning rate, one for each round; those that failed are left out.
        failed: the reason why there are none; empty if there are.
        at_edge: the best rate is the lowest or the highest of several, so a better one may lie beyond.
    """

    def __init__(self, mode: str, cells: Sequence[Cell], target: float) -> None:
        self.mode, self._target = mode, target
        good = [cell for cell in cells if not cell.failed]
        self.failed = "" if good else cells[-1].failed
        rates = sorted({cell.learning_rate for cell in good if cell.learning_rate is not None})
        groups = [[cell for cell in good if cell.learning_rate == rate] for rate in rates or [None]]
        self.best = min(groups, key=self._order) if good else []
        self.rate = self.best[0].learning_rate if good else None
        self.at_edge = len(rates) > 1 and self.rate in (rates[0], rates[-1])

    def _order(self, cells: Sequence[Cell]) -> tuple[float, float]:
        seconds = [cell.seconds_to(self._target) for cell in cells]
        there = [math.inf if one is None else one for one in seconds]
        return statistics.median(there), statistics.median(cell.last for cell in cells)

    @property
    def order(self) -> float:
        """Seconds to the target, the median over rounds; infinite if it was not reached."""
        return self._order(self.best)[0] if self.best else math.inf

    @property
    def seconds(self) -> list[float]:
        """Seconds to the target, round by round; empty unless all rounds reached it."""
        found = [cell.seconds_to(self._target) for cell in self.best]
        return [] if None in found else [one for one in found if one is not None]


def _one_table(setting: Setting, target: float, rows: Sequence[Row]) -> str:
    slow = f", the second learner {setting.slower:g} times slower" if setting.slower > 1 else ""
    heads = ("times sooner than alone", f"seconds to {target:.4f} nats", "way", "learning rate")
    heads += ("loss in the end", "of never talking", "predicted")
    lines = [f"**{Link(setting.rate, setting.delay)}{slow}**", "", _line(heads), _line(["---"] * len(heads))]
    alone = next((row.seconds for row in rows if row.mode == "alone"), [])
    for row in sorted(rows, key=lambda row: row.order):
        if row.failed:
            lines.append(_line(["", row.failed, row.mode, *[""] * (len(heads) - 3)]))
            continue
        first = spread(row.seconds, 1) if row.seconds else f"not in {row.best[0].curve[-1][0]:.0f} s"
        sooner = ""
        if alone and row.seconds and row.mode != "alone":
            sooner = spread([statistics.median(alone) / seconds for seconds in row.seconds], 2)
        rate = "" if row.rate is None else f"{row.rate:g}" + (", at the edge" if row.at_edge else "")
        predicted = row.best[-1].predicted
        ratio = statistics.median(cell.ratio for cell in row.best)
        said = "" if predicted is None else f"{predicted:.3f} ({100 * (predicted / ratio - 1):+.1f} %)"
        ends, ratios = spread([c.last for c in row.best], 4), spread([c.ratio for c in row.best], 3)
        lines.append(_line([sooner, first, row.mode, rate, ends, ratios, said]))
    return "\n".join(lines)


def spread(values: Sequence[float], digits: int) -> str:
    """Return the median of `values` as text, with the range if there are several."""
    if not values:
        return ""
    middle = f"{statistics.median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _plain(cell: Cell) -> dict[str, Any]:
    return {**asdict(cell), "setting": [*cell.setting]}


def cell_of(value: Mapping[str, Any]) -> Cell:
    """Return the cell that a JSON object describes; null stands for numbers that JSON cannot write."""
    fields = dict(value)
    fields["setting"] = Setting(*fields["setting"])
    fields["steps"] = tuple(math.nan if speed is None else speed for speed in fields["steps"])
    fields["alone"] = [tuple(both) for both in fields["alone"]]
    fields["curve"] = [(at, math.inf if loss is None else loss) for at, loss in fields["curve"]]
    return Cell(**fields)
