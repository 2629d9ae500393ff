#!/usr/bin/env python
"""The outer step of DiLoCo when it comes late: without momentum, with a heavy ball and with Nesterov's, on AN4.

    python recipes/field2026/delay.py --data data/an4 --alignment exp/an4/alignment --out exp/an4/delay [--seeds 3]

LEARNERS learners take PERIOD local steps of plain SGD from the common model W, and the mean of their changes is the
outer gradient; the outer step of a round has that of `delay` rounds before. Training begins at a model of one learner's
WARM steps, and ends after ROUNDS rounds. A rate is stable if the dev loss is then no higher than at the beginning.
Rates are tried from START on by factors of two, up to the first that is not stable. What is done is not done again.
"""

import argparse
import json
from collections import deque
from pathlib import Path

import torch
from torch import Tensor

from roundelay.algorithms.outer_momentum import outer_heavy_ball_, outer_nesterov_
from roundelay.core.epochs import EpochPlan
from roundelay.core.files import write_json
from roundelay.learner.base import Learner
from roundelay_speech.acoustic_task import AcousticTask
from roundelay_speech.models.dnn import DnnConfig

LEARNERS, PERIOD, ROUNDS, WARM, FRAMES, RATE, MU = 2, 5, 80, 800, 128, 0.1, 0.9
KINDS = ("none", "heavy ball", "nesterov")
DELAYS = (0, 1, 4)
START = {"none": (1.0, 0.5, 0.18), "heavy ball": (0.5, 0.05, 0.012), "nesterov": (0.35, 0.12, 0.016)}


def outer_step_(kind: str, anchor: Tensor, momentum: Tensor, mean: Tensor, rate: float) -> None:
    """Take an outer step of `anchor` (P,) and `momentum` (P,), in place; `mean` is W less the outer gradient."""
    if kind == "none":
        anchor.sub_(anchor - mean, alpha=rate)
    else:
        (outer_heavy_ball_ if kind == "heavy ball" else outer_nesterov_)(anchor, momentum, mean, rate, MU)


def train(learner: Learner, start: Tensor, kind: str, delay: int, rate: float, seed: int) -> float:
    """Return the dev loss after all rounds."""
    plan = EpochPlan(1, learner.examples, FRAMES, 1, seed)
    anchor, momentum, gradient = start.clone(), torch.zeros_like(start), torch.empty_like(start)
    waiting: deque[Tensor] = deque()
    index = 0
    for _ in range(ROUNDS):
        change = torch.zeros_like(start)
        for _ in range(LEARNERS):
            x = anchor.clone()
            for _ in range(PERIOD):
                learner.gradient(x, plan.piece(index % (plan.pieces - 1)), plan, gradient)
                x.sub_(gradient, alpha=RATE)
                index += 1
            change += (anchor - x) / LEARNERS
        waiting.append(change)
        if len(waiting) > delay:
            outer_step_(kind, anchor, momentum, anchor - waiting.popleft(), rate)
        if not bool(torch.isfinite(anchor).all()):
            return float("inf")
    return learner.evaluate(anchor, "dev").mean_loss


def begin(learner: Learner, seed: int) -> Tensor:
    """Return the model that all begin with: one learner's after WARM steps."""
    plan = EpochPlan(0, learner.examples, FRAMES, 1, seed)
    x = learner.initial()
    gradient = torch.empty_like(x)
    for index in range(WARM):
        learner.gradient(x, plan.piece(index), plan, gradient)
        x.sub_(gradient, alpha=RATE)
    return x


def main() -> None:
    """Find the largest stable rate of each kind at each delay, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--alignment", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "delay.json"
    kept: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    model = DnnConfig(layers=2, width=64, dropout=0.0, context=2)
    for seed in range(1, options.seeds + 1):
        learner = AcousticTask(options.data, options.alignment, model, seed, autocast=False, clip=5.0).build()
        start = begin(learner, seed)
        first = learner.evaluate(start, "dev").mean_loss
        for kind in KINDS:
            for delay, first_rate in zip(DELAYS, START[kind], strict=True):
                rate = first_rate
                while True:
                    name = f"{kind}, delay {delay}, rate {rate:g}, seed {seed}"
                    if name not in kept:
                        kept[name] = train(learner, start, kind, delay, rate, seed)
                        write_json(path, kept)
                    print(f"{name}: {kept[name]:.4f} (begun with {first:.4f})", flush=True)
                    if not kept[name] <= first:
                        break
                    rate *= 2


if __name__ == "__main__":
    main()
