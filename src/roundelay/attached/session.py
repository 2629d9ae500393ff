"""A strategy in anybody's training loop.

    session = roundelay.attach(model, optimizer, strategy="adpsgd")      # before the loop
    ...
    session.step()                                                       # in the place of optimizer.step()

The module's parameters show the snapshot at which the next gradient is to be taken; `step` hands the gradient to the
strategy, which in its own time lets the user's optimizer update the public row by it, or by a mean of everybody's.

Legend: P trainable parameters.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundelay.attached.parameters import Buffers, Parameters, device_of
from roundelay.attached.places import Away, Here, Place
from roundelay.attached.sampler import SharedSampler, size_of
from roundelay.core.errors import UserError
from roundelay.runtime.base import LearnerDied, staleness_summary
from roundelay.runtime.procs.attached import AttachedLearner, Terms
from roundelay.runtime.procs.pinned import pinned
from roundelay.runtime.procs.world import read_world
from roundelay.strategies import make_strategy
from roundelay.strategies.base import Strategy

log = logging.getLogger("roundelay")


def attach(
    module: nn.Module,
    optimizer: Optimizer,
    strategy: str | Strategy = "adpsgd",
    *,
    seed: int = 0,
    patience: float = 300.0,
    **options: Any,
) -> "Session":
    """Train `module` together with the other learners of this host.

    All learners (started by `torchrun` or `roundelay launch`; one, if by neither) call this in the same order. They
    begin from rank 0's parameters and buffers.

    Args:
        module: float32 parameters, all on the CPU or all on one GPU. Those that require a gradient now are trained.
        optimizer: any of torch.optim, or like them, over parameters of the module; with whatever parameter groups.
        strategy: a name, as `roundelay train --strategy` takes, or a Strategy.
        seed: of the strategy's own random choices (whom to exchange with); the same on all learners.
        patience: seconds a learner waits for another before it gives up and says for whom.
        options: of the strategy, as `period=20`.

    Raises:
        UserError: the module, optimizer, strategy or environment is not fit for it, or the learners disagree; says
            which rank.
    """
    if isinstance(strategy, Strategy):
        if options:
            raise UserError(f"options {', '.join(options)} are given beside a Strategy: give them to the Strategy.")
        chosen = strategy
    else:
        chosen = make_strategy(strategy, options)
    if not patience > 0:
        raise UserError(f"patience is {patience}: give seconds above 0.")
    return Session(module, optimizer, chosen, seed, patience)


class Session:
    """One learner's part in training together; see `attach`. Also a context manager that closes itself.

    `consensus`, `meet`, `state_dict`, `load_state_dict` and `close` are meetings: every learner must come to them,
    equally often and in the same order. Between two meetings each may take as many steps as it has data for. Under a
    strategy whose learners wait for each other, those who come early take part with empty minibatches until all have
    come; nobody hangs, and an empty minibatch changes no mean.

    Every method that waits for others may raise

        LearnerDied    the strategy cannot go on without somebody who died; names the rank
        TimeoutError   somebody did not come within the patience; says who waits for whom
    """

    def __init__(self, module: nn.Module, optimizer: Optimizer, strategy: Strategy, seed: int, patience: float) -> None:
        world = read_world()
        self.module, self.optimizer, self.strategy = module, optimizer, strategy
        self._device = device_of(module, world.rank)
        self._parameters, self._buffers = Parameters(module, world.rank), Buffers(module)
        _check_optimizer(module, optimizer, world.rank)
        terms = Terms(strategy, seed, patience, self._parameters.signature)
        initial = self._parameters.flatten()
        self._learner = learner = AttachedLearner(
            world, terms, initial, self._buffers.pack(), self._update, self._device
        )
        self.rank, self.learners = learner.rank, learner.learners
        self._seed, self._samplers = seed, 0
        kind = Away if learner.where == "on the host, the module elsewhere" else Here
        self._place: Place = kind(learner.me, learner.me.gradient_buffer)
        places = (self._place.snapshot, self._place.row, self._place.gradient, self._place.spare)
        self._home, self._row, self._gradient, self._spare = (self._parameters.views(vector) for vector in places)
        if not learner.agreed:
            log.warning("rank %d began with other weights or buffers than rank 0, and takes rank 0's.", self.rank)
            self._buffers.unpack(learner.arena.shown(self.rank))
        self._parameters.show(self._home)
        self._evaluating, self._open = False, True
        self._failure: BaseException | None = None
        hook = BeforeForward(self)
        self._hooks = [part.register_forward_pre_hook(hook) for part in _owners(module)]

    # Training ---------------------------------------------------------------------------------------------------------

    def step(self, examples: float = 1) -> None:
        """Hand in the gradient that lies in the parameters' `.grad`, in the place of `optimizer.step()`.

        Call it when the gradient is ready: accumulated, unscaled, clipped. `.grad` is left as it is.

        Args:
            examples: what this gradient weighs against others' where a mean is taken: the number of examples it is the
                mean of, if that differs between learners.
        """
        self._check_open("step")
        if self._evaluating:
            raise UserError("session.step() inside session.consensus(): train outside, it holds the model to evaluate.")
        if not (isinstance(examples, int | float) and examples > 0):
            raise UserError(f"session.step(examples={examples!r}): give a number above 0.")
        with self._failing():
            self.begin_step()
            self._parameters.take_gradients(self._gradient)
            self._place.hand_in()
            self._learner.answer(float(examples), float(self.optimizer.param_groups[0]["lr"]))
            self._parameters.show(self._home)

    def begin_step(self) -> None:
        """Make the parameters show where the next gradient is to be taken, exchanging with others first if the strategy
        does so.

        Called by itself before the first forward of a step that records gradients. Call it yourself where parameters
        are used without calling a module that holds them (torch.func.functional_call, say).
        """
        self._check_open("begin_step")
        if self._learner.begun:
            return
        with self._failing():
            point = self._learner.begin_step()
            if not self._parameters.shows(self._home):
                raise UserError(
                    f"rank {self.rank}: the module's parameters were replaced after it was attached (module.to, "
                    ".data = ...). Do that first, then attach."
                )
            if point.data_ptr() != self._home[0].data_ptr():
                self._parameters.show(self._parameters.views(point))

    @property
    def wants_to_begin(self) -> bool:
        """Does the next forward that records gradients begin a step?"""
        return self._open and not self._evaluating and self._failure is None and not self._learner.begun

    def _update(self, gradient: Tensor, own: bool) -> bool:
        """The strategy's local update, under the row's lock: the user's optimizer on the row as it is now. True: and
        the snapshot is as the row is."""
        self._place.begin_update()
        self._parameters.show(self._row)
        try:
            if own:  # it still lies in the parameters; where there was none there still is none
                self.optimizer.step()
            else:  # a copy, for the optimizer's hooks may change it, and the others read the mean too
                self._place.spare.copy_(pinned(gradient))
                with self._parameters.lent(self._spare):
                    self.optimizer.step()
            return self._place.end_update()
        except BaseException:
            self._place.snapshot.copy_(self._learner.me.x)
            raise
        finally:
            self._parameters.show(self._home)

    # Meetings ---------------------------------------------------------------------------------------------------------

    def meet(self) -> None:
        """Wait for all learners, and nothing else. The strategy ends what it has under way: a block of bsp or bmuf, for
        example, is averaged early."""
        self._meet(lambda: None)

    @contextmanager
    def consensus(self) -> Iterator[nn.Module]:
        """The module holds the model to evaluate, on every learner, until the end of the `with`.

        Parameters are the mean of all learners' rows, or the centre where the strategy has one. Buffers of floating
        point are the mean over living learners, others are those of the lowest living rank.
        """
        parameters, buffers = self._consensus()
        with self._holding(parameters, buffers):
            yield self.module

    def state_dict(self) -> dict[str, Any]:
        """What this learner needs to go on from here: to be saved by each, beside `optimizer.state_dict()`.

        `model` is the consensus model, as `module.state_dict()` would be inside `consensus()`, the same on all
        learners. The rest is this learner's own.
        """
        state: dict[str, Any] = {}
        parameters, buffers = self._consensus(lambda: state.update(self._learner.state()))
        with self._holding(parameters, buffers):
            model = {name: value.detach().clone() for name, value in self.module.state_dict().items()}
        return {
            "model": model, **state, "buffers": self._buffers.pack(), "rank": self.rank, "learners": self.learners,
            "strategy": self.strategy.name, "options": dataclasses.asdict(self.strategy),  # type: ignore[call-overload]
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there.

        Raises:
            UserError: it is of another rank, number of learners, strategy or module.
        """
        mine = {"rank": self.rank, "learners": self.learners, "strategy": self.strategy.name}
        for name, value in mine.items():
            if state[name] != value:
                raise UserError(
                    f"rank {self.rank}: this state has {name} {state[name]}, the session {value}. To begin anew from "
                    "its model, call module.load_state_dict(state['model']) before attach."
                )
        if state["row"].numel() != self._parameters.count:
            raise UserError(
                f"rank {self.rank}: this state has {state['row'].numel()} trainable parameters, the module "
                f"{self._parameters.count}: it is of another module."
            )
        self._meet(lambda: self._learner.load(dict(state)))
        self._buffers.unpack(state["buffers"])

    def close(self) -> None:
        """Meet for the last time. The module is left with the model to evaluate, and is the user's again. Safe to call
        twice."""
        if not self._open:
            return
        if self._failure is None:
            with self._failing():
                parameters, buffers = self._consensus()
                self._release(parameters)
                self._buffers.unpack(buffers)
        else:
            self._release(self._place.snapshot.clone())

    def abandon(self) -> None:
        """Leave at once, waiting for nobody; the module keeps this learner's own parameters. What a `with` does when an
        exception ends it."""
        if self._open:
            self._release(self._parameters.flatten())

    # What happened ----------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Steps of this learner, empty ones included."""
        return self._learner.me.steps

    @property
    def living(self) -> tuple[int, ...]:
        """Ranks that live, as far as anybody has noticed."""
        return self._learner.living

    def summary(self) -> dict[str, Any]:
        """Steps by rank, exchanges begun (by rank, with rank), and staleness (mean, largest), so far, of all learners;
        and in words where this one's row is."""
        counts = self._learner.arena.counts.copy()
        _, largest, mean = staleness_summary(counts)
        return {
            "steps": counts.steps.tolist(), "exchanges": counts.exchanges.tolist(),
            "staleness": {"mean": mean, "largest": largest}, "rows": self._learner.where,
        }  # fmt: skip

    def sampler(
        self, dataset: Sized | int, batch_size: int, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> SharedSampler:
        """A batch sampler that shares the examples out: `DataLoader(dataset, batch_sampler=session.sampler(...))`.

        Args:
            dataset: what the data loader is given, or its length.
            batch_size: examples in a minibatch of one learner.
            seed: of the order; the same on all learners.
            drop_last: leave out the last, smaller round.
        """
        self._samplers += 1
        return SharedSampler(self._learner, self._samplers, size_of(dataset), batch_size, shuffle, seed, drop_last)

    # Inside -----------------------------------------------------------------------------------------------------------

    def _meet(self, read: Callable[[], None]) -> None:
        self._check_open("a meeting")
        if self._evaluating:
            raise UserError("inside session.consensus() learners cannot meet again: end the `with` first.")
        with self._failing():
            self._learner.meet(read, self._buffers.pack())
            self._parameters.show(self._home)

    def _consensus(self, also: Callable[[], None] | None = None) -> tuple[Tensor, Tensor]:
        """(parameters (P,), packed buffers) of the model to evaluate, after a meeting."""
        parameters, buffers = torch.empty(self._parameters.count), self._buffers.pack()

        def read() -> None:
            self._learner.consensus_into(parameters)
            buffers.copy_(self._buffers.mean(self._learner.shown_by_all()))
            if also is not None:
                also()

        self._meet(read)
        return parameters, buffers

    @contextmanager
    def _holding(self, parameters: Tensor, buffers: Tensor) -> Iterator[None]:
        own = self._buffers.pack()
        self._evaluating = True
        self._parameters.show(self._parameters.views(self._there(parameters)))
        self._buffers.unpack(buffers)
        try:
            yield
        finally:
            self._evaluating = False
            if self._open:
                self._parameters.show(self._home)
                self._buffers.unpack(own)

    def _there(self, vector: Tensor) -> Tensor:
        """Where the module is."""
        return vector if self._device is None else vector.to(self._device)

    def _release(self, parameters: Tensor) -> None:
        """Give the module back, with these parameters (P,) in memory of its own."""
        self._open = False
        for hook in self._hooks:
            hook.remove()
        self._parameters.show(self._parameters.views(self._there(parameters)))
        self._learner.leave()

    def _check_open(self, what: str) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._open:
            raise UserError(f"session.{what} after session.close(): attach again to go on.")

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """What a strategy cannot go on after, it cannot go on after later either."""
        try:
            yield
        except (LearnerDied, TimeoutError) as error:
            self._failure = error
            self._learner.leave()  # those who wait for this learner need not
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()


class BeforeForward:
    """Begins a step. Copied or pickled with its module it does nothing: a copy is not attached."""

    def __init__(self, session: Session | None = None) -> None:
        self._session = session

    def __call__(self, module: nn.Module, inputs: object) -> None:
        if self._session is not None and torch.is_grad_enabled() and self._session.wants_to_begin:
            self._session.begin_step()

    def __deepcopy__(self, memo: object) -> "BeforeForward":
        return BeforeForward()

    def __reduce__(self) -> tuple[type["BeforeForward"], tuple[()]]:
        return BeforeForward, ()


def _owners(module: nn.Module) -> list[nn.Module]:
    """The modules whose calls use parameters: the hook sits there, so that whatever part is called first finds them
    right. Of a compiled module only the root, whose hook is not compiled."""
    if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
        return [module]
    return [module, *(part for part in module.modules() if part is not module and part._parameters)]


def _check_optimizer(module: nn.Module, optimizer: Optimizer, rank: int) -> None:
    known = {id(p) for p in module.parameters()}
    strangers = sum(id(p) not in known for group in optimizer.param_groups for p in group["params"])
    if strangers:
        raise UserError(
            f"rank {rank}: the optimizer has {strangers} parameters that are not in the module: attach the module that "
            "holds all of them, or give the others an optimizer of their own."
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UserError(
            f"rank {rank}: LBFGS evaluates the model inside its step, which attach cannot do: choose another."
        )
