"""Memory, seconds and waiting of a learner that trains on thousands of hours, with features that take no room.

    python benchmarks/data_scale.py                       # 100, 1,000 and 10,000 hours in sparse files
    python benchmarks/data_scale.py --order shuffle --hours 10 30 --models dnn cldnn conformer
    python benchmarks/data_scale.py --cold 4              # a real file of so many GB, read from the disk

Allowed, and said of each whether it holds: 200 MB a learner beyond the model, 1 s at an epoch's start, 2 % of a step
for getting its minibatch.

Every line is a process of its own, one thread. Memory is what it alone holds (RssAnon) beyond a learner that trains the
same model on 36 seconds; pages of files that are mapped belong to all processes of the host, and are given beside it.
An epoch's start is its order, the first window, and its first minibatch. Waiting is the mean over all minibatches of
two windows, arranging them included, in processor time; gradients are the median of some.

With --cold the cache of a real file is dropped, and one of the learners of a fast host (--rate) draws its minibatches,
and sleeps in between as long as their gradients would take. Waiting is the time of the clock that is not the
processor's, less that of the same where all is in the cache, where it is a core that is waited for. It is told for a
shuffle, for blocks without reading ahead, and for blocks, with page faults a step that had to wait for the disk; the
first 50 steps, whose window nobody could ask for before, apart.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from roundelay.core.epochs import EpochPlan
from roundelay.learner.module import ModuleLearner, autocast_pays
from roundelay.runtime.launch.c_libraries import keep_freed
from roundelay_speech.features.store import FeatureStore, SpeakerStats
from roundelay_speech.models import BlstmConfig, CldnnConfig, ConformerConfig, DnnConfig, ModelConfig, make_network
from roundelay_speech.models import frames as drawing
from roundelay_speech.models.frames import OrderName
from roundelay_speech.models.labelled import LabelledRuns
from roundelay_speech.training_index import mapped

FILTERS, STATES = 40, 500
ALLOWED_MB, ALLOWED_START, ALLOWED_WAIT = 200.0, 1.0, 0.02
TINY_HOURS = 0.01
BEGINNING = 50  # steps of a run that begins with nothing in the cache
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


def make_corpus(folder: Path, hours: float, filled: bool = False) -> None:
    """Utterances of 2 to 20 seconds, 100 a speaker; features and labels are holes in files unless `filled`."""
    drawn = np.random.default_rng(0)
    sizes = drawn.integers(200, 2000, max(3, round(hours * 360_000 / 1100)))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    frames, speakers = int(offsets[-1]), len(sizes) // 100 + 1
    for name, dtype, shape in (("features", np.float32, (frames, FILTERS)), ("labels", np.int32, (frames,))):
        array = np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)
        if filled and name == "features":
            some = drawn.standard_normal((100_000, FILTERS), dtype=np.float32)
            for start in range(0, frames, len(some)):
                array[start : start + len(some)] = some[: frames - start]
            array.flush()
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
    """Features, labels and labelled frames as a learner maps them."""
    of = {path.stem: mapped(path) for path in folder.glob("*.npy")}
    speakers = SpeakerStats((), of["mean"], of["std"], np.zeros(0, np.int64))
    store = FeatureStore(folder, of["features"], (), of["offsets"], of["speakers"], speakers, 16_000, {})
    return store, of["labels"], LabelledRuns(**{name: of[name] for name in RUNS})


def held() -> tuple[float, float]:
    """MB that this process alone holds, and MB of files that it has mapped."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) / 1e3, int(status["RssFile"].split()[0]) / 1e3


@dataclass(frozen=True)
class Found:
    """Measurements of one learner: MB, seconds."""

    private: float
    mapped: float
    start: float
    wait: float
    gradient: float


