"""A strategy in anybody's training loop.

    session = roundelay.attach(model, optimizer, strategy="adpsgd")      # before the loop; `optimizer.step()` stays

The module's parameters show the snapshot at which the next gradient is to be taken. A step hands the gradient to the
strategy, which in its own time lets the user's optimizer update the public row by it, or by a mean of everybody's.

Legend: P trainable parameters, T tensors they are in.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundelay.attached.buffers import Buffers
from roundelay.attached.forward import fingerprint, hook_into, other_session
from roundelay.attached.parameters import Parameters, device_of
from roundelay.attached.places import Away, Here, Place
from roundelay.attached.sampler import SharedSampler, size_of
from roundelay.attached.stepping import Stepper, check_optimizers, unwrapped
from roundelay.attached.watch import Changes, Watch, some
from roundelay.attached.wrapping import refuse_reducer, refuse_wrapped
from roundelay.core.errors import UserError
from roundelay.runtime.base import LearnerDied, staleness_summary
from roundelay.runtime.procs import termination
from roundelay.runtime.procs.attached import AttachedLearner, Terms
from roundelay.runtime.procs.inputs import FIRST
from roundelay.runtime.procs.membership import CLOSED, ENDED, FAILED
from roundelay.runtime.procs.pinned import pinned
from roundelay.runtime.procs.votes import Vote
from roundelay.runtime.procs.world import read_world
from roundelay.strategies import make_strategy
from roundelay.strategies.base import Strategy

log = logging.getLogger("roundelay")


def attach(
    module: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    strategy: str | Strategy = "adpsgd",
    *,
    seed: int = 0,
    patience: float = 300.0,
    **options: Any,
) -> "Session":
    """Train `module` together with the other learners of this host. `optimizer.step()` is the session's from now on.

    All learners (started by `torchrun` or `roundelay launch`; one, if by neither) call this in the same order. They
    begin from rank 0's parameters and buffers.

    Args:
        module: all on the CPU or all on one GPU; trainable parameters float32, bfloat16 or float16. Those that require
            a gradient now are trained.
        optimizer: any of torch.optim, or like them, over parameters of the module; with whatever parameter groups. Or
            several, all of which are stepped in each iteration.
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
    several = [optimizer] if isinstance(optimizer, Optimizer) or not isinstance(optimizer, Sequence) else optimizer
    return Session(module, [unwrapped(one) for one in several], chosen, seed, patience)


