"""The model that a run leaves: that of its end, or the mean over the ends of its last epochs.

    x = 1/n (x_T + x_{T-1} + ... + x_{T-n+1})        x_t: the consensus after epoch t, parameters (P,)

Stochastic weight averaging (Izmailov et al. 2018, "Averaging Weights Leads to Wider Optima and Better Generalization")
over the last epochs, as recipes of Kaldi and ESPnet have it for the models they decode with. Here nothing is collected
while a run trains: the models are in its checkpoints, so neither trajectory nor schedule know of it, and a run that is
resumed leaves the same model. There are no running statistics to be estimated anew, for no model here has any.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from roundelay.checkpoint import Checkpoint, checkpoints, load_checkpoint

UNTRAINED = "epoch-0000"


def epoch_ends(folder: Path) -> list[Path]:
    """The JSON of every checkpoint at the end of an epoch, the newest last; not that of the untrained model."""
    return [path for path in checkpoints(folder) if "-at-" not in path.stem and path.stem != UNTRAINED]


def averaged_model(
    epochs: int, folder: Path, load: Callable[[Checkpoint], None], consensus: Callable[[], Tensor]
) -> Tensor:
    """Parameters (P,) of the model to use.

    An epoch that was taken back left the model of the epoch before, which counts once.

    Args:
        epochs: number of epochs, the last among them; 1: that of the last alone, as it stands. A run of fewer has all.
        folder: of the checkpoints, the newest of which is the end of the run.
        load: makes a runtime go on from a checkpoint. It is left where the run ended.
        consensus: the model (P,) that the learners of the runtime stand for.

    Raises:
        UserError: a checkpoint is missing or damaged; names the file.
    """
    if epochs == 1:
        return consensus()
    models: list[Tensor] = []
    before: Tensor | None = None
    for path in epoch_ends(folder)[-epochs:]:
        checkpoint = load_checkpoint(path)
        rows = checkpoint.state.vectors["row"]
        load(checkpoint)
        if before is None or not torch.equal(rows, before):
            models.append(consensus().clone())
        before = rows
    return torch.stack(models).mean(dim=0)
