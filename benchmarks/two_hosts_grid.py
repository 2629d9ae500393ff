"""Seconds to a held-out loss by every way over every link, for benchmarks/two_hosts.py --to-loss; commands on both of
its hosts."""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from two_hosts_loop import make_task
from two_hosts_predicted import ONE_HOST, UNSHAPED, Link, share_of_never_talking
from two_hosts_rivals import missing, parsed
from two_hosts_table import Cell, Results, Setting
from two_hosts_tasks import LossTask

from roundelay_lab.namespaces.hosts import Hosts

WAYS = (
    "alone",
    "adpsgd",
    "adpsgd+fragments=1+wire=fp32",
    "ssgd",
    "delay-by-one",
    "bsp,period=50",
    "bmuf,period=50",
    "diloco,period=50",
    "diloco,period=100",
    "diloco,period=500",
    "diloco,period=10,delay=2,rate=1,momentum=0,local_momentum=keep,codec=int4",
    "diloco,period=100,fragments=4,delay=5,codec=int4",
    "ddp",
    "decent-dp",
    "torchft-localsgd,period=50",
    "torchft-diloco,period=50",
    "torchft-diloco,period=100",
    "accelerate-localsgd,period=50",
    "hivemind,period=50",
)
RATES = ("10mbit", "100mbit", "1gbit", UNSHAPED)
START = 120.0
"""Seconds in which both learners must have found each other."""
OVER = 20.0
"""Seconds beyond those asked for, where a step takes long."""
PORT = 29400
TOO_LONG = 1200

_port = PORT


def grid(options: argparse.Namespace) -> str:
    """Run all cells of the grid that have no results yet; return the table."""
    from roundelay.run_directory import machine

    torch.set_num_threads(1)
    task = make_task(options)
    network = task.network()
    parameters = sum(parameter.numel() for parameter in network.parameters())
    told = {
        "task": options.to_loss,
        "minibatch": task.inputs,
        "parameters": parameters,
        "seconds": options.seconds,
        "looks": options.looks,
        "machine": machine(),
    }
    results = Results(Path(options.out), told, options.target_loss)
    begun = task.judge(network)
    previous: Cell | None = None
    for number, rate, slower, mode, learning_rate in cells(options):
        cell = Cell(mode, Setting(rate, options.delay, slower), number, learning_rate=learning_rate)
        if (there := results.cells.get(cell.key)) and not there.failed:
            previous = None
            continue
        if lacking := missing(mode):
            cell.failed = f"package {lacking} is not installed"
        else:
            _measure(cell, task, begun, options)
            if cell.alone and rate != ONE_HOST:
                first, second = cell.alone[0]
                seconds = 1 / first if slower > 1 else 2 / (first + second)
                cell.predicted = share_of_never_talking(mode, Link(rate, options.delay), parameters, seconds, slower)
            if previous is not None and cell.alone:
                previous.alone.append(cell.alone[0])
            previous = cell if cell.alone else None
        results.add(cell)
        said = cell.failed or f"{cell.ratio:.3f} of never talking, {cell.last:.4f} in the end"
        at = "" if learning_rate is None else f" at {learning_rate:g}"
        print(f"round {number + 1}: {rate} {mode}{at}: {said}", file=sys.stderr, flush=True)
    results.write()
    return results.table()


def cells(options: argparse.Namespace) -> list[tuple[int, str, float, str, float | None]]:
    """Return (round, rate of the link, factor of the slow learner, way, learning rate) of all cells, in their order."""
    ways = list(dict.fromkeys(["alone", *(options.only or WAYS)]))
    slower = [1.0, options.slower] if options.slower > 1 else [1.0]
    return [
        (number, rate, factor, mode, learning_rate)
        for number in range(options.rounds)
        for rate in options.rates or RATES
        for factor in slower
        for mode in ways
        for learning_rate in options.learning_rates or [None]
    ]


