"""Memory, seconds and waiting of a learner that trains on thousands of hours, with features that take no room.

    python benchmarks/data_scale.py                       # 100, 1,000 and 10,000 hours in sparse files
    python benchmarks/data_scale.py --order shuffle --hours 10 30 --models dnn cldnn conformer

Allowed, and reported for each line whether it holds: 200 MB a learner beyond the model, 1 s at an epoch's start, 2 % of
a step
for getting its minibatch.

Every line is a process of its own, one thread. Memory is that which the process alone holds (RssAnon) beyond a learner
that
trains the same model on 36 seconds; pages of files that are mapped belong to all processes of the host, and are given
beside it. An epoch's start is its order, the first window, and its first minibatch. Waiting is the mean over all
minibatches of two windows, arranging them included, in processor time; gradients are the median of some.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from roundelay.core.epochs import EpochPlan
from roundelay.learner.module import ModuleLearner, autocast_pays
from roundelay.runtime.launch.c_libraries import keep_freed
from roundelay_speech.features.store import FeatureStore, SpeakerStats
from roundelay_speech.models import BlstmConfig, CldnnConfig, ConformerConfig, DnnConfig, ModelConfig
from roundelay_speech.models.frames import WINDOW_SIZE, LabelledRuns, OrderName
from roundelay_speech.training_index import mapped

FILTERS, STATES = 40, 500
ALLOWED_MB, ALLOWED_START, ALLOWED_WAIT = 200.0, 1.0, 0.02
TINY_HOURS = 0.01
MODELS: dict[str, tuple[ModelConfig, int]] = {
    "dnn": (DnnConfig(), 256),
    "blstm": (BlstmConfig(), 2048),
    "blstm-21": (BlstmConfig(chunk=21, context=0), 2048),
    "dnn-published": (DnnConfig.published(), 256),
    "cldnn": (CldnnConfig(), 2000),
    "cldnn-published": (CldnnConfig.published(), 2000),
    "conformer": (ConformerConfig(), 2048),
}
"""Configuration, and frames of a minibatch."""
RUNS = tuple(field.name for field in fields(LabelledRuns))


def make_corpus(folder: Path, hours: float) -> None:
    """Write a corpus of utterances of 2 to 20 seconds, 100 a speaker, whose features and labels are holes in files."""
    drawn = np.random.default_rng(0)
    sizes = drawn.integers(200, 2000, max(3, round(hours * 360_000 / 1100)))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    frames, speakers = int(offsets[-1]), len(sizes) // 100 + 1
    for name, dtype, shape in (("features", np.float32, (frames, FILTERS)), ("labels", np.int32, (frames,))):
        np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)
    arrays = {
        "offsets": offsets,
        "speakers": (np.arange(len(sizes)) // 100).astype(np.int32),
        "mean": np.zeros((speakers, FILTERS), np.float32),
        "std": np.ones((speakers, FILTERS), np.float32),
    }
    runs = LabelledRuns.of(offsets[:-1], np.arange(len(sizes)), offsets, offsets)
    for name, array in (arrays | {name: getattr(runs, name) for name in RUNS}).items():
        np.save(folder / f"{name}.npy", array)


def open_corpus(folder: Path) -> tuple[FeatureStore, Any, LabelledRuns]:
    """Return the features, the labels and the labelled frames of a corpus, mapped as by a learner."""
    of = {path.stem: mapped(path) for path in folder.glob("*.npy")}
    speakers = SpeakerStats((), of["mean"], of["std"], np.zeros(0, np.int64))
    store = FeatureStore(folder, of["features"], (), of["offsets"], of["speakers"], speakers, 16_000, {})
    return store, of["labels"], LabelledRuns(**{name: of[name] for name in RUNS})


def held() -> tuple[float, float]:
    """Return the MB that this process alone holds, and the MB of files that it has mapped."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) / 1e3, int(status["RssFile"].split()[0]) / 1e3


