"""Speed of training through Roundelay on a GPU, as ratios of one run.

    python benchmarks/gpu.py                                  # the deep BLSTM through train and attach
    python benchmarks/gpu.py --workload dnn --modes train attach
    python benchmarks/gpu.py --learners 2 --modes adpsgd ssgd delay-by-one ddp     # learners that share the GPU
    python benchmarks/gpu.py --learners 2 --attach            # the same of attached loops; --hosts 2: one on each
    python benchmarks/gpu.py --device cpu --workload toy-dnn --steps 3 --rounds 1  # does it run? no figures

The deep bidirectional LSTM (6 layers of 1,024 cells, 512 a direction, bottleneck 256, 32,000 tied states; 43 million
parameters) with 256 subsequences of 21 frames a learner and step, or a DNN of 12.5 million; bfloat16 autocast, momentum
0.9. Modes:

    train       steps a second through Roundelay over those of forward, backward and step of the same module alone
    attach      the same of the bare loop in which `optimizer.step()` is a session's, for one learner; both loops in one
                process, some steps of each in turn, for two runs of one loop differ more than the two do
    a strategy  steps a second of N learners that share the GPU, over N such learners that never talk
                (`--attach`: of N attached loops over N plain ones; with `--hosts`, spread over so many hosts of the
                loopback, so that links cost next to nothing)
    ddp         torch's DistributedDataParallel with N processes on the GPU, by NCCL if it takes two ranks on one GPU,
                else by gloo, over the same

Modes take turns round by round; medians and ranges of the rounds' ratios, and steps a second. --out FILE keeps all.
"""

import argparse
import json
import os
import secrets
import socket
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

WARM_UP, RIVAL_SECONDS, LOOK_SECONDS = 5, 120, 0.005
CLOSE, TURNS = 45, 8
"""Steps in which a session looks at all that a loop does, and turns that two loops take."""
BARE, SILENT, PLAIN = "bare loop", "never talking", "plain loops"
ASKED = 0.95


@dataclass(frozen=True)
class Measured:
    """A measurement to make: a workload, its device, and the number of steps after the first."""

    workload: str
    device: str
    steps: int


def trained(strategy: Strategy, learners: int, what: Measured) -> float:
    """Return steps a second of a training through Roundelay, summed over learners."""
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


def looped(what: Measured) -> float:
    """Return steps a second of a plain loop: forward, backward, step."""
    where = torch.device(what.device)
    return _steps_a_second(*plain_loop(what.workload, where), where, what.steps)


def attached(what: Measured) -> tuple[float, float]:
    """Return steps a second of an attached loop, and of a plain one that takes turns with it."""
    where = torch.device(what.device)
    plain, loop = plain_loop(what.workload, where), plain_loop(what.workload, where)
    session, steps = attach(*loop[:2], "adpsgd"), max(1, what.steps // TURNS)
    turns: list[list[float]] = [[], []]
    for turn in range(TURNS):
        for found, one in zip(turns, (loop, plain), strict=True):
            found.append(_steps_a_second(*one, where, steps, WARM_UP if turn else CLOSE))
    session.close()
    mine, theirs = (statistics.median(found) for found in turns)
    return mine, theirs


Loop = tuple[nn.Module, torch.optim.Optimizer, Repeated]
"""A network, its optimizer, and a minibatch."""


def plain_loop(workload: str, where: torch.device) -> Loop:
    """Return the network, the optimizer and the minibatch of a workload, for a plain loop."""
    network = WORKLOADS[workload].network().to(where)
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM, fused=where.type == "cuda")
    return network, optimizer, Repeated(WORKLOADS[workload], where)


def _steps_a_second(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Repeated,
    where: torch.device,
    steps: int,
    before: int = WARM_UP,
) -> float:
    started = 0.0
    for step in range(-before, steps):
        if step == 0:
            finish(where)
            started = time.monotonic()
        take_step(network, optimizer, batch, where.type)
    finish(where)
    return steps / (time.monotonic() - started)


