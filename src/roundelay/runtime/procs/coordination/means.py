"""Means in shared memory: of a group, where each member sums one part for all, and of neighbours, where each sums its
own.

Means have numbers, 1, 2, 3, ... . To take part, a learner lays its vector out and raises its `sent_seq` to that number.
When all it needs have sent, it sums:

    group        its share of the chunks, in rank order, into the group's `mean` vector; then it raises its `acked_seq`,
                 and the result is complete when all members have
    neighbours   everything, in rank order, into a vector of its own; then it raises its `acked_seq`

There are two mailboxes, for even and odd numbers: a learner may lay out number n + 1 while others still read n, and
before it lays out n + 2 it waits for the readers of n. One `mean` vector is enough: a member writes the next result
only after all have sent for it, and no member sends before it has finished with the last reply (a reply is valid until
the next mean).

Learners that may wait for each other count the same means: members of disjoint groups each their own, but a learner
that mixes with neighbours must take part in all means of the neighbours.

Where some of those are on other hosts, a thread of this host's own process sums over hosts, or brings vectors here
(runtime/hosts/means.py). Then a mean of all learners is complete when `global_seq` says so, and a gradient may take
part while it is computed (`ready_from`); means of all have numbers of their own, which `global_sent_seq` counts; and a
learner writes new facts about its mailbox only when that thread has read the old ones (`forwarded_seq`). A mean of
coded vectors does not go along a chain, whose partial sums would have to be coded again: every learner's vector goes to
every host in its own form (`codec`), and each learner sums all of them, with the bits of one host.

Where learners of one host compute on devices, what they give and the mean may lie there (memory/device_rows.py), and
nothing else is different: a number is raised when the device has done what it says.

A vector may be shorter than P, a fragment: it takes the beginning of a mailbox, and the result the beginning of its
vector.

A death ends a mean, unless learners go on without the dead (`goes_on`). Then a mean is one of those that have sent for
it, also where they died after that: vectors that the dead have sent no longer change, and a learner that sees one dead
sees all that it has sent, so all agree on the members. Shares of the result that the dead had left to sum are summed by
the lowest rank that lives, in the same order.

All these numbers are published (memory/publish.py); runtime/procs/memory/views.py says which process writes each.

Legend: P parameters.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from roundelay.algorithms.averaging import some_weight, weighted_mean_
from roundelay.algorithms.codecs import form_names
from roundelay.core.codec import FP32, Codec
from roundelay.core.errors import UserError
from roundelay.core.flat import VectorFragment, chunks, slices
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.bell import bell_of_means
from roundelay.runtime.procs.memory.device_rows import CONTRIBUTIONS, GRADIENT, MEAN, finish, pinned
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views import HostMeanSequences, Integers

PAUSES = (20e-6, 500e-6)
"""Seconds between two looks of a learner that waits for others, at first and at most."""
RUNG_PAUSES = (20e-3, 20e-3)
"""The same where a bell ends the pause: each event is rung for, except the death of another."""


class MemberLost(Exception):
    """A member of the group died; the mean will never be complete."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"learner {rank} died")
        self.rank = rank


