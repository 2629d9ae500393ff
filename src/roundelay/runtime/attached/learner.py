"""A learner in a process that belongs to somebody else, whose training loop asks for what a runtime otherwise drives.

The strategy's coroutine is the same. It runs until it asks for a gradient; then the loop goes on, and the next call
answers. A Draw is answered when the loop begins a minibatch, not before: so a segment can end after any of them.

There is no parent. Learners find each other at a rendezvous (local_rendezvous.py), notice deaths by themselves
(membership.py), and end a segment together: `meet`. Between two meetings each takes as many steps as it likes. Where a
strategy takes them together, those who come to a meeting early take part with empty minibatches until the last has
come: an empty minibatch weighs next to nothing (1e-30) in means, and its own step leaves the row and the optimizer
alone.

Legend: P parameters, L learners.
"""

import itertools
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from roundelay.algorithms.local_update import LocalOptimizer
from roundelay.core.effects import Draw, Effect, Grad, GradMean
from roundelay.core.errors import UserError
from roundelay.core.flat import chunks
from roundelay.core.state import Gradient, Minibatch
from roundelay.runtime.attached import passes, votes
from roundelay.runtime.attached.external_driver import ByHand, Performer
from roundelay.runtime.attached.inputs import Inputs, InputTables
from roundelay.runtime.attached.meetings import MeetingTables
from roundelay.runtime.attached.membership import CLOSED, Attendance, Membership
from roundelay.runtime.attached.passes import PassTables
from roundelay.runtime.attached.votes import Vote, VoteTables
from roundelay.runtime.base import Cluster, Counts
from roundelay.runtime.launch.local_rendezvous import LocalRendezvous
from roundelay.runtime.launch.world import World
from roundelay.runtime.learner_state import Row
from roundelay.runtime.procs.coordination.devices import reach_each_other, visible
from roundelay.runtime.procs.coordination.means import MemberLost
from roundelay.runtime.procs.memory.arena import Layout, create_file
from roundelay.runtime.procs.memory.device_rows import DeviceRows
from roundelay.runtime.procs.memory.patience import Patience
from roundelay.runtime.procs.memory.publish import prepare_publishing, publish
from roundelay.runtime.procs.memory.row_host import Handles, RowHost, RowRequest, RowsNotHosted, mapped
from roundelay.runtime.procs.memory.views.work_queue import NONE
from roundelay.runtime.procs.worker import WorkerSpec
from roundelay.strategies.base import Strategy

log = logging.getLogger("roundelay")

EMPTY_WEIGHT = 1e-30
"""What an empty minibatch weighs: where all are empty, a mean is still one."""

MANY = 100
"""Empty minibatches, one after the other, after which a learner says what it waits for."""

NEEDED = "while others needed it to go on"

_sessions = itertools.count()
"""Learners attach in the same order everywhere; each time they meet under the next number."""


Update = Callable[[Tensor, bool, Sequence[bool]], bool]


@dataclass(frozen=True)
class AttachTerms:
    """What all learners must agree on."""

    strategy: Strategy
    seed: int
    patience_seconds: float
    signature: str = ""  # of the module: names, shapes and types
    frozen: int = 0  # a fingerprint of the parameters that are not trained
    tensors: int = 0  # trainable parameters of the module are in so many


@dataclass(frozen=True)
class _Late(Minibatch):
    """A minibatch whose size is known only when its gradient is there."""

    size: list[float] = field(default_factory=lambda: [EMPTY_WEIGHT])

    @property
    def frames(self) -> float:  # type: ignore[override]  # a weight: fractions are welcome
        return self.size[0]


