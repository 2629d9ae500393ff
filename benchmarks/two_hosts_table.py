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
        number: of the round, from 0.
        failed: the reason why there is nothing to tell; empty if there is.
        steps: a second, of both learners.
        alone: steps a second of both while nobody talked, before this cell and before the next.
        curve: seconds of training, and the held-out loss (nats) of the mean of both models then.
        predicted: throughput over that of never talking, by the simulator.
    """

    mode: str
    setting: Setting
    number: int
    failed: str = ""
    steps: tuple[float, float] = (math.nan, math.nan)
    alone: list[tuple[float, float]] = field(default_factory=list)
    curve: list[tuple[float, float]] = field(default_factory=list)
    predicted: float | None = None

    @property
    def key(self) -> tuple[str, Setting, int]:
        return self.mode, self.setting, self.number

    @property
    def ratio(self) -> float:
        """Steps of both learners, over those of both while nobody talked."""
        apart = statistics.mean(sum(both) for both in self.alone) if self.alone else math.nan
        return sum(self.steps) / apart

    @property
    def last(self) -> float:
        """Held-out loss in the end."""
        return self.curve[-1][1] if self.curve else math.nan

    def seconds_to(self, target: float) -> float | None:
        """Seconds until the loss was reached, on straight lines between looks; None: it was not."""
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
    """Cells in a folder.

    Args:
        told: everything that the numbers depend on; those of another command are refused.
    """

    def __init__(self, out: Path, told: Mapping[str, Any], target: float | None = None) -> None:
        from roundelay.core.files import read_json

        self._out, self._told, self._target = out, dict(told), target
        self.cells: dict[tuple[str, Setting, int], Cell] = {}
        if (out / "results.json").is_file():
            there = read_json(out / "results.json")
            if there["told"] != self._told:
                differs = [key for key in self._told if there["told"].get(key) != self._told[key]]
                raise SystemExit(f"{out} has results of another command ({', '.join(differs)}): give another --out.")
            for one in there["cells"]:
                cell = cell_of(one)
                self.cells[cell.key] = cell

    def add(self, cell: Cell) -> None:
        """Keep a cell, and write all files."""
        self.cells[cell.key] = cell
        self.write()

    def write(self) -> None:
        """Both files."""
        from roundelay.core.files import write_json, write_text

        self._out.mkdir(parents=True, exist_ok=True)
        write_json(self._out / "results.json", {"told": self._told, "cells": [_plain(c) for c in self.cells.values()]})
        write_text(self._out / "table.md", self.table())

    def target(self, setting: Setting) -> float:
        """The loss that all are held to: as told, or that which one host alone has in the end."""
        if self._target is not None:
            return self._target
        alone = [cell for cell in self.cells.values() if cell.mode == "alone" and cell.curve]
        same = [cell for cell in alone if cell.setting == setting] or alone
        return statistics.median(cell.last for cell in same) if same else math.nan

    def table(self) -> str:
        """A table a setting."""
        parts = []
        for setting in dict.fromkeys(cell.setting for cell in self.cells.values()):
            rows: dict[str, list[Cell]] = {}
            for cell in self.cells.values():
                if cell.setting == setting:
                    rows.setdefault(cell.mode, []).append(cell)
            parts.append(_one_table(setting, self.target(setting), rows))
        facts = "; ".join(f"{name} {value}" for name, value in self._told.items())
        return "\n\n".join([*parts, facts]) + "\n"


def _one_table(setting: Setting, target: float, rows: Mapping[str, Sequence[Cell]]) -> str:
    slow = f", the second learner {setting.slower:g} times slower" if setting.slower > 1 else ""
    heads = (f"seconds to {target:.4f} nats", "way", "of never talking", "predicted", "loss in the end")
    lines = [f"**{Link(setting.rate, setting.delay)}{slow}**", "", _line(heads), _line(["---"] * len(heads))]
    ordered = sorted(rows.items(), key=lambda row: _order(row[1], target))
    for mode, cells in ordered:
        good = [cell for cell in cells if not cell.failed]
        if not good:
            lines.append(_line([cells[-1].failed, mode, "", "", ""]))
            continue
        reached = [cell.seconds_to(target) for cell in good]
        there = [seconds for seconds in reached if seconds is not None]
        first = spread(there, 1) if len(there) == len(good) else f"not in {good[0].curve[-1][0]:.0f} s"
        predicted = good[-1].predicted
        ratio = statistics.median(cell.ratio for cell in good)
        said = "" if predicted is None else f"{predicted:.3f} ({100 * (predicted / ratio - 1):+.1f} %)"
        lines.append(_line([first, mode, spread([c.ratio for c in good], 3), said, spread([c.last for c in good], 4)]))
    return "\n".join(lines)


def _order(cells: Sequence[Cell], target: float) -> float:
    reached = [cell.seconds_to(target) for cell in cells if not cell.failed]
    there = [seconds for seconds in reached if seconds is not None]
    return statistics.median(there) if there else math.inf


def spread(values: Sequence[float], digits: int) -> str:
    """The median, and the range where there are several."""
    if not values:
        return ""
    middle = f"{statistics.median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _plain(cell: Cell) -> dict[str, Any]:
    return {**asdict(cell), "setting": [*cell.setting]}


def cell_of(value: Mapping[str, Any]) -> Cell:
    """The inverse of how a cell is written; numbers that JSON has none for are null."""
    fields = dict(value)
    fields["setting"] = Setting(*fields["setting"])
    fields["steps"] = tuple(math.nan if speed is None else speed for speed in fields["steps"])
    fields["alone"] = [tuple(both) for both in fields["alone"]]
    fields["curve"] = [(at, math.inf if loss is None else loss) for at, loss in fields["curve"]]
    return Cell(**fields)
