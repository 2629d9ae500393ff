"""The steps of a session: from the gradients that the user's loop has computed to the update of the learner's row.

The module's parameters show the snapshot at which the next gradient is to be taken. A step hands the gradient to the
strategy, which in its own time lets the user's optimizers update the public row by it, or by a mean of all learners'
gradients.

Legend: P trainable parameters, T tensors they are in.
"""

import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundelay.attached.alarms import GradientAlarms, note_closed, note_open
from roundelay.attached.forward import ForwardHooks, Uses, fingerprint, never_compiled, other_session
from roundelay.attached.hyperparameters import UsersOptimizers, check_options, first_rate, settings_of
from roundelay.attached.parameters import module_facts, parameters_of, refuse_reducer, refuse_wrapped
from roundelay.attached.stepping import OtherOptimizers, Stepper, check_optimizers
from roundelay.attached.updating import Away, Here, PointShown, RowUpdates, VectorPlace
from roundelay.attached.watch import Changes, Watch, some
from roundelay.core.errors import UserError
from roundelay.core.state import Gradient
from roundelay.runtime.attached.entering import AttachTerms
from roundelay.runtime.attached.groups import Group
from roundelay.runtime.attached.learner import AttachedLearner
from roundelay.runtime.attached.membership import CLOSED, ENDED, FAILED
from roundelay.runtime.attached.replicas import Replicas
from roundelay.runtime.attached.shares import FIRST
from roundelay.runtime.attached.votes import Vote
from roundelay.runtime.base import LearnerDied
from roundelay.runtime.launch import termination
from roundelay.runtime.launch.world import World

log = logging.getLogger("roundelay")


