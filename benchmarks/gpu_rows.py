"""Bandwidth of learners' work on rows in a GPU's memory, as a share of that of copying one row to another.

    python benchmarks/gpu_rows.py                              # a row of 43 million parameters
    python benchmarks/gpu_rows.py --device cpu --parameters 100000    # does it run? no figures

Counted are bytes that must move: of a copy, one row read and one written; of a pair average two and two; of a momentum
step that leaves a snapshot three read (row, gradient, momentum) and three written (row, momentum, snapshot). Ways to
step: torch's fused optimizer and a copy behind it; the kernel that learners use (roundelay.algorithms.one_pass); the
same compiled by torch.compile. Medians over rounds, in which all take turns; every call is timed by the device.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gpu_workloads import MOMENTUM, RATE, checked_device, described
from torch import Tensor

from roundelay.algorithms.averaging import pair_average_
from roundelay.algorithms.local_update import Sgd
from roundelay.core.flat import slices

REPEATS, WARM_UP = 20, 5
COPY = "copy"


@dataclass(frozen=True)
class Work:
    """An operation on rows, and the number of rows that it must read and write."""

    do: Callable[[], object]
    rows: int
    asked: float | None = None


def works(parameters: int, device: torch.device) -> dict[str, Work]:
    """Return the operations to time, by name; none of them reads vectors that another one writes."""

    def row() -> Tensor:
        return torch.randn(parameters, device=device)

    mine, theirs, into = row(), row(), row()

    def average() -> None:
        for x, y in zip(slices(mine), slices(theirs), strict=True):
            pair_average_(x, y)

    x, gradient, memory, snapshot, sgd = row(), row(), {"momentum": row()}, row(), Sgd(MOMENTUM)

    def step_and_copy() -> None:
        sgd.update_(x, gradient, memory, RATE)
        snapshot.copy_(x)

    found = {
        COPY: Work(lambda: into.copy_(theirs), 2),
        "pair average": Work(average, 4, 0.6),
        "step, then copy": Work(step_and_copy, 6),
    }
    one_pass = sgd.attach_copying(x, memory, snapshot)
    if one_pass is not None:
        found["step and copy, one pass"] = Work(lambda: one_pass.update_(gradient, RATE), 6, 0.7)
    compiled = torch.compile(_step_and_copy)
    found["step and copy, compiled"] = Work(lambda: compiled(x, gradient, memory["momentum"], snapshot), 6)
    return found


def _step_and_copy(x: Tensor, gradient: Tensor, momentum: Tensor, snapshot: Tensor) -> None:
    v = MOMENTUM * momentum + gradient
    momentum.copy_(v)
    x.sub_(RATE * v)
    snapshot.copy_(x)


def seconds(do: Callable[[], object], device: torch.device) -> float:
    """Return the median seconds of a call of `do`."""
    found = []
    for _ in range(WARM_UP):
        do()
    for _ in range(REPEATS):
        if device.type != "cuda":
            started = time.perf_counter()
            do()
            found.append(time.perf_counter() - started)
            continue
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        do()
        after.record()
        after.synchronize()
        found.append(before.elapsed_time(after) / 1e3)
    return statistics.median(found)


def measure(parameters: int, device: torch.device, rounds: int) -> dict[str, Any]:
    """Return the bytes a second of each work, round by round; a work that fails says why."""
    all_works, found, failed = works(parameters, device), dict[str, list[float]](), dict[str, str]()
    for _ in range(rounds):
        for name, work in all_works.items():
            if name in failed:
                continue
            try:
                taken = seconds(work.do, device)
            except Exception as error:  # a compiler fails in many ways, and the rest is worth knowing
                failed[name] = f"{type(error).__name__}: {error}"
                continue
            found.setdefault(name, []).append(4 * parameters * work.rows / taken)
    asked = {name: work.asked for name, work in all_works.items()}
    return {"parameters": parameters, "bytes a second": found, "failed": failed, "asked": asked}


def table(found: dict[str, Any]) -> str:
    """Return the table of results, a line for each operation."""
    copied, lines = found["bytes a second"][COPY], []
    for name, speeds in found["bytes a second"].items():
        ratios = [one / copy for one, copy in zip(speeds, copied, strict=True)]
        asked = found["asked"][name]
        wanted = "" if asked is None else f"   asked: {asked}"
        spread = f"{statistics.median(ratios):.3f}  ({min(ratios):.3f} to {max(ratios):.3f})"
        lines.append(f"{name:<26}{statistics.median(speeds) / 1e9:9.1f} GB/s   {spread}{wanted}")
    return "\n".join([*lines, *(f"{name:<26}failed: {why}" for name, why in found["failed"].items())])


def main() -> None:
    """Measure the operations, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=43_200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="a JSON file for all that was measured")
    options = parser.parse_args()
    device = checked_device(options.device)
    title = f"{options.parameters:,} parameters, {described(device)}, {options.rounds} rounds"
    print(title, flush=True)
    found = {"title": title, **measure(options.parameters, device, options.rounds)}
    print(table(found))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
