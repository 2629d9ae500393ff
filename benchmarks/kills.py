"""Learners killed at random moments: does every run train every minibatch exactly once, end, and leave nothing behind?

    python benchmarks/kills.py [--kills 200] [--rounds 300] [--seed 0] [--strategies adpsgd hadpsgd ...]

Runs of asynchronous strategies on a quadratic of 300,000 parameters, large enough for steps and exchanges to take a
good part of the time, so that many kills fall into them. Meanwhile another thread kills (SIGKILL) a random learner
every few tenths of a second: at work, or still starting in a dead one's place; every fifth time two at once. Only the
last one left is spared: a run whose learners are all dead cannot go on.

Every minibatch reports a number of its own instead of its loss, so their sum says whether each was counted exactly
once. After a run no process and no shared memory of it may be left. The first thing that is not so ends a strategy's
runs, and the program with status 1.

Columns: kills delivered; deaths the parent dealt with; new learners that took a place; rows found half written;
minibatches of all epochs; gradients computed again, because their learner died, or lost a member of its node;
steps taken twice, because the learner died between a step and its bookkeeping.
"""

import argparse
import gc
import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

import numpy as np
from torch import Tensor

from roundelay.algorithms.local_update import Sgd
from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch, Statistics
from roundelay.core.streams import stream
from roundelay.learner.base import Learner
from roundelay.learner.quadratic import Quadratic, QuadraticLearner
from roundelay.reports.table import as_text, packed
from roundelay.runtime.base import Cluster, Outcome, SegmentPlan, Straggler
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.procs.processes import Deaths
from roundelay.strategies import make_strategy
from support.processes import alive

NAMES = "asgd easgd adpsgd:random-ring adpsgd:fixed-ring adpsgd:random adpsgd:exponential hadpsgd"
STRATEGIES = NAMES.split()
FRAMES = 8  # a minibatch
SLEEP = 0.004  # a gradient, at least
PATIENCE = 60.0
TOO_LONG = 300
AT_MOST = 10  # kills a run
ARENA = "memfd:roundelay-arena"


class NumberedLearner(QuadraticLearner):
    """A learner on a quadratic that reports a number of the minibatch in place of its loss."""

    def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor, **how: Any) -> Statistics:
        found = super().gradient(x, batch, plan, out, **how)
        return Statistics(found.frames, float(number(batch)) if batch.frames else 0.0, 0)


@dataclass(frozen=True)
class Numbered(Quadratic):
    """A quadratic task whose minibatches can be told apart in a sum of losses."""

    def build(self) -> Learner:
        return NumberedLearner(self)


def number(batch: Minibatch) -> int:
    """Return a random number of 32 bits for a minibatch: different multisets hardly have the same sum."""
    return int(stream(7, "number", batch.index).integers(1 << 32))


