"""A learner in a user's own process, whose training loop drives it as a runtime otherwise would.

The strategy's coroutine is the same. It runs until it asks for a gradient; then the loop goes on, and the next call
answers. A Draw is answered when the loop begins a minibatch, not before: so a segment can end after any of them.

There is no parent. Learners find each other at a rendezvous (local_rendezvous.py), notice deaths by themselves
(membership.py), and end a segment together: `meet`. Where they are on several hosts, a process of each host speaks to
the others (surroundings.py). Between two meetings each takes as many steps as it likes. Where a
strategy takes them together, those who come to a meeting early take part with empty minibatches until the last has
come: an empty minibatch weighs next to nothing (1e-30) in means, and its own step leaves the row and the optimizer
alone.

Legend: P parameters, L learners.
"""

import itertools
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial

import numpy as np
import torch
from torch import Tensor

from roundelay.algorithms.gain import NOISE_SCALARS, GradientNoise
from roundelay.core.effects import Draw, GradMean
from roundelay.core.errors import UserError
from roundelay.core.state import Gradient
from roundelay.runtime.attached.coming_back import Returns
from roundelay.runtime.attached.entering import AttachTerms, Entrance, place_of_rows
from roundelay.runtime.attached.external_work import (
    EMPTY_WEIGHT,
    GRADIENTS,
    NUMBERLESS,
    ExternalWork,
    LayOut,
    Update,
    VotedUpdate,
)
from roundelay.runtime.attached.groups import Group
from roundelay.runtime.attached.handover import Giver, Receiver, give
from roundelay.runtime.attached.idling import Idling
from roundelay.runtime.attached.meetings import LAST
from roundelay.runtime.attached.membership import CLOSED, NEEDED, Attendance, BetweenSteps, Membership
from roundelay.runtime.attached.recording import SessionRecord
from roundelay.runtime.attached.repeating import RepeatedPlace, open_record
from roundelay.runtime.attached.saved import SavedState
from roundelay.runtime.attached.session_live import SessionLive
from roundelay.runtime.attached.settings import Settings, SettingsTables, SteppedByLoop
from roundelay.runtime.attached.shares import Inputs, InputTables, Shares, ShareTables, ShareTerms
from roundelay.runtime.attached.surroundings import OneHost, SeveralHosts, Surroundings
from roundelay.runtime.attached.votes import Vote, VoteTables
from roundelay.runtime.base import Counts, parse_straggler, wall_clock
from roundelay.runtime.clocks import pause
from roundelay.runtime.engine import ClockedEngine
from roundelay.runtime.launch.local_rendezvous import LocalRendezvous, given_name
from roundelay.runtime.launch.world import World, stragglers
from roundelay.runtime.learner_state import LearnerPlace
from roundelay.runtime.learners_rate import RateFactor
from roundelay.runtime.procs.coordination import passes
from roundelay.runtime.procs.coordination.means import MemberLost
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.publish import prepare_publishing
from roundelay.runtime.procs.memory.vectors import ArenaAccess, make_vectors
from roundelay.runtime.rows import Deferred, adopt
from roundelay.runtime.trace import Kind

log = logging.getLogger("roundelay")

BETWEEN_LOOKS_SECONDS = 0.05
"""A learner that steps looks after the others, and does what is to be done between steps, no oftener than this."""

_sessions = itertools.count()
"""Learners attach in the same order everywhere; each time they meet under the next number."""


