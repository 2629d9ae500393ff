"""Random faults of one host on whole runs: is every frame trained once, and nothing left behind?

    python benchmarks/chaos.py [--runs 8] [--seed 0] [--strategies adpsgd ssgd ...]

Each run is `roundelay train` on a small spoken corpus, with two to four learners, given again and again until it ends
with status 0. Each call but the last few gets one fault at a random moment, while it starts, trains, evaluates or
writes: a learner is killed, or stopped for a while; the parent is stopped for a while, killed, or killed with all
learners; SIGTERM or SIGINT goes to the parent, or to all processes. Some runs write checkpoints inside epochs; some go
on with another number of learners.

After every call: the exit status is the one that the fault must have, no process of the call lives ten seconds later,
and all JSON that lies in the run's directory is JSON, line by line, without NaN. After the last one: every epoch has
the same number of frames, the results are finite, checkpoints are whole, and no half-written file is left. The first
thing that is not so ends the program with status 1.

Columns: events in order, with the exit status of each call; epochs; learners lost as recorded; held-out loss.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]


from roundelay.core.checksums import verify
from roundelay.core.files import read_json
from roundelay.core.records import LearnerLost, Results, Segment, of_kind, read_events
from roundelay.core.streams import stream
from support.beeps import prepare_beeps
from support.processes import stat

STRATEGIES = ("adpsgd", "ssgd", "easgd", "bsp", "asgd", "hadpsgd")
FAULTS = (
    "kill a learner",
    "stop a learner",
    "stop the parent",
    "kill the parent",
    "kill all",
    "TERM",
    "TERM to all",
    "INT",
    "INT to all",
)
MARK = "ROUNDELAY_BENCHMARK_CHAOS"
"""A variable of the environment that tells the processes of a call from all others."""
LEAVING = 10.0
"""Seconds in which all processes of a call must be gone."""
TOO_LONG = 180.0
MOST_FAULTS = 4
"""In a run."""
MOST_CALLS = 10


def processes(mark: str) -> list[int]:
    """Return the ids of living processes that belong to the call marked `mark`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={mark}\0".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return sorted(found)


