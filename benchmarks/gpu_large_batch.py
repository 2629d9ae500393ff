"""Large minibatches on a GPU: does SSGD lose accuracy where AD-PSGD does not?

    python benchmarks/gpu_large_batch.py --data CORPORA/an4 CORPORA/mini-librispeech --out exp/large-batch --seconds 500
    python benchmarks/gpu_large_batch.py --data DIR --out DIR --device cpu --small        # does it run? no figures

Zhang et al. 2019 (arXiv 1907.05701) give minibatches in sequences of 21 frames: 256 for one learner, 4,096 where SSGD
ends, 12,288 where AD-PSGD does. A folder of --data holds `data`, a prepared corpus, and `alignment`, as `roundelay
claims run` leaves them (exp/claims/corpora). The recipe is ibm-blstm-small with more cells; learners are the
simulator's, in one process, whose gradients the GPU computes.

Grids are trained one after the other, the most telling first: the largest minibatch and the smallest, 16 learners; then
the sizes between, then 4 learners. Each keeps its runs below --out, where the same command goes on: what is done is not
trained again, and of what is done only recipes, records and results are needed (`*.yaml`, `*.json*`), should the folder
be taken elsewhere. Minibatches of which an epoch has fewer than two rounds are left out, and said. After --seconds the
training under way stops at its next checkpoint.
"""

import argparse
import json
import signal
import statistics
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_workloads import FRAMES, checked_device, described

from roundelay.core.progress import Silent
from roundelay.grids.grid import Contenders
from roundelay.grids.results import CellOutcome, CellState, cell_records
from roundelay.grids.running import run_grid
from roundelay.job import Interrupt
from roundelay_speech.grids.grid import plan
from roundelay_speech.prepared import load_corpus

STRATEGIES = ("ssgd", "adpsgd:fixed-ring", "adpsgd:random-ring", "delay-by-one")
SIZES = (256, 12_288, 4_096, 1_024, 8_192, 2_048)
"""Sequences of a round, the most telling first."""
LEARNERS = (16, 4)
SETTINGS = (
    "model={name: blstm, layers: 2, cells: 256, bottleneck: 128, dropout: 0.0, chunk: 21, context: 0, deltas: 2}",
    "training.minibatch_unit=sequences",
    "cost={gradient: 0.1, jitter: 0.1, exchange: 0.005, allreduce: 0.03, together: false}",
    "training.runtime=sim",
)
SMALL = (
    "model={name: blstm, layers: 1, cells: 8, bottleneck: 4, dropout: 0.0, chunk: 21, context: 0, deltas: 0}",
    "schedule={rule: anneal, max_epochs: 1, anneal_from: 1, factor: 0.5, learning_rate: 0.1}",
)


@dataclass(frozen=True)
class Lot:
    """Trainings of one corpus that belong together."""

    corpus: Path
    minibatch: int
    learners: int


def lots(corpora: Sequence[Path], sizes: Sequence[int], learners: Sequence[int]) -> Iterator[Lot]:
    """The most telling first."""
    for many in learners:
        for size in sizes:
            for corpus in corpora:
                if (most := sequences(corpus) // 2) >= size:
                    yield Lot(corpus, size, many)
                else:
                    print(f"{corpus.name}: {size} sequences left out; an epoch has {2 * most}", flush=True)


def sequences(corpus: Path) -> int:
    """Subsequences of an epoch, about."""
    seconds = sum(u.duration for u in load_corpus(corpus / "data").splits["train"])
    return round(100 * seconds / FRAMES)


def train(lot: Lot, options: argparse.Namespace, interrupt: Interrupt) -> list[CellOutcome]:
    """Train, or go on with, a lot."""
    overrides = [
        *SETTINGS,
        *(SMALL if options.small else ()),
        f"training.device={options.device}",
        f"training.minibatch={lot.minibatch}",
        f"corpus={lot.corpus / 'data'}",
        f"alignment={lot.corpus / 'alignment'}",
    ]
    wanted = Contenders(list(options.strategies), [lot.learners], options.seeds)
    grid = plan("ibm-blstm-small", overrides, wanted, options.out / lot.corpus.name)
    outcomes = run_grid(grid, False, Silent(), lambda line: print(line, flush=True), interrupt)
    options.rows[lot.corpus.name].update(
        {
            record.directory.name: {
                "strategy": record.strategy,
                "label": record.label,
                "learners": record.learners,
                "minibatch": lot.minibatch,
                "seed": record.seed,
                "dev": None if record.diverged else record.dev_cross_entropy,
                "accuracy": record.dev_accuracy,
                "seconds": record.wall_seconds,
            }
            for record in cell_records(grid, outcomes)
        }
    )
    return outcomes


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Dev cross-entropy by strategy and learners, and minibatch: mean of seeds, and their spread."""
    sizes = sorted({row["minibatch"] for row in rows.values()})
    cells: dict[tuple[str, int], dict[int, list[float | None]]] = defaultdict(lambda: defaultdict(list))
    for row in rows.values():
        cells[row["label"], row["learners"]][row["minibatch"]].append(row["dev"])
    lines = [f"{'dev cross-entropy':34}" + "".join(f"{size:>18}" for size in sizes)]
    for (label, learners), by_size in sorted(cells.items()):
        found = "".join(f"{_said(by_size.get(size, [])):>18}" for size in sizes)
        lines.append(f"{label + ', ' + str(learners):34}{found}")
    return "\n".join(lines)


def _said(values: list[float | None]) -> str:
    ended = [value for value in values if value is not None]
    if not ended:
        return "diverged" if values else ""
    spread = f" ± {statistics.stdev(ended):.3f}" if len(ended) > 1 else ""
    gone = f" ({len(values) - len(ended)} div.)" if len(ended) < len(values) else ""
    return f"{statistics.mean(ended):.3f}{spread}{gone}"


def main() -> None:
    """Train, and print what there is so far."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="folders with `data` and `alignment`")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--learners", type=int, nargs="+", default=LEARNERS)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, help="stop after so many")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a toy network for one epoch")
    options = parser.parse_args()
    print(described(checked_device(options.device)), flush=True)
    options.rows, interrupt = defaultdict(dict), Interrupt()

    def stop(*_: object) -> None:
        interrupt.asked, interrupt.why = True, "the end of its time"

    signal.signal(signal.SIGTERM, stop)
    if options.seconds is not None:
        clock = threading.Timer(options.seconds, stop)
        clock.daemon = True
        clock.start()
    for lot in lots([folder.resolve() for folder in options.data], options.sizes, options.learners):
        outcomes = train(lot, options, interrupt)
        options.out.joinpath("rows.json").write_text(json.dumps(options.rows, indent=1) + "\n")
        print(f"{lot.corpus.name}\n{table(options.rows[lot.corpus.name])}", flush=True)
        if interrupt.asked or any(one.state is CellState.INTERRUPTED for one in outcomes):
            print("stopped; the same command goes on", flush=True)
            return


if __name__ == "__main__":
    main()
