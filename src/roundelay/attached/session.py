"""A strategy in any training loop.

    session = roundelay.attach(model, optimizer, strategy="adpsgd")      # before the loop; `optimizer.step()` stays

The functions for users are here: attach, a session's meetings and its attributes. Its steps are in steps.py.

Legend: P trainable parameters.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundelay.algorithms.averaging import minibatches_averaged
from roundelay.attached.alarms import say_idle, say_not_finite, say_unclosed
from roundelay.attached.batches import SharedBatches
from roundelay.attached.parameters import Buffers, device_of
from roundelay.attached.reporting import COUNTED, HELD_OUT_LOSS, LossLog
from roundelay.attached.saves import SessionSaves, fitting, look_for
from roundelay.attached.sharing import Followed, LoopProgress, Shared, SharedSampler
from roundelay.attached.stepping import unwrapped, usual_rate
from roundelay.attached.steps import Steps
from roundelay.checkpoint import Room
from roundelay.core.configure import build
from roundelay.core.errors import UserError
from roundelay.core.records import RunStarted
from roundelay.core.slow import SLOWED_SECONDS, slow
from roundelay.runtime.attached.entering import AttachTerms
from roundelay.runtime.attached.groups import Group, group_of
from roundelay.runtime.attached.learner import AttachedLearner
from roundelay.runtime.attached.membership import FAILED
from roundelay.runtime.attached.replicas import Replicas, replicas_of
from roundelay.runtime.attached.session_live import made_folder
from roundelay.runtime.attached.turns import replayed_host
from roundelay.runtime.base import staleness_summary
from roundelay.runtime.hosts.exchange.row_format import RowFormat
from roundelay.runtime.hosts.options import SessionHostOptions, session_strategy
from roundelay.runtime.launch import termination
from roundelay.runtime.launch.world import (
    LIVE,
    REPLAY,
    REPORT,
    World,
    group_environment,
    launched_group,
    path_in,
    read_world,
)
from roundelay.runtime.launch.world import rank as rank_of_process
from roundelay.runtime.learners_rate import said_at_end, said_at_start, work_of
from roundelay.strategies import parse_strategy
from roundelay.strategies.base import Strategy
from roundelay.strategies.hadpsgd import HAdPsgd

log = logging.getLogger("roundelay")


def attach(
    module: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    strategy: str | Strategy = "adpsgd",
    *,
    seed: int = 0,
    patience: float = 300.0,
    hosts: Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    **options: Any,
) -> "Session":
    """Train `module` together with the other learners, of this host or of several, and return the session. From now on
    `optimizer.step()` takes the session's steps.

    All learners (started by `torchrun` or `roundelay launch`; one, if by neither) call this in the same order. They
    begin from rank 0's parameters and buffers.

    Args:
        module: all on the CPU or all on one GPU; trainable parameters float32, bfloat16 or float16. Those that require
            a gradient now are trained. Or its DistributedDataParallel over the processes of a learner.
        optimizer: one of torch.optim, or like those, over parameters of the module, in any parameter groups. Or
            several, all of which are stepped in each iteration.
        strategy: a name, as `roundelay train --strategy` takes, a Strategy, or "auto", as `roundelay advise` chooses.
        seed: seed of the strategy's own random choices (whom to exchange with); the same on all learners.
        patience: seconds a learner waits for another before it gives up and says for whom.
        hosts: options between several hosts by name: those of `roundelay train` (`wire`, `fragments`, `host_patience`,
            `encrypt`, `exchange_share`, `means`, `trusted_network`), `silence`, and `listen`, where this host listens.
        resume: a directory of saves: go on from the newest. One that holds none yet is for a command's first start.
        options: the strategy's, as `period=20`; of "auto" those of docs/advice.md. And `on_death`, "stop" or "go-on",
            for learners that wait for each other; `record`, a folder for `roundelay replay`; `rate`, of L learners:
            "as-is", the optimizers' own; "linear", so much larger that the model moves by the sum of all gradients;
            "gain", the default of `adpsgd` and `hadpsgd`, by their noise. A number is the strategy's option.

    Raises:
        UserError: module, optimizer, strategy or environment is unfit for it, or learners disagree; names the rank.
    """
    given = [optimizer] if isinstance(optimizer, Optimizer) or not isinstance(optimizer, Sequence) else optimizer
    several = [unwrapped(one) for one in given]
    between, deaths, record = dict(hosts or {}), options.pop("on_death", "stop"), options.pop("record", None)
    rate = options.pop("rate") if isinstance(options.get("rate"), str) else usual_rate(several)
    group, world, module = _learner_of(module, between.pop("listen", None))
    record, repeats = (_folder_in(Path(one), group) if one else None for one in (record, path_in(REPLAY)))
    going_on = None if resume is None else _folder_in(Path(resume), group)
    if strategy == "auto":
        from roundelay.attached.choosing import chosen_strategy  # noqa: PLC0415  loads modules that few sessions need

        found = chosen_strategy(module, several, world, patience, going_on, options, group)
        strategy, between, options = found.strategy, {**found.hosts, **between}, {}
    if isinstance(strategy, Strategy):
        if options:
            raise UserError(f"options {', '.join(options)} are given beside a Strategy: give them to the Strategy.")
        chosen, sized = strategy, True
    else:
        chosen, sized = session_strategy(strategy, options), "node_size" in {**options, **parse_strategy(strategy)[1]}
    chosen = _on_host(chosen, sized, world, repeats)
    live = made_folder(path_in(LIVE)) if 0 in world.here and (group is None or group.place == 0) else ""
    wanted: dict[str, Any] = {"hosts": build(SessionHostOptions, between, "hosts"), "record": record, "live": live}
    wanted |= {"repeats": repeats, "processes": 1 if group is None else group.size, "on_death": deaths, "rate": rate}
    terms = AttachTerms(chosen, seed, patience, **wanted)
    return _kind_of(group)(module, several, world, terms, going_on, group)


class Session:
    """One learner's part in training a module together with others; `attach` returns it. A `with` closes the session.

    `consensus`, `meet`, `state_dict`, `load_state_dict`, `save` and `close` are meetings: every learner must come to
    them, equally often and in the same order. Between two meetings each may take as many steps as it has data for.
    Under a strategy whose learners wait for each other, those who come early take part with empty minibatches until all
    have come; no learner hangs, and an empty minibatch changes no mean.

    Every method that waits for others, `optimizer.step` among them, may raise

        LearnerDied    the strategy cannot go on without a learner that died; names the rank
        TimeoutError   a learner did not come within the patience; says who waits for whom
        UserError      learners came to different meetings; names both
        SystemExit     143, at the end of a step: the process was sent SIGTERM; see `stopping`
    """

    def __init__(
        self,
        module: nn.Module,
        optimizers: Sequence[Optimizer],
        world: World,
        terms: AttachTerms,
        resume: Path | None = None,
        group: Group | None = None,
    ) -> None:
        self._group = group
        self.module, self.strategy, self.optimizers = module, terms.strategy, tuple(optimizers)
        self._device = device = device_of(module, world.rank)
        wanted = fitting(module, self.optimizers, world.rank, world.learners, terms.strategy)
        found = None if resume is None else look_for(resume, wanted)
        self._buffers = Buffers(module)
        self._steps = Steps(module, self.optimizers, device, world, terms, self._buffers.pack(), group)
        self._learner = learner = self._steps.learner
        self.rank, self.learners = learner.rank, learner.learners
        self._samplers: list[Shared] = []
        self._not_finite = False  # that was said of the model
        self._rate = terms.rate
        self.resumed: Mapping[str, Any] | None = None
        """The values given as `also` to the save that this session goes on from; None: it began anew."""
        self.came_back = learner.late
        """True if this learner has come back to a session that ran without it."""
        if learner.late:
            log.warning("rank %d comes to learners that train already, and begins where another is.", self.rank)
        elif not learner.agreed:
            log.warning("rank %d began with other weights or buffers than rank 0, and takes rank 0's.", self.rank)
        if learner.late or not learner.agreed:
            self._buffers.unpack(learner.arena.shown(self.rank))
        if self.rank == 0:
            self._say(said_at_start(self._rate, self.strategy, len(learner.living), shared=False))
            said = RowFormat.of(terms.hosts, self.strategy.traits.paced_by_links).said()
            if said and world.place is not None and not world.place.alone and self._speaks:
                log.info("%s.", said)
        self._losses = LossLog(path_in(REPORT), self._started(terms.seed), learner.late)
        room = Room(terms.patience_seconds / 2, lambda: termination.request.asked, log.warning)  # others wait for it
        about = wanted, self._steps, self._buffers, self.optimizers, device
        self._saves = learner.giver = SessionSaves(*about, self._meet, room, self._samplers)
        if resume is not None:
            try:
                restore = self._saves.come_back if learner.late else self._saves.resume
                self.resumed = restore(resume, found)
            except BaseException:
                self._steps.release(None, FAILED)
                raise
        if learner.given:
            with self._steps.failing():
                self.resumed, learner.given = self._saves.take(learner.given) or self.resumed, b""
            self._steps.show_home()
        self._sharing: AttachedLearner | Followed = learner

    @property
    def optimizer(self) -> Optimizer:
        """The first of the optimizers that were attached, or the only one."""
        return self.optimizers[0]

    # Training ---------------------------------------------------------------------------------------------------------

    @property
    def examples(self) -> float:
        """Weight of gradients against others' where a mean is taken: the number of examples one is the mean of, if
        that differs between learners; 1 at first. Set it before `optimizer.step()`; `step(examples)` says it for one
        step."""
        return self._steps.examples

    @examples.setter
    def examples(self, examples: float) -> None:
        if not (isinstance(examples, int | float) and examples > 0):
            raise UserError(f"session.examples = {examples!r}: give a number above 0.")
        self._steps.examples = examples

    def step(self, examples: float | None = None) -> None:
        """Hand in the gradient that lies in the parameters' `.grad`: the same as `optimizer.step()`, of all optimizers.

        Call it when the gradient is ready: accumulated, unscaled, clipped. `.grad` is left as it is.

        Args:
            examples: the weight of this gradient against others' where a mean is taken; `self.examples` by default.
        """
        self._steps.step(examples)

    def begin_step(self) -> None:
        """Make the parameters show the point where the next gradient is to be taken, exchanging with others first if
        the strategy does so.

        Called by itself before the first forward of a step that records gradients. Call it yourself where parameters
        are used without calling a module that holds them (torch.func.functional_call, say).
        """
        self._steps.begin_step()

    @property
    def wants_to_begin(self) -> bool:
        """True if the next forward that records gradients begins a step."""
        return self._steps.wants_to_begin

    @property
    def stopping(self) -> bool:
        """True once this process was sent SIGTERM. A loop that reads this is to end by itself: it stops, and comes to
        `close()` as the others do, who have been sent it too. A loop that never reads it is ended at the end of a step,
        by SystemExit(143)."""
        self._steps.loop_looks = True
        return self._steps.asked_to_end

    # Meetings ---------------------------------------------------------------------------------------------------------

    def meet(self) -> None:
        """Wait for all learners to come here, without reading or saving anything. The strategy ends its work under way:
        a block of bsp or bmuf, for example, is averaged early."""
        self._meet("meet()", lambda: None)

    @contextmanager
    def consensus(self) -> Iterator[nn.Module]:
        """Let the module hold the model to evaluate, on every learner, until the end of the `with`.

        Parameters are the mean of all learners' rows, or the centre where the strategy has one. Buffers of floating
        point are the mean over living learners, others are those of the lowest living rank.
        """
        parameters, buffers = self._consensus("consensus()")
        with self._holding(parameters, buffers):
            yield self.module

    def state_dict(self) -> dict[str, Any]:
        """Return the state this learner needs to go on from here: to be saved by each, beside `optimizer.state_dict()`.

        `model` is the consensus model, as `module.state_dict()` would be inside `consensus()`, the same on all
        learners. The rest is this learner's own.
        """
        state: dict[str, Any] = {}
        saved = self._learner.saved
        parameters, buffers = self._consensus("state_dict()", lambda: state.update(**saved.own(), **saved.centre()))
        with self._holding(parameters, buffers):
            model = {name: value.detach().clone() for name, value in self.module.state_dict().items()}
        return {
            "model": model,
            **state,
            "buffers": self._buffers.pack(),
            "rank": self.rank,
            "learners": self.learners,
            "strategy": self.strategy.name,
            "options": dataclasses.asdict(self.strategy),  # type: ignore[call-overload]
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` returned.

        Raises:
            UserError: `state` is of another rank, number of learners, strategy or module.
        """
        mine = {"rank": self.rank, "learners": self.learners, "strategy": self.strategy.name}
        for name, value in mine.items():
            if state[name] != value:
                raise UserError(
                    f"rank {self.rank}: this state has {name} {state[name]}, the session {value}. To begin anew from "
                    "its model, call module.load_state_dict(state['model']) before attach."
                )
        if state["row"].numel() != self._steps.parameters.count:
            raise UserError(
                f"rank {self.rank}: this state has {state['row'].numel()} trainable parameters, the module "
                f"{self._steps.parameters.count}: it is of another module."
            )
        self._meet("load_state_dict()", lambda: self._learner.saved.load(state))
        self._buffers.unpack(state["buffers"])

    def save(self, directory: str | Path, also: Mapping[str, Any] | None = None, keep: int = 2) -> Path:
        """Save all that the session needs to go on from here, by `attach(..., resume=directory)`: each learner its own
        part, without waiting for the others' disks. Half the session's patience is waited for room on a full one.

        Args:
            directory: a directory for this training alone; on several hosts each may have its own.
            also: all else that the loop needs (`scheduler.state_dict()`, for example), of plain values and tensors;
                `session.resumed` after it was resumed.
            keep: number of newest saves that stay, 2 or more: if the newest is damaged, the one before it is resumed.

        Returns:
            The folder of this save in `directory`.

        Raises:
            UserError: the save cannot be written, or `directory` holds saves of another training; names the file.
        """
        self._steps.check_open("save")
        return self._saves.save(_folder_in(Path(directory), self._group), also or {}, self._samplers, keep)

    def close(self) -> None:
        """Close the session, in a last meeting of all learners. The module keeps the model to evaluate, and is the
        user's again. Safe to call twice."""
        if not self.open:
            return
        if self._steps.failure is None:
            try:
                parameters, buffers = self._consensus("close()")
            except UserError:
                self.abandon()
                raise
            self._steps.release(parameters)
            self._buffers.unpack(buffers)
        else:
            self._steps.release(None, FAILED)

    def abandon(self) -> None:
        """Leave the session at once, without waiting for others; the module keeps this learner's own parameters. A
        `with` does this when an exception ends it."""
        if self.open:
            self._steps.release(self._steps.parameters.flatten(), FAILED)

    def report(self, loss: float) -> None:
        """Log a held-out loss of the model that all learners have in common, with the seconds since `attach`, for
        `roundelay scaling`. Nothing is logged unless ROUNDELAY_REPORT names a folder.

        Call it on all learners, or on the lowest that lives, which alone logs it. It does not wait for others.

        Args:
            loss: the mean over held-out examples, in nats; the first may be that of the model before training.

        Raises:
            UserError: `loss` is no number; another session has reported to the same folder; or this session is closed.
        """
        self._steps.check_open("report()")
        if self.rank == min(self.living, default=self.rank) and self._speaks:
            self._losses.write(loss, int(self._learner.counts.steps.sum()))

    # Events -----------------------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """True until the session is closed or abandoned."""
        return self._steps.open

    @property
    def steps(self) -> int:
        """Number of steps that this learner has taken, empty ones included."""
        return self._learner.steps

    @property
    def living(self) -> tuple[int, ...]:
        """Ranks of the learners that live, by the deaths noticed so far."""
        return self._learner.living

    def summary(self) -> dict[str, Any]:
        """Return counts of all learners so far: steps by rank, exchanges begun (by rank, with rank), staleness (mean,
        largest); `rows`, in words the place of this learner's row; `rate`; and `work`, how far the model moves by all
        learners' steps under that rate, relative to the steps alone of the learner that took most."""
        counts = self._learner.counts
        _, largest, mean = staleness_summary(counts)
        return {
            "steps": counts.steps.tolist(),
            "exchanges": counts.exchanges.tolist(),
            "staleness": {"mean": mean, "largest": largest},
            "rows": self._learner.where,
            "rate": self._rate,
            "work": self._work(),
        }

    def _work(self) -> float:
        """Return how far all learners' steps move the model, relative to those of the learner with most steps."""
        counts, learners = self._learner.counts, len(self._learner.to_the_end)
        moved, longest = work_of(counts.rate_factors, counts.steps, self.strategy, learners, learners)
        return moved / longest if longest else 0.0

    def _say(self, sentence: str) -> None:
        """Log a sentence on the learning rate: as a warning where the user asked for that rate, else as information."""
        if sentence and self._speaks:
            log.log(logging.INFO if self._rate in ("fastest", "as-is") else logging.WARNING, "%s.", sentence)

    def sampler(
        self, dataset: Sized | int, batch_size: int, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> SharedSampler:
        """Return a batch sampler that shares the examples out: `DataLoader(dataset,
        batch_sampler=session.sampler(...))`.

        Args:
            dataset: the data loader's dataset, or its length.
            batch_size: examples in a minibatch of one learner.
            seed: seed of the order; the same on all learners.
            drop_last: leave out the last, smaller round.
        """
        number = len(self._samplers) + 1
        about = dataset, batch_size, shuffle, seed, drop_last
        sampler = SharedSampler(self._sharing, number, *about, self._progress)
        self._begin_shared(sampler, number)
        return sampler

    def share(self, batches: Iterable[Any]) -> SharedBatches:
        """Return `batches` shared out: each batch goes to one learner; under an asynchronous strategy, to one that is
        free.

            loader = DataLoader(dataset, sampler=session.share(sampler), batch_size=None)

        Iterate it, or give it to a data loader as its sampler; its `epoch` and `set_epoch` are as those of
        `session.sampler`.

        Args:
            batches: an iterable that gives all learners the same batches in the same order, with or without a length:
                a sampler of lhotse (of world_size=1), a list, a stream, a data loader.

        Raises:
            UserError: `batches` deals batches out by rank itself, or can be gone through only once.
        """
        number = len(self._samplers) + 1
        compared = not self._learner.late and number not in self._saves.samplers
        shared = SharedBatches(self._sharing, number, batches, compared, self._progress)
        self._begin_shared(shared, number)
        return shared

    def _begin_shared(self, shared: Shared, number: int) -> None:
        if number in self._saves.samplers:
            shared.resume(self._saves.samplers[number])
        elif self._learner.late:
            shared.join(self._learner.saved.epoch_under_way)
        shared.comes_after(self._samplers)
        self._samplers.append(shared)

    # Inside -----------------------------------------------------------------------------------------------------------

    def _started(self, seed: int) -> RunStarted:
        """Return the first record of a log of held-out losses."""
        return RunStarted(
            wall_s=0.0,
            strategy=self.strategy.name,
            label=self.strategy.label,
            runtime="procs",
            learners=self.learners,
            seed=seed,
            commit="",
            machine="",
            parameters=self._steps.parameters.count,
            minibatch_frames=self.learners,
            minibatch_per_learner=True,
            train_frames=0,
            examples=COUNTED,
            measured=HELD_OUT_LOSS,
            rate=self._rate,
        )

    @property
    def _speaks(self) -> bool:
        """True for the first process of a learner."""
        return self._group is None or self._group.place == 0

    def _progress(self) -> LoopProgress:
        completed = self._steps.completed
        return LoopProgress(completed + self._learner.begun, completed)

    def _meet(self, kind: str, read: Callable[[], None]) -> None:
        self._steps.check_open("a meeting")
        if self._steps.evaluating:
            raise UserError("inside session.consensus() learners cannot meet again: end the `with` first.")
        self._steps.settle()
        with self._steps.failing():
            for shared in self._samplers:
                shared.settle()
            self._learner.meet(kind, read, self._buffers.pack())
        self._steps.met()

    def _consensus(self, kind: str, also: Callable[[], None] | None = None) -> tuple[Tensor, Tensor]:
        """Return the model to evaluate as (parameters (P,), packed buffers), after a meeting."""
        parameters, buffers = torch.empty(self._steps.parameters.count), self._buffers.pack()
        living: list[int] = []

        def read() -> None:
            living.extend(self._learner.living)
            self._learner.consensus_into(parameters)
            buffers.copy_(self._buffers.mean(self._learner.shown_by_all()))
            if also is not None:
                also()

        self._meet(kind, read)
        if self.rank == min(living) and self._speaks:
            self._look_at_all(parameters, living if kind == "close()" else ())
        return parameters, buffers

    def _look_at_all(self, parameters: Tensor, closing: Sequence[int]) -> None:
        """Warn, on the lowest learner, where the common model (P,) is not finite, or where learners that are `closing`
        took very different numbers of steps."""
        traits, steps = self.strategy.traits, self._learner.counts.steps
        if not self._not_finite:
            self._not_finite = say_not_finite(self._steps.parameters, parameters, self.rank)
        if closing and not traits.synchronous:
            alike = traits.model == "mean" and not self.strategy.weighed
            say_idle({rank: int(steps[rank]) for rank in closing}, rows_count=alike)
        for sentence in slow(self._learner.counts.spent(), SLOWED_SECONDS).values() if closing else ():
            log.warning("%s", sentence)
        if closing:
            different, averaged = self._learner.inputs.different(closing), minibatches_averaged(steps.tolist())
            known = self._rate, self.strategy, len(closing)
            self._say(said_at_end(*known, shared=False, work=self._work(), averaged=averaged, different=different))

    @contextmanager
    def _holding(self, parameters: Tensor, buffers: Tensor) -> Iterator[None]:
        own = self._buffers.pack()
        self._buffers.unpack(buffers)
        try:
            with self._steps.showing(parameters):
                yield
        finally:
            if self.open:
                self._buffers.unpack(own)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        if isinstance(error, SystemExit) and not error.code:
            say_unclosed()  # no other word is heard of a `sys.exit()`
        self.abandon()


def _learner_of(module: nn.Module, listen: str | None) -> tuple[Group | None, World, nn.Module]:
    """Return the processes of this learner, if it has several, its place among the learners, and the module without a
    wrapper over these processes."""
    group = group_of(module, rank_of_process()) or replicas_of(module)
    if group is None:
        if (size := launched_group()) > 1:
            raise UserError(
                f"rank {rank_of_process()}: `roundelay launch --group {size}` has started {size} processes for each "
                "learner, and the module is whole in each: shard it by fully_shard before attach, give attach the "
                "DistributedDataParallel around it, or leave --group out."
            )
        return None, read_world(listen=listen), module
    world = read_world(group_environment(0 if group.whole else group.place, group.size), listen)
    return group, world, group.wrapper.module if isinstance(group, Replicas) else module


def _on_host(strategy: Strategy, sized: bool, world: World, repeats: Path | None) -> Strategy:
    """Return the strategy as it runs on this host, or on the recorded host that is repeated; `sized`: the user has
    given the size of nodes."""
    here = replayed_host(repeats, world.rank) if world.place is None else world.here
    return strategy.on_host(here, sized) if isinstance(strategy, HAdPsgd) and here else strategy


def _kind_of(group: Group | None) -> Callable[..., Session]:
    if not isinstance(group, Replicas):
        return Session
    from roundelay.attached.replicated import ReplicatedSession  # noqa: PLC0415  is a Session

    return ReplicatedSession


def _folder_in(directory: Path, group: Group | None) -> Path:
    """Return the folder, for saves or a record, that belongs to this process: in `directory`, which each process of a
    learner has a part of."""
    return directory if group is None or group.whole else directory / f"shard-{group.place}-of-{group.size}"