class Means:
    """One learner's part in means over groups and over neighbours, one mean at a time."""

    SOURCES = (GRADIENT, *CONTRIBUTIONS)

    def __init__(
        self,
        arena: Arena,
        rank: int,
        patience: Patience,
        here: Sequence[int] | None = None,
        forwards: bool = False,
        goes_on: bool = False,
    ) -> None:
        """`here` are the learners of this host (None: all); if it `forwards`,
        runtime/hosts/means.py sends vectors of theirs to learners of other hosts that read them; if it `goes_on`,
        members that die are left out."""
        self._far = set() if here is None else set(range(arena.layout.learners)) - set(here)
        self._forwards, self._goes_on = forwards, goes_on
        self._arena, self._rank, self._patience, self._bell = arena, rank, patience, bell_of_means(arena)
        self._pauses = RUNG_PAUSES if self._bell.hung else PAUSES
        self._sequences, self._alive = arena.sequences, arena.liveness.alive
        self._sent, self._acked = arena.sequences.sent_seq, arena.sequences.acked_seq
        self._incoming = [arena.vector(name, rank) for name in CONTRIBUTIONS]
        there = arena.on_devices is not None and arena.on_devices.has_means
        self._device = arena.vector(GRADIENT, rank).device if there else None
        self._readers: list[Sequence[int]] = [(), ()]
        self._mixed: Tensor | None = None
        self._elements = arena.layout.parameters  # of the vectors in the mean under way
        self._gathers = False  # is the mean under way one of coded vectors, some of them from other hosts?
        self.total = 0.0
        """The sum of the weights in the last mean of a group."""

    def begin_segment(self) -> None:
        """Begin a segment: the parent has set its counts to 0."""
        self._readers = [(), ()]

    def publish_gradient(self, weight: float, group: Sequence[int]) -> None:
        """Take part in a mean with the gradient buffer itself, which is not written before this mean is complete."""
        self._gathers, self._elements = False, self._arena.layout.parameters
        self._announce(0, weight, (), group)

    def announce_gradient(self, weight: float, group: Sequence[int], at: Tensor) -> Callable[[int], None] | None:
        """Announce a gradient that is still to be computed at the point `at` (P,). Return a function to call with the
        element from which the gradient is complete, with 0 in the end. None: publish the gradient when it is complete,
        since all of the group are on this host, or the result would overwrite `at`."""
        if self._far.isdisjoint(group) or at.data_ptr() == self._mean_of_all(group).data_ptr():
            return None
        self._gathers, self._elements = False, self._arena.layout.parameters
        ready_from, rank = self._between_hosts.ready_from, self._rank
        publish(ready_from, rank, self._arena.layout.parameters)  # nothing yet
        self._announce(0, weight, (), group)

        def lay(first: int) -> None:
            publish(ready_from, rank, first)
            self._bell.ring()

        return lay

    def publish(
        self, vector: Tensor, weight: float, group: Sequence[int] = (), readers: Sequence[int] = (), codec: Codec = FP32
    ) -> None:
        """Take part in a mean with a copy of `vector` (n,), n at most P; with weight 0 it is not read, so none is made.
        `readers` are the others that will read it in a mean of neighbours. `vector` is as it arrives by `codec`, the
        form in which it goes to other hosts."""
        self._gathers, self._elements = not codec.exact and not self._far.isdisjoint(group), len(vector)
        if self._gathers:
            readers, group = [member for member in group if member != self._rank], ()
        if not (self._forwards or self._far.isdisjoint(readers)):
            raise UserError(
                f"learner {self._rank} gives a vector to learners of other hosts, which its strategy does not declare: "
                "set `mixes` in its traits, or `form` where means are coded."
            )
        number = int(self._sent[self._rank]) + 1
        parity = number % 2
        self._wait(self._readers[parity], self._acked, "read", number - 2)
        if weight or self._goes_on:  # where all that weighs dies, the others count alike
            self._lay_out(parity, vector)
        if self._forwards:
            self._wait((self._rank,), self._between_hosts.forwarded_seq, "forwarded", number - 2)
            self._between_hosts.codec[parity, self._rank] = form_names().index(codec.name)
            self._between_hosts.codec_numbers[parity, self._rank, : len(codec.numbers)] = codec.numbers
        self._readers[parity] = readers
        self._announce(1 + parity, weight, readers, group)

    def _lay_out(self, parity: int, vector: Tensor) -> None:
        incoming = self._incoming[parity]
        if self._device is None and vector.device.type == "cpu":
            for here, part in zip(slices(incoming[: len(vector)]), slices(vector), strict=True):
                here.copy_(part)
        else:
            pinned(incoming)[: len(vector)].copy_(vector)

    def _announce(self, source: int, weight: float, readers: Sequence[int], group: Sequence[int]) -> None:
        number = int(self._sent[self._rank]) + 1
        parity = number % 2
        if self._forwards:
            self._wait((self._rank,), self._between_hosts.forwarded_seq, "forwarded", number - 2)
            contributions = self._between_hosts.readers[parity, self._rank]
            contributions[:] = 0
            contributions[list(readers)] = 1
        if self._far:
            self._between_hosts.elements[parity, self._rank] = self._elements
        self._sequences.source[parity, self._rank] = source
        self._sequences.weights[parity, self._rank] = weight
        self._finish_told()
        publish(self._sent, self._rank, number)  # last: the others act on it
        if not self._far.isdisjoint(group):
            global_sent = self._between_hosts.global_sent_seq
            publish(global_sent, self._rank, int(global_sent[self._rank]) + 1)
        self._bell.ring()

    def collect(self, group: Sequence[int]) -> Tensor:
        """Return a vector (P,) that begins with the mean over `group`, as long as the given vector, once all have sent.

        Raises:
            MemberLost: a member of the group died.
            TimeoutError: a member did not come; says which.
        """
        arena, number = self._arena, int(self._sent[self._rank])
        if self._gathers:
            self._wait(group, self._sent, "sent", number)
            weights = [(rank, float(self._sequences.weights[number % 2, rank])) for rank in group]
            self.total = sum(weight for _, weight in weights)
            return self.collect_neighbours(weights)
        if not self._far.isdisjoint(group):
            return self._collect_everybody(group)
        self._wait(group, self._sent, "sent", number)
        mean, present = arena.vector(MEAN, group[0]), self._present(group, number)
        vectors = self._laid_out(present, number)
        shares: Sequence[float] = [float(self._sequences.weights[number % 2, r]) for r in present]
        if self._goes_on:
            shares = some_weight(shares)
        self.total = sum(shares)

        def sum_share(member: int) -> None:
            for part in self._parts(list(group).index(member), len(group)):
                self._add_up(mean[part], [v[part] for v in vectors], shares)
            self._finish_told()
            publish(self._acked, member, number)
            self._bell.ring()

        sum_share(self._rank)
        self._wait(group, self._acked, "read", number, sum_share)
        return mean

    def _present(self, ranks: Sequence[int], number: int) -> Sequence[int]:
        """Return those of `ranks` that have sent for mean `number`, when the wait for it is over."""
        return [rank for rank in ranks if self._sent[rank] >= number] if self._goes_on else ranks

    def _collect_everybody(self, group: Sequence[int]) -> Tensor:
        """Return what `collect` does, for a group with members on other hosts."""
        complete, number = self._between_hosts.global_seq, int(self._between_hosts.global_sent_seq[self._rank])

        def ready() -> bool:
            if complete[0] < number and not self._goes_on:
                for rank in group:
                    if not self._alive[rank] and complete[0] < number:
                        raise MemberLost(rank)
            return bool(complete[0] >= number)

        what = f"mean {number} of learners {tuple(group)} on all hosts"
        self._patience.until(ready, what, self._pauses, bell=self._bell)
        self.total = float(self._between_hosts.total[number % 2])
        publish(self._acked, self._rank, int(self._sent[self._rank]))
        self._bell.ring()
        return self._mean_of_all(group)

    def _mean_of_all(self, group: Sequence[int]) -> Tensor:
        """Return the vector (P,) that holds the mean of a group with members on other hosts."""
        return self._arena.vector(MEAN, next(rank for rank in group if rank not in self._far))

    def collect_neighbours(self, weights: Sequence[tuple[int, float]]) -> Tensor:
        """Return the mean of the neighbours in `weights`, in a vector as that of `collect`, once all of them have sent.

        Raises:
            MemberLost, TimeoutError: as for `collect`.
        """
        number, ranks = int(self._sent[self._rank]), [rank for rank, _ in weights]
        self._wait(ranks, self._sent, "sent", number)
        present = self._present(ranks, number)
        vectors, shares = self._laid_out(present, number), [weight for rank, weight in weights if rank in present]
        if self._mixed is None:
            self._mixed = torch.empty_like(vectors[0], device=self._device)
        for part in self._parts():
            self._add_up(self._mixed[part], [v[part] for v in vectors], shares)
        self._finish_told()
        publish(self._acked, self._rank, number)
        self._bell.ring()
        return self._mixed

    def _parts(self, part: int = 0, parts: int = 1) -> Iterable[slice]:
        """Return the pieces in which part number `part`, of `parts` of a vector, is summed: chunks; on a device, where
        each piece costs launches of kernels, the part as a whole."""
        if self._device is None:
            return chunks(self._elements, part, parts)
        return [VectorFragment(part, parts).within(self._elements)]

    def _add_up(self, out: Tensor, vectors: Sequence[Tensor], weights: Sequence[float]) -> None:
        """Write the weighted mean of `vectors` into `out`, on this learner's device if it has one."""
        if self._device is None:
            weighted_mean_(out, vectors, weights)
            return
        here = out if out.device == self._device else torch.empty_like(out, device=self._device)
        weighted_mean_(here, [vector.to(self._device) for vector in vectors], weights)
        if here is not out:
            out.copy_(here)

    def _finish_told(self) -> None:
        """Wait until this learner's device, if it has one, has done its work."""
        if self._device is not None:
            finish(self._device)

    def _laid_out(self, ranks: Sequence[int], number: int) -> list[Tensor]:
        return [self._arena.vector(self.SOURCES[self._sequences.source[number % 2, r]], r) for r in ranks]

    @property
    def _between_hosts(self) -> HostMeanSequences:
        """Tables of the numbers of means whose groups have members on several hosts."""
        return self._arena.view(HostMeanSequences)

    def _wait(
        self,
        group: Sequence[int],
        table: Integers,
        stage: str,
        number: int,
        instead: Callable[[int], None] | None = None,
    ) -> None:
        """Wait until all of `group` have come to `number` in `table`, which has by rank the last mean that is `stage`.
        Where learners go on without the dead, these are not waited for: the lowest living rank calls `instead` for each
        of them, and the others wait for that."""
        missing = [r for r in group if table[r] < number]

        def come() -> bool:
            nonlocal missing
            gone = [r for r in missing if not self._alive[r]]  # before their numbers are read, which are the last then
            missing = [r for r in missing if table[r] < number]
            for rank in gone:
                if rank in missing:
                    self._do_without(rank, group, instead)
                    if instead is None:
                        missing.remove(rank)
            return not missing

        if missing:
            what = f"mean {number} to be {stage} by learners {tuple(group)}"
            self._patience.until(come, what, self._pauses, lambda: missing, self._bell)

    def _do_without(self, rank: int, group: Sequence[int], instead: Callable[[int], None] | None) -> None:
        """Go on without a member that others wait for and that has died.

        Raises:
            MemberLost: learners do not go on without it.
        """
        if not self._goes_on:
            raise MemberLost(rank)
        if instead is not None and self._rank == min(member for member in group if self._alive[member]):
            instead(rank)
