"""A small classifier trained by Lightning's Trainer, with all that a user switches on: as a user would write it."""

import argparse
import hashlib
import os
import time
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import roundelay
from roundelay.integrations.lightning import RoundelayStrategy
from support.launched import report
from support.until import until


def points(count: int, seed: int) -> TensorDataset:
    """Points, and the number of the nearest of four centres."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator)
    return TensorDataset(x, torch.arange(count), (x[:, :4]).argmax(1))


class Classifier(lightning.LightningModule):
    """With dropout, normalisation, and a schedule by steps."""

    def __init__(self, examples: int, rate: float, shuffle: bool = True) -> None:
        super().__init__()
        self.save_hyperparameters()
        self._shuffle = shuffle
        layers = [nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4)]
        self.network, self._examples, self._rate = nn.Sequential(*layers), examples, rate
        self.seen: dict[int, list[int]] = {}
        self.evaluated: list[tuple[int, float]] = []
        self.rates: list[float] = []
        self.bits_at_end = ""  # where nothing is left to be trained, Lightning before 2.6.6 tells no end

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], _: int) -> Tensor:
        x, numbers, y = batch
        loss = nn.functional.cross_entropy(self.network(x), y)
        self.seen.setdefault(self.current_epoch, []).extend(numbers.tolist())
        self.log("train", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor, Tensor], number: int) -> None:
        x, _, y = batch
        self.log("loss", nn.functional.cross_entropy(self.network(x), y))

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.evaluated.append((self.global_step, float(self.trainer.callback_metrics["loss"])))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self._rate)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self._rate, total_steps=steps + 1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def train_dataloader(self) -> Any:
        own = torch.Generator().manual_seed(0)
        return DataLoader(points(self._examples, 1), batch_size=8, shuffle=self._shuffle, generator=own)

    def val_dataloader(self) -> Any:
        return DataLoader(points(64, 2), batch_size=32)


def bits_of(module: nn.Module) -> str:
    values = b"".join(one.detach().cpu().numpy().tobytes() for one in module.state_dict().values())
    return hashlib.sha256(values).hexdigest()


class Kept(ModelCheckpoint):
    """A checkpoint whose `file_exists` takes more than Lightning's, and looks at the end, as toolkits' do."""

    def file_exists(self, filepath: Any, trainer: Any, also: bool = True) -> bool:
        return also and super().file_exists(filepath, trainer)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        super().on_train_end(trainer, module)
        self.file_exists(self.dirpath, trainer, also=False)


class Loop(Callback):
    """Changes of a test to the loop.

    Args:
        end_at: end the process once the checkpoint of that step is there.
        slow: the rank of a learner that has two batches of an epoch while the others have all the rest.
    """

    def __init__(self, end_at: Path | None, slow: int) -> None:
        self._end_at, self._slow = end_at, slow

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """End, or wait for the others."""
        if self._end_at is not None and self._end_at.name.startswith(f"{trainer.global_step}."):
            until(self._end_at.exists)
            os._exit(3)
        if roundelay.rank() == self._slow:
            time.sleep(0.05)

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        """Note the learning rate."""
        module.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Note the model that a callback would save."""
        module.bits_at_end = bits_of(module)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--strategy", default="ssgd", help="a name of Lightning's, if it is that")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="32")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--examples", type=int, default=203)
    parser.add_argument("--every", type=int, help="checkpoints every so many steps, not every epoch")
    parser.add_argument("--validate", type=float, default=1.0)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--end-at", type=Path)
    parser.add_argument("--slow", type=int, default=-1)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--in-order", action="store_true")
    parser.add_argument("--stop", action="store_true", help="early, by a metric that differs between learners")
    options = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    often = {"every_n_train_steps": options.every} if options.every else {}
    kept = Kept(options.out, "{step}", auto_insert_metric_name=False, save_top_k=-1, **often)
    callbacks: list[Callback] = [kept, Loop(options.end_at, options.slow)]
    if options.stop:
        callbacks.append(EarlyStopping("train", patience=0, min_delta=100 if roundelay.rank() else 0, verbose=False))
    named = options.strategy in ("auto", "roundelay")
    trainer = lightning.Trainer(
        accelerator="gpu" if options.device == "cuda" else "cpu",
        strategy=options.strategy if named else RoundelayStrategy(options.strategy),
        precision=options.precision,
        max_epochs=options.epochs,
        accumulate_grad_batches=options.accumulate,
        gradient_clip_val=options.clip or None,
        val_check_interval=options.validate,
        callbacks=callbacks,
        logger=CSVLogger(options.out, "log"),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Classifier(options.examples, 0.05, shuffle=not options.in_order)
    trainer.fit(module, ckpt_path=options.resume)
    session = getattr(trainer.strategy, "session", None)
    report(
        law="lightning",
        rank=roundelay.rank(),
        bits=bits_of(module),
        bits_at_end=module.bits_at_end,
        evaluated=module.evaluated,
        seen=module.seen,
        rates=module.rates,
        steps=[trainer.global_step] if session is None else session.summary()["steps"],
        own=trainer.global_step,
        epochs=trainer.current_epoch,
        rows="" if session is None else session.summary()["rows"],
        memory=torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0,
        loss=trainer.validate(module, verbose=False)[0]["loss"],
    )


if __name__ == "__main__":
    main()