@dataclass(frozen=True)
class Found:
    """Measurements of one learner, in MB and seconds."""

    private: float
    mapped: float
    start: float
    wait: float
    gradient: float


def measure(folder: Path, model: str, order: OrderName, times: int) -> Found:
    """Measure a learner's first steps in an epoch, and its steps in two more windows."""
    config, minibatch = MODELS[model]
    store, labels, runs = open_corpus(folder)
    network = config.network(FILTERS, STATES)
    examples = network.examples(store, labels, {"train": runs}, order)
    learner = ModuleLearner(network, examples, autocast_pays())
    plan = EpochPlan(0, learner.examples, minibatch, 1, 0)
    x, out = learner.initial(), torch.empty(learner.parameters)
    started = time.process_time()
    drawn = learner._order_of(plan)
    examples.batch("train", drawn[0:minibatch])
    start, most = time.process_time() - started, held()

    def get(index: int) -> None:
        batch = plan.piece(index)
        examples.batch("train", drawn[batch.start : batch.stop])

    rounds = min(2 * WINDOW_SIZE // minibatch, plan.rounds - 1)
    started = time.process_time()
    for index in range(1, rounds + 1):
        get(index)
        if index % 100 == 0:
            most = max(most[0], held()[0]), max(most[1], held()[1])
    wait = (time.process_time() - started) / rounds
    gradients = []
    for index in range(times):
        started = time.process_time()
        learner.gradient(x, plan.piece(min(index + 1, plan.rounds - 1)), plan, out)
        gradients.append(time.process_time() - started)
        most = max(most[0], held()[0]), max(most[1], held()[1])
    return Found(*most, start, wait, statistics.median(gradients))


def apart(*arguments: str) -> Found:
    """Return what `measure` finds in a process of its own, started with these command-line arguments."""
    command = [sys.executable, __file__, "--one", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return Found(**json.loads(run.stdout.splitlines()[-1]))


def at_scale(hours: list[float], models: list[str], order: OrderName, times: int) -> bool:
    """Print a line for each number of hours and model; return True if every measurement is within what is allowed."""
    print(f"order {order}; allowed: {ALLOWED_MB:.0f} MB, {ALLOWED_START:g} s, {ALLOWED_WAIT:.0%}")
    print(
        f"{'hours':>8} {'model':16}{'MB':>8}{'mapped':>8}{'start, s':>10}{'data, ms':>10}{'gradient':>10}{'waits':>8}"
    )
    well, base = True, {}
    for some in [TINY_HOURS, *hours]:
        with tempfile.TemporaryDirectory() as folder:
            make_corpus(Path(folder), some)
            for model in models:
                found = apart(folder, model, order, str(times))
                if some == TINY_HOURS:
                    base[model] = found.private
                    continue
                more, waits = found.private - base[model], found.wait / (found.wait + found.gradient)
                holds = more <= ALLOWED_MB and found.start <= ALLOWED_START and waits <= ALLOWED_WAIT
                well &= holds
                print(
                    f"{some:8,.0f} {model:16}{more:8.0f}{found.mapped:8.0f}{found.start:10.2f}{1e3 * found.wait:10.2f}"
                    f"{1e3 * found.gradient:10.1f}{waits:8.2%}  {'holds' if holds else 'DOES NOT HOLD'}",
                    flush=True,
                )
    return well


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, nargs="+", default=[100.0, 1000.0, 10_000.0])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS)[:3])
    parser.add_argument("--order", choices=get_args(OrderName), default="blocks")
    parser.add_argument("--times", type=int, default=5, help="gradients")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.one:
        keep_freed()  # as in every learner
        folder, model, order, times = options.one
        print(json.dumps(vars(measure(Path(folder), model, order, int(times)))))
        return 0
    return 0 if at_scale(options.hours, options.models, options.order, options.times) else 1


if __name__ == "__main__":
    sys.exit(main())
