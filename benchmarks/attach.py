"""Cost of `roundelay.attach` for a training loop: steps a second of an attached learner over those of the bare loop.

    python benchmarks/attach.py                       # a network of 12.5 million parameters, minibatch 256, SGD
    python benchmarks/attach.py --optimizer AdamW --minibatch 64 --strategies adpsgd

One learner alone, so that nothing is said to anybody: what is left is the copying of gradients and snapshots, the
optimizer on the row, and the watch over the parameters. Bare and attached loops take turns; the median and the range
over rounds are printed, as ratios of one round. One thread.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import roundelay

FRAMES, WIDTH, LAYERS, STATES = 440, 1024, 6, 5723


def network() -> nn.Module:
    """The DNN of docs/models.md: 12.5 million parameters."""
    torch.manual_seed(0)
    sizes = [FRAMES, *[WIDTH] * LAYERS]
    layers = [part for i, o in itertools.pairwise(sizes) for part in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, STATES))


def loop(options: argparse.Namespace, strategy: str | None) -> Callable[[], float]:
    """A training loop; each call runs it on, and is answered by steps a second."""
    model = network()
    optimizer: torch.optim.Optimizer = getattr(torch.optim, options.optimizer)(model.parameters(), lr=1e-4)
    if strategy is not None:
        roundelay.attach(model, optimizer, strategy)
    x, y = torch.randn(options.minibatch, FRAMES), torch.randint(STATES, (options.minibatch,))

    def run() -> float:
        started = time.perf_counter()
        for _ in range(options.steps):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
        return options.steps / (time.perf_counter() - started)

    return run


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", default=["ssgd", "adpsgd"])
    parser.add_argument("--optimizer", default="SGD", help="of torch.optim (default: SGD)")
    parser.add_argument("--minibatch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="of a loop in a round (default: 20)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    loops = {"bare": loop(options, None), **{name: loop(options, name) for name in options.strategies}}
    for run in loops.values():
        run()  # warm
    ratios: dict[str, list[float]] = {name: [] for name in options.strategies}
    for _ in range(options.rounds):
        speeds = {name: run() for name, run in loops.items()}
        for name, found in ratios.items():
            found.append(speeds[name] / speeds["bare"])
        print("  ".join(f"{name} {speed:.2f}/s" for name, speed in speeds.items()), flush=True)
    for name, found in ratios.items():
        print(f"{name}: {statistics.median(found):.3f} ({min(found):.3f}-{max(found):.3f}) of the bare loop")


if __name__ == "__main__":
    main()
