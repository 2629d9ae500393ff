"""A strategy for Lightning's Trainer.

    trainer = Trainer(strategy=RoundelayStrategy("adpsgd"), max_epochs=3)

Importing this module also registers the name: `Trainer(strategy="roundelay")`. (Lightning reads entry points for
callbacks only, and after it has looked the strategy up.)

Each learner runs a Trainer on a device of its own, as under DDP: an epoch is one pass over the data, of which this
learner trains its share, and `global_step` counts its own steps. All work of Lightning between steps is done on all
learners alike, for each piece is a meeting: validation, within `session.consensus()`; checkpoints, which hold the
common model; and decisions, by a vote. So all of them must come at the same places. Under a synchronous strategy
learners take equally many steps; under an asynchronous one they do not, and an epoch's end is the one place in common.
"""

import copy
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any, final

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, Timer
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.utils.data import DataLoader

from roundelay.attached import Session, attach
from roundelay.attached.sharing import Shared
from roundelay.core.errors import UserError
from roundelay.integrations.loaders import shared_parts
from roundelay.runtime.launch.world import learners, local_rank, rank

log = logging.getLogger("roundelay")
NAME = "roundelay"
"""Name of the strategy in Lightning's registry."""
LEARNERS_PARTS = ".learners"
"""Suffix that makes the name of a checkpoint that of the folder with the session's save beside it."""
SAID_BYTES = 4096
"""Length in bytes of the longest text that the first learner can tell the others."""


