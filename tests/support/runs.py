"""Small trainings through the real loop."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from torch import Tensor

from roundelay.algorithms.local_update import LocalOptimizer, Sgd
from roundelay.core.minibatch import MinibatchSize
from roundelay.core.progress import Silent
from roundelay.core.records import Results
from roundelay.job import Interrupt, Job
from roundelay.learner.base import Task
from roundelay.runtime.base import Cluster, Outcome, Runtime, SegmentPlan, Straggler, Watch
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.schedule import Newbob, Schedule
from support.clusters import MINIBATCH, make_strategy


def save(x: Tensor, path: Path) -> None:
    save_file({"x": x.contiguous()}, str(path))


def job(
    name: str,
    task: Task,
    *,
    runtime: str = "sim",
    learners: int = 3,
    seed: int = 1,
    schedule: Schedule | None = None,
    stragglers: tuple[Straggler, ...] = (),
    extra: dict[str, Any] | None = None,
    optimizer: LocalOptimizer | None = None,
) -> Job:
    """Return a job that trains `task`; its recipe names what differs between jobs."""
    learners = 1 if name == "sgd" else learners
    cluster = Cluster(make_strategy(name), task, optimizer or Sgd(0.9), learners, seed, stragglers)

    def make_runtime(cluster: Cluster) -> Runtime:
        return SimRuntime(cluster, CostModel(jitter=0.2)) if runtime == "sim" else ProcsRuntime(cluster, threads=1)

    return Job(
        cluster=cluster,
        make_runtime=make_runtime,
        runtime_name=runtime,
        minibatch=MinibatchSize(MINIBATCH),
        schedule=schedule or Newbob(0.05, stop_below=None, max_epochs=4),
        corpus="none",
        held_out="dev",
        final_splits=("dev",),
        recipe={"name": name, "training": {"seed": seed, "learners": learners}, **(extra or {})},
        save_model=save,
    )


def comparable(results: Results | None) -> dict[str, Any]:
    """Return a run's results without the fields that measure the machine."""
    assert results is not None
    return {key: value for key, value in results.to_json().items() if key not in ("wall_seconds", "name")}


class StopAt(Silent):
    """Asks to stop as soon as work begins whose name begins like this: in the simulator in the round it begins with."""

    def __init__(self, interrupt: Interrupt, work: str) -> None:
        self.interrupt, self.work = interrupt, work

    def start(self, what: str, total: int | None = None) -> None:
        self.interrupt.asked |= what.startswith(self.work)


def cut(patch: pytest.MonkeyPatch, segment: int, rounds: int, runtime: type[Runtime] = SimRuntime) -> None:
    """Stop a runtime's segment number `segment` after `rounds` rounds of data, whatever time these take."""
    original: Callable[..., Outcome] = runtime.segment
    left = segment

    def stopped(self: Runtime, plan: SegmentPlan, watch: Watch) -> Outcome:
        nonlocal left
        left -= 1
        if left:
            return original(self, plan, watch)
        return replace(original(self, replace(plan, last_round=plan.first_round + rounds), watch), finished=False)

    patch.setattr(runtime, "segment", stopped)