def _measure(cell: Cell, task: LossTask, begun: float, options: argparse.Namespace) -> None:
    """Train by the way of `cell`, evaluate the models, and store the results in `cell`."""
    folder = Path(tempfile.mkdtemp(prefix="roundelay-two-hosts-"))
    try:
        with Hosts(2, delays={1: cell.setting.delay} if cell.setting.delay else None) as hosts:
            if cell.setting.rate not in (UNSHAPED, ONE_HOST):
                hosts.rate(cell.setting.rate)
            cell.failed = _train(hosts, cell, folder, options)
        if cell.failed:
            return
        cell.alone = [tuple(float((folder / f"alone-{rank}").read_text()) for rank in range(2))]  # type: ignore[list-item]
        period = parsed(cell.mode)[1].get("period", 1)
        ends = [np.fromfile(folder / f"steps-{rank}") for rank in range(2)]
        cell.steps = tuple(speed(one, period) for one in ends)  # type: ignore[assignment]
        cell.curve = [(0.0, begun), *_curve(task, folder, cell.mode == "alone")]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _train(hosts: Hosts, cell: Cell, notes: Path, options: argparse.Namespace) -> str:
    """Run both learners until time is up; return the reason if that failed, else ""."""
    words = [
        sys.executable,
        str(Path(__file__).with_name("two_hosts.py")),
        "--on-host",
        cell.mode,
        "--notes",
        str(notes),
    ]
    words += ["--to-loss", options.to_loss, "--seconds", str(options.seconds), "--looks", str(options.looks)]
    words += [
        "--slower",
        str(cell.setting.slower),
        "--calibrate",
        str(options.calibrate),
        "--width",
        str(options.width),
    ]
    words += ["--layers", str(options.layers), "--minibatch", str(options.minibatch)]
    words += [f"--{name}={value}" for name, value in (("text", options.text), ("recipe", options.recipe)) if value]
    places = (0, 0) if cell.setting.rate == ONE_HOST else (0, 1)
    words += ["--addresses", *(hosts.address(host) for host in places)]
    words += ["--learning-rates", repr(cell.learning_rate)] if cell.learning_rate else []
    words += ["--set", *options.set] if options.set else []
    processes = []
    for rank, host in enumerate(places):
        with open(notes / f"said-{rank}", "wb") as said:
            given = variables(hosts, rank)
            if cell.setting.rate == ONE_HOST:
                given |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
            command = [*words, "--core", str(rank)]
            processes.append(hosts.start(host, command, env=given, stdout=said, stderr=said, stdin=subprocess.DEVNULL))
    began = time.monotonic()
    trains: float | None = None
    while any(process.poll() is None for process in processes):
        time.sleep(0.25)
        now = time.monotonic()
        if trains is None and all((notes / f"joined-{rank}").exists() for rank in range(2)):
            trains = now
        if trains is None and now - began > START + options.calibrate:
            return f"the learners did not find each other in {START:.0f} s: {last_words(notes)}"
        if trains is not None and (now - trains > options.seconds + OVER or done(notes, options.seconds)):
            return ""
        if any(process.poll() is not None for process in processes):
            time.sleep(1.0)  # the other may say more
            return f"a learner ended: {last_words(notes)}"
    return f"both learners ended: {last_words(notes)}"


def _curve(task: LossTask, notes: Path, alone: bool) -> list[tuple[float, float]]:
    """Return (seconds, held-out loss) of the mean of both models, or, with `alone`, of the first host's model."""
    network, found = task.network(), []
    ranks: Sequence[int] = (0,) if alone else (0, 1)
    looks = sorted({int(path.stem.split("-")[2]) for path in notes.glob("weights-0-*.at")})
    for look in looks:
        paths = [notes / f"weights-{rank}-{look}" for rank in ranks]
        if not all(path.with_suffix(".at").exists() for path in paths):
            continue
        mean = np.mean([np.fromfile(path, np.float32) for path in paths], axis=0, dtype=np.float64)
        torch.nn.utils.vector_to_parameters(torch.from_numpy(mean.astype(np.float32)), network.parameters())
        at = max(float(path.with_suffix(".at").read_text()) for path in paths)
        found.append((at, task.judge(network)))
    return found


def speed(ends: NDArray[np.float64], period: int) -> float:
    """Return steps a second from `ends`, the second of each step's end, over whole periods where there is one."""
    whole = len(ends) // period * period
    if period > 1 and whole:
        return whole / float(ends[whole - 1])
    if len(ends) < 3:
        return len(ends) / float(ends[-1]) if len(ends) else 0.0
    return (len(ends) - 1) / float(ends[-1] - ends[0])


def done(notes: Path, seconds: float) -> bool:
    """Return True once both learners have trained for `seconds`."""
    for rank in range(2):
        with suppress(OSError), open(notes / f"steps-{rank}", "rb") as file:
            file.seek(-8, 2)
            if np.frombuffer(file.read(8))[0] >= seconds:
                continue
        return False
    return True


def last_words(notes: Path) -> str:
    """Return the last line of each learner's output."""
    said = [(notes / f"said-{host}").read_text(errors="replace").strip().splitlines() for host in range(2)]
    return " / ".join(lines[-1][:200] for lines in said if lines) or "(they said nothing)"


def variables(hosts: Hosts, host: int, port: int = PORT) -> dict[str, str]:
    """Return the variables of torchrun on one of two hosts with a learner each, and the secret."""
    who = {
        "RANK": host,
        "LOCAL_RANK": 0,
        "WORLD_SIZE": 2,
        "LOCAL_WORLD_SIZE": 1,
        "MASTER_ADDR": hosts.address(0),
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": 1,
    }
    return {**{name: str(value) for name, value in who.items()}, "ROUNDELAY_SECRET": "a secret for the benchmark"}


def together(hosts: Hosts, command: Sequence[str]) -> None:
    """Run `command` on every host with the variables of torchrun; `HOST` in it stands for the host's number."""
    global _port  # noqa: PLW0603  a port of its own for every run: the kernel keeps old ones for a minute
    _port += 1
    processes = []
    for host in range(2):
        words = [str(host) if word == "HOST" else word for word in command]
        processes.append(
            hosts.start(
                host,
                words,
                env=variables(hosts, host, _port),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        )
    said = [process.communicate(timeout=TOO_LONG)[1] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"{' '.join(command)} failed:\n" + "\n".join(text[-2000:] for text in said))
