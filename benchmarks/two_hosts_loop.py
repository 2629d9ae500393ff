"""The process of one host in benchmarks/two_hosts.py --to-loss: a plain training loop, and notes of its steps.

Notes of learner R, in a folder that both hosts see: `steps-R`, the second of the end of each step (doubles);
`weights-R-K`, all parameters after the first step behind K times the interval (floats), and beside them `.at`, the
second. Seconds are those of the machine's clock less those of writing weights, counted from the beginning of training.
The loop runs until it is killed, so that no way is charged for its own end.
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from two_hosts_rivals import Joined, Place, join
from two_hosts_tasks import DnnTask, LossTask, TextTask

SEED = 17
BACKWARD = 3
"""Seconds of a gradient, of which its forward takes one."""


def make_task(options: argparse.Namespace) -> LossTask:
    """Return the task that the command names."""
    if options.to_loss == "dnn":
        return DnnTask(options.recipe, tuple(options.set), options.minibatch or 256)
    return TextTask(Path(options.text), options.width, options.layers, rows=options.minibatch or 12)


def learn(options: argparse.Namespace) -> None:
    """Be one learner, as the variables of torchrun say."""
    os.sched_setaffinity(0, {core for core in os.sched_getaffinity(0) if core % 2 == options.core})
    torch.set_num_threads(1)
    rank, notes = int(os.environ["RANK"]), Path(options.notes)
    task = make_task(options)
    task.rate = options.learning_rates[0] if options.learning_rates else task.rate
    network = task.network()
    optimizer = task.optimizer(network.parameters())
    begun = {name: value.clone() for name, value in network.state_dict().items()}
    slower = options.slower if rank == 1 else 1.0
    loop = Loop(task, rank, slower)
    together(notes, rank, "built")
    alone = Joined(network, optimizer.step, optimizer.zero_grad)
    (notes / f"alone-{rank}").write_text(repr(loop.rate(alone, options.calibrate)))
    network.load_state_dict(begun)
    place = Place(rank, tuple(options.addresses), notes)
    joined = join(options.on_host, network, task.optimizer, place)
    together(notes, rank, "joined")
    loop.run(joined, network, notes, options.seconds / options.looks)


def together(notes: Path, rank: int, what: str) -> None:
    """Wait until both learners have come to the point `what`, by files in `notes` and not over the network."""
    (notes / f"{what}-{rank}").touch()
    while not (notes / f"{what}-{1 - rank}").exists():
        time.sleep(0.01)


class Loop:
    """The training loop, the same for all ways to train together."""

    def __init__(self, task: LossTask, rank: int, slower: float) -> None:
        self._task, self._rank, self._slower = task, rank, slower

    def _step(self, joined: Joined, drawn: np.random.Generator) -> None:
        inputs, targets = self._task.minibatch(drawn)
        joined.zero()
        began = time.monotonic()
        loss = self._task.loss(joined.network(*inputs), targets)
        if self._slower > 1:  # before backward, in which others may wait for this one
            time.sleep((self._slower - 1) * BACKWARD * (time.monotonic() - began))
        torch.autograd.backward(loss)
        joined.step()

    def rate(self, joined: Joined, seconds: float) -> float:
        """Return steps a second over `seconds`, after two steps that are not counted."""
        joined.network.train()
        drawn = np.random.default_rng([SEED + 1, self._rank])
        for _ in range(2):
            self._step(joined, drawn)
        began, steps = time.monotonic(), 0
        while steps < 2 or time.monotonic() - began < seconds:
            self._step(joined, drawn)
            steps += 1
        return steps / (time.monotonic() - began)

    def run(self, joined: Joined, network: nn.Module, notes: Path, interval: float) -> None:
        """Train until killed."""
        joined.network.train()
        drawn, clock = np.random.default_rng([SEED, self._rank]), StoppedClock()
        look = 1
        with open(notes / f"steps-{self._rank}", "ab", buffering=0) as steps:
            while True:
                self._step(joined, drawn)
                now = clock.now
                steps.write(np.float64(now).tobytes())
                if now >= look * interval:
                    look = int(now / interval)
                    clock.without(lambda k=look, at=now: self._write(network, notes / f"weights-{self._rank}-{k}", at))
                    look += 1

    def _write(self, network: nn.Module, path: Path, at: float) -> None:
        weights = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
        weights.numpy().tofile(path)
        path.with_suffix(".part").write_text(repr(at))
        path.with_suffix(".part").rename(path.with_suffix(".at"))


class StoppedClock:
    """A clock of the seconds since it was made, except those in which it was stopped."""

    def __init__(self) -> None:
        self._began, self._stood = time.monotonic(), 0.0

    @property
    def now(self) -> float:
        return time.monotonic() - self._began - self._stood

    def without(self, work: Callable[[], None]) -> None:
        """Call `work` while the clock is stopped."""
        began = time.monotonic()
        work()
        self._stood += time.monotonic() - began
