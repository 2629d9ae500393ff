"""Throughput measured on two hosts (measured.yaml), beside that of the simulator."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from math import log, sqrt
from typing import Any, final

import numpy as np
import yaml

from roundelay.advice.candidates import Candidate
from roundelay.advice.machines import bytes_per_second
from roundelay.advice.throughput import StepWork, never_talking, speed
from roundelay.core.configure import build
from roundelay.runtime.sim.cluster import Compute, Handicap, Node, VirtualCluster, VirtualLink, VirtualLinks

LATENCY = 1e-4
"""Seconds of a message, assumed: it hardly matters for models."""


@final
@dataclass(frozen=True)
class MeasuredRow:
    """A line: a mode over links of a rate, and its throughput over that of learners that never talk."""

    rate: str
    mode: str
    ratio: float


@final
@dataclass(frozen=True)
class TrainedRow:
    """A line: a mode over links of a rate, and the seconds that a whole training took to a loss."""

    rate: str
    mode: str
    seconds: float


@final
@dataclass(frozen=True)
class MeasuredTrainings:
    """Whole trainings of one recipe on two hosts of a learner each (measured.yaml explains the keys)."""

    seconds: float
    parameters: float
    frames: int
    examples: float
    epoch: float
    rows: tuple[TrainedRow, ...]


@final
@dataclass(frozen=True)
class MeasuredTable:
    """Rows of one setting (measured.yaml explains the keys).

    slow   the last learner takes so many times as long as the others
    share  of busy cores that exchanges were allowed (`exchange_share`); None: the default
    """

    source: str
    seconds: float
    parameters: float
    rows: tuple[MeasuredRow, ...]
    learners: int = 1
    cores: float | None = None
    slow: float = 1.0
    share: float | None = None

    def cluster(self, rate: str) -> VirtualCluster:
        """Return the two hosts, with links of this rate."""
        last = 2 * self.learners - 1
        return VirtualCluster(
            name=f"two hosts, {rate}",
            nodes=(Node(self.learners, count=2, cores=self.cores),),
            compute=Compute(seconds=self.seconds),
            links=VirtualLinks(between=VirtualLink(LATENCY, bytes_per_second(rate))),
            stragglers=(Handicap(last, self.slow),) if self.slow > 1 else (),
        )


@final
@dataclass(frozen=True)
class ThroughputCompared:
    """A measured row and the prediction for it."""

    source: str
    row: MeasuredRow
    ratio: float


def candidate_of(mode: str) -> Candidate:
    """Return the strategy, and the run's options, of a mode."""
    name, *options = mode.split("+")
    given = dict(option.split("=") for option in options)
    return Candidate(name, given.get("wire", "fp32"), int(given.get("fragments", 1)))


def load_measured() -> list[MeasuredTable]:
    """Return all tables of throughput."""
    return [build(MeasuredTable, one) for one in _content()["throughput"]]


def load_trainings() -> MeasuredTrainings:
    """Return the whole trainings."""
    return build(MeasuredTrainings, _content()["trainings"])


def _content() -> dict[str, Any]:
    return dict(yaml.safe_load((resources.files(__package__) / "measured.yaml").read_text(encoding="utf-8")))


def predicted(tables: Iterable[MeasuredTable]) -> list[ThroughputCompared]:
    """Return every row with the throughput, over that of never talking, that the simulator says."""
    found = []
    for table in tables:
        for row in table.rows:
            cluster, work = table.cluster(row.rate), StepWork(table.parameters)
            fast = speed(candidate_of(row.mode), cluster, work, table.share)
            ratio = fast.examples_per_second / never_talking(cluster, work)
            found.append(ThroughputCompared(table.source, row, ratio))
    return found


def throughput_error(rows: Sequence[ThroughputCompared]) -> float:
    """Return root mean square of the logarithm of predicted over measured."""
    return sqrt(sum(log(one.ratio / one.row.ratio) ** 2 for one in rows) / len(rows))


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's correlation of two lists of numbers."""
    ranks = np.array([_ranks(values) for values in (first, second)])
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


def _ranks(values: Sequence[float]) -> list[float]:
    """Return ranks, equal values sharing the mean of theirs."""
    return [sum(other < value for other in values) + sum(other == value for other in values) / 2 for value in values]
