"""Places where a step on a GPU loses time: kernels, their launches, copies, and waits for data.

    python benchmarks/gpu_profile.py --out gpu-profile                    # traces of the deep BLSTM, and a summary
    python benchmarks/gpu_profile.py --workload dnn --modes bare train
    python benchmarks/gpu_profile.py --data                               # waits for data, by model
    python benchmarks/gpu_profile.py --device cpu --workload toy-dnn --steps 3 --out there     # does it run?

Modes: the bare loop (forward, backward, step), the same as a CUDA graph that is only replayed (the cost of launches in
the bare loop), the loop with `roundelay.attach`, and `train`: the gradient of a learner, and the step of a lone
learner's row, in this process. For each: milliseconds a step; of these the GPU computes, copies, and stands idle;
launches a step. `torch.profiler` writes a trace of each mode to the folder, to be opened in a browser
(ui.perfetto.dev).

With --data: features of an hour of speech in a memory-mapped file, minibatches of every acoustic model got, sent ahead
while the GPU is busy, and trained; the share of a step's time that goes when the same minibatch is there already.
"""

import argparse
import gzip
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import data_scale
import numpy as np
import torch
from gpu_workloads import MOMENTUM, RATE, WORKLOADS, Repeated, checked_device, described, finish
from torch.profiler import ProfilerActivity, profile

from gpu import plain_loop, take_step
from roundelay import attach
from roundelay.algorithms.local_update import Sgd
from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Gradient
from roundelay.learner.module import ModuleLearner
from roundelay.runtime.base import Counts
from roundelay.runtime.learner_state import LearnerPlace, LearnerState, LearnerTables, LearnerVectors
from roundelay.runtime.rows import NoLock, Row

WARM_UP, SUMMED, ROUNDS = 8, 5, 1000
TRACED = 5
"""Steps of a trace: one of a thousand kernels is megabytes."""
Step = Callable[[], object]
"""One step of a training, as far as the processor is concerned."""
MODES = ("bare", "graph", "attach", "train")


@dataclass(frozen=True)
class Ready:
    """A mode that is ready to step, and a function that ends it."""

    step: Step
    end: Callable[[], None] = lambda: None


def bare(workload: str, device: torch.device, attached: bool = False) -> Ready:
    """Return the plain loop's step (forward, backward, step), with `attached` through `roundelay.attach`."""
    loop = plain_loop(workload, device)
    session = attach(*loop[:2], "adpsgd") if attached else None
    return Ready(lambda: take_step(*loop, device.type), (lambda: None) if session is None else session.close)


def graph(workload: str, device: torch.device) -> Ready:
    """Return the bare loop's step as a CUDA graph, recorded once and replayed; on a processor, the step itself."""
    loop = bare(workload, device)
    if device.type != "cuda":
        return loop
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            loop.step()
    torch.cuda.current_stream().wait_stream(side)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        loop.step()
    return Ready(recorded.replay)


def train(workload: str, device: torch.device) -> Ready:
    """Return a step of a learner in this process alone: snapshot, gradient, update."""
    made = WORKLOADS[workload]
    learner = ModuleLearner(made.network(), Repeated(made, device), autocast=True, device=device)
    x = learner.initial().to(device)
    memory, versions = {"momentum": torch.zeros_like(x)}, np.zeros(1, np.int64)
    me = LearnerState(
        LearnerPlace(0, 1, 0),
        LearnerVectors(Row(0, x, versions, NoLock()), torch.empty_like(x), torch.empty_like(x), memory),
        Sgd(MOMENTUM),
        LearnerTables(np.zeros(1, np.int64), Counts.zeros(1, False), np.zeros(0)),
    )
    plan, number = EpochPlan(0, made.examples * ROUNDS, made.examples, 1, 0), 0
    me.begin_segment(None, (0,), "row")
    me.learning_rate = RATE

    def step() -> None:
        nonlocal number
        at, batch = me.snapshot(), plan.piece(number % ROUNDS)
        found = learner.gradient(at.vector, batch, plan, me.gradient_buffer, resident=True)
        me.step(Gradient(me.gradient_buffer, at.version, found, float(batch.frames)))
        number += 1

    return Ready(step)


def make(mode: str, workload: str, device: torch.device) -> Ready:
    """Return the mode named `mode`, ready to step."""
    if mode == "graph":
        return graph(workload, device)
    return train(workload, device) if mode == "train" else bare(workload, device, attached=mode == "attach")


def seconds(step: Step, device: torch.device, steps: int) -> float:
    """Return the seconds a step takes without a profiler, the median of some runs."""
    found = []
    for _ in range(SUMMED):
        finish(device)
        started = time.perf_counter()
        for _ in range(steps):
            step()
        finish(device)
        found.append((time.perf_counter() - started) / steps)
    return statistics.median(found)