@dataclass
class Chaos:
    """One run under faults, in `folder`, which holds a recipe."""

    folder: Path
    seed: int
    strategy: str
    happened: list[str] = field(default_factory=list)
    said: str = ""

    def __post_init__(self) -> None:
        self.drawn = stream(self.seed, "chaos")
        self.exp = self.folder / f"chaos-{self.seed}"
        self.options = ["training.checkpoint_minutes=0.02"] if self.drawn.random() < 0.5 else []
        self.learners = self._number()

    def _number(self) -> int:
        return 4 if self.strategy == "hadpsgd" else int(self.drawn.integers(2, 5))

    def fail(self, why: str) -> NoReturn:
        sys.exit(f"seed {self.seed}, {self.strategy}: {why}\n{'; '.join(self.happened)}\n{self.said[-6000:]}")

    def call(self, fault: str) -> int:
        """Run the command once, under a fault; return its exit status."""
        mark = f"{os.getpid()}-{self.seed}-{len(self.happened)}"
        slow = [f"--straggler={rank}:+0.01" for rank in range(self.learners)]
        words = ["train", "recipe.yaml", "--exp", str(self.exp), "--strategy", self.strategy, *slow, *self.options]
        said = self.folder / "said.txt"
        with open(said, "w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "roundelay.cli", *words, "--learners", str(self.learners)],
                cwd=self.folder,
                env={**os.environ, MARK: mark, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            if fault:
                self._do(fault, process, mark)
            status = process.wait(TOO_LONG)
        except subprocess.TimeoutExpired:
            self.fail(f"goes on and on: {fault}\n{said.read_text()}")
        finally:
            deadline = time.monotonic() + LEAVING
            while (left := processes(mark)) and time.monotonic() < deadline:
                time.sleep(0.05)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        self.said += f"--- {self.learners} learners, {fault or 'undisturbed'}: status {status}\n{said.read_text()}"
        self.happened.append(f"{fault or 'end'} ({status})")
        if left:
            self.fail(f"outlived the call: {left}")
        return status

    def _do(self, fault: str, process: "subprocess.Popen[bytes]", mark: str) -> None:
        where, deadline = self.exp / "live.json", time.monotonic() + TOO_LONG
        before = where.stat().st_mtime_ns if where.exists() else 0
        while process.poll() is None and time.monotonic() < deadline:
            if where.exists() and where.stat().st_mtime_ns != before:
                break
            time.sleep(0.02)
        time.sleep(float(self.drawn.uniform(0, 4)))
        if process.poll() is not None:
            return
        stop = float(self.drawn.uniform(0.2, 3))
        if fault.endswith("a learner"):
            learners = [pid for pid in processes(mark) if stat(pid)[1] != process.pid and pid != process.pid]
            if learners:
                victim = learners[int(self.drawn.integers(len(learners)))]
                self._signal(victim, signal.SIGKILL if fault.startswith("kill") else signal.SIGSTOP)
                if fault.startswith("stop"):
                    time.sleep(stop)
                    self._signal(victim, signal.SIGCONT)
            return
        if fault == "stop the parent":
            self._signal(process.pid, signal.SIGSTOP)
            time.sleep(stop)
            self._signal(process.pid, signal.SIGCONT)
            return
        number = {"kill": signal.SIGKILL, "TERM": signal.SIGTERM, "INT": signal.SIGINT}[fault.split(maxsplit=1)[0]]
        with suppress(ProcessLookupError):
            if fault.endswith("all"):
                os.killpg(process.pid, number)
            else:
                os.kill(process.pid, number)

    def _signal(self, process: int, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(process, number)

    def check_json(self) -> None:
        """Check that every JSON file in the run's directory is JSON, without NaN."""
        for path in [*self.exp.rglob("*.json"), *self.exp.rglob("*.jsonl")]:
            text = path.read_text()
            lines = text.splitlines() if path.suffix == ".jsonl" else [text]
            for place, line in enumerate(lines, 1):
                try:
                    json.loads(line, parse_constant=_refuse)
                except ValueError as error:
                    last = path.suffix == ".jsonl" and place == len(lines) and not text.endswith("\n")
                    if not (last and self.happened[-1].endswith("(-9)")):  # a line may be torn by a kill, until resumed
                        self.fail(f"{path}:{place}: {error}: {line[:200]!r}")

    def run(self) -> str:
        """Repeat the command until the run has ended; return a line of the table."""
        faults = [str(name) for name in self.drawn.choice(FAULTS, int(self.drawn.integers(2, MOST_FAULTS + 1)))]
        for number in range(MOST_CALLS):
            fault = faults[number] if number < len(faults) else ""
            status = self.call(fault)
            self.check_json()
            if status == 0:
                break
            if status not in may_be(fault):
                self.fail(f"{fault or 'undisturbed'}: status {status}")
            if status == 2 and "roundelay: " not in self.said:
                self.fail("ended without a reason")
            if self.drawn.random() < 0.25:
                self.learners = self._number()
        else:
            self.fail("never ends")
        return self.check_end()

    def check_end(self) -> str:
        events = read_events(self.exp / "events.jsonl")
        results = Results.from_json(read_json(self.exp / Results.FILE))
        segments = of_kind(events, Segment)
        frames = [sum(sum(s.learner_frames) for s in segments if s.epoch == epoch) for epoch in range(results.epochs)]
        if len(set(frames)) != 1 or not frames[0]:
            self.fail(f"frames of the epochs: {frames}")
        loss = results.frame_cross_entropy["dev"]
        if not math.isfinite(loss):
            self.fail(f"held-out loss {loss}")
        if faults := [f"{verdict.path}: {verdict.fault}" for verdict in verify(self.exp) if verdict.fault]:
            self.fail("; ".join(faults))
        if left := [str(path) for path in self.exp.rglob("*.part")] + [str(p) for p in self.exp.rglob("*.damaged")]:
            self.fail(f"left behind: {left}")
        lost = len(of_kind(events, LearnerLost))
        what = ", ".join(self.happened)
        return f"{self.seed:4d}  {self.strategy:8s} {results.epochs:6d} {lost:4d} {loss:7.3f}  {what}"


def may_be(fault: str) -> Sequence[int]:
    """Return the exit statuses that a call may have after `fault`, beside 0, since the fault may come too late."""
    return {
        "kill a learner": (2,),
        "kill the parent": (-signal.SIGKILL,),
        "kill all": (-signal.SIGKILL,),
        "TERM": (143,),
        "TERM to all": (143,),
        "INT": (130,),
        "INT to all": (130,),
    }.get(fault, ())


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with redirect_stdout(sys.stderr):
            prepare_beeps(folder, schedule={"max_epochs": 3})
        print("seed  strategy epochs lost    loss  what happened (exit status)", flush=True)
        for number in range(chosen.runs):
            strategy = chosen.strategies[number % len(chosen.strategies)]
            print(Chaos(folder, chosen.seed + number, strategy).run(), flush=True)
    print(f"{chosen.runs} runs: every frame of every epoch trained once, nothing left behind")


if __name__ == "__main__":
    main()
