"""The noise scale of gradients, beside the minibatches that a claim is about.

McCandlish, Kaplan, Amodei and the OpenAI Dota Team 2018, "An Empirical Model of Large-Batch Training" (arXiv
1812.06162): with S the covariance of one example's gradient and G the gradient of the whole objective,

    B = tr S / |G|^2

is the minibatch, in examples, whose noise is as large as its signal. A step with a minibatch of M goes at best
1 / (1 + B / M) as far as one along G itself: with M much below B twice the minibatch does the work of two steps, with M
much above B that of one.

`K` gradients g_1 .. g_K of disjoint minibatches of `b` examples each, all at one point (*ours*; without bias, since the
noise of different minibatches is independent):

    |G|^2     is  m2 = (|sum g|^2 - sum |g|^2) / (K (K - 1))
    tr S / b  is  s2 = sum |g|^2 / K - m2 ,                     B = b s2 / m2

`algorithms/gain.py` asks the same of a running training, of pairs of consecutive gradients, between which the model has
moved: cheap, and mixed with curvature. Here the point stands still.

Legend: P parameters.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from roundelay.checkpoint import load_checkpoint
from roundelay.core.epochs import EpochPlan
from roundelay.core.minibatch import MinibatchSize
from roundelay.core.progress import Progress
from roundelay.core.records import Evaluation, of_kind, read_events
from roundelay.grids.grid import Cell
from roundelay.learner.base import Learner
from roundelay.saving import FOLDER, epoch_ends
from roundelay_lab.claims.experiment import Piece, Regime, Row, short
from roundelay_speech.acoustic import make_job
from roundelay_speech.grids.running import recipe_of

LOOKS = 1 << 20
"""Number of the epoch by whose order minibatches of a measurement are drawn, which no training has."""


def noise_scale(gradients: Iterable[Tensor], examples: float) -> float | None:
    """Return the noise scale B, in examples, from gradients (P,) of disjoint minibatches of so many examples each.
    None: their mean cannot be distinguished from noise.

    Raises:
        ValueError: fewer than two gradients.
    """
    total, squares, count = torch.zeros(()), 0.0, 0
    for gradient in gradients:
        exact = gradient.double()
        total, squares, count = total + exact, squares + float(exact @ exact), count + 1
    if count < 2:
        raise ValueError("noise shows in two gradients or more")
    signal = (float(total @ total) - squares) / (count * (count - 1))
    return examples * (squares / count - signal) / signal if signal > 0 else None


def noise_pieces(regime: Regime, trained: Sequence[Cell]) -> list[Piece]:
    """Return the row to compute for each training and each end of an epoch.

    Columns: tuned options; `updates` so far; `dev` (cross-entropy there); `noise_scale`, in the unit of the minibatch;
    `ratio`, the minibatch divided by it.
    """
    learner, found = cache(partial(_learner, trained[0])), []  # gradients at a point are the same for all of them
    for cell in trained:
        folder, number = cell.exp / FOLDER, recipe_of(cell).training.size.number
        for path in epoch_ends(folder):
            key: Row = {"minibatch": number, "epoch": _epoch(path), "seed": cell.seed}
            found.append(Piece(key, partial(_look, regime, cell, path, learner)))
    return found


def _look(regime: Regime, cell: Cell, path: Path, build: Callable[[], Learner], _: Progress) -> Row:
    """Return a table's row on a checkpoint: its learning rate, loss and gradient noise scale."""
    size, seed, learner, epoch = recipe_of(cell).training.size, cell.seed, build(), _epoch(path)
    axes = dict(cell.configuration.axes)
    frames = size.frames(1, learner.examples, learner.sequences)
    small = MinibatchSize(regime.size, size.unit).frames(1, learner.examples, learner.sequences)
    plan = EpochPlan(LOOKS, learner.examples, small, 1, seed)
    row = load_checkpoint(path).state.vectors["row"][0]
    scale = noise_scale(_gradients(learner, row, plan, regime.groups), regime.size)
    events = read_events(cell.exp / "events.jsonl")
    held_out = (one for one in of_kind(events, Evaluation) if one.split == "dev" and one.epoch == epoch - 1)
    return {
        **{short(key): axes[key] for key in regime.tuned},
        "updates": epoch * EpochPlan(0, learner.examples, frames, 1, seed).rounds,
        "dev": float(f"{next(held_out).cross_entropy:.6g}"),
        "noise_scale": scale and float(f"{scale:.6g}"),
        "ratio": scale and float(f"{size.number / scale:.6g}"),
    }


def _epoch(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def _gradients(learner: Learner, at: Tensor, plan: EpochPlan, groups: int) -> Iterable[Tensor]:
    out = torch.empty(learner.parameters)
    for index in range(min(groups, plan.examples // plan.minibatch)):
        learner.gradient(at, plan.piece(index), plan, out)
        yield out


def _learner(cell: Cell) -> Learner:
    """Return the learner of a training without clipping, since clipped gradients have lost some of their noise."""
    recipe = recipe_of(cell)
    whole = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, clip=None))
    return make_job(whole, None).cluster.task.build()
