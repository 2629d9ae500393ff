"""Share of the time of a gradient that a learner spends on getting its minibatch, for every acoustic model.

    python benchmarks/data_wait.py                 # the default sizes, and the published ones
    python benchmarks/data_wait.py --hours 20      # a larger corpus: less of it in the processor's cache

Random features of so many hours in a memory-mapped file, as `roundelay prepare` leaves them; utterances of 1 to 8 s.
Seconds are of this process's processor time, one thread; the median of some gradients. The order of an epoch is drawn
once, and counted in proportion.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from roundelay.core.epochs import EpochPlan
from roundelay.learner.module import ModuleLearner, autocast_pays
from roundelay_speech.features.store import FeatureStore, SpeakerStats
from roundelay_speech.models import BlstmConfig, CldnnConfig, ConformerConfig, DnnConfig, ModelConfig, make_network

FILTERS, STATES, SPEAKERS = 40, 500, 20
ALLOWED = 0.02

MODELS: list[tuple[str, ModelConfig, int]] = [
    ("dnn", DnnConfig(), 256),
    ("dnn, published size", DnnConfig.published(), 256),
    ("cldnn", CldnnConfig(), 2000),
    ("cldnn, published size", CldnnConfig.published(), 2000),
    ("blstm", BlstmConfig(), 2048),
    ("blstm, chunks of 21", BlstmConfig(chunk=21, context=0), 2048),
    ("conformer", ConformerConfig(), 2048),
]
"""Name, model, frames of a minibatch."""


def store(folder: Path, hours: float) -> FeatureStore:
    """Random features in a file."""
    drawn = np.random.default_rng(0)
    sizes = drawn.integers(100, 800, max(2, round(hours * 360_000 / 450)))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    array = np.lib.format.open_memmap(
        folder / "features.npy", mode="w+", dtype=np.float32, shape=(int(offsets[-1]), FILTERS)
    )
    for start in range(0, len(array), 100_000):
        part = array[start : start + 100_000]
        part[:] = drawn.standard_normal(part.shape, dtype=np.float32)
    array.flush()
    names = tuple(f"s{n}" for n in range(SPEAKERS))
    speakers = SpeakerStats(
        names,
        np.zeros((SPEAKERS, FILTERS), np.float32),
        np.ones((SPEAKERS, FILTERS), np.float32),
        np.ones(SPEAKERS, np.int64),
    )
    utterances = tuple(f"u{n}" for n in range(len(sizes)))
    return FeatureStore(
        folder,
        np.load(folder / "features.npy", mmap_mode="r"),
        utterances,
        offsets,
        drawn.integers(0, SPEAKERS, len(sizes)).astype(np.int32),
        speakers,
        16_000,
        {},
    )


def seconds(work: Callable[[int], object], times: int) -> float:
    """Processor seconds of a call, the median; the first is not counted."""
    found = []
    for number in range(times + 1):
        started = time.process_time()
        work(number)
        found.append(time.process_time() - started)
    return statistics.median(found[1:])


def measure(some: FeatureStore, config: ModelConfig, minibatch: int, times: int) -> tuple[float, float]:
    """Seconds for getting a minibatch, and for its gradient, getting it included."""
    labels = np.random.default_rng(1).integers(0, STATES, len(some.array)).astype(np.int32)
    network = make_network(config, FILTERS, STATES)
    examples = network.examples(some, labels, {"train": list(some.utterance_ids)})
    learner = ModuleLearner(network, examples, autocast_pays())
    plan = EpochPlan(0, learner.examples, minibatch, 1, 0)
    started = time.process_time()
    order = learner._order_of(plan)
    drawing = (time.process_time() - started) / plan.rounds
    x, out = learner.initial(), torch.empty(learner.parameters)

    def get(number: int) -> None:
        batch = plan.piece(number)
        examples.batch("train", order[batch.start : batch.stop])

    waiting = drawing + seconds(get, 5 * times)
    return waiting, drawing + seconds(lambda number: learner.gradient(x, plan.piece(100 + number), plan, out), times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--models", nargs="*", help="names, or beginnings of names")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{'model':24}{'frames':>8}{'data, ms':>10}{'gradient, ms':>14}{'waits':>8}   (allowed: {ALLOWED:.0%})")
    with tempfile.TemporaryDirectory() as folder:
        some = store(Path(folder), options.hours)
        for name, config, minibatch in MODELS:
            if options.models and not any(name.startswith(wanted) for wanted in options.models):
                continue
            waiting, whole = measure(some, config, minibatch, options.times)
            print(f"{name:24}{minibatch:8}{1e3 * waiting:10.2f}{1e3 * whole:14.1f}{waiting / whole:8.2%}", flush=True)


if __name__ == "__main__":
    main()
