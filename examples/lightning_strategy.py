"""A strategy for Lightning: `Trainer(strategy=RoundelayStrategy("adpsgd"))`, with `pip install 'roundelay[lightning]'`.

    roundelay launch -n 2 examples/lightning_strategy.py --strategy adpsgd

Lightning believes that it trains on one device; the learners are the processes of the launcher. The optimizer's step is
the session's, whoever calls it. Validation sees the model that all learners have in common. An epoch is as many batches
as the data loader's length says, also for a learner that could take more.
"""

import argparse
import logging
from contextlib import AbstractContextManager
from typing import Any

import lightning
import torch
from classifier import digits, network  # the module and data of the plain example
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader

import roundelay


class RoundelayStrategy(SingleDeviceStrategy):
    """One learner of several, on the CPU, for a module with one optimizer.

    Args:
        strategy: a name, as `roundelay.attach` takes, with its options.
    """

    def __init__(self, strategy: str = "adpsgd", **options: Any) -> None:
        super().__init__(device="cpu")
        self._strategy, self._options = strategy, options
        self._consensus: AbstractContextManager[nn.Module] | None = None
        self.session: roundelay.Session | None = None

    def setup(self, trainer: lightning.Trainer) -> None:
        super().setup(trainer)
        if not self.optimizers:  # trainer.test and the like: each learner by itself
            return
        assert self.lightning_module is not None
        (optimizer,) = self.optimizers
        self.session = roundelay.attach(self.lightning_module, optimizer, self._strategy, **self._options)
        self.global_rank, self.world_size = self.session.rank, self.session.learners

    @property
    def is_global_zero(self) -> bool:
        return self.global_rank == 0

    def on_validation_start(self) -> None:
        if self.session is not None:
            self._consensus = self.session.consensus()
            self._consensus.__enter__()

    def on_validation_end(self) -> None:
        if self._consensus is not None:
            self._consensus.__exit__(None, None, None)
            self._consensus = None

    def on_train_end(self) -> None:
        if self.session is not None:
            self.session.close()

    def on_exception(self, exception: BaseException) -> None:
        if self.session is not None:
            self.session.abandon()


class Classifier(lightning.LightningModule):
    """The plain example's network."""

    def __init__(self, examples: int) -> None:
        super().__init__()
        self.network, self._train = network(), digits(examples, seed=1)

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        images, labels = batch
        self.log("loss", nn.functional.cross_entropy(self.network(images), labels))

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            loss, rank = self.trainer.callback_metrics["loss"], self.trainer.strategy.global_rank
            print(f"learner {rank} epoch {self.current_epoch} loss {loss:.4f}", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)

    def train_dataloader(self) -> Any:
        batches = self.trainer.strategy.session.sampler(self._train, batch_size=32)  # type: ignore[attr-defined]
        return DataLoader(self._train, batch_sampler=batches)

    def val_dataloader(self) -> Any:
        return DataLoader(digits(1000, seed=2), batch_size=500)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="adpsgd")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--examples", type=int, default=2000)
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = lightning.Trainer(
        strategy=RoundelayStrategy(options.strategy),
        max_epochs=options.epochs,
        gradient_clip_val=5.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    torch.manual_seed(0)
    trainer.fit(Classifier(options.examples))


if __name__ == "__main__":
    main()