class Steps:
    """The steps of one learner, over a module and its optimizers.

    Args:
        device: device of the module; None: the memory of the host.
        shown: the facts shown to the other learners at the start, (n,) uint8.
        group: the processes of this learner, where it has several.
    """

    examples: float = 1
    """Weight of gradients; see `Session`."""
    completed = 0
    """Steps that the loop has asked for, skipped ones included."""
    _ends = False  # agreed on in the last step by the processes of this learner

    def __init__(
        self,
        module: nn.Module,
        optimizers: Sequence[Optimizer],
        device: torch.device | None,
        world: World,
        terms: AttachTerms,
        shown: Tensor,
        group: Group | None = None,
    ) -> None:
        refuse_wrapped(module, world.rank)
        if other_session(module):
            raise UserError(
                f"rank {world.rank}: the module, or a part of it, is attached already. Give all optimizers of a module "
                "to one roundelay.attach(module, [first, second]), or close the other session first."
            )
        self._device, self.rank, self._group = device, world.rank, group
        self.parameters = parameters = parameters_of(module, world.rank, group)
        idle = check_optimizers(module, optimizers, world.rank)
        if idle:
            log.warning("rank %d: parameters %s are in no optimizer that is attached.", world.rank, some(idle))
        check_options(terms, optimizers, world.rank)
        settings, tensors = settings_of(optimizers, module), len(parameters.all)
        terms = dataclasses.replace(terms, module=module_facts(module), settings=settings, tensors=tensors)
        begun, stepped = parameters.flatten(), (self._update, UsersOptimizers(optimizers), device)
        row = begun[:1] if self._follows else begun
        self.learner = learner = AttachedLearner(world, terms, row, shown, *stepped)
        learner.group = group
        self._place = place = self._place_of(begun)
        del begun, row
        vectors = (place.snapshot, place.row, place.gradient, place.spare)
        self._home, _, self._gradient, _ = views = tuple(map(parameters.views, vectors))
        alone, follows = learner.learners == 1, self._follows
        followed = alone and place.together and waiting_costs(place.snapshot) and not follows
        self._watch = Watch(module, parameters, self.rank, place.snapshot, alone, followed, not follows)
        self.show_home()
        self.open, self.evaluating = True, False
        self.failure: BaseException | None = None
        self._given: set[int] = set()  # parameters by number whose gradients the step under way has
        self._all_given = (True,) * len(parameters.all)
        self._asked: set[int] = set()  # optimizers by number that have been asked for it
        self._taken_from: dict[int, tuple[Sequence[nn.Parameter], Sequence[int]]] = {}  # see _numbers_of
        self._waiting: dict[int, Tensor] | None = None  # gradients by number, not asked for yet
        self._skip, self._handed_in_by, self._fingerprint = False, "", 0
        self._late: Changes | None = None  # made since this step began
        self._stepped, self._said_late, self._moved, self._kind = False, False, False, type(module).__name__
        self._steppers = [Stepper(one, number, self._ask, self.rank) for number, one in enumerate(optimizers)]
        self._updates = RowUpdates(parameters, place, self._steppers, views)
        self._hooks = ForwardHooks(module, self, sharded=group is not None and not group.whole)
        self._uses = Uses(self._complete)
        self._others = OtherOptimizers(self._steppers, parameters, self.rank)
        self.loop_looks, self._checking_inputs = False, learner.learners > 1
        self._inputs_to_come = False  # of the step that has begun, to be compared with the others'
        self._by_call = False  # has a compiled function begun it?
        self._checking_settings = learner.learners > 1
        self._alarms = GradientAlarms(parameters.names, self.rank, learner.learners, self._kind)
        self._key = object()
        if learner.learners > 1:
            note_open(self._key, self.rank)
        termination.listen()

    def _place_of(self, begun: Tensor) -> VectorPlace:
        """Return the place of vectors; `begun` (P,) are the parameters that the module begins with."""
        if self._follows:
            return PointShown(self._there(begun))
        kind = Away if self.learner.where == "on the host, the module elsewhere" else Here
        return kind(self.learner.me, self.learner.me.gradient_buffer)

    # One step ---------------------------------------------------------------------------------------------------------

    @never_compiled
    def step(self, examples: float | None = None) -> None:
        """Take the step of all optimizers; see `Session.step`."""
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

    @never_compiled
    def begin_step(self) -> None:
        """Make the parameters show the point where the next gradient is to be taken; see `Session.begin_step`."""
        self.check_open("begin_step")
        self._begin()

    def _begin(self) -> None:
        if self._asked:
            self._complete()
        learner = self.learner
        if learner.begun:
            return
        before = learner.me.snapshot_version
        self._take_over()
        shown = learner.me.snapshot_version
        try:
            if self._follows:  # before its own, which does not wait
                self._be_as_first(self._place.snapshot)
            point = learner.begin_step()
            point = self._place.snapshot if self._follows else self._be_as_first(point)
        except BaseException as error:
            self._failed(error)
            raise
        begun = learner.me.snapshot_version
        self._moved, self._handed_in_by = begun != shown, ""
        if point.data_ptr() == self._home[0].data_ptr():
            if begun != before or self._follows or not self._watch.showed(self._place.snapshot):
                self.show_home()
        else:
            self._watch.show(point, self.parameters.views(point))
        if not self._inputs_to_come:
            self._hooks.rest()

    def _begin_late(self) -> None:
        """Begin a step whose gradients have been computed already, if no forward has begun it."""
        if self.learner.begun:
            return
        self._moved = False
        self._begin()
        if self._moved and not self._said_late:
            self._said_late = True
            log.warning(
                f"rank {self.rank}: no call of {self._kind} or of a part of it began this step, so its gradients are "
                f"at parameters from before the exchange that {self.learner.strategy.name} begins a step with. Call "
                "session.begin_step() where the step begins, if parameters are used without calling modules "
                "(layer.forward(x), torch.func.functional_call)."
            )

    @property
    def wants_to_begin(self) -> bool:
        """True if the next forward that records gradients begins a step."""
        return self.open and not (self.evaluating or self.forked or self.learner.begun) and self.failure is None

    @cached_property
    def replicas(self) -> Replicas | None:
        """The processes of this learner, where each has the whole module."""
        return self._group if isinstance(self._group, Replicas) else None

    @cached_property
    def _follows(self) -> bool:
        return isinstance(self._group, Replicas) and self._group.follows

    @property
    def forked(self) -> bool:
        """True in a process forked from the learner's, where nothing may act on the session."""
        return self.open and self.failure is None and self.learner.left

    def _ask(self, number: int, closure: Callable[[], Any] | None) -> Any:
        """Answer a call of `step(closure)` of optimizer `number`: take its gradients, and complete the step when all
        optimizers have been asked. Return the closure's loss."""
        self._check_step("optimizer.step()")
        if number in self._asked:
            self._complete()
        loss = None
        if closure is not None:
            self._begin()
            with torch.enable_grad():
                loss = closure()
        self._take(number)
        if len(self._asked) == len(self._steppers):
            self._complete()
            self._handed_in_by = "optimizer.step()"
            if self.asked_to_end:
                self._end_if_asked()
        else:
            self._uses.watch(self._steppers[number].parameters)
        return loss

    def _take(self, number: int) -> None:
        """Take the gradients of optimizer `number` for the step under way."""
        stepper = self._steppers[number]
        if not self._asked:
            self._begin_late()
            self._hooks.wake()
        found, (scaled, factor) = self.parameters.gradients(self._numbers_of(number)), stepper.scaling
        self._asked.add(number)
        self._given.update(found)
        self._skip |= scaled and stepper.overflowed
        if (where := self._alarms.not_finite(found, scaled, scaled and factor is None)) and not self._skip:
            self._skip = True
            self._alarms.skip(where)
        if len(self._steppers) == 1 and factor is None and self.parameters.alike and self._place.together:
            self._waiting = found
            return
        if self._follows:
            return
        for n, gradient in found.items():
            self._gradient[n].copy_(gradient)
        if factor is not None and found:
            self.parameters.multiply_gradients([self._gradient[n] for n in found], [*found], factor)

    def _numbers_of(self, number: int) -> Sequence[int]:
        """Return the numbers of the parameters that optimizer `number` has now. Where these are the same objects as in
        the last step, the numbers are kept."""
        now = self._steppers[number].parameters
        before, numbers = self._taken_from.get(number, ((), ()))
        if len(now) != len(before) or not all(map(is_, now, before)):
            numbers = self.parameters.numbers(now)
            self._taken_from[number] = now, numbers
        return numbers

    def _complete(self, examples: float | None = None) -> None:
        """Complete the step: hand the gradients of the optimizers that were asked to the strategy."""
        if len(self._steppers) > 1:
            self._uses.forget()
        number_given = len(self._given)
        try:
            self._note_late_changes()
            given = self._all_given
            if len(self._given) < len(given):
                given = tuple(n in self._given for n in range(len(given)))
            lay_out = None if self._waiting is None else self._lay_out
            if lay_out is None and not self._follows:
                self._clear_missing()
            try:
                weight = self._agree(float(self.examples if examples is None else examples))
                if self._skip or self._follows:
                    self.learner.answer_nothing(skip=self._skip)
                else:
                    if not self._place.together:
                        self._place.hand_in()
                    rate = self._steppers[0].optimizer.param_groups[0].get("lr")
                    if type(rate) is not float:
                        rate = first_rate(self._steppers[0].optimizer)
                    self.learner.answer(weight, rate, Vote(given, changed=self._fingerprint), lay_out)
                if self._late is not None:
                    self._carry_over(self._late)
                self._be_as_first(self._place.snapshot)
            except BaseException as error:
                self._failed(error)
                raise
            if self._waiting is not None and not (self._skip or self._follows):
                self._lay_out()  # the strategy keeps it for later
        finally:
            self._given, self._asked, self._skip, self._waiting = set(), set(), False, None
            self._inputs_to_come = False
            self._late, self._fingerprint = None, 0
        self._stepped = True
        self.completed += 1
        self._alarms.stepped(number_given)
        self.show_home()

    def _agree(self, examples: float) -> float:
        """Agree on the step with the learner's other processes, if it has any; return the weight of its gradient."""
        if self._group is None:
            return examples
        if self.replicas is not None and self.completed < FIRST:
            found = self.parameters.gradients(range(len(self.parameters.all)))
            self.replicas.check_averaged(found.values(), self.rank)
        self._skip, weight, self._ends = self._group.agree(self._skip, examples, termination.request.asked)
        return weight

    def _be_as_first(self, point: Tensor) -> Tensor:
        """Give the other processes of this learner the first one's `point` (P,), if each has the whole module; return
        `point`."""
        if (replicas := self.replicas) is not None:
            replicas.share(point, self.learner.me.snapshot_version)
        return point

    def _lay_out(self) -> Tensor:
        """Copy the gradient that waits in `.grad` into the learner's gradient vector (P,); return that vector."""
        if self._waiting is None:
            raise RuntimeError("a gradient was asked for after the step that it was for")
        for number, gradient in self._waiting.items():
            self._gradient[number].copy_(gradient)
        self._clear_missing()
        self._waiting = None
        return self._place.gradient

    def _clear_missing(self) -> None:
        for number, view in enumerate(self._gradient):
            if number not in self._given:
                view.zero_()

    def _update(self, gradient: Gradient, own: bool, given: Sequence[bool]) -> bool:
        """Update the row by `gradient`, under its lock. Return True if the snapshot equals the row afterwards."""
        late, self._late = self._late, None
        factor = self.learner.rate_factor(gradient)
        for stepper in self._steppers:
            stepper.factor = factor
        alike = late is None and self.learner.me.snapshot_is_row and self._watch.showed(self._place.snapshot)
        if alike and (own or self.learner.asks_for_mean):
            mean = None if own else gradient.vector
            if self._updates.in_place(self._asked, mean, given):
                self._waiting = None
                return True
        return self._updates.on_row(gradient.vector, own, given, late, self._asked)

    # Others' changes of the module ------------------------------------------------------------------------------------

    def before_call(self) -> None:
        """Prepare for a call of a compiled function, which may call the module; see `before_forward`."""
        self.before_forward(None)

    @never_compiled
    def before_forward(self, inputs: object) -> None:
        """Complete a step that is under way and, where gradients are recorded, begin the next, before a forward with
        `inputs` (None: not known). Do nothing in `consensus`, and once the session has failed or been left."""
        learner = self.learner
        if not self.open or self.evaluating or self.failure is not None or learner.left:
            return
        if self._asked:  # a forward wants the parameters that the step leads to
            self._complete()
        if not torch.is_grad_enabled():
            return
        if not learner.begun:
            if getattr(nn.parallel.DistributedDataParallel, "_active_ddp_module", None) is not None:
                refuse_reducer(self.rank, None if self.replicas is None else self.replicas.wrapper)
            self._inputs_to_come, self._by_call = self._checking_inputs, inputs is None
            self._begin()
            if self._checking_settings:
                self._check_settings()
        elif inputs is not None or self._by_call:  # a part that is compiled need not look
            me, synchronous = learner.me, learner.strategy.traits.synchronous
            self._watch.look(me.x if synchronous and me.snapshot_is_row and not self._follows else None)
        if self._inputs_to_come and inputs is not None:
            self._inputs_to_come = False
            self._check_inputs(inputs)
            self._hooks.rest()

    def _check_settings(self) -> None:
        """Compare this learner's optimizer settings with the lowest rank's, once, and warn where they differ."""
        if self._checking_settings:
            self._checking_settings = not self.learner.settings.say_differences(self.learner.living)

    def _check_inputs(self, inputs: object) -> None:
        """Compare this learner's first minibatches with those of the others, and warn where they are equal."""
        seen = self.learner.inputs
        if seen.wanted and (found := fingerprint(inputs)) is not None:
            seen.note(found)
        self._say_same_inputs()

    def _say_same_inputs(self) -> None:
        settled = self.learner.inputs.settled  # asked first: another's last input may come between the two
        same = self.learner.inputs.same_as()
        if same is not None:
            log.warning(
                f"rank {self.rank} trains on the same minibatches as rank {same} (the first {FIRST} inputs of "
                f"{self._kind} are equal): the learners do the same work, a gain of 1. Share the examples out, by "
                "DataLoader(dataset, batch_sampler=session.sampler(dataset, batch_size)), or draw them by a seed that "
                "differs from rank to rank."
            )
        self._checking_inputs = same is None and not settled

    def show_home(self) -> None:
        """Make the module look at the snapshot."""
        self._watch.show(self._place.snapshot, self._home)

    def _take_over(self) -> None:
        """Put into the row the changes made by hand since the module was shown its parameters."""
        changes = self._watch.changes()
        if changes is not None:
            self._fingerprint = changes.fingerprint
            self._carry_over(changes)
        self._follow()

    def _follow(self) -> None:
        """Copy the snapshot into the row, where only the module can have changed it and the watch would not notice."""
        if self._watch.trusts and self.learner.me.snapshot_is_row:
            self._place.row.copy_(self._place.snapshot)

    def _carry_over(self, changes: Changes | None) -> None:
        if changes is not None and not self._follows:
            self.learner.change_row(changes.add_to)

    def _note_late_changes(self) -> None:
        """Note changes made to parameters by hand since the step began (renormalised in the forward, say): they go into
        the row with the update, for the strategy may overwrite them before."""
        self._late = self._watch.changes()
        if self._late is not None:
            self._fingerprint ^= self._late.fingerprint
        elif (
            len(self._steppers) > 1 or not self.parameters.alike
        ):  # others step the snapshot itself (RowUpdates.in_place)
            self._follow()

    # Between steps, and the end ---------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Prepare for a meeting: complete a step under way, and take changes made by hand over into the row."""
        self._hooks.wake()
        if self._asked:
            self._complete()
        self._watch.check_all()
        self._take_over()
        named = zip(self.parameters.names, self.parameters.all, strict=True)
        self.learner.settings.frozen = {name: not p.requires_grad for name, p in named}
        self._fingerprint = 0
        self._say_no_step()

    def _say_no_step(self) -> None:
        if not self._stepped and self.learner.begun and any(p.grad is not None for p in self.parameters.all):
            self._stepped = True  # said once
            log.warning(
                f"rank {self.rank} has computed gradients of {self._kind}, and taken no step since roundelay.attach: "
                "optimizer.step() of only an attached optimizer trains with the others. An update written by hand, or "
                "by another optimizer, is heard of at meetings only."
            )

    def met(self) -> None:
        """Make the module look at the learner's own parameters again, after a meeting."""
        self._handed_in_by = ""
        self._be_as_first(self._place.snapshot)
        self.show_home()
        self._check_settings()
        if self._checking_inputs:
            self._say_same_inputs()

    @contextmanager
    def showing(self, parameters: Tensor) -> Iterator[None]:
        """Make the module show `parameters` (P,), the model to evaluate, until the end of the `with`."""
        there = self._there(parameters)
        self.evaluating = True
        self._watch.show(there, self.parameters.views(there))
        try:
            yield
        finally:
            self.evaluating = False
            if self.open:
                self._watch.drop()
                self.show_home()

    def _end_if_asked(self) -> None:
        """End the process between two steps, if it was sent SIGTERM and the loop does not read `stopping`."""
        if self.asked_to_end and not self.loop_looks:
            self._end()

    @property
    def asked_to_end(self) -> bool:
        """True once the process was sent SIGTERM; of a learner of several processes, once any of them was before their
        last step."""
        return termination.request.asked if self._group is None else self._ends

    def _end(self) -> None:
        log.warning("rank %d was sent SIGTERM and ends, after %d steps.", self.rank, self.learner.steps)
        self.release(self.parameters.flatten(), ENDED)
        raise SystemExit(termination.EXIT_STATUS)

    def release(self, parameters: Tensor | None, manner: int = CLOSED) -> None:
        """Give the module back to the user, with `parameters` (P,), or a copy of the snapshot if None, and the
        optimizers. Hold nothing of the arena any more. Tell others in which `manner` of membership.py this learner
        left."""
        self.open = False
        note_closed(self._key)
        self._alarms.say_skipped()
        termination.ignore()
        self._hooks.remove()
        self._uses.forget()
        self._others.remove()
        for stepper in self._steppers:
            stepper.remove()
        vector = self._place.snapshot.clone() if parameters is None else self._there(parameters)
        self.parameters.show(self.parameters.views(vector))
        self.learner.leave(manner)
        self._steppers, self._late = [], None
        del self._place, self._home, self._gradient, self._watch, self._updates, self._others

    def _there(self, vector: Tensor) -> Tensor:
        """Return `vector` on the module's device."""
        return vector if self._device is None else vector.to(self._device)

    def check_open(self, what: str) -> None:
        if self.failure is None and self.open and not self.learner.left:
            return
        if self.failure is not None:
            if isinstance(self.failure, LearnerDied | TimeoutError | UserError):
                raise self.failure
            raise UserError(
                f"rank {self.rank}: the session ended with {type(self.failure).__name__}: {self.failure}"
            ) from self.failure
        if not self.open:
            raise UserError(f"session.{what} after session.close(): attach again to go on.")
        raise UserError(
            f"rank {self.rank}: process {os.getpid()} was forked from the learner and is none: it may look at the "
            "model, not train it or meet the others. Train in the process that has attached."
        )

    def _check_step(self, by: str) -> None:
        self.check_open("step")
        if self.evaluating:
            raise UserError(f"{by} inside session.consensus(): train outside, it holds the model to evaluate.")
        if self._handed_in_by not in ("", by) and not self.learner.begun:
            raise UserError(
                f"rank {self.rank}: {self._handed_in_by} has taken this step, and now {by} would take it again: both "
                "are the session's step, so leave one of them out."
            )

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Remember an error raised in the `with`: the strategy cannot go on after it, now or later."""
        try:
            yield
        except BaseException as error:
            self._failed(error)
            raise

    def _failed(self, error: BaseException) -> None:
        together = isinstance(error, LearnerDied) or self._group is not None
        if together and termination.request.asked and not self.loop_looks:
            self._end()  # the others were sent SIGTERM too
        self.failure = error
        if self.replicas is not None:
            self.replicas.fail(error)
        note_closed(self._key)
        self.learner.leave(FAILED)  # those who wait for this learner need not


def waiting_costs(vector: Tensor) -> bool:
    """Return True if reading values of `vector` has to wait for a device."""
    return vector.device.type != "cpu"
