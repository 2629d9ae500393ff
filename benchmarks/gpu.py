"""Speed of training through Roundelay on a GPU, as ratios of one run.

    python benchmarks/gpu.py                                  # the deep BLSTM through train and attach
    python benchmarks/gpu.py --workload dnn --modes train attach
    python benchmarks/gpu.py --learners 2 --modes adpsgd ssgd delay-by-one ddp     # learners that share the GPU
    python benchmarks/gpu.py --device cpu --workload toy-dnn --steps 3 --rounds 1  # does it run? no figures

The deep bidirectional LSTM (6 layers of 1,024 cells, 512 a direction, bottleneck 256, 32,000 tied states; 43 million
parameters) with 256 subsequences of 21 frames a learner and step, or a DNN of 12.5 million; bfloat16 autocast, momentum
0.9. Modes:

    train       steps a second through Roundelay over those of forward, backward and step of the same module alone
    attach      the same of the bare loop in which `optimizer.step()` is a session's, for one learner
    a strategy  steps a second of N learners that share the GPU, over N such learners that never talk
    ddp         torch's DistributedDataParallel with N processes on the GPU, by NCCL if it takes two ranks on one GPU,
                else by gloo, over the same

Modes take turns round by round; medians and ranges of the rounds' ratios, and steps a second. --out FILE keeps all.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_workloads import (
    MOMENTUM,
    RATE,
    WORKLOADS,
    Repeated,
    Speed,
    checked_device,
    described,
    finish,
)
from talk import NeverTalk
from torch import nn

from roundelay import attach
from roundelay.algorithms.local_update import Sgd
from roundelay.core.epochs import EpochPlan
from roundelay.runtime.base import Cluster, SegmentPlan
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.strategies import make_strategy, parse_strategy
from roundelay.strategies.base import Strategy

WARM_UP, RIVAL_SECONDS = 5, 120
BARE, SILENT = "bare loop", "never talking"
ASKED = 0.95


@dataclass(frozen=True)
class Measured:
    """A workload on a device, and so many steps after the first."""

    workload: str
    device: str
    steps: int


def trained(strategy: Strategy, learners: int, what: Measured) -> float:
    """Steps a second through Roundelay, summed over learners."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder)
        cluster = Cluster(strategy, Speed(what.workload, what.device, notes), Sgd(momentum=MOMENTUM), learners)
        examples = WORKLOADS[what.workload].examples * learners
        plan = EpochPlan(0, examples * (WARM_UP + what.steps), examples, learners, 0)
        with ProcsRuntime(cluster) as runtime:
            runtime.segment(SegmentPlan(plan, RATE))
            processes = runtime.process_ids()
        begun = [np.loadtxt(notes / str(process), ndmin=1)[WARM_UP:] for process in processes]
    return sum((len(times) - 1) / float(times[-1] - times[0]) for times in begun if len(times) > 1)


def looped(what: Measured, attached: bool = False) -> float:
    """Steps a second of a plain loop: forward, backward, step."""
    where, workload = torch.device(what.device), WORKLOADS[what.workload]
    network = workload.network().to(where)
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM, fused=where.type == "cuda")
    batch = Repeated(workload, where)
    session = attach(network, optimizer, "adpsgd") if attached else None
    found = _steps_a_second(network, optimizer, batch, where, what.steps)
    if session is not None:
        session.close()
    return found


def _steps_a_second(
    network: nn.Module, optimizer: torch.optim.Optimizer, batch: Repeated, where: torch.device, steps: int
) -> float:
    started = 0.0
    for step in range(-WARM_UP, steps):
        if step == 0:
            finish(where)
            started = time.monotonic()
        _step(network, optimizer, batch, where.type)
    finish(where)
    return steps / (time.monotonic() - started)


def _step(network: nn.Module, optimizer: torch.optim.Optimizer, batch: Repeated, kind: str) -> None:
    optimizer.zero_grad()
    with torch.autocast(kind, torch.bfloat16):
        scores = network(*batch.inputs)
    nn.functional.cross_entropy(scores.float(), batch.targets).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


# DistributedDataParallel ----------------------------------------------------------------------------------------------