class RoundelayStrategy(SingleDeviceStrategy):
    """A Lightning strategy that makes a Trainer one learner of several, each with a Trainer of its own.

    Args:
        strategy: a name, as `roundelay.attach` takes it, and likewise its `options`.
    """

    strategy_name = NAME
    session: Session | None = None
    """The session, from the beginning of `fit` to its end."""

    def __init__(self, strategy: str = "adpsgd", **options: Any) -> None:
        super().__init__()
        if "resume" in options:
            raise UserError("RoundelayStrategy(resume=...): give trainer.fit(ckpt_path=...) instead.")
        self._strategy, self._options = strategy, options
        self.parallel_devices: list[torch.device] | None = None  # Trainer sets these two
        self._layer_sync: object = None
        self._holding: AbstractContextManager[nn.Module] | None = None
        self._random: dict[str, Tensor] = {}
        self._loaded: tuple[Path, int] | None = None
        self._written: set[Path] = set()
        self._equal = self._sized = True
        self.set_world_ranks()

    # Where it runs ----------------------------------------------------------------------------------------------------

    def set_world_ranks(self) -> None:
        """Let the first learner alone write, print and draw bars."""
        self.global_rank, self.local_rank, self.world_size = rank(), local_rank(), learners()
        rank_zero_only.rank = self.global_rank

    @property
    def root_device(self) -> torch.device:
        """This learner's device, among those that Trainer has chosen."""
        devices = self.parallel_devices or [torch.device("cpu")]
        return devices[self.local_rank % len(devices)]

    @property
    def is_global_zero(self) -> bool:
        """True on the first learner."""
        return bool(self.global_rank == 0)

    # The training -----------------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer) -> None:
        """Attach the training, if this is `fit`; in `test` and the like each learner works alone.

        Raises:
            UserError: as `attach`; or an argument of Trainer does not fit; names it.
        """
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        trainer.callbacks = [_AtTheEnd(self._hold), *(one for one in trainer.callbacks if type(one) is not _AtTheEnd)]
        self._common = _Common(self.lightning_module, self.root_device)
        saves = None if self._loaded is None else _folder(*self._loaded)
        resume = saves if saves is not None and saves.is_dir() else None
        if saves is not None and resume is None:
            log.warning(
                f"rank {self.global_rank}: {saves} is not there, so each learner begins with the model and the "
                "optimizer of the checkpoint."
            )
        self.session = session = attach(self._common, self.optimizers, self._strategy, resume=resume, **self._options)
        self._written = set() if resume is None else {resume}
        same = session.resumed is None or session.resumed["learners"] == session.learners
        self._sized = same and (session.strategy.traits.synchronous or session.learners == 1)
        self._equal = self._sized or isinstance(trainer.limit_train_batches, int)
        try:
            if session.learners > 1:
                self._check(trainer, session)
        except UserError:
            session.abandon()
            raise
        self._random = {} if session.resumed is None else self._random_states()
        if not self._equal and self.lightning_module.automatic_optimization:
            clock = _Clock(session)
            for one in self.lr_scheduler_configs:
                if one.interval == "step" and not one.reduce_on_plateau:
                    one.scheduler = _ByAllSteps(one.scheduler, one.frequency, clock)
        for callback in self._callbacks():  # the first learner knows which names are taken; logs and steps may differ
            callback.dirpath = self._told(callback.dirpath)
            callback.file_exists = partial(self._exists, callback._fs)
        trainer.fit_loop._combined_loader = None  # it may have been made before, to count batches: `_Planned`

    def _check(self, trainer: Trainer, session: Session) -> None:
        """Refuse settings that learners cannot train under together."""
        if session.came_back:
            raise UserError(
                f"rank {session.rank}: a learner cannot come back to a run of Lightning's, for it does not know which "
                "validations it has missed: start all again with trainer.fit(ckpt_path='last')."
            )
        saved = self._callbacks()
        asked = {
            "sync_batchnorm": self._layer_sync is not None,
            "reload_dataloaders_every_n_epochs": bool(trainer.reload_dataloaders_every_n_epochs),
            "max_time (a Timer)": any(isinstance(one, Timer) for one in trainer.callbacks),
            "val_check_interval as a time": getattr(trainer, "_val_check_time_interval", None) is not None,
            "ModelCheckpoint(train_time_interval=...)": any(one._train_time_interval is not None for one in saved),
        }
        if refused := [name for name, given in asked.items() if given]:
            raise UserError(f"Trainer: {', '.join(refused)}: not for several learners of {NAME}.")
        environment = trainer._accelerator_connector.cluster_environment
        if getattr(environment, "auto_requeue", False):  # of Slurm: it would save in the middle of a learner's step
            environment.auto_requeue = False
            log.warning("rank %d: Lightning queues no job again: examples/launch/slurm.sbatch does.", session.rank)
        unequal = {
            "max_steps": trainer.max_steps != -1,
            "val_check_interval": trainer.val_check_interval != 1.0 or trainer.check_val_every_n_epoch is None,
            "ModelCheckpoint(every_n_train_steps=...)": any(one._every_n_train_steps for one in saved),
        }
        if not self._equal and (refused := [name for name, given in unequal.items() if given]):
            raise UserError(
                f"Trainer: {', '.join(refused)}: learners of {session.strategy.name} take unequal numbers of steps, so "
                "the ends of epochs are all that they have in common. Give max_epochs and check_val_every_n_epoch; or "
                "limit_train_batches as a whole number, the batches of each learner in an epoch."
            )

    def setup_precision_plugin(self) -> None:
        """Check and set up the precision.

        Raises:
            UserError: precision is float16, and Trainer clips gradients.
        """
        super().setup_precision_plugin()
        trainer, plugin = self.lightning_module.trainer, self.precision_plugin
        if isinstance(plugin, MixedPrecision) and plugin.scaler is None:
            # Lightning does not clip for optimizers that unscale gradients themselves, as a session's do if they are
            # scaled. Those of bfloat16 never are.
            plugin.clip_gradients = MethodType(Precision.clip_gradients, plugin)
        elif isinstance(plugin, MixedPrecision) and trainer.gradient_clip_val:
            raise UserError(
                "Trainer: gradient_clip_val does not go with precision='16-mixed', for the session unscales gradients "
                "in the optimizer's step: take 'bf16-mixed', or clip in a hook, "
                "optimizer.register_step_pre_hook(...), which clips the mean."
            )

    def process_dataloader(self, dataloader: Any) -> Any:
        """Return the loader, reduced to this learner's share of the batches if it is for training.

        A loader, or an iterable, that the user shares already (`session.sampler`, `session.share`), or that
        `Trainer(use_distributed_sampler=False)` leaves alone, stays as it is.
        """
        trainer, session = self.lightning_module.trainer, self.session
        if not trainer.training:
            return dataloader
        if session is None or not session.open:
            return _Planned(dataloader, self.world_size) if hasattr(dataloader, "__len__") else dataloader
        parts = [dataloader, *(getattr(dataloader, name, None) for name in ("sampler", "batch_sampler", "dataset"))]
        shared = any(isinstance(one, Shared) for one in parts)
        if trainer._accelerator_connector.use_distributed_sampler and not shared:
            seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))  # Lightning's own, of seed_everything
            if isinstance(dataloader, DataLoader):
                given, dataloader = dataloader, copy.copy(dataloader)
                evenly = session.learners if session.strategy.traits.synchronous else 1
                vars(dataloader).update(shared_parts(session, given, seed, evenly))
            else:
                dataloader = session.share(dataloader)
        kind = _SizedPasses if self._sized and _has_length(dataloader) else _Passes
        return kind(dataloader, self._restore_random, self._without_batches)

    def on_train_end(self) -> None:
        """Put the common model into the module, and tell all learners the best checkpoint."""
        for callback in self._callbacks():
            callback.best_model_path, callback.last_model_path = self._told(
                [callback.best_model_path, callback.last_model_path]
            )
        self._close()

    def on_exception(self, exception: BaseException) -> None:
        """Leave the session at once, without waiting for other learners."""
        if self.session is not None:
            self._holding = None
            self.session.abandon()

    def teardown(self) -> None:
        """Close the session, if `fit` had nothing to do, and release the devices."""
        self._close()
        super().teardown()

    def _close(self) -> None:
        if self.session is not None and self.session.open:
            self._leave()
            self.session.close()

    # Validation and decisions -----------------------------------------------------------------------------------------

    def on_validation_start(self) -> None:
        """Put the common model into the module."""
        self._hold()

    def on_validation_end(self) -> None:
        """Put the learner's own parameters back."""
        self._leave()

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Return the decision of all learners, or of any of them: to stop early, to keep a checkpoint."""
        if self.session is None or not self.session.open:
            return decision
        part, _ = self._heard(float(decision), None)
        return part > (1 - 1e-4 if all else 1e-4)

    def _hold(self) -> None:
        if self.session is not None and self.session.open and self._holding is None:
            self._holding = self.session.consensus()
            self._holding.__enter__()

    def _leave(self) -> None:
        if self._holding is not None:
            self._holding.__exit__(None, None, None)
            self._holding = None

    @contextmanager
    def _outside(self) -> Iterator[Session]:
        """Put the learner's own parameters back for a moment, if the module holds the common model, under which
        learners cannot meet."""
        assert self.session is not None
        held = self._holding is not None
        self._leave()
        yield self.session
        if held:
            self._hold()

    def _heard(self, vote: float, said: object) -> tuple[float, Any]:
        """Return the mean of all learners' `vote`, and what the first learner has `said`."""
        with self._outside() as session:
            self._common.say(vote, said)
            with session.consensus():
                return self._common.heard()

    def _told(self, said: Any) -> Any:
        return self._heard(0.0, said)[1]

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the common model; after an error, this learner's own."""
        if not self._meets:
            return dict(super().lightning_module_state_dict())
        held = self._holding is not None
        self._hold()
        state = super().lightning_module_state_dict()
        kept = {name: one.detach().clone() if isinstance(one, Tensor) else one for name, one in state.items()}
        if not held:
            self._leave()
        return kept

    @property
    def _meets(self) -> bool:
        return self.session is not None and self.session.open and not self.lightning_module.trainer.interrupted

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write the checkpoint on the first learner, and beside it a part for each learner, to go on from exactly. A
        save that is cut short leaves the previous checkpoint and its parts whole."""
        exact = self._meets and "optimizer_states" in checkpoint
        folder = self._save_parts(filepath, int(checkpoint["global_step"])) if exact else None
        super().save_checkpoint(checkpoint, filepath, storage_options)
        if folder is not None and self.local_rank == 0:
            for before in folder.parent.iterdir():
                if before != folder:
                    shutil.rmtree(before, ignore_errors=True)

    def _save_parts(self, filepath: Any, step: int) -> Path | None:
        path, step = self._told([os.fspath(filepath), step])
        if "://" in path:
            log.warning("rank %d: %s is no local path: learners keep no parts beside it.", self.global_rank, path)
            return None
        folder = _folder(Path(path), step)
        if folder not in self._written and self.local_rank == 0:
            shutil.rmtree(folder, ignore_errors=True)  # of a run that has died there
        self._written.add(folder)
        with self._outside() as session:
            session.meet()
            session.save(folder, {"learners": session.learners})
            session.meet()  # all parts are written
        return folder

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove the checkpoint, and the learners' parts beside it."""
        super().remove_checkpoint(filepath)
        if self.local_rank == 0:
            shutil.rmtree(_folder(Path(filepath)), ignore_errors=True)

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        """Load the checkpoint; `setup` goes on from the learners' parts beside it."""
        checkpoint: dict[str, Any] = super().load_checkpoint(checkpoint_path, *args, **options)
        self._loaded = Path(checkpoint_path), int(checkpoint.get("global_step", 0))
        return checkpoint

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load the optimizer of the checkpoint, unless this learner goes on with its own."""
        if self.session is None or self.session.resumed is None:
            super().load_optimizer_state_dict(checkpoint)

    def _random_states(self) -> dict[str, Tensor]:
        device, states = self.root_device, {"cpu": torch.get_rng_state()}
        return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})

    def _restore_random(self) -> None:
        """Restore random numbers before the first batch after a resume: those that Lightning has drawn until then do
        not count."""
        states, self._random = self._random, {}
        if states:
            torch.set_rng_state(states["cpu"])
        if "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"], self.root_device)

    def _without_batches(self) -> None:
        """Have checkpoints written also after a pass in which this learner had no batch, since the others have
        stepped."""
        for callback in self._callbacks():
            callback._last_global_step_saved = -1

    def _callbacks(self) -> list[ModelCheckpoint]:
        """Return the callbacks that save checkpoints, if there are several learners; else none."""
        found = self.lightning_module.trainer.checkpoint_callbacks if self.world_size > 1 else ()
        return [one for one in found if isinstance(one, ModelCheckpoint)]

    def _exists(self, files: Any, filepath: Any, *_: Any, **__: Any) -> bool:  # toolkits' own take more
        return self.is_global_zero and bool(files.exists(filepath))

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Register this strategy with Lightning by its name."""
        strategy_registry.register(NAME, cls, description="learners of roundelay.attach", override=True)


