"""Facts of an advice: from a virtual cluster, a probe of this machine, a run's records."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from roundelay.advice.advise import Advice, AdviceTask, advise
from roundelay.core.errors import UserError
from roundelay.runtime.sim.cluster import VirtualCluster, load_cluster

BYTES_A_PARAMETER = 4
"""Of a parameter."""


@final
@dataclass(frozen=True)
class Wanted:
    """Facts that a user gives; None: not given."""

    cluster: Path | None = None
    parameters: float | None = None
    examples: float | None = None
    frames: int | None = None
    momentum: float | None = None
    rate: float | None = None


def advise_on(wanted: Wanted) -> Advice:
    """The advice for what the user gives.

    Raises:
        UserError: something is missing; names the file and the key, or the option.
    """
    if wanted.cluster is None:
        raise UserError("advise needs a cluster: give a YAML file (docs/simulator.md).")
    cluster = load_cluster(wanted.cluster)
    return advise(cluster, task_of(wanted, _parameters(wanted, cluster)))


def task_of(wanted: Wanted, parameters: float, known: AdviceTask | None = None) -> AdviceTask:
    """The task of so many parameters: what the user gives, or else what is `known`, or else the defaults."""
    task = AdviceTask(parameters) if known is None else replace(known, parameters=parameters)
    given = {name: getattr(wanted, name) for name in ("examples", "frames", "momentum", "rate")}
    return replace(task, **{name: value for name, value in given.items() if value is not None})


def _parameters(wanted: Wanted, cluster: VirtualCluster) -> float:
    if wanted.parameters is not None:
        return wanted.parameters
    if cluster.model_bytes is None:
        raise UserError(
            f"{wanted.cluster}: model_bytes is missing: add it (4 for every parameter), or give --parameters."
        )
    return cluster.model_bytes / BYTES_A_PARAMETER
