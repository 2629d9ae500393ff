"""Strategies ranked for a cluster, from Python: advise."""

from pathlib import Path

from roundelay.advice.advise import Advice
from roundelay.advice.sources import advise_on
from roundelay.advice.wanted import Wanted


def advise(
    cluster: Path | str | None = None,
    parameters: float | None = None,
    *,
    probe: str | None = None,
    run: Path | str | None = None,
    examples: float | None = None,
    machines: int | None = None,
    link: str | None = None,
) -> Advice:
    """Rank strategies for a cluster and a model, by predicted seconds to a loss.

    Give one of `cluster`, `probe` and `run`.

    Args:
        cluster: the YAML file of a virtual cluster (docs/simulator.md).
        parameters: number of parameters of the model; None: the cluster's `model_bytes` over 4, or those of the probe
            or the run.
        probe: a recipe whose model is timed on this machine, or a number of parameters.
        run: a run directory whose records are read.
        examples: examples that one learner needs to reach the loss; None: the recipe's epochs, as many as the run
            needed, or a million.
        machines: how many machines like this one, with `probe`.
        link: rate between machines, as `100mbit`.

    Raises:
        UserError: a file or a directory is of another kind, or does not say enough; names it and the key.
    """
    return advise_on(
        Wanted(
            cluster=None if cluster is None else Path(cluster),
            parameters=parameters,
            examples=examples,
            probe=probe,
            run=None if run is None else Path(run),
            machines=machines,
            link=link,
        )
    )