class AttachedLearner:
    """One learner, driven from outside: `begin_step`, a gradient at the point it returns, `answer`; now and then
    `meet`.

    Args:
        initial: where training begins, (P,) float32; rank 0's counts.
        shown: what is shown to the others at the start, (n,) uint8; as many on each learner.
        update: `update(gradient, own, given)` changes the row by a gradient (P,), which is `own` if it is the one given
            to `answer` and not a mean of several; `given` says of which parameters it is one. True: and the snapshot is
            as the row is.
        optimizer: does what `update` says, and answers for its momentum.
        device: of the module, where snapshots are to be; None: in the memory of the host.

    Raises:
        UserError: the learners do not find each other or do not agree; names the rank.
    """

    def __init__(
        self,
        world: World,
        terms: AttachTerms,
        initial: Tensor,
        shown: Tensor,
        update: Update,
        optimizer: LocalOptimizer,
        device: torch.device | None = None,
    ) -> None:
        prepare_publishing()
        terms.strategy.check(world.learners)
        self.rank, self.learners, self.strategy, self._terms = world.rank, world.learners, terms.strategy, terms
        self._update: Update | None = update
        self._optimizer = optimizer
        self._examples, self._device, self._nothing = 0.0, device, Vote((False,) * terms.tensors)
        self._vote, self._gone = self._nothing, False
        self._role: Coroutine[Effect[Any], Any, None] | None = None
        self._pending: Draw | Grad | GradMean | None = None
        self._segment = 1
        self._membership: Membership | None = None
        self._patience = Patience(world.rank, terms.patience_seconds, self._look)
        self._enter(world, initial, shown)

    # The start --------------------------------------------------------------------------------------------------------

    def _enter(self, world: World, initial: Tensor, shown: Tensor) -> None:
        number, mine = next(_sessions), self._facts(initial, shown)
        layout, everyone = self._layout(mine), range(self.learners)
        with LocalRendezvous(world, number, self._terms.patience_seconds) as rendezvous:
            facts, kept = dict[str, Any](), None
            if self.rank == 0:
                kept = self._keep(layout, rendezvous.collect())
                arena_file = create_file(layout)
            else:
                facts, arena_file = rendezvous.enter({**mine, **self._whereabouts})
            try:
                if self.rank:
                    self._check(mine, facts)
                handles = facts.get("rows") if kept is None else kept[0]
                self._performer = performer = self._open(layout, arena_file, self._on_devices(layout, handles))
                self.me, self.arena = performer.me, performer.arena
                self.me.update_row = self._update_row
                self._membership = Membership(
                    self.arena, self.rank, self._patience, lambda r: passes.give_back(self.arena, r)
                )
                self._membership.enter()
                if self.rank == 0:
                    for row in performer.rows:
                        _write(row, initial)
                    self.arena.view(PassTables).held[:] = NONE
                    for rank in everyone:
                        self.arena.shown(rank).copy_(shown)
                    for rank in everyone[1:]:
                        rendezvous.tell(rank, {**mine, "rows": None if kept is None else kept[rank]}, arena_file)
            finally:
                os.close(arena_file)  # it is mapped, and on its way to the others
            self.where = performer.where
            """Place of the rows."""
            # Before the others may train: from then on they write this row too.
            mine_there = self.arena.vector("row", self.rank).cpu()
            same_bits = torch.equal(initial.cpu().view(torch.int32), mine_there.view(torch.int32))
            self.agreed = same_bits and torch.equal(shown, self.arena.shown(self.rank))
            """Did this learner come with rank 0's weights and buffers?"""
            self._membership.gather(self.me.everyone, rendezvous.check)
        performer.move_in()
        self.inputs = Inputs(self.arena.view(InputTables), self.rank)
        performer.begin(self.me.everyone)
        self.me.snapshot()

    def _layout(self, facts: dict[str, Any]) -> Layout:
        return Layout(
            self.learners,
            facts["parameters"],
            self.strategy.memory,
            self.strategy.traits.model == "centre",
            views=(Attendance, PassTables, MeetingTables, VoteTables, InputTables),
            shown_bytes=facts["shown"],
            tensors=self._terms.tensors,
        )

    @property
    def _whereabouts(self) -> dict[str, Any]:
        """What rank 0 must know to share rows on devices."""
        device = None if self._device is None else str(self._device)
        return {"device": device, "visible": visible(), "process": os.getpid()}

    def _keep(self, layout: Layout, others: Sequence[dict[str, Any]]) -> list[Handles] | None:
        """By rank 0: rows on devices that all learners can map, where others write them while a learner computes, and
        all are on devices that reach each other; what each is to be told. None: rows are in the arena.

        Args:
            others: what the other learners have said, by rank from 1.
        """
        if self._device is None or not others or self.strategy.traits.synchronous:
            return None
        every = [self._whereabouts, *others]
        if any(one.get("visible") != visible() or one.get("device") is None for one in every):
            return None
        devices = tuple(str(one["device"]) for one in every)
        if not reach_each_other(torch.device(device) for device in devices):
            return None
        processes = tuple(int(one["process"]) for one in every)
        wanted = RowRequest(_shared(layout), layout.parameters, layout.centre, devices, processes)
        try:
            self._row_host = RowHost(wanted, self._terms.patience_seconds)
        except RowsNotHosted as error:
            log.warning("the GPUs cannot keep the learners' rows (%s): they are in the memory of the host.", error)
            return None
        return self._row_host.handles

    def _on_devices(self, layout: Layout, handles: Handles | None) -> DeviceRows | None:
        if self.learners == 1 and self._device is not None:
            return DeviceRows.allocate(_shared(layout), layout.parameters, layout.centre, [self._device])
        if handles is None:
            return None
        try:
            return mapped(handles, _shared(layout), layout.parameters, layout.centre, self.learners)
        except (OSError, ValueError) as error:
            raise UserError(f"rank {self.rank}: the learners' rows on devices cannot be mapped ({error}).") from error

    def _open(self, layout: Layout, arena_file: int, on_devices: DeviceRows | None) -> Performer:
        task = ByHand(layout.parameters, self._device)
        cluster = Cluster(self.strategy, task, self._optimizer, self.learners, self._terms.seed, shared_minibatch=False)
        path = f"/proc/self/fd/{arena_file}"  # opened anew: locks belong to an open file description
        try:
            return Performer(
                WorkerSpec(self.rank, cluster, layout, path, self._terms.patience_seconds, 0, on_devices=on_devices),
                self._patience,
            )
        except (OSError, ValueError) as error:
            raise UserError(f"rank {self.rank}: rank 0's memory cannot be opened ({error}).") from error

    def _facts(self, initial: Tensor, shown: Tensor) -> dict[str, Any]:
        return {
            "strategy": repr(self.strategy),
            "seed": self._terms.seed,
            "module": self._terms.signature,
            "values of frozen parameters": self._terms.frozen,
            "parameters": initial.numel(),
            "shown": shown.numel(),
        }

    def _check(self, mine: dict[str, Any], theirs: dict[str, Any]) -> None:
        for name, value in mine.items():
            if theirs.get(name) != value:
                raise UserError(
                    f"rank {self.rank} attaches with {name} {value}, rank 0 with {theirs.get(name)}: all learners must "
                    "run the same script with the same options, and attach in the same order."
                )

    # Steps ------------------------------------------------------------------------------------------------------------

    @property
    def living(self) -> tuple[int, ...]:
        """Ranks that live, as far as anybody has noticed; none once this learner has left."""
        self._look()
        return () if self.left else self._members.living

    @property
    def begun(self) -> bool:
        """Is a gradient being waited for?"""
        return isinstance(self._pending, Grad | GradMean)

    @property
    def _members(self) -> Membership:
        assert self._membership is not None
        return self._membership

    def _look(self) -> None:
        if self._membership is not None and not self.left:
            self._membership.look()

    def begin_step(self) -> Tensor:
        """Draw a minibatch, if that is not done; the point (P,) at which its gradient is to be taken.

        Raises:
            LearnerDied: the strategy cannot go on without somebody who died; names the rank.
            TimeoutError: somebody did not come within the patience; says who waits for whom.
        """
        if not self.begun:
            self._start()
            publish(self.arena.queue.rounds, self.rank, self._round + 1)
            self._drive(_Late(0, self._round, 0, 0))
        assert isinstance(self._pending, Grad | GradMean)
        return self._pending.at.vector

    def answer(self, examples: float, learning_rate: float, vote: Vote) -> None:
        """The gradient buffer holds the mean gradient of so many examples at the point of `begin_step`: go on, up to
        the next minibatch.

        Raises:
            LearnerDied, TimeoutError: as for `begin_step`.
            UserError: in a mean of gradients, another learner's parameters were changed by hand and these were not.
        """
        assert isinstance(self._pending, Grad | GradMean)
        assert isinstance(self._pending.batch, _Late)
        self._look()
        self.me.learning_rate = learning_rate
        self._pending.batch.size[0] = self._examples = examples
        self._vote = vote
        votes.cast(self.arena, self.rank, self._round, vote)
        with self._deaths():
            reply = self._performer.perform(self._pending)
        self._drive(reply)
        self.me.snapshot()

    def answer_nothing(self, skip: bool = False) -> None:
        """An empty minibatch. With `skip`, a minibatch whose gradient overflowed: where a mean of gradients is taken,
        all skip the update."""
        self.me.gradient_buffer.zero_()
        self.answer(EMPTY_WEIGHT, self.me.learning_rate, Vote(self._nothing.given, skip))

    @property
    def _round(self) -> int:
        return int(self.arena.queue.rounds[self.rank])

    def _update_row(self, gradient: Gradient) -> bool:
        """The strategy's local update. A gradient that is not this learner's own is the mean that was just taken, or
        one that was begun in the round before."""
        assert self._update is not None
        if gradient.vector is self.me.gradient_buffer:
            return self._examples >= 2 * EMPTY_WEIGHT and self._update(gradient.vector, True, self._vote.given)
        if self._performer.means.total < 2 * EMPTY_WEIGHT * self.learners:
            return False
        late = not isinstance(self._pending, GradMean)
        group = self.me.everyone if late else self._pending.group  # type: ignore[union-attr]
        round_ = self._round - late
        if not round_:  # of the segment before
            return self._update(gradient.vector, False, (True,) * self._terms.tensors)
        together = votes.count(self.arena, group, round_, self._terms.tensors)
        self._check_changes(group, round_)
        return not together.skip and self._update(gradient.vector, False, together.given)

    def _check_changes(self, group: Sequence[int], round_: int) -> None:
        changes = votes.changes(self.arena, group, round_)
        if len(set(changes.values())) > 1:
            changed = [rank for rank, what in changes.items() if what]
            raise UserError(
                f"rank {self.rank}: of learners {list(changes)}, whose gradients {self.strategy.name} averages, "
                f"{changed} changed parameters by hand after the last step (clamped, loaded or initialised them, for "
                "example), and the others did not, or otherwise: they would train different models from here on. Make "
                "the same change on every learner."
            )

    def change_row(self, change: Callable[[Tensor], None]) -> None:
        """Let `change` change the row (P,), as one mutation; not while a strategy's gradient is awaited."""
        with self.me.row.writing():
            change(self.me.x)
        self.me.snapshot()

    def _start(self) -> None:
        if self._role is None:
            self._role = self.strategy.learn(self.me)
            self._drive(None)

    def _drive(self, reply: Any) -> None:
        """Run the coroutine up to its next minibatch or gradient, or to its end."""
        assert self._role is not None
        with self._deaths():
            while True:
                try:
                    effect = self._role.send(reply)
                except StopIteration:
                    self._pending = None
                    self._performer.settle()
                    return
                self._performer.settle()
                if isinstance(effect, Draw | Grad | GradMean):
                    self._pending = effect
                    return
                reply = self._performer.perform(effect)

    # Meetings ---------------------------------------------------------------------------------------------------------

    def meet(self, kind: str, read: Callable[[], None], shown: Tensor | None = None) -> None:
        """End the segment together with all that live, in a meeting of this kind. `read` is called when nobody writes:
        all rows are what they are, and what learners have `shown` is there. It may write what is this learner's own.

        Raises:
            LearnerDied, TimeoutError: as for `begin_step`.
            MeetingsDiffer: somebody has come to a meeting of another kind.
        """
        members, arena, synchronous = self._members, self.arena, self.strategy.traits.synchronous
        members.meetings.begin(kind)
        if shown is not None:
            arena.shown(self.rank).copy_(shown)
        self._finish()
        self._performer.move_out()
        members.meet("all learners to end the segment", synchronous)
        read()
        for table in (arena.sequences.sent_seq, arena.sequences.acked_seq, arena.queue.rounds):
            table[self.rank] = 0
        if self.rank == members.living[0]:
            arena.view(Attendance).present[:] = arena.liveness.alive
        members.meet("all learners to begin a segment", synchronous)
        self._segment += 1
        present = arena.view(Attendance).present
        self._performer.begin(tuple(rank for rank in self.me.everyone if present[rank]))
        self._role = None
        self.me.snapshot()

    def _finish(self) -> None:
        """Run the coroutine to its end, with empty minibatches as long as those it takes steps with go on."""
        self._start()
        if self.begun:  # a minibatch whose gradient never came
            self.answer_nothing()
        rounds, joined, mine = self.arena.queue.rounds, self.arena.view(Attendance).ending, self.rank
        comrades, empty = self._comrades(), 0
        publish(joined, mine, self._segment)
        while True:
            everybody = all(joined[rank] >= self._segment for rank in comrades)  # before the rounds are read
            if rounds[mine] < max(rounds[rank] for rank in comrades):
                self.begin_step()
                self.answer_nothing()
                empty += 1
                if empty == MANY:
                    self._members.meetings.say_long([rank for rank in comrades if joined[rank] < self._segment])
            elif everybody:
                break
            else:
                self._wait_for_news(comrades, int(rounds[mine]))
        self._drive(None)

    def _comrades(self) -> Sequence[int]:
        """Those who take as many steps as this learner in a segment."""
        assert isinstance(self._pending, Draw)
        if self.strategy.traits.synchronous:
            return self.me.everyone
        return self._pending.group or (self.rank,)

    def _wait_for_news(self, comrades: Sequence[int], round_: int) -> None:
        rounds, joined = self.arena.queue.rounds, self.arena.view(Attendance).ending
        alive, pause = self.arena.liveness.alive, 50e-6
        with self._patience.waiting_for(f"learners {list(comrades)} to end the segment, or to take a step") as check:
            while missing := [rank for rank in comrades if joined[rank] < self._segment]:
                if max(rounds[rank] for rank in comrades) > round_:
                    return
                for rank in missing:
                    if not alive[rank] and joined[rank] < self._segment:
                        raise self._members.died(rank, NEEDED)
                check()
                time.sleep(pause)
                pause = min(2 * pause, 2e-3)

    def consensus_into(self, out: Tensor) -> None:
        """While `meet` reads: the model to evaluate, (P,): the centre, or the mean of all holders' rows."""
        rows = self.arena.rows()
        if self.strategy.traits.model == "centre":
            out.copy_(rows[-1])
            return
        holders = self.strategy.holders(self.living)
        for part in chunks(out.numel()):
            out[part] = torch.stack([rows[rank][part].cpu() for rank in holders]).mean(0)

    def shown_by_all(self) -> list[Tensor]:
        """While `meet` reads: what the living have shown, by rank."""
        return [self.arena.shown(rank) for rank in self.living]

    # State, and the end -----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """While `meet` reads: a copy of all that is this learner's."""
        found: dict[str, Any] = {
            "row": _copy(self.me.x),
            "memory": {name: _copy(vector) for name, vector in self.me.memory.items()},
            "steps": self.me.steps,
        }
        if self.strategy.traits.model == "centre":
            found["centre"] = _copy(self.arena.rows()[-1])
        return found

    def load(self, state: dict[str, Any]) -> None:
        """While `meet` reads: go on from there."""
        self.me.replace(state["row"])
        for name, vector in self.me.memory.items():
            vector.copy_(state["memory"][name])
        self.arena.optimizer.steps[self.rank] = state["steps"]
        if "centre" in state and self.rank == self.living[0]:
            _write(self._performer.rows[-1], state["centre"])

    def draw_piece(self, key: passes.Key, pieces: int) -> int | None:
        """The number of the next minibatch of a pass over data that all learners share; None at its end."""
        if self.left:
            raise UserError(f"rank {self.rank}: the sampler of a closed session was asked for minibatches.")
        index = passes.draw(self.arena, self.rank, key, pieces)
        if index is None:  # unless somebody has died who had drawn one
            self._members.look(closely=True)
            index = passes.draw(self.arena, self.rank, key, pieces)
        return index

    @property
    def left(self) -> bool:
        """Has it left? In a forked child (a data loader's, say) it was never there."""
        return self._gone or self.arena.descriptor < 0

    @property
    def steps(self) -> int:
        """Local updates of this learner."""
        return self._final[1] if self._gone else self.me.steps

    @property
    def counts(self) -> Counts:
        """Counts of all learners so far; once this one has left, until then."""
        return self._final[0] if self._gone else self.arena.counts.copy()

    def leave(self, manner: int = CLOSED) -> None:
        """Nobody is to wait for this learner any more, and it uses the arena no more, whose memory is given back as
        soon as nobody else holds a vector of it."""
        if self.left:
            return
        self._final, self._gone = (self.counts, self.steps), True
        self._members.leave(manner)
        self.arena.close()
        if self._role is not None:
            with suppress(ValueError):  # in the middle of a step, whose end frees it
                self._role.close()
        self.me.update_row = self._update = self._role = self._pending = self._membership = None
        del self.me, self.arena, self.inputs, self._performer, self._patience

    @contextmanager
    def _deaths(self) -> Iterator[None]:
        """Whoever dies in a mean is named to the user."""
        try:
            yield
        except MemberLost as error:
            raise self._members.died(error.rank, NEEDED) from None


def _shared(layout: Layout) -> tuple[str, ...]:
    """Names of what others may read and write."""
    return ("row", *layout.memory)


def _write(row: Row, vector: Tensor) -> None:
    """While nobody trains. Under the lock: given back when it is written, which on a device takes its time."""
    row.lock.acquire()
    try:
        row.vector.copy_(vector)
    finally:
        row.lock.release()


def _copy(vector: Tensor) -> Tensor:
    """In the memory of the host."""
    return vector.to("cpu", copy=True)