def measure(folder: Path, model: str, order: OrderName, times: int) -> Found:
    """A learner's first steps in an epoch, and in two more of its windows."""
    config, minibatch = MODELS[model]
    store, labels, runs = open_corpus(folder)
    network = make_network(config, FILTERS, STATES)
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

    rounds = min(2 * drawing.WINDOW_SIZE // minibatch, plan.rounds - 1)
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
    """Measured in a process of its own."""
    command = [sys.executable, __file__, "--one", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return Found(**json.loads(run.stdout.splitlines()[-1]))


def at_scale(hours: list[float], models: list[str], order: OrderName, times: int) -> bool:
    """Prints a line for each; True if all is as it is allowed."""
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


# From the disk --------------------------------------------------------------------------------------------------------


def drop_cache(path: Path) -> None:
    """Drop a file's pages from the cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


@dataclass(frozen=True)
class Step:
    """Getting one minibatch: seconds of the clock and of the processor, and page faults that waited for the disk."""

    clock: float
    processor: float
    faults: int


@dataclass(frozen=True)
class Host:
    """A host whose learners train so many frames a second together, in rounds of `minibatch`, for some seconds."""

    learners: int
    minibatch: int
    rate: float
    seconds: float

    @property
    def step(self) -> float:
        """Seconds of a round."""
        return self.minibatch / self.rate


def steps(folder: Path, order: OrderName, host: Host) -> Iterator[Step]:
    """Minibatches of the first learner of a host."""
    store, labels, runs = open_corpus(folder)
    examples = make_network(DnnConfig(), FILTERS, STATES).examples(store, labels, {"train": runs}, order)
    plan = EpochPlan(0, runs.frames, host.minibatch, host.learners, 0)
    drawn = examples.order(plan)  # type: ignore[union-attr]
    ends = time.monotonic() + host.seconds
    for batch in map(plan.piece, range(0, plan.pieces, host.learners)):
        before = time.monotonic(), time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        examples.batch("train", drawn[batch.start : batch.stop])
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before[2]
        yield Step(time.monotonic() - before[0], time.process_time() - before[1], faults)
        if time.monotonic() > ends:
            return
        time.sleep(host.step)


def from_disk(gigabytes: float, host: Host) -> bool:
    """Prints how long minibatches of a file that is in no cache are waited for; True if blocks are as allowed."""
    print(
        f"{gigabytes:g} GB on disk; {host.learners} learners, rounds of {host.minibatch} frames of "
        f"{1e3 * host.step:.1f} ms; allowed: {ALLOWED_WAIT:.0%}"
    )
    print(f"{'order':28}{'steps':>7}{'start, s':>10}{'clock, ms':>11}{'processor':>11}{'faults':>8}{'waits':>8}")
    ahead, idle, share = drawing.read_ahead, 0.0, 1.0
    with tempfile.TemporaryDirectory(dir=".") as folder:
        make_corpus(Path(folder), gigabytes * 1e9 / 4 / FILTERS / 360_000, filled=True)
        cases: list[tuple[str, OrderName, Any]] = [
            ("blocks, all in the cache", "blocks", ahead),
            ("shuffle", "shuffle", ahead),
            ("blocks, nothing read ahead", "blocks", lambda *_: None),
            ("blocks", "blocks", ahead),
        ]
        for name, order, reading in cases:
            if not name.endswith("cache"):
                drop_cache(Path(folder) / "features.npy")
            drawing.read_ahead = reading
            all_steps = list(steps(Path(folder), order, host))
            beginning, rest = all_steps[:BEGINNING], all_steps[BEGINNING:]
            waited = sum(one.clock - one.processor for one in beginning)
            clock, processor = (statistics.mean(getattr(one, what) for one in rest) for what in ("clock", "processor"))
            faults = statistics.mean(one.faults for one in rest)
            if name.endswith("cache"):
                idle = clock - processor  # of a process that others let wait for a core
            share = max(0.0, clock - processor - idle) / (host.step + clock)
            print(
                f"{name:28}{len(rest):7}{waited:10.2f}{1e3 * clock:11.2f}{1e3 * processor:11.2f}{faults:8.2f}"
                f"{share:8.2%}",
                flush=True,
            )
    drawing.read_ahead = ahead
    return share <= ALLOWED_WAIT


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, nargs="+", default=[100.0, 1000.0, 10_000.0])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS)[:3])
    parser.add_argument("--order", choices=get_args(OrderName), default="blocks")
    parser.add_argument("--times", type=int, default=5, help="gradients")
    parser.add_argument("--cold", type=float, metavar="GB", help="measure reading a real file of this size, here")
    parser.add_argument("--learners", type=int, default=8, help="with --cold: of the host")
    parser.add_argument("--minibatch", type=int, default=4096, help="with --cold: frames of a round")
    parser.add_argument("--rate", type=float, default=100_000.0, help="with --cold: frames a second of all learners")
    parser.add_argument("--seconds", type=float, default=30.0, help="with --cold: for each order")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.one:
        keep_freed()  # as in every learner
        folder, model, order, times = options.one
        print(json.dumps(vars(measure(Path(folder), model, order, int(times)))))
        return 0
    if options.cold:
        host = Host(options.learners, options.minibatch, options.rate, options.seconds)
        return 0 if from_disk(options.cold, host) else 1
    return 0 if at_scale(options.hours, options.models, options.order, options.times) else 1


if __name__ == "__main__":
    sys.exit(main())
