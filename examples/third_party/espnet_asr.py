"""ESPnet's ASR training, with others: the trainer of `espnet2.bin.asr_train` as a subclass, and no patch.

    STRATEGY=adpsgd roundelay launch -n 2 espnet_asr.py --output_dir exp/RANK ...      # the options of asr_train

`RANK` in an option becomes the learner's, for each writes a folder of its own. Minibatches go to the learner that is
free. From the validation to the beginning of the next epoch, checkpoints and averages included, the model is the common
one; the session does not know the position that `--resume` would go on from, so it is refused.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from espnet2.iterators.abs_iter_factory import AbsIterFactory
from espnet2.tasks.asr import ASRTask
from espnet2.train.trainer import Trainer
from torch.utils.data import DataLoader

import roundelay


class Minibatches:
    """Lists of utterances, in the order that ESPnet gives an epoch."""

    def __init__(self, factory: AbsIterFactory) -> None:
        self.factory, self.epoch = factory, 0

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch begins, from 0."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        return iter(self.factory.build_iter(self.epoch + 1).batch_sampler)


class Shared(AbsIterFactory):
    """Batches for the learner that is free; an epoch begins with each learner's own model."""

    def __init__(self, session: roundelay.Session, factory: AbsIterFactory, common: contextlib.ExitStack) -> None:
        self.common, self.batches = common, session.share(Minibatches(factory))
        kept = {name: getattr(factory, name) for name in ("dataset", "collate_fn", "num_workers", "pin_memory")}
        self.loader = DataLoader(**kept, batch_sampler=self.batches)

    def build_iter(self, epoch: int, shuffle: bool | None = None) -> DataLoader[Any]:
        """Return the loader; ESPnet counts epochs from 1."""
        self.common.close()
        self.batches.set_epoch(epoch - 1)
        return self.loader


class Together(Trainer):
    """ESPnet's trainer; validation is of the common model."""

    session: roundelay.Session
    common: contextlib.ExitStack

    @classmethod
    def run(cls, model: Any, optimizers: Any, train_iter_factory: Any, trainer_options: Any, **others: Any) -> None:
        """Train, as ESPnet does."""
        if trainer_options.resume:
            sys.exit("--resume true: the session has nothing to resume from; leave it out")
        cls.session = roundelay.attach(model, list(optimizers), strategy=os.environ.get("STRATEGY", "adpsgd"))
        cls.common = contextlib.ExitStack()
        shared = Shared(cls.session, train_iter_factory, cls.common)
        given = {"optimizers": optimizers, "train_iter_factory": shared, "trainer_options": trainer_options}
        super().run(model=model, **given, **others)
        cls.common.close()
        cls.session.close()

    @classmethod
    def validate_one_epoch(cls, **given: Any) -> None:
        """Validate, and leave the common model until the next epoch begins."""
        cls.common.enter_context(cls.session.consensus())
        super().validate_one_epoch(**given)


if __name__ == "__main__":
    ASRTask.trainer = Together
    ASRTask.main(cmd=[word.replace("RANK", str(roundelay.rank())) for word in sys.argv[1:]])
