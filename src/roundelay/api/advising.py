"""Strategies ranked for a cluster, from Python: advise."""

from pathlib import Path

from roundelay.advice.advise import Advice
from roundelay.advice.sources import Wanted, advise_on


def advise(
    cluster: Path | str,
    parameters: float | None = None,
    *,
    examples: float | None = None,
    frames: int | None = None,
    momentum: float = 0.9,
) -> Advice:
    """Rank strategies for a virtual cluster and a model, by predicted seconds to a loss.

    Args:
        cluster: a YAML file (docs/simulator.md).
        parameters: of the model; None: the cluster's `model_bytes` over 4.
        examples: that one learner needs to the loss; None: a million.
        frames: of a learner's minibatch; None: 256.
        momentum: of the local optimizer.

    Raises:
        UserError: the cluster is not one, or does not say how large the model is; names the file and the key.
    """
    return advise_on(Wanted(Path(cluster), parameters, examples, frames, momentum))
