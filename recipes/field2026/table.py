#!/usr/bin/env python
"""A table of the runs in a folder: losses, and what adaptation gained, with differences paired by seed.

    python recipes/field2026/table.py FOLDER BASE        BASE: the beginning of the name of the runs to compare with

Seed 0 chose learning rates and is left out. Intervals are those of `roundelay claims`: 2.9 standard errors of three
seeds.
"""

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from roundelay.core.records import Results
from roundelay_lab.claims.rule import standard_errors

Row = dict[str, float]


def row(run: Path) -> Row:
    """Return the numbers of a run: losses, seconds, and before, after and gain of an adaptation, in nats and words."""
    results = Results.read(run)
    told: Row = {f"{split} loss": loss for split, loss in results.frame_cross_entropy.items()}
    told |= {"seconds": results.virtual_seconds or 0.0}
    path = run / "adaptation.json"
    adapted: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for found in [one for name, one in adapted.items() if name != "wer" and "test" in one]:
        for split in ("dev", "test"):
            before, after = found[split]["loss"]
            told |= {f"{split} adapted": after, f"{split} gain": before - after, f"{split} share": 1 - after / before}
            told |= {f"{split} wer": adapted["wer"][split], f"{split} adapted wer": found["wer"][split]}
            told[f"{split} wer gain"] = adapted["wer"][split] - found["wer"][split]
    return told


def interval(values: Sequence[float]) -> str:
    """Return a mean with its interval."""
    middle = fmean(values)
    away = standard_errors(len(values)) * stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("inf")
    return f"{middle:.4f} ({middle - away:.4f} to {middle + away:.4f})"


def main() -> None:
    """Print the table, a block for each column."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("base")
    options = parser.parse_args()
    ways: dict[str, dict[int, Row]] = {}
    for run in sorted(options.folder.glob("*-seed[1-9]*")):
        if (run / Results.FILE).exists() and (found := re.match(r"(.*)-seed(\d+)$", run.name)):
            ways.setdefault(found[1], {})[int(found[2])] = row(run)
    base = next(rows for name, rows in ways.items() if name.startswith(options.base))
    for column in dict.fromkeys(key for rows in ways.values() for one in rows.values() for key in one):
        print(f"\n{column}")
        for name, rows in ways.items():
            mine = {seed: one[column] for seed, one in rows.items() if column in one}
            both = [seed for seed in mine if column in base.get(seed, {})]
            spread = f" ± {stdev(mine.values()):.4f}" if len(mine) > 1 else ""
            less = [mine[seed] - base[seed][column] for seed in both]
            ratio = [mine[seed] / base[seed][column] for seed in both if base[seed][column]]
            print(f"  {name:60} {fmean(mine.values()) if mine else 0:.4f}{spread} of {len(mine)};", end=" ")
            print(f"less base {interval(less)}; over base {interval(ratio)}" if less and ratio else "")


if __name__ == "__main__":
    main()
