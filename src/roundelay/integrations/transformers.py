"""A callback for `transformers.Trainer`.

    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[RoundelayCallback("adpsgd")])

Trainer believes that it is alone, and so its arguments mean the same as in one process: epochs, `max_steps`, warm-up
and the steps between evaluations are those of all learners together. The callback shares the batches out, moves the
schedule by the steps of all, and has evaluations and checkpoints done at the same of these steps, inside
`session.consensus()`.

All learners do the same pauses in the same order. Each asks Trainer's own rules about every step of all learners, in
turn, once so many have been taken; a learner whose data have ended does those that are left.
"""

import copy
import inspect
import logging
import math
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import DefaultFlowCallback

from roundelay.attached import Session, attach
from roundelay.core.errors import UserError
from roundelay.integrations.loaders import shared_parts
from roundelay.runtime.launch.world import learners, local_rank, rank

log = logging.getLogger("roundelay")
SAVES = "learners"
"""Folder beside Trainer's checkpoints with the session's newest saves."""


@final
class RoundelayCallback(TrainerCallback):
    """A callback that makes a Trainer one learner of several, each with a Trainer of its own.

    Args:
        strategy: a name, as `roundelay.attach` takes it, and likewise its `options`.
    """

    session: Session | None = None
    """The session, from the beginning of `train()` to its end."""

    def __init__(self, strategy: str = "adpsgd", **options: Any) -> None:
        self._strategy, self._options = strategy, options
        self._rules = DefaultFlowCallback()

    def on_init_end(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """Let the first learner alone write, print and draw bars: by the arguments' own copy of what accelerate knows
        of its processes. By accelerate's, one process, trainers cut their part out of what they gather (trl's GRPO).

        Raises:
            UserError: Trainer has joined a process group of torch.distributed.
        """
        process: Any = args.distributed_state
        if process.num_processes > 1:
            raise UserError(
                f"rank {rank()}: Trainer has started torch.distributed, and would wrap the model in DDP: start the "
                f"script by `roundelay launch -n {learners()} script.py` (without --torchrun-names), not by torchrun "
                "or accelerate launch."
            )
        args.distributed_state = own = object.__new__(type(process))
        vars(own).update(vars(process), process_index=rank(), local_process_index=local_rank())
        state.is_world_process_zero, state.is_local_process_zero = rank() == 0, local_rank() == 0
        args.ignore_data_skip = True  # the session knows the batches trained

    # The training -----------------------------------------------------------------------------------------------------

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        train_dataloader: Any,
        **_: Any,
    ) -> None:
        """Attach the training, and give the loader this learner's share of the batches.

        Raises:
            UserError: as `attach`; or an argument of Trainer does not fit; names it.
        """
        _check(args, state)
        saves, resumes = Path(args.output_dir) / SAVES, state.global_step > 0
        self.session = session = attach(
            model, optimizer, self._strategy, resume=saves if resumes else None, **self._options
        )
        if session.came_back:
            session.abandon()
            raise UserError(
                f"rank {session.rank}: a learner cannot come back to a run of Trainer's, for it does not know which "
                "evaluations it has missed: start all again with trainer.train(resume_from_checkpoint=True)."
            )
        found = session.resumed or {"step": state.global_step, "in_epoch": -1}
        if found["step"] != state.global_step:
            session.abandon()
            raise UserError(
                f"{saves} is of step {found['step']}, and the checkpoint to resume from of step {state.global_step}: "
                f"resume from checkpoint-{found['step']}, or remove {saves} to go on with the model alone."
            )
        self._random = None if session.resumed is None else torch.get_rng_state()
        self._saves, self._total, self._alone = saves, state.max_steps, not session.strategy.traits.synchronous
        self._in_epoch_steps = _steps_in_epoch(train_dataloader, args, state.max_steps)
        self._epoch = state.global_step // self._in_epoch_steps - 1
        left = state.global_step % self._in_epoch_steps if found["in_epoch"] < 0 else found["in_epoch"]
        self._ahead, self._mine, self._done, self._logged = int(left), 0, state.global_step, state.global_step
        self._holding: AbstractContextManager[nn.Module] | None = None
        self._substeps, self._reached, self._pause = False, False, 0
        state.max_steps = math.ceil(self._total / session.learners)  # of bars and rates, which count this learner's
        _share(session, train_dataloader, args)

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """Begin to count the steps of an epoch."""
        self._leave(state)
        self._epoch, self._mine = self._epoch + 1, 0
        self._before, self._ahead, self._begun_ahead = self._all_steps(), 0, self._ahead

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """Put the learner's own parameters back after an evaluation; restore the random numbers of a save before the
        first step after it."""
        self._leave(state)
        if self._random is not None:
            torch.set_rng_state(self._random)
            self._random = None

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        """Note that there are accumulated gradients for the next step."""
        self._substeps = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, lr_scheduler: Any, **_: Any
    ) -> None:
        """Pause to log, evaluate or save if all learners have come to a step at which a single Trainer would."""
        self._substeps, self._mine = False, self._mine + 1
        clock = self._stepped(state, lr_scheduler)
        logs = False
        control.should_evaluate = control.should_save = False
        for step in range(self._done + 1, clock + 1):
            self._done, due = step, self._due(args, state, step)
            logs |= due.should_log
            if due.should_evaluate or due.should_save:
                self._begin_pause(state, control, step, due, logs)
                break
        control.should_log = logs
        self._reached = clock >= self._total and self._total % self._in_epoch_steps > 0
        if state.global_step >= state.max_steps or self._reached:  # else another callback may have asked for the end
            control.should_training_stop = self._reached

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module,
        lr_scheduler: Any,
        **_: Any,
    ) -> None:
        """Take a step with gradients that are left over, and make the remaining pauses of the epoch."""
        self._leave(state)
        session, end = self._open(), min((self._epoch + 1) * self._in_epoch_steps, self._total)
        if self._substeps:
            self._take_rest(args, state, model, lr_scheduler)
        if not self._mine and end < self._total:
            control.should_training_stop = False  # there was no batch for this learner
        if control.should_training_stop and not self._reached:
            return
        control.should_evaluate = control.should_save = control.should_log = False
        found = [(step, self._due(args, state, step)) for step in range(self._done + 1, end + 1)]
        pauses = [one for one in found if one[1].should_evaluate or one[1].should_save]
        control.should_log = any(due.should_log for _, due in found)
        if not pauses or (pauses[-1][0] < end < self._total):  # the others come to them in the next epoch
            return
        self._done = end
        for step, due in pauses[:-1]:
            with session.consensus():
                pass
            if due.should_save:
                log.warning("rank %d: no checkpoint of step %d, one of step %d follows.", session.rank, step, end)
                self._save(step)
        self._begin_pause(state, control, *pauses[-1], control.should_log)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, *_: Any, model: nn.Module, **__: Any) -> None:
        """Put the common model into the module, unless Trainer has loaded the best one."""
        self._leave(state)
        best = args.load_best_model_at_end and state.best_model_checkpoint is not None
        kept = {name: value.clone() for name, value in model.state_dict().items()} if best else {}
        self._open().close()
        if best:
            model.load_state_dict(kept)

    # Pauses -----------------------------------------------------------------------------------------------------------

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, logs: Any, **_: Any
    ) -> None:
        """Set the step to the count of all learners, once Trainer has logged a loss, which it divides by this learner's
        steps."""
        if "loss" in logs:
            self._logged = state.global_step
            if self._holding is not None:
                state.global_step = self._pause

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Put the learner's own parameters back after an evaluation, unless the common model is to be saved."""
        if not control.should_save:
            self._leave(state)

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """Save the session beside Trainer's checkpoint."""
        step = self._pause
        self._leave(state)
        self._save(step)

    def _begin_pause(
        self, state: TrainerState, control: TrainerControl, step: int, due: TrainerControl, logs: bool
    ) -> None:
        self._holding, self._pause, self._steps = self._open().consensus(), step, state.global_step
        self._holding.__enter__()
        state.epoch = step / self._in_epoch_steps
        control.should_evaluate, control.should_save = due.should_evaluate, due.should_save
        if not (logs and state.global_step > self._logged):  # else after that, in `on_log`
            state.global_step = step

    def _leave(self, state: TrainerState) -> None:
        if self.session is not None and self._holding is not None:
            self._holding.__exit__(None, None, None)
            self._holding, state.global_step = None, self._steps

    def _save(self, step: int) -> None:
        in_epoch = self._begun_ahead + self._counted() if step % self._in_epoch_steps else 0
        self._open().save(self._saves, {"step": step, "in_epoch": in_epoch})

    def _due(self, args: TrainingArguments, state: TrainerState, step: int) -> TrainerControl:
        """Return what Trainer's own rules say is due (log, evaluate, save) at a step of all learners."""
        there, due = copy.copy(state), TrainerControl()
        there.global_step, there.max_steps, there.epoch = step, self._total, step / self._in_epoch_steps
        self._rules.on_step_end(args, there, due)
        if step % self._in_epoch_steps == 0 or step == self._total:
            self._rules.on_epoch_end(args, there, due)
        return due

    # Steps of all learners --------------------------------------------------------------------------------------------

    def _all_steps(self) -> int:
        """Return the steps of all learners together; under a synchronous strategy, those of this learner."""
        session = self._open()
        return sum(session.summary()["steps"]) if self._alone else self._mine * session.learners

    def _counted(self) -> int:
        return self._all_steps() - self._before

    def _stepped(self, state: TrainerState, scheduler: Any) -> int:
        """Advance the schedule after a step; return the number of steps of all learners within this epoch."""
        here = self._begun_ahead + self._counted()
        within = min(here, self._in_epoch_steps)
        clock: int = min(self._epoch * self._in_epoch_steps + within, self._total)
        state.epoch = clock / self._in_epoch_steps
        if "metrics" not in inspect.signature(scheduler.step).parameters:
            while scheduler.last_epoch < clock:
                scheduler.step()
        return clock

    def _take_rest(self, args: TrainingArguments, state: TrainerState, model: nn.Module, scheduler: Any) -> None:
        """Take the last step of an epoch, with fewer accumulated gradients than the others."""
        if args.max_grad_norm:
            nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
        self._open().step()
        model.zero_grad()
        state.global_step, self._mine, self._substeps = state.global_step + 1, self._mine + 1, False
        self._stepped(state, scheduler)

    def _open(self) -> Session:
        assert self.session is not None
        return self.session


