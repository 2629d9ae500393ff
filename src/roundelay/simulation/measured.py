"""Costs that a recorded run on one host measured: seconds of a gradient, a local update, an exchange, a mean.

Every learner of a real run counts where its seconds go (core/records.py, Segment). Waits are part of them: learners
that share a host wait for each other's processors, locks and messages, and no finer model is needed for that.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.configure import read_yaml
from roundelay.core.errors import UserError
from roundelay.core.records import Exchanges, RunStarted, Segment, of_kind, read_events
from roundelay.strategies import make_strategy
from roundelay.strategies.base import Strategy


@dataclass(frozen=True)
class Measured:
    """One recorded run, at its fastest segment: whatever else a host does only slows a run down. Seconds, averages."""

    name: str
    strategy: Strategy
    learners: int
    cores: int
    frames: float  # of a learner's minibatch
    frames_per_second: float  # of all learners
    gradient: float  # a minibatch
    update: float  # a minibatch
    exchange: float | None  # each; None: it had none to speak of
    mean: float | None  # each
    steps_a_mean: float = 1.0  # of a learner

    @property
    def core_seconds(self) -> float:
        """Processor seconds of one minibatch's gradient, on however many cores it ran."""
        return self.gradient * cores_used(self.learners, self.cores) / self.learners


def cores_used(learners: int, cores: int) -> int:
    """Return the cores that compute gradients: every learner has as many threads as fit."""
    return min(cores, learners * max(1, cores // learners))


def read_run(exp: Path) -> Measured:
    """Read the costs that a run directory records.

    Raises:
        UserError: not a run on real learners, or without what is needed; names it.
    """
    records = read_events(exp / "events.jsonl")
    started, segments = of_kind(records, RunStarted), of_kind(records, Segment)
    if not started or not segments:
        raise UserError(f"{exp}: nothing was trained there yet.")
    run = started[-1]
    training = read_yaml(exp / "recipe.yaml").get("training", {})
    if run.runtime != "procs" or training.get("stragglers"):
        raise UserError(f"{exp}: costs are taken from real learners without stragglers (--runtime procs).")
    fastest = max(segments, key=lambda segment: segment.frames_per_second)
    if not fastest.learner_gradient_s:
        raise UserError(f"{exp}: its log does not say where the seconds went. Train again with this version.")
    of_it = of_kind(records, Exchanges)[segments.index(fastest)]
    exchanges = sum(map(sum, of_it.matrix))
    steps, means = sum(fastest.learner_steps), sum(fastest.learner_means)
    spent = {name: sum(getattr(fastest, f"learner_{name}_s")) for name in ("gradient", "update", "exchange", "mean")}
    return Measured(
        name=exp.resolve().name,
        strategy=make_strategy(training["strategy"], training.get("options")),
        learners=run.learners,
        cores=_cores(exp, run.machine),
        frames=sum(fastest.learner_frames) / steps,
        frames_per_second=fastest.frames_per_second,
        gradient=spent["gradient"] / steps,
        update=spent["update"] / steps,
        exchange=spent["exchange"] / exchanges if exchanges > steps / 100 else None,
        mean=spent["mean"] / means if means else None,
        steps_a_mean=steps / means if means else 1.0,
    )


def _cores(exp: Path, machine: str) -> int:
    found = re.search(r"(\d+) cores", machine)
    if found is None:
        raise UserError(f"{exp}: its log does not say how many cores the machine has ({machine!r}).")
    return int(found[1])