class AttachedLearner:
    """One learner in a user's own process, driven by the user's loop: `begin_step`, a gradient at the point it returns,
    `answer`; now and then `meet`.

    Args:
        initial: the row at the beginning, (P,) float32; rank 0's counts.
        shown: bytes shown to the others at the start, (n,) uint8; as many on each learner.
        update: `update(gradient, own, given)` changes the row by a gradient (P,), which is `own` if it is the one given
            to `answer` and not a mean of several; `given`: which parameters have one. Returns True if the snapshot is
            as the row is.
        optimizer: makes the change of `update`, and answers for its momentum and its numbers.
        device: device of the module, where snapshots are to be; None: the memory of the host.

    Raises:
        UserError: the learners do not find each other or do not agree; names the rank.
    """

    giver: Giver | None = None
    """Source of the state that learners need from this one when they come back."""
    group: Group | None = None  # its processes, where it has several
    given = b""
    """State that this learner was given, where it has come back to others that wait for each other."""

    def __init__(
        self,
        world: World,
        terms: AttachTerms,
        initial: Tensor,
        shown: Tensor,
        update: Update,
        optimizer: SteppedByLoop,
        device: torch.device | None = None,
    ) -> None:
        prepare_publishing()
        terms.strategy.check(world.learners)
        self.rank, self.learners, self.strategy, self._terms = world.rank, world.learners, terms.strategy, terms
        self._nothing = (False,) * terms.tensors
        self.straggler = {one.rank: one for one in map(parse_straggler, stragglers())}.get(world.rank)
        self._shown_at = 0.0
        self._gone, self._segment, self._next_look = False, 1, 0.0
        self._done_at = 0.0  # end of the loop's last step; 0: it has met others since
        self._membership: Membership | None = None
        self._beside: list[BetweenSteps] = []
        self._patience = Patience(world.rank, terms.patience_seconds, self._look)
        session = next(_sessions)
        self._several, self._here, self._given_name = world.place is not None, world.here, given_name(world, session)
        entrance = Entrance(world, terms, initial, shown, device, session)
        with LocalRendezvous(world, session, terms.patience_seconds) as rendezvous:
            with entrance.open(rendezvous, self._patience) as access:
                common = access, terms.strategy, terms.goes_on
                self._around: Surroundings = OneHost(*common)
                if world.place is not None:
                    self._around = SeveralHosts(*common, world.here, entrance.wakes[self.rank])
                self.record = self._opened(access, entrance, session)
                self._build(access, optimizer, update, device)
                reap = partial(passes.give_back, self.arena)
                self._membership = members = Membership(self.arena, self.rank, self._patience, reap)
                members.advice = terms.advice
                self.late = entrance.late
                """Has it come back to a session that ran?"""
                if not self.late:
                    members.enter()
                entrance.share(rendezvous)
                living = self._come_back(access, rendezvous) if self.late else world.first
            self._row_host, self._host_process = entrance.row_host, entrance.host_process
            self.agreed = self.late or entrance.agrees(access)
            """Did this learner come with rank 0's weights and buffers?"""
            if not self.late:
                members.gather(world.first, rendezvous.check)
                living = world.first if world.place is None else self._around.taking_part(members)
        if not terms.needs_all and not self.arena.on_devices:
            notice = partial(members.look, closely=True)
            self._beside.append(Returns(world, session, self.arena, entrance, notice))
        self._idling = Idling(self.arena, self.rank, members.meetings, self.strategy.traits.synchronous)
        self._beside.append(self._idling)
        if terms.live and world.place is None:
            self._beside.append(SessionLive(terms.live, self.arena, terms.strategy, members.lowest))
        self._vectors.move_in()
        self.inputs = Inputs(self.arena.view(InputTables), self.rank)
        self._shares = Shares(self.arena.view(ShareTables), self.rank, joined=not terms.needs_all)
        self._begin(tuple(living))

    def _come_back(self, access: ArenaAccess, rendezvous: LocalRendezvous) -> Sequence[int]:
        """Take this learner's place in a session that runs; return the ranks that take part in its segment."""
        members, waits = self._members, self._terms.goes_on
        with Receiver(self._given_name, self.rank) if waits else nullcontext() as receiver:
            living = self._around.come_back(members, partial(self._adopt, access), rendezvous.check)
            if receiver is not None:
                self.given = receiver.take()
                if not self.given:
                    raise UserError(f"rank {self.rank} cannot come back: no learner could give it its state.")
                members.begin()
        self._segment = int(self.arena.view(Attendance).met[self.rank]) // 2 + 1
        return living

    def _give(self, rank: int) -> bool:
        """Give learner `rank`, which comes back, this learner's state, in a meeting; an empty one if it cannot be told.
        Return False if no process receives it."""

        def state() -> bytes:
            try:
                return b"" if self.giver is None else self.giver.state_for(rank)
            except UserError as error:
                log.warning("rank %d cannot give its state to rank %d, which comes back: %s", self.rank, rank, error)
                return b""

        return give(self._given_name, rank, state)

    def _opened(self, access: ArenaAccess, entrance: Entrance, session: int) -> SessionRecord:
        """Return the record of this session, taken or repeated, opened for the learner."""
        place = RepeatedPlace(
            access,
            session,
            self._terms.processes,
            self._here if self._several else None,
            {name: fact for name, fact in entrance.facts.items() if name != "record"},
            lambda rank: self._members.died(rank, NEEDED),
            lambda: self._engine.finish_deferred(),  # noqa: PLW0108  it is made later
        )
        record = open_record(self._terms.record, self._terms.repeats, place, entrance.late)
        access.trace = access.rows[self.rank].trace = record.row_trace
        return record

    def _adopt(self, access: ArenaAccess, source: int) -> None:
        """Begin with the state of learner `source` of this host, but with the centre as row if that is here."""
        arena, rank, centre = self.arena, self.rank, self._around.has_centre
        memory = [(arena.vector(name, rank), arena.vector(name, source)) for name in arena.layout.memory]
        adopt(access.rows[rank], access.rows[-1 if centre else source], memory)
        arena.shown(rank).copy_(arena.shown(source))
        arena.queue.rounds[rank] = arena.view(VoteTables).cast[rank] = 0

    def _build(
        self, access: ArenaAccess, optimizer: SteppedByLoop, update: Update, device: torch.device | None
    ) -> None:
        """Build the engine and its parts. Gradients are taken at copies of the row on the module's device, since the
        loop looks at the point between steps as well."""
        self.arena, traits = access.arena, self.strategy.traits
        self._deferred = Deferred()
        self._vectors = vectors = make_vectors(access, device, traits, between_devices=False)
        self._means = self._around.means()
        tables, facts = self.arena.view(SettingsTables), self._terms.settings
        self.settings = Settings(tables, self.rank, facts, optimizer, self.strategy)
        self._update = VotedUpdate(
            access, self._terms, self._means, vectors.gradient, update, lambda: self._engine.pending, self.settings
        )
        snapshot = torch.empty_like(vectors.row.vector, device=device or vectors.row.vector.device)
        self.me = self.record.state(
            LearnerPlace(self.rank, self.learners, self._terms.seed, minibatches_a_round=self.learners),
            vectors.of_learner(device, snapshot),
            optimizer,
            access.tables,
            self._update,
            self._deferred,
        )
        noise = GradientNoise(np.zeros(len(NOISE_SCALARS))) if self._terms.rate == "gain" else None
        self._rate = RateFactor(self._terms.rate, self.strategy, shared=False, noise=noise)
        self._work = ExternalWork(vectors.gradient)
        self._backend = self.record.backend(access, vectors, self._means, self._work)
        trace = self.record.trace
        remote = self.record.remote(self._around.remote(), vectors.row)
        self._engine = ClockedEngine(self.me, self._backend, self._deferred, remote, trace)
        self.where = place_of_rows(self.arena, vectors, device)
        """Place of the rows, seen from the module, in words."""
        self.saved = SavedState(
            self.me, self.arena, self._around, self._means, lambda: self._members, self.strategy, noise
        )
        """The learner's state for saves, read and loaded in meetings."""

    def _begin(self, living: tuple[int, ...]) -> None:
        """Begin a segment with the learners `living`."""
        self.record.trace.note(Kind.BEGIN, mine=self._segment)
        self._deferred.clear()  # the state does so too, but where it repeats a record it has none
        self.me.begin_segment(None, living, self.strategy.traits.ages)
        if self._rate.noise is not None:
            self._rate.noise.forget()  # here and where a save of this meeting is gone on from
        self._means.begin_segment()
        self._backend.begin_segment(opens=True)
        self.me.snapshot()

    @property
    def together(self) -> Sequence[int]:
        """Ranks that take part in the segment that runs."""
        return self.me.living

    @property
    def segment(self) -> int:
        """Number of the segment that runs, from 1 on: the training between two meetings."""
        return self._segment

    # Steps ------------------------------------------------------------------------------------------------------------

    @property
    def living(self) -> tuple[int, ...]:
        """Ranks that live, as far as is known; none once this learner has left."""
        self._look()
        return () if self.left else self._members.living

    @property
    def begun(self) -> bool:
        """True if the strategy waits for a gradient of the loop."""
        return not self._gone and isinstance(self._engine.pending, GRADIENTS)

    @property
    def asks_for_mean(self) -> bool:
        """True, in an update, if it is by the mean that the strategy has asked for with its gradient. Then the buffer
        of the learner's own gradient is free."""
        return isinstance(self._engine.pending, GradMean)

    @property
    def _members(self) -> Membership:
        assert self._membership is not None
        return self._membership

    def _look(self) -> None:
        if self._membership is not None and not self.left:
            self._around.check()
            self._membership.look()
            for work in self._beside:
                work.look()

    def begin_step(self) -> Tensor:
        """Draw a minibatch, unless one is drawn already; return the point (P,) at which its gradient is to be taken.

        Raises:
            LearnerDied: the strategy cannot go on without a learner that died; names its rank.
            TimeoutError: a learner did not come within the patience; says which waits for which.
        """
        engine, asked = self._engine, self._engine.pending
        if not isinstance(asked, GRADIENTS):
            self.arena.counts.between_s[self.rank] += self._done_at and wall_clock() - self._done_at
            if asked is None:
                self._start()
            self._update.begin_round(self._segment)
            self._work.hand_out(NUMBERLESS)
            self._go_on()
            self._shown_at = wall_clock()
            asked = engine.pending
        assert isinstance(asked, GRADIENTS)
        return asked.at.vector

    def answer(self, examples: float, learning_rate: float, vote: Vote, lay_out: LayOut | None = None) -> None:
        """Answer the strategy with the gradient, and go on up to its next minibatch. The gradient buffer holds the mean
        gradient of `examples` examples at the point of `begin_step`, or `lay_out` returns it when it is asked for.

        Raises:
            LearnerDied, TimeoutError: as for `begin_step`.
            UserError: in a mean of gradients, others' parameters were changed by hand and these were not.
        """
        assert isinstance(self._engine.pending, GRADIENTS)
        if self.straggler is not None:
            pause((self.straggler.factor - 1) * (wall_clock() - self._shown_at) + self.straggler.seconds)
        now = wall_clock()
        self.arena.counts.gradient_s[self.rank] += now - self._shown_at
        if now >= self._next_look:
            self._next_look = now + BETWEEN_LOOKS_SECONDS
            self._look()
        self.me.learning_rate = learning_rate
        if self.record.on:
            vector = self.me.gradient_buffer if lay_out is None else lay_out()
            self.record.note_gradient(self._engine.pending.at.vector, vector, examples)
            lay_out = None
        self._update.vote(examples, vote)
        self._work.hand_in(examples, lay_out)
        self._go_on()
        self.me.snapshot()
        self._done_at = wall_clock()

    def answer_nothing(self, skip: bool = False) -> None:
        """Answer the strategy with an empty minibatch. With `skip`, it stands for one whose gradient overflowed: where
        a mean of gradients is taken, all skip the update."""
        self.me.gradient_buffer.zero_()
        self.answer(EMPTY_WEIGHT, self.me.learning_rate, Vote(self._nothing, skip))

    def rate_factor(self, gradient: Gradient) -> float:
        """Return the factor on the optimizers' learning rates in the update by `gradient`, and add it to the learner's
        sum. Where learners wait for each other it depends only on facts that all of them have."""
        factor = 1.0
        if self.learners > 1 and (self._terms.rate in ("gain", "linear") or self.strategy.weighed):
            as_begun = self.strategy.traits.synchronous or self.record.repeats  # one that differs leaves, as none did
            living = self.me.living if as_begun else self._members.living
            if not (self.strategy.traits.synchronous or self.record.on):  # else what all know alike, from meetings
                self.inputs.look()
            self._rate.live(living, self.inputs.different(living))
            row = self.me.row
            factor = self._rate.factor(self.me.steps, lambda: gradient.vector, others=row.others)
            row.steep = self._rate.steep
        if self.group is not None and not self.group.whole:
            # its first process says it, one step later: here the row is locked
            self.group.found = factor, self.me.row.steep
            factor, self.me.row.steep = self.group.agreed
        self.arena.counts.rate_factors[self.rank] += factor
        return factor

    def change_row(self, change: Callable[[Tensor], None]) -> None:
        """Change the row (P,) by `change`, as one new version; not while the strategy waits for a gradient."""
        self.me.change(change)
        self.me.snapshot()

    def _start(self) -> None:
        if not self._engine.running:
            try:
                self._engine.begin(self.strategy.learn(self.me))
            except MemberLost as error:
                raise self._members.died(error.rank, NEEDED) from None

    def _go_on(self) -> None:
        """Run the strategy's coroutine up to its next minibatch or gradient, or to its end."""
        try:
            self._engine.go_on()
        except MemberLost as error:
            raise self._members.died(error.rank, NEEDED) from None

    # Meetings ---------------------------------------------------------------------------------------------------------

    def meet(self, kind: str, read: Callable[[], None], shown: Tensor | None = None) -> None:
        """End the segment together with all that live, in a meeting of this kind. `read` is called while no learner
        writes: rows stay as they are, and the bytes that all have `shown` are there. It may write this learner's state.

        Raises:
            LearnerDied, TimeoutError: as for `begin_step`.
            MeetingsDiffer: a learner has come to a meeting of another kind.
        """
        members, arena, needed = self._members, self.arena, self._terms.needs_all
        members.meetings.begin(kind)
        counts, began = arena.counts, wall_clock() - arena.counts.mean_s[self.rank]
        attendance = arena.view(Attendance)
        attendance.cut[self.rank] = 0 if self.giver is None else self.giver.cut
        if shown is not None:
            arena.shown(self.rank).copy_(shown)
        self._finish()
        self._vectors.move_out()
        self.settings.note()
        self._idling.begin()
        members.meet("all learners to end the segment", needed)
        self._idling.end()
        self._done_at = 0.0
        counts.meeting_s[self.rank] += wall_clock() - counts.mean_s[self.rank] - began
        self._around.conduct(int(attendance.met[self.rank]))
        self._compare(members.living)
        read()
        sequences, cast = arena.sequences, arena.view(VoteTables).cast
        for table in (sequences.sent_seq, sequences.acked_seq, arena.queue.rounds, cast):
            table[self.rank] = 0
        self._around.note_present(members, self._give if kind != LAST else lambda _: False)
        members.meet("all learners to begin a segment", needed)
        self._segment += 1
        self._begin(self._around.present)

    def _compare(self, living: Sequence[int]) -> None:
        """Compare this learner's samplers, settings and inputs with those of the others, in a meeting.

        Raises:
            UserError: another learner has made a sampler otherwise.
        """
        self.settings.say_rates_apart(living)
        self.settings.say_frozen_apart(living)
        self._shares.check_all(living)
        self.inputs.look()

    def _finish(self) -> None:
        """Run the coroutine to its end, with empty minibatches while learners that take steps with this one go on."""
        self._start()
        if self.begun:  # a minibatch without a gradient
            self.answer_nothing()
        rounds, mine = self.arena.queue.rounds, self.rank
        comrades = self._comrades()
        self._idling.begin(comrades)
        self._members.end_segment(self._segment)
        while True:
            everybody = not self._to_come(comrades)  # before the rounds are read
            if rounds[mine] < max(rounds[rank] for rank in comrades):
                self._done_at = 0.0
                self.begin_step()
                self.answer_nothing()
                self._idling.look()
            elif everybody:
                break
            else:
                self._wait_for_news(comrades, int(rounds[mine]))
        self._work.hand_out(None)
        self._go_on()
        self._engine.finish_asked()

    def _comrades(self) -> Sequence[int]:
        """Return the ranks that take as many steps as this learner in a segment."""
        asked = self._engine.pending
        assert isinstance(asked, Draw)
        if self.strategy.traits.synchronous:
            return self.me.living
        return asked.group or (self.rank,)

    def _to_come(self, comrades: Sequence[int]) -> list[int]:
        """Return those of `comrades` that have not ended the segment, and may."""
        return self._members.to_come(comrades, self._segment, not self._terms.goes_on)

    def _wait_for_news(self, comrades: Sequence[int], round_: int) -> None:
        rounds = self.arena.queue.rounds

        def come() -> bool:
            return not self._to_come(comrades) or max(rounds[rank] for rank in comrades) > round_

        self._patience.until(come, f"learners {list(comrades)} to end the segment, or to take a step")

    def consensus_into(self, out: Tensor) -> None:
        """Write into `out` (P,), while `meet` reads, the model to evaluate: the centre, or the mean of all holders."""
        self._look()
        self._around.consensus_into(out, self._members)

    def shown_by_all(self) -> list[Tensor]:
        """Return the bytes that each living learner has shown, by rank, while `meet` reads."""
        self._look()
        return [self.arena.shown(rank) for rank in self._around.taking_part(self._members)]

    # The end ----------------------------------------------------------------------------------------------------------

    def note_pass(self, number: int, epoch: int, what: int, value: int) -> None:
        """Let other learners know a fact of a pass over sampler `number`; see `Shares.note`.

        Raises:
            UserError: another learner's first pass begins otherwise.
        """
        if not self.left:
            self._shares.note(number, epoch, what, value)
            self.share_is_agreed(number)
            self._shares.say_passes_apart(self.living)

    def make_share(self, number: int, terms: ShareTerms) -> None:
        """Let other learners know the terms of this learner's sampler `number`.

        Raises:
            UserError: another learner has made it otherwise.
        """
        self._shares.make(number, terms)
        self.share_is_agreed(number)

    def share_is_agreed(self, number: int) -> bool:
        """Return True if all that live have made sampler `number` alike; False if one has not made it yet.

        Raises:
            UserError: another learner has made it otherwise.
        """
        return self.left or self._shares.check(number, self.living)

    def draw_piece(self, key: passes.Key, pieces: int, keep: int) -> int | None:
        """Return the number of the next minibatch of a pass over data that all learners share; None at its end. See
        `passes.draw`."""
        self.check_may_draw()
        draw = partial(self._around.draw, key, pieces, keep)
        if not pieces:  # nothing is
            return draw()

        def drawn() -> int | None:
            index = draw()
            if index is None:  # unless a learner has died that had drawn one
                self._members.look(closely=True)
                index = draw()
            return index

        return self.record.draw(key[0], drawn)

    def check_may_draw(self) -> None:
        """Check that this process may share out minibatches now.

        Raises:
            UserError: the session is closed, or this is a process forked from the learner.
        """
        if self.forked:
            raise UserError(
                f"rank {self.rank}: minibatches are shared out in the learner's own process, and this is one forked "
                "from it, a loader's worker for example: give the loader session.share(...) as its sampler, or share "
                "what the loader gives: session.share(loader)."
            )
        if self.left:
            raise UserError(f"rank {self.rank}: the sampler of a closed session was asked for minibatches.")

    @property
    def left(self) -> bool:
        """True once the learner has left the session. Also True in a forked child (a data loader's, say)."""
        return self._gone or self.arena.descriptor < 0

    @property
    def forked(self) -> bool:
        """True in a process forked from the learner."""
        return self.left and not self._gone

    @property
    def steps(self) -> int:
        """Number of local updates of this learner."""
        return self._final[1] if self._gone else self.me.steps

    @property
    def counts(self) -> Counts:
        """Counts of all learners so far; after this learner has left, those at that moment."""
        return self._final[0] if self._gone else self.arena.counts.copy()

    @property
    def to_the_end(self) -> tuple[int, ...]:
        """Ranks that live, or lived until they closed the session; if this learner has left, those at that time."""
        return self._final[2] if self._gone else self._members.to_the_end

    def leave(self, manner: int = CLOSED) -> None:
        """Leave the session: others wait for this learner no more. Its memory is unmapped once no vector of it is
        held."""
        if self.left:
            return
        self._final, self._gone = (self.counts, self.steps, self.to_the_end), True
        self._members.leave(manner)
        if self.record.on:
            has_centre = self.rank == 0 and self.strategy.traits.model == "centre"
            self.record.leave(manner, self.me, self.arena.rows()[-1].vector if has_centre else None)
        while self._beside:
            self._beside.pop().close(manner)
        if self._host_process is not None:
            self._host_process.leave()
        self.arena.close()
        for close in [held.close for held in (self.arena.on_devices, self._row_host) if held is not None]:
            close()
        with suppress(ValueError):  # in the middle of a step: its end frees it
            self._engine.close()
        self._membership = None
        del self.me, self._rate, self.arena, self.inputs, self.settings, self._shares, self._idling, self.saved
        del self._patience, self._backend, self.record
        del self._vectors, self._means, self._work, self._deferred, self._engine, self._update, self._around