def rival(what: Measured, learners: int) -> tuple[float, str]:
    """Steps a second of DDP, summed over its processes, and by which library."""
    libraries = ("nccl", "gloo") if what.device == "cuda" else ("gloo",)
    for library in libraries:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--workload", what.workload, "--device", what.device]
            command += ["--steps", str(what.steps), "--learners", str(learners), "--rival", library, folder]
            processes = [
                subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for rank in range(learners)
            ]
            try:
                said = [process.communicate(timeout=RIVAL_SECONDS) for process in processes]
            except subprocess.TimeoutExpired:
                said = [("", f"longer than {RIVAL_SECONDS} s")] * learners
            finally:
                for process in processes:
                    process.kill()
                    process.wait()
        if all(process.returncode == 0 for process in processes):
            return sum(float(json.loads(out.splitlines()[-1])) for out, _ in said), library
        print(f"ddp by {library}: {(said[0][1].strip().splitlines() or ['failed'])[-1]}", file=sys.stderr)
    return float("nan"), "none"


def rival_rank(what: Measured, learners: int, library: str, folder: str, rank: int) -> None:
    """One process of DDP; prints its steps a second."""
    from torch import distributed

    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    where, workload = torch.device(what.device), WORKLOADS[what.workload]
    store = distributed.FileStore(f"{folder}/meet", learners)
    distributed.init_process_group(library, store=store, rank=rank, world_size=learners)
    network = nn.parallel.DistributedDataParallel(workload.network().to(where), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM, fused=where.type == "cuda")
    batch = Repeated(workload, where)
    print(json.dumps(_steps_a_second(network, optimizer, batch, where, what.steps)), flush=True)
    distributed.destroy_process_group()


# All modes in turn ----------------------------------------------------------------------------------------------------


def speed(mode: str, learners: int, what: Measured) -> tuple[float, str]:
    """Steps a second in a mode, and by which library, where that is a question."""
    if mode == "ddp":
        return rival(what, learners)
    if mode in (BARE, "attach"):
        return looped(what, attached=mode == "attach"), ""
    name = "sgd" if mode == "train" else mode
    strategy = NeverTalk() if mode == SILENT else make_strategy(*parse_strategy(name))
    return trained(strategy, learners, what), ""


def measure(modes: list[str], learners: int, what: Measured, rounds: int) -> dict[str, Any]:
    """Speeds by mode, round by round, and ratios to the baseline of the same round."""
    baseline = BARE if learners == 1 else SILENT
    speeds: dict[str, list[float]] = {mode: [] for mode in (baseline, *modes)}
    libraries: dict[str, str] = {}
    for _ in range(rounds):
        for mode, found in speeds.items():
            steps, libraries[mode] = speed(mode, learners, what)
            found.append(steps)
            print(f"{mode:20} {steps:9.2f} steps/s", file=sys.stderr, flush=True)
    ratios = {mode: [a / b for a, b in zip(speeds[mode], speeds[baseline], strict=True)] for mode in modes}
    return {"baseline": baseline, "steps a second": speeds, "ratios": ratios, "libraries": libraries}


def table(found: dict[str, Any]) -> str:
    """A line for each mode."""
    lines = []
    for mode, ratios in found["ratios"].items():
        name = f"{mode} {found['libraries'][mode]}".strip()
        spread = f"{statistics.median(ratios):.3f}  ({min(ratios):.3f} to {max(ratios):.3f})"
        steps = statistics.median(found["steps a second"][mode])
        asked = "" if mode == "ddp" else f"   asked: {ASKED}"
        lines.append(f"{name + ' / ' + found['baseline']:<34}{spread}   {steps:8.2f} steps/s{asked}")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="blstm", choices=WORKLOADS)
    parser.add_argument("--modes", nargs="+", help="train, attach, ddp, or strategies (default: train attach)")
    parser.add_argument("--learners", type=int, default=1, help="that share the GPU (default: 1)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="a JSON file for all that was measured")
    parser.add_argument("--rival", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = checked_device(options.device)
    what = Measured(options.workload, options.device, options.steps)
    if options.rival:
        library, folder, rank = options.rival
        rival_rank(what, options.learners, library, folder, int(rank))
        return
    several = ["adpsgd", "ssgd", "delay-by-one", "ddp"]
    modes = options.modes or (["train", "attach"] if options.learners == 1 else several)
    title = f"{options.workload}, {options.learners} learners, {described(device)}, {options.rounds} x {options.steps}"
    print(title, flush=True)
    found = {"title": title, "learners": options.learners, **measure(modes, options.learners, what, options.rounds)}
    print(table(found), flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
