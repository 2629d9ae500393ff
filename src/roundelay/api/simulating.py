"""Strategies on a virtual cluster, from Python: simulate."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roundelay.runtime.base import parse_straggler
from roundelay.runtime.sim.cluster import load_cluster
from roundelay.runtime.sim.cost import CostModel
from roundelay.simulation.scenario import Scenario, Simulated
from roundelay.simulation.scenario import simulate as run_scenario


def simulate(
    strategies: str | Sequence[str],
    exp: Path | str | None = None,
    *,
    cluster: Path | str | None = None,
    **scenario: Any,
) -> list[Simulated]:
    """Return strategies on a virtual cluster, in virtual seconds.

    Args:
        strategies: as the command line writes them, `["ssgd", "adpsgd:random-ring"]`.
        exp: write a run directory for `roundelay.report`; with several strategies one for each in this folder.
        cluster: a YAML file (docs/simulator.md), which says how many learners there are unless `learners` does.
        scenario: fields of `simulation.scenario.Scenario`: `learners=16, rounds=100, stragglers=["3:4x"]`.

    Raises:
        UserError: no such strategy; options that do not fit together.
    """
    fields = dict(scenario)
    if cluster is not None:
        virtual = load_cluster(Path(cluster))
        fields = {"learners": virtual.learners, "cost": CostModel(cluster=virtual), **fields}
    slow = (parse_straggler(one) if isinstance(one, str) else one for one in fields.pop("stragglers", ()))
    several = [strategies] if isinstance(strategies, str) else strategies
    return run_scenario(Scenario(**fields, stragglers=tuple(slow)), several, None if exp is None else Path(exp))