def _share(session: Session, loader: Any, args: TrainingArguments) -> None:
    """Reduce the loader that Trainer iterates over to this learner's share of the batches."""
    base: DataLoader[Any] = getattr(loader, "base_dataloader", loader)  # accelerate's holds another
    seed = args.seed if args.data_seed is None else args.data_seed
    vars(base).update(shared_parts(session, base, seed))  # Trainer keeps the loader: no copy


def _steps_in_epoch(loader: Any, args: TrainingArguments, total: int) -> int:
    """Return the steps that Trainer plans for an epoch."""
    try:
        steps: int = max(1, math.ceil(len(loader) / args.gradient_accumulation_steps))
    except TypeError:  # a stream
        return total
    return steps


def _check(args: TrainingArguments, state: TrainerState) -> None:
    """Refuse settings that learners cannot train under together.

    Raises:
        UserError: a setting does not fit; names the argument or the folder.
    """
    saves = Path(args.output_dir) / SAVES
    if args.n_gpu > 1:
        raise UserError(
            f"rank {rank()}: Trainer sees {args.n_gpu} GPUs and would wrap the model in DataParallel: give each "
            "learner one, by CUDA_VISIBLE_DEVICES=$ROUNDELAY_LOCAL_RANK."
        )
    if args.save_strategy == "best":
        raise UserError(
            "save_strategy='best' is not for several learners: give 'steps' or 'epoch', and load_best_model_at_end."
        )
    if not state.global_step and saves.is_dir() and any(saves.iterdir()):
        raise UserError(
            f"{saves} holds saves of another training: go on from it by trainer.train(resume_from_checkpoint=True), "
            "remove it, or give another output_dir."
        )