def take_step(network: nn.Module, optimizer: torch.optim.Optimizer, batch: Repeated, kind: str) -> None:
    """Take one step of a plain loop (forward, backward, step) on a device of type `kind`."""
    optimizer.zero_grad()
    with torch.autocast(kind, torch.bfloat16):
        scores = network(*batch.inputs)
    nn.functional.cross_entropy(scores.float(), batch.targets).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


# Several attached loops -----------------------------------------------------------------------------------------------


def together(what: Measured, strategy: str, learners: int, hosts: int) -> float:
    """Return steps a second, summed over processes, of plain loops, or of loops attached under `strategy`."""
    with tempfile.TemporaryDirectory() as folder:
        own = [__file__, "--workload", what.workload, "--device", what.device, "--steps", str(what.steps)]
        own += ["--learners", str(learners), "--loop", strategy, folder]
        if strategy == PLAIN:
            starts: list[tuple[list[str], dict[str, str]]] = [(own, {})] * learners
        else:
            starts = [(["-m", "roundelay.cli", "launch", "-n", str(learners // hosts), *own], {})]
            if hosts > 1:
                starts = [(starts[0][0], place) for place in places(learners, hosts)]
        said = "".join(out for _, out, _ in side_by_side(starts))
    rates = [float(line.split(RATE_SAID)[1]) for line in said.splitlines() if RATE_SAID in line]
    return sum(rates) if len(rates) == learners else float("nan")


RATE_SAID = "steps a second: "


def side_by_side(starts: list[tuple[list[str], dict[str, str]]]) -> list[tuple[int, str, str]]:
    """Run Python processes side by side, each with its arguments and variables; return the exit status, output and
    errors of each. They are killed when they take too long."""
    processes = [
        subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **more},
            text=True,
        )
        for command, more in starts
    ]
    try:
        said = [process.communicate(timeout=RIVAL_SECONDS) for process in processes]
    except subprocess.TimeoutExpired:
        said = [("", f"longer than {RIVAL_SECONDS} s")] * len(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(process.returncode, *both) for process, both in zip(processes, said, strict=True)]


def places(learners: int, hosts: int) -> list[dict[str, str]]:
    """Return the environment variables of each learner, spread over `hosts` hosts on the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    each = learners // hosts
    common = {"WORLD_SIZE": str(learners), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(each)}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ROUNDELAY_SECRET": secrets.token_hex(16)}
    return [{**common, "RANK": str(host * each)} for host in range(hosts)]


def loop_rank(what: Measured, strategy: str, learners: int, folder: Path) -> None:
    """Be one process of `together`: begin when all are ready, and print the steps a second."""
    where = torch.device(what.device)
    network, optimizer, batch = plain_loop(what.workload, where)
    session = None if strategy == PLAIN else attach(network, optimizer, strategy)
    _steps_a_second(network, optimizer, batch, where, 1, CLOSE)
    (folder / str(os.getpid())).touch()
    until = time.monotonic() + RIVAL_SECONDS
    while len(list(folder.iterdir())) < learners and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
    print(f"{RATE_SAID}{_steps_a_second(network, optimizer, batch, where, what.steps, 0)}", flush=True)
    if session is not None:
        session.close()


# DistributedDataParallel ----------------------------------------------------------------------------------------------


def rival(what: Measured, learners: int) -> tuple[float, str]:
    """Return steps a second of DistributedDataParallel, summed over its processes, and the library that it used."""
    libraries = ("nccl", "gloo") if what.device == "cuda" else ("gloo",)
    for library in libraries:
        with tempfile.TemporaryDirectory() as folder:
            command = [__file__, "--workload", what.workload, "--device", what.device]
            command += ["--steps", str(what.steps), "--learners", str(learners), "--rival", library, folder]
            said = side_by_side([([*command, str(rank)], {}) for rank in range(learners)])
        if all(status == 0 for status, _, _ in said):
            return sum(float(json.loads(out.splitlines()[-1])) for _, out, _ in said), library
        print(f"ddp by {library}: {(said[0][2].strip().splitlines() or ['failed'])[-1]}", file=sys.stderr)
    return float("nan"), "none"


def rival_rank(what: Measured, learners: int, library: str, folder: str, rank: int) -> None:
    """Be one process of DistributedDataParallel, and print its steps a second."""
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


def speed(mode: str, learners: int, what: Measured, hosts: int = 0) -> tuple[float, str]:
    """Return steps a second in a mode (with `hosts`, of loops attached on as many hosts), and the library used or
    ""."""
    if hosts and mode != "ddp":
        return together(what, mode, learners, hosts), ""
    if mode == "ddp":
        return rival(what, learners)
    if mode == BARE:
        return looped(what), ""
    name = "sgd" if mode == "train" else mode
    strategy = NeverTalk() if mode == SILENT else make_strategy(*parse_strategy(name))
    return trained(strategy, learners, what), ""


def measure(modes: list[str], learners: int, what: Measured, rounds: int, hosts: int = 0) -> dict[str, Any]:
    """Return speeds by mode, round by round, and their ratios to the baseline of the same round."""
    baseline = PLAIN if hosts else BARE if learners == 1 else SILENT
    speeds: dict[str, list[float]] = {mode: [] for mode in (baseline, *modes)}
    libraries, beside = dict[str, str](), list[float]()
    for _ in range(rounds):
        for mode, found in speeds.items():
            if mode == "attach":
                (steps, plain), libraries[mode] = attached(what), ""
                beside.append(plain)
            else:
                steps, libraries[mode] = speed(mode, learners, what, hosts)
            found.append(steps)
            print(f"{mode:20} {steps:9.2f} steps/s", file=sys.stderr, flush=True)
    bases = {mode: beside if mode == "attach" else speeds[baseline] for mode in modes}
    ratios = {mode: [a / b for a, b in zip(speeds[mode], bases[mode], strict=True)] for mode in modes}
    return {"baseline": baseline, "steps a second": speeds, "ratios": ratios, "libraries": libraries}


def table(found: dict[str, Any]) -> str:
    """Return the table of results, a line for each mode."""
    lines = []
    for mode, ratios in found["ratios"].items():
        name = f"{mode} {found['libraries'][mode]}".strip()
        spread = f"{statistics.median(ratios):.3f}  ({min(ratios):.3f} to {max(ratios):.3f})"
        steps = statistics.median(found["steps a second"][mode])
        asked = "" if mode == "ddp" else f"   asked: {ASKED}"
        lines.append(f"{name + ' / ' + found['baseline']:<34}{spread}   {steps:8.2f} steps/s{asked}")
    return "\n".join(lines)


def main() -> None:
    """Measure the modes that the command names, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="blstm", choices=WORKLOADS)
    parser.add_argument("--modes", nargs="+", help="train, attach, ddp, or strategies (default: train attach)")
    parser.add_argument("--learners", type=int, default=1, help="that share the GPU (default: 1)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="a JSON file for all that was measured")
    parser.add_argument("--attach", action="store_true", help="attached loops, not `train`")
    parser.add_argument("--hosts", type=int, default=1, help="that attached loops are spread over (default: 1)")
    parser.add_argument("--rival", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--loop", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = checked_device(options.device)
    what = Measured(options.workload, options.device, options.steps)
    if options.rival:
        library, folder, rank = options.rival
        rival_rank(what, options.learners, library, folder, int(rank))
        return
    if options.loop:
        loop_rank(what, options.loop[0], options.learners, Path(options.loop[1]))
        return
    several = ["adpsgd", "ssgd", "delay-by-one", "ddp"]
    hosts = options.hosts if options.attach else 0
    modes = options.modes or (["train", "attach"] if options.learners == 1 else several)
    learners, spread = options.learners, f" attached on {hosts} host{'s' * (hosts > 1)}" if hosts else ""
    title = f"{what.workload}, {learners} learners{spread}, {described(device)}, {options.rounds} x {what.steps}"
    print(title, flush=True)
    found = {"title": title, "learners": learners, **measure(modes, learners, what, options.rounds, hosts)}
    print(table(found), flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