def _folder(checkpoint: Path, step: int | None = None) -> Path:
    """Return the folder of the learners' parts of a checkpoint: of all its steps, or of one."""
    real = Path(os.path.realpath(checkpoint))  # "last" may be a link
    whole = real.with_name(real.name + LEARNERS_PARTS)
    return whole if step is None else whole / f"step-{step}"


@final
class _Common(nn.Module):
    """A module with two buffers by which learners tell each other values: floating-point numbers, which become their
    mean in the common model, and bytes, which become the first learner's."""

    vote: Tensor
    said: Tensor

    def __init__(self, module: LightningModule, device: torch.device) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("vote", torch.zeros(1, device=device))
        self.register_buffer("said", torch.zeros(SAID_BYTES, dtype=torch.uint8, device=device))

    def say(self, vote: float, said: object) -> None:
        """Set this learner's number, and plain values, for the others."""
        text = json.dumps(said).encode()
        if len(text) > SAID_BYTES:
            raise UserError(f"{text[:80].decode()}...: learners can tell each other {SAID_BYTES} bytes, not more.")
        self.vote.fill_(vote)
        self.said.zero_()
        self.said[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def heard(self) -> tuple[float, Any]:
        """Return the mean of all learners' numbers, and the first learner's values."""
        return float(self.vote), json.loads(bytes(self.said.tolist()).rstrip(b"\0"))


@final
class _AtTheEnd(Callback):
    """A callback run before others at the end of training, so that they find, and may save, the common model."""

    def __init__(self, hold: Callable[[], None]) -> None:
        self._hold = hold

    def on_train_end(self, *_: Any) -> None:
        """Put the common model into the module; the strategy leaves it after the others."""
        self._hold()


class _Planned:
    """A stand-in for a loader before learners have met: its length is this learner's share."""

    def __init__(self, loader: Any, parts: int) -> None:
        self._loader, self._parts = loader, parts

    def __len__(self) -> int:
        length: int = math.ceil(len(self._loader) / self._parts)
        return length

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class _Passes:
    """A loader whose number of batches is not known beforehand, since a learner draws as many as it can. A pass without
    any yields an empty batch, which Lightning skips: so the learner ends the epoch as the others do."""

    def __init__(self, loader: Any, begin: Callable[[], None], none: Callable[[], None]) -> None:
        self._loader, self._begin, self._none = loader, begin, none

    def __iter__(self) -> Iterator[Any]:
        self._begin()
        found = False
        for batch in self._loader:
            found = True
            yield batch
        if not found:
            self._none()
            yield None

    def __getattr__(self, name: str) -> Any:
        if name in ("_loader", "sampler", "batch_sampler", "__len__"):  # epochs of these are the session's
            raise AttributeError(name)
        return getattr(self._loader, name)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the session's save has the position."""
        return {}

    def load_state_dict(self, _: Mapping[str, Any]) -> None:
        """Ignore the state: the session's save has the position."""


@final
class _SizedPasses(_Passes):
    """A loader, as `_Passes`, with a length, since each learner has equally many batches."""

    def __len__(self) -> int:
        return len(self._loader)


def _has_length(loader: Any) -> bool:
    try:
        return len(loader) >= 0
    except (TypeError, NotImplementedError):
        return False


@final
class _Clock:
    """A clock: the steps of all learners since the session began, divided by their number."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __call__(self) -> int:
        return int(sum(self._session.summary()["steps"])) // self._session.learners


@final
class _ByAllSteps:
    """A schedule moved by the steps of all learners, so that it is equally far on each, however fast that is."""

    def __init__(self, schedule: Any, frequency: int, clock: _Clock) -> None:
        self._schedule, self._frequency, self._clock = schedule, frequency, clock
        self._first: int | None = None

    def step(self) -> None:
        """Move the schedule to the steps of all learners."""
        if self._first is None:
            self._first = self._schedule.last_epoch
        while self._schedule.last_epoch < self._first + self._clock() // self._frequency:
            self._schedule.step()

    def __getattr__(self, name: str) -> Any:
        if name == "_schedule":
            raise AttributeError(name)
        return getattr(self._schedule, name)


RoundelayStrategy.register_strategies(StrategyRegistry)
