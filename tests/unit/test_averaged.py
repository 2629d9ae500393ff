"""A model averaged over the ends of the last epochs: the mean of what shorter runs leave, whatever happened between."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from roundelay.checkpoint import checkpoints, load_checkpoint
from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay.core.records import Evaluation, of_kind, read_events
from roundelay.job import Interrupt
from roundelay.learner.quadratic import Quadratic
from roundelay.schedule import Anneal
from roundelay.training import train
from support.clusters import MINIBATCH
from support.runs import job

TASK = Quadratic(parameters=50, examples=20 * MINIBATCH)
EPOCHS = 4


def left(exp: Path, name: str, epochs: int, average: int = 1, wild: bool = False) -> Tensor:
    """The model (P,) of a run of so many epochs at one rate; a wild one makes the loss worse, and is taken back."""
    schedule = Anneal(100.0 if wild else 0.05, max_epochs=epochs, factor=1.0, reject_worse=wild)
    made = replace(job(name, TASK, schedule=schedule), average=average, keep_checkpoints=1)
    assert train(made, exp, Silent(), Interrupt()) is not None
    return load_file(exp / "model.safetensors")["x"]


@pytest.mark.parametrize("name", ["ssgd", "adpsgd", "easgd"])
def test_it_is_the_mean_of_the_models_that_shorter_runs_leave(name: str, tmp_path: Path) -> None:
    models = torch.stack([left(tmp_path / f"{epochs}", name, epochs) for epochs in range(1, EPOCHS + 1)])
    assert not torch.equal(models[-1], models[-2]), "else this shows nothing"
    for average in (2, 3, EPOCHS, EPOCHS + 5):
        found = left(tmp_path / f"mean-{average}", name, EPOCHS, average)
        torch.testing.assert_close(found, models[-average:].mean(dim=0), rtol=1e-6, atol=1e-7)


def test_training_knows_nothing_of_it(tmp_path: Path) -> None:
    for average in (1, 3):
        left(tmp_path / f"{average}", "ssgd", EPOCHS, average)
    losses = [
        [e.cross_entropy for e in of_kind(read_events(tmp_path / exp / "events.jsonl"), Evaluation)] for exp in "13"
    ]
    assert losses[0] == losses[1]
    ends = [load_checkpoint(checkpoints(tmp_path / exp / "checkpoints")[-1]).state.vectors for exp in "13"]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_an_epoch_that_was_taken_back_counts_once(tmp_path: Path) -> None:
    """At a rate that is too large every epoch is taken back, so all ends are the untrained model."""
    found = left(tmp_path / "wild", "ssgd", EPOCHS, EPOCHS, wild=True)
    untrained = load_checkpoint(checkpoints(tmp_path / "wild" / "checkpoints")[0]).state.vectors["row"].mean(dim=0)
    torch.testing.assert_close(found, untrained)


def test_a_damaged_end_is_named(tmp_path: Path) -> None:
    exp = tmp_path / "exp"
    left(exp, "ssgd", EPOCHS, 3)
    (exp / "results.json").unlink()
    (exp / "checkpoints" / "epoch-0003.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"epoch-0003\.safetensors"):
        left(exp, "ssgd", EPOCHS, 3)