class Killer(threading.Thread):
    """A thread that kills learners of a running segment until it is stopped, or has killed `quota`."""

    def __init__(self, runtime: ProcsRuntime, quota: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.runtime, self.quota, self.random = runtime, quota, random.Random(seed)
        self.killed: set[int] = set()
        self.seen: set[int] = set(runtime.process_ids())
        self.over = threading.Event()

    def run(self) -> None:
        while len(self.killed) < self.quota and not self.over.wait(self.random.uniform(0.0, 0.5)):
            for pid in self._victims():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                self.killed.add(pid)

    def _victims(self) -> list[int]:
        pids, living = self.runtime.process_ids(), self.runtime.living()
        self.seen |= set(pids)
        candidates = [pid for pid in pids if pid not in self.killed]
        at_work = {pids[rank] for rank in living} - self.killed
        count = min(2 if self.random.random() < 0.2 else 1, len(candidates), self.quota - len(self.killed))
        victims = self.random.sample(candidates, count)
        if at_work <= set(victims):
            victims = [pid for pid in victims if pid not in at_work]
        return victims


@dataclass
class Row:
    """A row of the table: outcomes of all runs of one strategy."""

    strategy: str
    runs: int = 0
    kills: int = 0
    deaths: int = 0
    joined: int = 0
    torn: int = 0
    minibatches: int = 0
    again: int = 0
    twice: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    COLUMNS = ("strategy", "runs", "kills", "deaths", "joined", "torn", "minibatches", "again", "twice", "seconds")

    def cells(self) -> list[str]:
        values = [getattr(self, name) for name in self.COLUMNS]
        return [f"{v:.0f}" if isinstance(v, float) else str(v) for v in values]


def storm(row: Row, learners: int, rounds: int, quota: int, seed: int) -> None:
    """Do one run, an epoch with kills and a short one without, and add its outcome to `row`."""
    size = FRAMES * learners
    task = Numbered(parameters=300_000, examples=size * rounds, noise=0.0)
    slow = tuple(Straggler(rank, seconds=SLEEP) for rank in range(learners))
    cluster = Cluster(make_strategy(row.strategy), task, Sgd(0.5), learners, seed, slow)
    epochs = [EpochPlan(e, size * n, size, learners, seed) for e, n in enumerate((rounds, 20))]
    started = time.monotonic()
    with ProcsRuntime(cluster, PATIENCE, threads=1, deaths=Deaths(replacements=10**6)) as runtime:
        inodes = arenas(Path("/proc/self"))
        killer = Killer(runtime, quota, seed)
        killer.start()
        outcomes = [runtime.segment(SegmentPlan(epochs[0], 0.01))]
        killer.over.set()
        killer.join()
        outcomes.append(runtime.segment(SegmentPlan(epochs[1], 0.01)))
        finite = bool(np.isfinite(runtime.consensus().numpy()).all())
        killer.seen |= set(runtime.process_ids())
    del runtime, killer.runtime
    gc.collect()
    row.runs, row.kills = row.runs + 1, row.kills + len(killer.killed)
    row.seconds += time.monotonic() - started
    for plan, outcome in zip(epochs, outcomes, strict=True):
        judge(row, plan, outcome)
    if not finite:
        row.failures.append("the model is not finite")
    if left := [pid for pid in killer.seen if not gone(pid)]:
        row.failures.append(f"processes {left} are left")
    if hold := holders(inodes):
        row.failures.append(f"processes {hold} still hold the shared memory")


def judge(row: Row, plan: EpochPlan, outcome: Outcome) -> None:
    """Add an epoch to the row; its faults become failures."""
    counts = outcome.counts
    steps, pieces = int(counts.steps.sum()), plan.pieces
    row.minibatches += pieces
    row.deaths += len(outcome.lost)
    row.joined += len(outcome.joined)
    row.torn += sum(len(lost.torn) for lost in outcome.lost)
    row.again += int(outcome.redrawn)
    if not row.strategy.startswith("hadpsgd"):  # its members also take steps on empty minibatches
        row.twice += steps - pieces
    expected = sum(number(plan.piece(index)) for index in range(pieces))
    if not outcome.finished:
        row.failures.append("the epoch did not end")
    if int(counts.frames.sum()) != plan.examples:
        row.failures.append(f"{int(counts.frames.sum())} of {plan.examples} frames were counted")
    if int(counts.loss.sum()) != expected:
        row.failures.append("some minibatches were counted more than once, or never")


def gone(pid: int) -> bool:
    """Return True if the process is dead, now or within ten seconds."""
    deadline = time.monotonic() + 10
    while (lives := alive(pid)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not lives


def arenas(process: Path) -> set[int]:
    """Return the inodes of the arenas that the process of the folder `process` of /proc has open or mapped."""
    found = set()
    with suppress(OSError):
        lines = (process / "maps").read_text().splitlines()
        found |= {int(line.split()[4]) for line in lines if ARENA in line}
        for name in os.listdir(process / "fd"):
            with suppress(OSError):  # one of them was the listing itself
                if ARENA in os.readlink(process / "fd" / name):
                    found.add(os.stat(process / "fd" / name).st_ino)
    return found


def holders(inodes: set[int]) -> list[int]:
    """Return the ids of processes that have one of the arenas with these inodes open or mapped."""
    return sorted(int(process.name) for process in Path("/proc").glob("[0-9]*") if arenas(process) & inodes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    options = parser.parse_args()
    rows = []
    for place, name in enumerate(options.strategies):
        share = options.kills * (place + 1) // len(options.strategies) - sum(row.kills for row in rows)
        row = Row(name)
        rows.append(row)
        while row.kills < share and not row.failures:
            signal.alarm(TOO_LONG)  # a run that hangs in spite of everything ends the program
            learners = 4 if row.runs % 2 or name.startswith("hadpsgd") else 3
            storm(
                row, learners, options.rounds, min(AT_MOST, share - row.kills), options.seed + 1000 * place + row.runs
            )
            signal.alarm(0)
        print(f"{name}: {row.kills} kills in {row.runs} runs {'; '.join(row.failures) or 'ok'}", flush=True)
    total = Row("all")
    for row in rows:
        for column in Row.COLUMNS[1:]:
            setattr(total, column, getattr(total, column) + getattr(row, column))
    print()
    lines = [list(Row.COLUMNS), *(row.cells() for row in [*rows, total])]
    print(as_text(packed(lines, [False] + [True] * (len(Row.COLUMNS) - 1), width=200)))
    return 1 if any(row.failures for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