def profiled(step: Step, device: torch.device, steps: int, trace: Path) -> dict[str, Any]:
    """Return what the profiler finds in a step: milliseconds of computing and of copying on the device, the number of
    launches, and the longest kernels. The trace goes to the file `trace`."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as found:
        for _ in range(steps):
            step()
        finish(device)
    raw = trace.with_suffix(".raw")
    found.export_chrome_trace(str(raw))
    with raw.open("rb") as plain, gzip.open(trace, "wb") as packed:
        shutil.copyfileobj(plain, packed)
    raw.unlink()
    on_device = [
        event
        for event in found.events()
        if event.device_type != torch.autograd.DeviceType.CPU and not getattr(event, "is_user_annotation", False)
    ]
    copies = [event for event in on_device if event.name.startswith(("Memcpy", "Memset"))]
    kernels = [event for event in on_device if not event.name.startswith(("Memcpy", "Memset", "ProfilerStep", "Opt"))]
    launches = sum(row.count for row in found.key_averages() if "Launch" in row.key)
    longest: dict[str, float] = {}
    for event in kernels:
        longest[event.name] = longest.get(event.name, 0.0) + event.time_range.elapsed_us() / steps / 1e3
    return {
        "computes, ms": sum(event.time_range.elapsed_us() for event in kernels) / steps / 1e3,
        "copies, ms": sum(event.time_range.elapsed_us() for event in copies) / steps / 1e3,
        "copies": len(copies) / steps,
        "kernels": len(kernels) / steps,
        "launches": launches / steps,
        "longest, ms": dict(sorted(longest.items(), key=lambda one: -one[1])[:20]),
    }


def steps_of(workload: str, device: torch.device, modes: list[str], steps: int, folder: Path) -> dict[str, Any]:
    """Return the times of every mode; for a mode that fails, the reason."""
    print(f"{'mode':8}{'a step, ms':>12}{'computes':>10}{'copies':>8}{'idle':>7}{'kernels':>9}{'launches':>10}")
    found: dict[str, Any] = {}
    for mode in modes:
        try:
            ready = make(mode, workload, device)
            for _ in range(WARM_UP):
                ready.step()
            taken = seconds(ready.step, device, steps)
            one = {
                "a step, ms": 1e3 * taken,
                **profiled(ready.step, device, min(steps, TRACED), folder / f"{workload}-{mode}.json.gz"),
            }
            ready.end()
        except Exception as error:  # the other modes are worth knowing
            found[mode] = {"failed": f"{type(error).__name__}: {error}"}
            print(f"{mode:8}{found[mode]['failed']}", flush=True)
            continue
        one["idle, ms"] = max(0.0, one["a step, ms"] - one["computes, ms"] - one["copies, ms"])
        found[mode] = one
        print(
            f"{mode:8}{one['a step, ms']:12.3f}{one['computes, ms']:10.3f}{one['copies, ms']:8.3f}"
            f"{one['idle, ms']:7.3f}{one['kernels']:9.0f}{one['launches']:10.0f}",
            flush=True,
        )
    return found


# Data -----------------------------------------------------------------------------------------------------------------


def waits(device: torch.device, hours: float, steps: int, small: bool) -> dict[str, float]:
    """Return, by model, the share of a step's time that is saved when its minibatch is on the device already."""
    found = {}
    print(f"{'model':24}{'frames':>8}{'step, ms':>10}{'there already, ms':>19}{'waits':>8}   (allowed: 2%)")
    with tempfile.TemporaryDirectory() as folder:
        data_scale.make_corpus(Path(folder), hours)
        store, labels, runs = data_scale.open_corpus(Path(folder))
        for name, (config, minibatch) in list(data_scale.MODELS.items())[: 1 if small else None]:
            network = config.network(data_scale.FILTERS, data_scale.STATES)
            examples = network.examples(store, labels, {"train": runs}, "shuffle")
            learner = ModuleLearner(network, examples, autocast=True, device=device)
            plan = EpochPlan(0, learner.examples, minibatch, 1, 0)
            x = learner.initial().to(device)
            taken = [_seconds_a_step(learner, x, plan, device, steps, same) for same in (False, True) for _ in range(3)]
            fresh, there = statistics.median(taken[:3]), statistics.median(taken[3:])
            found[name] = max(0.0, fresh - there) / fresh
            print(f"{name:24}{minibatch:8}{1e3 * fresh:10.2f}{1e3 * there:19.2f}{found[name]:8.1%}", flush=True)
    return found


def _seconds_a_step(
    learner: ModuleLearner, x: torch.Tensor, plan: EpochPlan, device: torch.device, steps: int, same: bool
) -> float:
    """Return the seconds of a gradient, of one minibatch after the other, or of the `same` one, kept on the device."""
    out, kept = torch.empty_like(x), learner._examples_of
    first = learner._examples_of(plan.piece(0), plan)
    if same:
        vars(learner)["_examples_of"] = lambda *_: first
    try:
        for number in range(WARM_UP):
            learner.gradient(x, plan.piece(number), plan, out, resident=True)
        finish(device)
        started = time.perf_counter()
        for number in range(steps):
            learner.gradient(x, plan.piece(WARM_UP + number), plan, out, resident=True)
        finish(device)
        return (time.perf_counter() - started) / steps
    finally:
        vars(learner)["_examples_of"] = kept


def main() -> None:
    """Profile the modes, or with --data the waits for data, and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="blstm", choices=WORKLOADS)
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--data", action="store_true", help="waits for data instead")
    parser.add_argument("--hours", type=float, default=1.0, help="of speech, with --data (default: 1)")
    parser.add_argument("--small", action="store_true", help="one model, with --data: does it run?")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("gpu-profile"), help="folder of traces and summary")
    options = parser.parse_args()
    device = checked_device(options.device)
    options.out.mkdir(parents=True, exist_ok=True)
    title = f"{described(device)}, {options.steps} steps"
    print(title, flush=True)
    if options.data:
        name, found = "data", waits(device, options.hours, options.steps, options.small)
    else:
        name, found = options.workload, steps_of(options.workload, device, options.modes, options.steps, options.out)
    (options.out / f"{name}.json").write_text(json.dumps({"title": title, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
