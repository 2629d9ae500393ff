"""A LightningModule that many learners train, with `pip install 'roundelay[lightning]'`.

    roundelay launch -n 2 examples/lightning_strategy.py --strategy adpsgd

Without a launcher it is one process, as ever. The one line that differs is Trainer's `strategy`.
"""

import argparse
import logging
from typing import Any

import lightning
import torch
from classifier import digits, network  # the module and data of the plain example
from torch import Tensor, nn
from torch.utils.data import DataLoader

from roundelay.integrations.lightning import RoundelayStrategy


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
        return DataLoader(self._train, batch_size=32, shuffle=True)

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
