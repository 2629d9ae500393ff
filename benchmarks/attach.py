"""Cost of `roundelay.attach` for a training loop: steps a second of an attached learner over those of the bare loop.

    python benchmarks/attach.py                       # a network of 12.5 million parameters, minibatch 256, SGD
    python benchmarks/attach.py --optimizer AdamW --minibatch 64 --strategies adpsgd
    torchrun --nproc-per-node 2 benchmarks/attach.py --network small --minibatch 2 --strategies adpsgd ssgd bsp --ddp

One learner alone, so that nothing is said to anybody: what is left is the copying of gradients and snapshots, the
optimizer on the row, and the watch over the parameters. Under torchrun there are several, and means and exchanges are
in it. Bare and attached loops take turns; the median and the range over rounds are printed, as ratios of one round.
One thread. Where other work shares the machine, count the seconds of this process (`--clock cpu`), which leave out
waiting.
"""

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import roundelay

FRAMES, WIDTH, LAYERS, STATES = 440, 1024, 6, 5723
SYMBOLS, LENGTH, CHANNELS, BLOCKS = 80, 32, 128, 4
DDP = "DDP"
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Small(nn.Module):
    """Transformer over characters: 54 tensors, 0.8 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, CHANNELS), nn.Embedding(LENGTH, CHANNELS)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(CHANNELS, 4, 4 * CHANNELS, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(BLOCKS)
        )
        self.norm, self.out = nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, SYMBOLS)

    def forward(self, symbols: Tensor) -> Tensor:
        x = self.symbols(symbols) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x)).transpose(1, 2)  # type: ignore[no-any-return]


def network(name: str) -> nn.Module:
    """Return a network; `dnn` is that of docs/models.md: 12.5 million parameters."""
    torch.manual_seed(0)
    if name == "small":
        return Small()
    sizes = [FRAMES, *[WIDTH] * LAYERS]
    layers = [part for i, o in itertools.pairwise(sizes) for part in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, STATES))


def minibatch(options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, other ones in each process."""
    torch.manual_seed(1 + int(os.environ.get("RANK", "0")))
    if options.network == "small":
        shape = options.minibatch, LENGTH
        return torch.randint(SYMBOLS, shape), torch.randint(SYMBOLS, shape)
    return torch.randn(options.minibatch, FRAMES), torch.randint(STATES, (options.minibatch,))


def loop(options: argparse.Namespace, strategy: str | None) -> Callable[[], float]:
    """A training loop; each call runs it on, and is answered by steps a second."""
    model, clock = network(options.network), CLOCKS[options.clock]
    if strategy == DDP:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer: torch.optim.Optimizer = getattr(torch.optim, options.optimizer)(model.parameters(), lr=1e-4)
    if strategy not in (None, DDP):
        roundelay.attach(model, optimizer, strategy)
    x, y = minibatch(options)

    def run() -> float:
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        started = clock()
        for _ in range(options.steps):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
        return options.steps / (clock() - started)

    return run


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", default=["ssgd", "adpsgd"])
    parser.add_argument("--optimizer", default="SGD", help="of torch.optim (default: SGD)")
    parser.add_argument("--minibatch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="of a loop in a round (default: 20)")
    parser.add_argument("--network", choices=["dnn", "small"], default="dnn")
    parser.add_argument("--clock", choices=[*CLOCKS], default="wall")
    parser.add_argument("--ddp", action="store_true", help="torch's DistributedDataParallel too, over gloo")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.ddp:
        alone = {} if "RANK" in os.environ else {"store": torch.distributed.HashStore(), "rank": 0, "world_size": 1}
        torch.distributed.init_process_group("gloo", **alone)  # type: ignore[arg-type]
    others = [*options.strategies, *[DDP] * options.ddp]
    loops = {"bare": loop(options, None), **{name: loop(options, name) for name in others}}
    for run in loops.values():
        run()  # warm
    ratios: dict[str, list[float]] = {name: [] for name in others}
    for _ in range(options.rounds):
        speeds = {name: run() for name, run in loops.items()}
        for name, found in ratios.items():
            found.append(speeds[name] / speeds["bare"])
        if os.environ.get("RANK", "0") == "0":
            print("  ".join(f"{name} {speed:.2f}/s" for name, speed in speeds.items()), flush=True)
    for name, found in ratios.items() if os.environ.get("RANK", "0") == "0" else ():
        print(f"{name}: {statistics.median(found):.3f} ({min(found):.3f}-{max(found):.3f}) of the bare loop")


if __name__ == "__main__":
    main()
