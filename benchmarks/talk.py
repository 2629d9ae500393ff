"""Cost of communication: throughput per learner over that of learners that never talk, all measured in this one run.

    python benchmarks/talk.py [--rounds 3] [--steps 20] [--bf16] [--only MODE ...]

The network of Li et al. 2017 (1320 -> 6 x 1024 ReLU -> 5723, 12.5 million parameters) on random frames, 256 frames a
learner and step, one thread a learner. Modes take turns, round by round, so that a machine that slows down slows all of
them; printed is the median over rounds of the ratio to the same round's plain torch loop in two processes that
never talk. "Straggler": learner 1 takes ten times as long in every step; the ratio is that of learner 0 to its own
speed without a straggler.

A mode is a strategy as `roundelay train --strategy` takes it, for example bmuf,period=80, or one of alone, never-talk,
ddp and decent-dp. `NAME+record` records a trace meanwhile. Work of every `period` steps is only measured over several
periods: give --steps accordingly.
"""

import argparse
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from gpu_workloads import RATE, WORKLOADS, Batch, Speed
from torch import nn

from roundelay.algorithms.local_update import Sgd
from roundelay.core.effects import Draw, Grad
from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Me
from roundelay.runtime.base import Cluster, SegmentPlan, Straggler
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.strategies import make_strategy, parse_strategy
from roundelay.strategies.base import Strategy, Traits

BATCH, SLOWER = WORKLOADS["dnn"].examples, 10
WARM_UP = 3
NAMES = """
never-talk ssgd bsp bmuf slowmo diloco asgd easgd easgd-sync dpsgd dpsgd,order=consensus gossip-pga
adpsgd:random-ring adpsgd:random-ring+record adpsgd:fixed-ring hadpsgd,node_size=1 delay-by-one delayed-gradient
"""
OURS = NAMES.split()
RIVALS = ("alone", "ddp", "decent-dp")


def network() -> nn.Module:
    """Return the network of Li et al. 2017, of 12,466,779 parameters."""
    return WORKLOADS["dnn"].network()


def random_frames() -> Batch:
    """Return a minibatch of random frames, used for ever since the benchmark is not about reading data."""
    return WORKLOADS["dnn"].batch()


@dataclass(frozen=True)
class NeverTalk(Strategy):
    """A strategy of learners that never exchange anything."""

    name: ClassVar[str] = "never-talk"
    traits: ClassVar[Traits] = Traits(synchronous=False, conserves=True, staleness_bound=0, waits="nobody")

    async def learn(self, me: Me) -> None:
        while batch := await Draw():
            me.step(await Grad(me.snapshot(), batch))


def roundelay(name: str, steps: int, bf16: bool, slow: bool) -> list[float]:
    """Return steps a second of both learners under the strategy `name`."""
    name, _, record = name.partition("+")
    strategy = NeverTalk() if name == "never-talk" else make_strategy(*parse_strategy(name))
    stragglers = (Straggler(1, factor=SLOWER),) if slow else ()
    with tempfile.TemporaryDirectory() as notes, tempfile.TemporaryDirectory() as trace:
        task = Speed("dnn", "cpu", Path(notes), bf16)
        cluster = Cluster(strategy, task, Sgd(), 2, stragglers=stragglers)
        with ProcsRuntime(cluster, threads=1, trace=Path(trace) if record else None) as runtime:
            runtime.segment(SegmentPlan(_plan(WARM_UP + steps), RATE))
            processes = runtime.process_ids()
        begun = [np.loadtxt(Path(notes) / str(process), ndmin=1)[WARM_UP:] for process in processes]
    # A learner ten times slower draws ten times fewer; perhaps too few to measure.
    return [(len(times) - 1) / float(times[-1] - times[0]) if len(times) > 1 else math.nan for times in begun]


def _plan(rounds: int) -> EpochPlan:
    return EpochPlan(0, 2 * BATCH * rounds, 2 * BATCH, 2, 0)


def torch_learner(mode: str, rank: int, port: int, steps: int, bf16: bool, slow: bool) -> None:
    """Train as one of a rival's two processes on one host, and print steps a second."""
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "LOCAL_WORLD_SIZE": "2",
        "RANK": str(rank),
        "WORLD_SIZE": "2",
    }
    with rival_speed(mode, steps, bf16, slow=slow and rank == 1) as speed:
        print(json.dumps(speed), flush=True)


