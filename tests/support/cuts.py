"""Cuts of lhotse, as a large corpus has them: read lazily, of different durations."""

from pathlib import Path
from typing import Any

import pytest


def lhotse_cuts(folder: Path, count: int) -> Any:
    """Write a manifest of `count` cuts into `folder`; return them, read lazily."""
    lhotse, dummies = pytest.importorskip("lhotse"), pytest.importorskip("lhotse.testing.dummies")
    path = folder / "cuts.jsonl"
    cuts = [dummies.dummy_cut(number, duration=1.0 + number * 7 % 13 / 4) for number in range(count)]
    lhotse.CutSet.from_cuts(cuts).to_jsonl(path)
    return lhotse.CutSet.from_jsonl_lazy(path)