class Session:
    """One learner's part in training together; see `attach`. Also a context manager that closes itself.

    `consensus`, `meet`, `state_dict`, `load_state_dict` and `close` are meetings: every learner must come to them,
    equally often and in the same order. Between two meetings each may take as many steps as it has data for. Under a
    strategy whose learners wait for each other, those who come early take part with empty minibatches until all have
    come; nobody hangs, and an empty minibatch changes no mean.

    Every method that waits for others, `optimizer.step` among them, may raise

        LearnerDied    the strategy cannot go on without somebody who died; names the rank
        TimeoutError   somebody did not come within the patience; says who waits for whom
        UserError      learners came to different meetings; names both
        SystemExit     143, at the end of a step: the process was sent SIGTERM; see `stopping`
    """

    examples: float = 1
    """What gradients weigh against others' where a mean is taken: the number of examples one is the mean of, if that
    differs between learners. Set it before `optimizer.step()`; `step(examples)` says it for one step."""

    def __init__(
        self, module: nn.Module, optimizers: Sequence[Optimizer], strategy: Strategy, seed: int, patience: float
    ) -> None:
        world = read_world()
        self.module, self.strategy = module, strategy
        self.optimizers = tuple(optimizers)
        refuse_wrapped(module, world.rank)
        if other_session(module):
            raise UserError(
                f"rank {world.rank}: the module, or a part of it, is attached already. Give all optimizers of a module "
                "to one roundelay.attach(module, [first, second]), or close the other session first."
            )
        self._device = device_of(module, world.rank)
        self._parameters, self._buffers = Parameters(module, world.rank), Buffers(module)
        idle = check_optimizers(module, self.optimizers, world.rank)
        if idle:
            log.warning("rank %d: parameters %s are in no optimizer that is attached.", world.rank, some(idle))
        terms = Terms(strategy, seed, patience, self._parameters.signature, len(self._parameters.all))
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
        self._watch = Watch(module, self._parameters, self.rank, self._place.snapshot)
        self._show_home()
        self._evaluating, self._open = False, True
        self._failure: BaseException | None = None
        self._given: set[int] = set()  # parameters by number whose gradients the step under way has
        self._asked: set[int] = set()  # optimizers by number that have been asked for it
        self._skip, self._handed_in_by, self._fingerprint = False, "", 0
        self._late: Changes | None = None  # made since this step began
        self._steppers = [Stepper(one, number, self._ask, self.rank) for number, one in enumerate(self.optimizers)]
        self._hooks = hook_into(module, self)
        self._looks, self._checking_inputs = False, self.learners > 1
        termination.listen()

    @property
    def optimizer(self) -> Optimizer:
        """The first, or the only one."""
        return self.optimizers[0]

    # Training ---------------------------------------------------------------------------------------------------------

    def step(self, examples: float | None = None) -> None:
        """Hand in the gradient that lies in the parameters' `.grad`: the same as `optimizer.step()`, of all optimizers.

        Call it when the gradient is ready: accumulated, unscaled, clipped. `.grad` is left as it is.

        Args:
            examples: what this gradient weighs against others' where a mean is taken; `self.examples` by default.
        """
        self._check_step("session.step()")
        if not (examples is None or (isinstance(examples, int | float) and examples > 0)):
            raise UserError(f"session.step(examples={examples!r}): give a number above 0.")
        for number, stepper in enumerate(self._steppers):
            if number not in self._asked:
                stepper.called()
                self._take(number)
        self._complete(examples)
        self._handed_in_by = "session.step()"
        self._end_if_asked()

    def begin_step(self) -> None:
        """Make the parameters show where the next gradient is to be taken, exchanging with others first if the strategy
        does so.

        Called by itself before the first forward of a step that records gradients. Call it yourself where parameters
        are used without calling a module that holds them (torch.func.functional_call, say).
        """
        self._check_open("begin_step")
        if self._asked:
            self._complete()
        if self._learner.begun:
            return
        self._take_over()
        with self._failing():
            point = self._learner.begin_step()
        self._handed_in_by = ""
        if point.data_ptr() == self._home[0].data_ptr():
            self._show_home()
        else:
            self._watch.show(point, self._parameters.views(point))

    @property
    def wants_to_begin(self) -> bool:
        """Does the next forward that records gradients begin a step?"""
        return self._open and not self._evaluating and self._failure is None and not self._learner.begun

    def _ask(self, number: int, closure: Callable[[], Any] | None) -> Any:
        """`optimizer.step(closure)` of that optimizer."""
        self._check_step("optimizer.step()")
        if number in self._asked:
            self._complete()
        loss = None
        if closure is not None:
            self.begin_step()
            with torch.enable_grad():
                loss = closure()
        self._take(number)
        if len(self._asked) == len(self._steppers):
            self._complete()
            self._handed_in_by = "optimizer.step()"
            self._end_if_asked()
        return loss

    def _take(self, number: int) -> None:
        """The gradients of one optimizer."""
        stepper = self._steppers[number]
        which = self._parameters.numbers(stepper.parameters)
        if not self._asked:
            self.begin_step()
            self._place.gradient.zero_()
        found = self._parameters.take_gradients(self._gradient, which)
        self._asked.add(number)
        self._given.update(found)
        self._skip |= stepper.overflowed
        if (factor := stepper.unscaling) is not None and found:
            self._parameters.multiply_gradients([self._gradient[n] for n in found], found, factor)

    def _complete(self, examples: float | None = None) -> None:
        """Those optimizers that have been asked are all that will be: the step is taken."""
        try:
            self._watch.check()
            self._note_late_changes()
            given = tuple(n in self._given for n in range(len(self._parameters.all)))
            with self._failing():
                if self._skip:
                    self._learner.answer_nothing(skip=True)
                else:
                    self._place.hand_in()
                    rate = float(self.optimizer.param_groups[0]["lr"])
                    weight = float(self.examples if examples is None else examples)
                    self._learner.answer(weight, rate, Vote(given, changed=self._fingerprint))
                self._carry_over(self._late)
        finally:
            self._given, self._asked, self._skip = set(), set(), False
            self._late, self._fingerprint = None, 0
        self._show_home()

    def _update(self, gradient: Tensor, own: bool, given: Sequence[bool]) -> bool:
        """The strategy's local update, under the row's lock: the user's optimizers on the row as it is now. True: and
        the snapshot is as the row is."""
        place = self._place
        place.begin_update()
        if self._late is not None:
            self._late.add_to(place.row)
            self._late = None
        if own:
            there = self._gradient
        else:  # a copy, for the optimizer's hooks may change it, and the others read the mean too
            place.spare.copy_(pinned(gradient))
            there = self._spare
        lent = [view if has else None for view, has in zip(there, given, strict=True)]
        try:
            with self._parameters.updated(self._row, lent):
                for number, stepper in enumerate(self._steppers):
                    if number in self._asked or any(given[n] for n in self._parameters.numbers(stepper.parameters)):
                        stepper.step()
            return place.end_update()
        except BaseException:
            place.snapshot.copy_(self._learner.me.x)
            raise
        finally:
            self._parameters.show(self._home)

    # What others do to the module -------------------------------------------------------------------------------------

    def before_forward(self, inputs: object) -> None:
        """A module is about to be called; not in `consensus`, and not when nothing can be done any more."""
        if not self._open or self._evaluating or self._failure is not None:
            return
        if self._asked:  # a forward wants the parameters that the step leads to
            self._complete()
        if torch.is_grad_enabled() and self.wants_to_begin:
            refuse_reducer(self.rank)
            self.begin_step()
            if self._checking_inputs:
                self._check_inputs(inputs)

    def _check_inputs(self, inputs: object) -> None:
        """Are this learner's first minibatches those of another?"""
        seen = self._learner.inputs
        if seen.wanted and (found := fingerprint(inputs)) is not None:
            seen.note(found)
        self._say_same_inputs()

    def _say_same_inputs(self) -> None:
        same = self._learner.inputs.same_as()
        if same is not None:
            log.warning(
                "rank %d trains on the same minibatches as rank %d (its first %d inputs are equal): the learners do "
                "the same work. Share the examples out, by DataLoader(dataset, batch_sampler=session.sampler(dataset, "
                "batch_size)), or draw them by a seed that differs from rank to rank.", self.rank, same, FIRST,
            )  # fmt: skip
        self._checking_inputs = same is None and not self._learner.inputs.settled

    def _show_home(self) -> None:
        self._watch.show(self._place.snapshot, self._home)

    def _take_over(self) -> None:
        """What was changed by hand since the module was shown its parameters is in the row from now on."""
        self._watch.check()
        changes = self._watch.changes()
        if changes is not None:
            self._fingerprint = changes.fingerprint
            self._carry_over(changes)

    def _carry_over(self, changes: Changes | None) -> None:
        if changes is not None:
            self._learner.change_row(changes.add_to)

    def _note_late_changes(self) -> None:
        """What was changed since the step began (renormalised in the forward, say) goes into the row with the update,
        for the strategy may overwrite it before."""
        self._late = self._watch.changes()
        if self._late is not None:
            self._fingerprint ^= self._late.fingerprint

    def _end_if_asked(self) -> None:
        """SIGTERM ends the process here, between two steps, unless the loop looks for itself."""
        if termination.asked() and not self._looks:
            self._end()

    def _end(self) -> None:
        log.warning("rank %d was sent SIGTERM and ends, after %d steps.", self.rank, self.steps)
        self._release(self._parameters.flatten(), ENDED)
        raise SystemExit(termination.EXIT_STATUS)

    @property
    def stopping(self) -> bool:
        """Has this process been sent SIGTERM? A loop that reads this ends by itself: it leaves its loop, and comes to
        `close()` as the others do, who have been sent it too. A loop that never does is ended at the end of a step, by
        SystemExit(143)."""
        self._looks = True
        return termination.asked()

    # Meetings ---------------------------------------------------------------------------------------------------------

    def meet(self) -> None:
        """Wait for all learners, and nothing else. The strategy ends what it has under way: a block of bsp or bmuf, for
        example, is averaged early."""
        self._meet("meet()", lambda: None)

    @contextmanager
    def consensus(self) -> Iterator[nn.Module]:
        """The module holds the model to evaluate, on every learner, until the end of the `with`.

        Parameters are the mean of all learners' rows, or the centre where the strategy has one. Buffers of floating
        point are the mean over living learners, others are those of the lowest living rank.
        """
        parameters, buffers = self._consensus("consensus()")
        with self._holding(parameters, buffers):
            yield self.module

    def state_dict(self) -> dict[str, Any]:
        """What this learner needs to go on from here: to be saved by each, beside `optimizer.state_dict()`.

        `model` is the consensus model, as `module.state_dict()` would be inside `consensus()`, the same on all
        learners. The rest is this learner's own.
        """
        state: dict[str, Any] = {}
        parameters, buffers = self._consensus("state_dict()", lambda: state.update(self._learner.state()))
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
        self._meet("load_state_dict()", lambda: self._learner.load(dict(state)))
        self._buffers.unpack(state["buffers"])

    def close(self) -> None:
        """Meet for the last time. The module is left with the model to evaluate, and is the user's again. Safe to call
        twice."""
        if not self._open:
            return
        if self._failure is None:
            try:
                parameters, buffers = self._consensus("close()")
            except UserError:
                self.abandon()
                raise
            self._release(parameters)
            self._buffers.unpack(buffers)
        else:
            self._release(self._place.snapshot.clone(), FAILED)

    def abandon(self) -> None:
        """Leave at once, waiting for nobody; the module keeps this learner's own parameters. What a `with` does when an
        exception ends it."""
        if self._open:
            self._release(self._parameters.flatten(), FAILED)

    # What happened ----------------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Neither closed nor abandoned."""
        return self._open

    @property
    def steps(self) -> int:
        """Steps of this learner, empty ones included."""
        return self._learner.steps

    @property
    def living(self) -> tuple[int, ...]:
        """Ranks that live, as far as anybody has noticed."""
        return self._learner.living

    def summary(self) -> dict[str, Any]:
        """Steps by rank, exchanges begun (by rank, with rank), and staleness (mean, largest), so far, of all learners;
        and in words where this one's row is."""
        counts = self._learner.counts
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

    def _meet(self, kind: str, read: Callable[[], None]) -> None:
        self._check_open("a meeting")
        if self._evaluating:
            raise UserError("inside session.consensus() learners cannot meet again: end the `with` first.")
        if self._asked:
            self._complete()
        self._watch.check_all()
        self._take_over()
        self._fingerprint = 0
        with self._failing():
            self._learner.meet(kind, read, self._buffers.pack())
        self._handed_in_by = ""
        self._show_home()
        if self._checking_inputs:
            self._say_same_inputs()

    def _consensus(self, kind: str, also: Callable[[], None] | None = None) -> tuple[Tensor, Tensor]:
        """(parameters (P,), packed buffers) of the model to evaluate, after a meeting."""
        parameters, buffers = torch.empty(self._parameters.count), self._buffers.pack()

        def read() -> None:
            self._learner.consensus_into(parameters)
            buffers.copy_(self._buffers.mean(self._learner.shown_by_all()))
            if also is not None:
                also()

        self._meet(kind, read)
        return parameters, buffers

    @contextmanager
    def _holding(self, parameters: Tensor, buffers: Tensor) -> Iterator[None]:
        own = self._buffers.pack()
        self._evaluating = True
        there = self._there(parameters)
        self._watch.show(there, self._parameters.views(there))
        self._buffers.unpack(buffers)
        try:
            yield
        finally:
            self._evaluating = False
            if self._open:
                self._watch.drop()
                self._show_home()
                self._buffers.unpack(own)

    def _there(self, vector: Tensor) -> Tensor:
        """Where the module is."""
        return vector if self._device is None else vector.to(self._device)

    def _release(self, parameters: Tensor, manner: int = CLOSED) -> None:
        """Give the module back, with these parameters (P,) in memory of its own, and the optimizers. Nothing of the
        arena is held any more."""
        self._open = False
        termination.ignore()
        for hook in self._hooks:
            hook.remove()
        for stepper in self._steppers:
            stepper.remove()
        self._parameters.show(self._parameters.views(self._there(parameters)))
        self._learner.leave(manner)
        self._hooks, self._steppers, self._late = [], [], None
        del self._place, self._home, self._row, self._gradient, self._spare, self._watch

    def _check_open(self, what: str) -> None:
        if self._failure is not None:
            if isinstance(self._failure, LearnerDied | TimeoutError | UserError):
                raise self._failure
            raise UserError(
                f"rank {self.rank}: the session ended with {type(self._failure).__name__}: {self._failure}"
            ) from self._failure
        if not self._open:
            raise UserError(f"session.{what} after session.close(): attach again to go on.")

    def _check_step(self, by: str) -> None:
        self._check_open("step")
        if self._evaluating:
            raise UserError(f"{by} inside session.consensus(): train outside, it holds the model to evaluate.")
        if self._handed_in_by not in ("", by) and not self._learner.begun:
            raise UserError(
                f"rank {self.rank}: {self._handed_in_by} has taken this step, and now {by} would take it again: both "
                "are the session's step, so leave one of them out."
            )

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """What a strategy cannot go on after, it cannot go on after later either."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, LearnerDied) and termination.asked() and not self._looks:
                self._end()  # the others were sent SIGTERM too
            self._failure = error
            self._learner.leave(FAILED)  # those who wait for this learner need not
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