@contextmanager
def rival_speed(mode: str, steps: int, bf16: bool, warm_up: int = WARM_UP, slow: bool = False) -> Iterator[float]:
    """Yield the steps a second of this process by plain torch, DistributedDataParallel or Decent-DP, as the variables
    of torchrun say; after the body of the `with`, wait for the other processes."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    module: nn.Module = network()
    optimizer: torch.optim.Optimizer | None = None
    if mode == "decent-dp":
        from decent_dp.ddp import DecentralizedDataParallel
        from loguru import logger

        logger.remove()
        module = DecentralizedDataParallel(
            module, lambda named: torch.optim.SGD([p for _, p in named], lr=RATE), topology="ring"
        )
    else:
        if mode == "ddp":
            module = nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    (x,), y = random_frames()
    started = 0.0
    for step in range(-warm_up, steps):
        if step == 0:
            dist.barrier()
            started = time.monotonic()
        computing = time.monotonic()
        if optimizer is not None:
            optimizer.zero_grad(set_to_none=mode != "ddp")
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            scores = module(x)
        loss = nn.functional.cross_entropy(scores.float(), y)
        if slow:  # before backward, in which the others may wait for this one: a third of a step is done
            time.sleep((SLOWER - 1) * 3 * (time.monotonic() - computing))
        loss.backward()  # type: ignore[no-untyped-call]
        if optimizer is not None:
            optimizer.step()
    yield steps / (time.monotonic() - started)
    dist.barrier()
    dist.destroy_process_group()


def rival(mode: str, steps: int, bf16: bool, slow: bool) -> list[float]:
    """Return steps a second of two processes of `torch_learner`, run side by side."""
    port = 20000 + os.getpid() % 20000 + int(time.monotonic() * 10) % 1000
    command = [
        sys.executable,
        __file__,
        "--learner",
        mode,
        str(port),
        "--steps",
        str(steps),
        *["--bf16"] * bf16,
        *["--slow"] * slow,
    ]
    processes = [
        subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for rank in range(2)
    ]
    outputs = [p.communicate(timeout=600)[0] for p in processes]
    if any(p.returncode for p in processes):
        raise RuntimeError(f"{mode} failed; run it by hand: {' '.join(command)} --rank 0 (and 1)")
    return [float(json.loads(out.strip().splitlines()[-1])) for out in outputs]


@dataclass
class Mode:
    """Speeds of one way to train, round by round."""

    name: str
    ours: bool
    both: list[float] = field(default_factory=list)  # mean of the learners, undisturbed
    first: list[float] = field(default_factory=list)  # learner 0, undisturbed
    beside_straggler: list[float] = field(default_factory=list)  # learner 0

    def run(self, steps: int, bf16: bool, slow: bool) -> list[float]:
        return (roundelay if self.ours else rival)(self.name, steps, bf16, slow)


def measure(rounds: int, steps: int, bf16: bool, only: list[str] | None = None, straggler: bool = True) -> list[Mode]:
    """Measure all modes, or those of `only` and the baseline, in turn, `rounds` times."""
    names = ["alone", *(only or (*OURS, *RIVALS[1:]))]
    if "decent-dp" in names and not importlib.util.find_spec("decent_dp"):
        names.remove("decent-dp")
    modes = [Mode(name, name not in RIVALS) for name in dict.fromkeys(names)]
    for number in range(rounds):
        for mode in modes:
            speeds = mode.run(steps, bf16, slow=False)
            mode.both.append(statistics.mean(speeds))
            mode.first.append(speeds[0])
            if straggler and mode.name != "alone":
                mode.beside_straggler.append(mode.run(max(5, steps // 2), bf16, slow=True)[0])
            print(
                f"round {number + 1}: {mode.name:26s} {mode.both[-1]:.2f} steps/s a learner",
                file=sys.stderr,
                flush=True,
            )
    return modes


def table(modes: list[Mode]) -> str:
    """Return the table of ratios, as text."""
    alone = modes[0].both
    lines = [f"{'mode':36s} {'steps/s':>8s} {'ratio to never talking':>24s} {'beside a straggler':>20s}"]
    for mode in modes:
        ratios = [a / b for a, b in zip(mode.both, alone, strict=True)]
        spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"
        beside = [a / b for a, b in zip(mode.beside_straggler, mode.first, strict=False)]
        kept = f"{statistics.median(beside):.3f}" if beside else ""
        name = (
            f"roundelay {mode.name}"
            if mode.ours
            else f"torch {mode.name}"
            if mode.name in ("alone", "ddp")
            else mode.name
        )
        lines.append(f"{name:36s} {statistics.median(mode.both):8.2f} {spread:>24s} {kept:>20s}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast")
    parser.add_argument("--only", nargs="+", metavar="MODE", help="these modes, beside the baseline")
    parser.add_argument("--no-straggler", action="store_true", help="leave out the part with a slow learner")
    parser.add_argument("--learner", nargs=2, metavar=("MODE", "PORT"), help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--slow", action="store_true", help=argparse.SUPPRESS)
    options: Any = parser.parse_args()
    if options.learner:
        torch_learner(
            options.learner[0], options.rank, int(options.learner[1]), options.steps, options.bf16, options.slow
        )
        return
    print(table(measure(options.rounds, options.steps, options.bf16, options.only, not options.no_straggler)))


if __name__ == "__main__":
    main()
