#!/usr/bin/env python
"""Learners whose speakers are their own, and that differ in speed: async-diloco with remedies for late reports, beside
it plain and beside diloco, in the simulator with real gradients.

    python recipes/field2026/speakers.py --data data/an4 --alignment exp/an4/alignment --out exp/an4/speakers \
        --rates 0.05,0.1,0.2 --seeds 3 STRATEGY... [--shared] [SECTION.KEY=VALUE ...]

Speakers are cut, in the order of their names, into four parts of about equally many frames; in AN4 the first has women
alone. Learner l draws minibatches of part l alone, as often as it comes for one, and an epoch ends when as many are
drawn as in a training of one learner; --shared: all draw from all speakers. The speeds of the four are SPEEDS. The
learning rate is chosen on dev under seed 0 and judged under the seeds that follow. What is done is not done again.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from roundelay.core.epochs import EpochPlan
from roundelay.core.progress import Silent
from roundelay.core.records import Results
from roundelay.core.state import Minibatch
from roundelay.core.streams import stream
from roundelay.grids.axes import is_override
from roundelay.grids.grid import Cell, Contenders
from roundelay.grids.results import CellOutcome, CellState, tuned
from roundelay.job import Interrupt
from roundelay.runtime.sim import driver
from roundelay.runtime.sim.work import Work
from roundelay_speech.grids.grid import plan
from roundelay_speech.grids.running import RecipeWork
from roundelay_speech.models.frames import FrameExamples

SPEEDS = (0.25, 0.5, 1.0, 1.0)


class OwnSpeech(Work):
    """Minibatches of which each learner draws those of its own number, round after round, and again if it is fast."""

    def draw(self, rank: int, group: tuple[int, ...] = ()) -> Minibatch | None:
        """Return the next minibatch of learner `rank`; None once as many are drawn as the segment has."""
        if self._synchronous:
            return super().draw(rank, group)
        if self._queue >= self.stop_round * self._learners:
            return None
        whole = self._epoch.rounds - 1  # the last round is a smaller one
        place, self._queue = self._round[rank] % whole, self._queue + 1
        self._round[rank] += 1
        return self._epoch.piece(place * self._learners + rank)


def by_speakers(examples: FrameExamples, plan: EpochPlan) -> NDArray[np.int64]:
    """Return an order of an epoch in which minibatches of learner l have frames of the l-th part of speakers alone."""
    everything = np.arange(plan.examples)
    _, utterances = examples._runs["train"].locate(everything)
    speaker = examples._store.speaker_indices[utterances]
    if np.any(np.diff(speaker) < 0):  # as the manifest has them, a speaker at a time
        raise ValueError("the corpus does not have its speakers one after another")
    edges = np.concatenate([[0], np.flatnonzero(np.diff(speaker)) + 1, [plan.examples]])
    ends = [edges[np.abs(edges - plan.examples * n / plan.learners).argmin()] for n in range(plan.learners + 1)]
    order = np.empty(plan.examples, np.int64)
    pieces = [plan.piece(index) for index in range(plan.pieces)]
    for rank in range(plan.learners):
        mine = stream(plan.seed, "order", plan.epoch, str(rank)).permutation(everything[ends[rank] : ends[rank + 1]])
        places = np.concatenate([np.arange(p.start, p.stop) for p in pieces[rank :: plan.learners]])
        order[places] = np.resize(mine, len(places))
    return order


def train(strategy: str, rates: str, seeds: int, overrides: Sequence[str], folder: Path) -> None:
    """Choose a learning rate for a strategy under seed 0, and judge it under the next `seeds`."""
    tune = f"schedule.learning_rate={rates}"
    grid = plan("li2017-dnn", overrides, Contenders([strategy], [len(SPEEDS)], seeds, (), [tune]), folder)
    tuning = next(one for one in grid.tunings if one.configuration.learners > 1)
    choice = tuned(tuning, [_trained(cell) for cell in tuning.trials])
    print(choice.said(), *choice.warnings(), flush=True)
    for seed in grid.seeds if choice.best is not None else ():
        _trained(grid.cell(choice.best, seed))


def _trained(cell: Cell) -> CellOutcome:
    RecipeWork(cell, False, Silent(), Interrupt()).go()
    results = Results.read(cell.exp)
    losses = {split: round(loss, 4) for split, loss in results.frame_cross_entropy.items()}
    print(cell.exp.name, losses, f"{results.virtual_seconds:.1f} virtual s", flush=True)
    return CellOutcome(cell, CellState.FINISHED, trained=True)


def main() -> None:
    """Train the strategies that are named."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("strategy", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--alignment", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rates", default="0.05,0.1,0.2")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shared", action="store_true")
    options = parser.parse_args()
    given = list(filter(is_override, options.strategy))
    named = [text for text in options.strategy if text not in given]
    if not options.shared:
        driver.Work = OwnSpeech  # type: ignore[misc]
        FrameExamples.order = by_speakers  # type: ignore[assignment,method-assign]
    cluster = options.out / "cluster.yaml"
    options.out.mkdir(parents=True, exist_ok=True)
    cluster.write_text(
        yaml.safe_dump({"nodes": [{"learners": 1, "speed": speed} for speed in SPEEDS], "exchange": 0.005})
    )
    data = [
        f"corpus={options.data}",
        f"alignment={options.alignment}",
        "training.runtime=sim",
        f"cost.cluster={cluster}",
    ]
    folder = options.out / ("shared" if options.shared else "own")
    for strategy in named:
        train(strategy, options.rates, options.seeds, [*data, *given], folder)


if __name__ == "__main__":
    main()
