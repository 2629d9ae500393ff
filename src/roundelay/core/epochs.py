"""Assignment of examples to minibatches.

One shuffled order per epoch, cut into rounds of `minibatch` examples, each round cut evenly into one minibatch per
learner. All strategies train the same cuts: a synchronous one takes (round, rank), an asynchronous one takes them from
a shared queue in the same order. So every strategy sees the same frames, and one learner with minibatch B sees in a
round the frames that L learners with B / L see together.

Where hosts have only some shards of the examples each, every host has an order of its own examples, and a share of the
epoch's positions: those of the first host come first. A round then takes of each order as many examples as is its part
of all, cut by floors of the running sums, so that all orders end with the epoch, and a round is at most one example a
host larger or smaller than it would be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from roundelay.core.state import Minibatch
from roundelay.core.streams import stream


@final
@dataclass(frozen=True)
class Share:
    """The part of an epoch that the learners of one host train: all `examples` in its `shards`."""

    learners: int
    examples: int
    shards: tuple[int, ...]


OPTIONAL = ("shares", "shards", "among")
"""Fields of a plan that its JSON lacks where they are empty."""


@dataclass(frozen=True)
class EpochPlan:
    """The cuts of one epoch of `examples` into rounds of `minibatch`, and of rounds into a minibatch for each of
    `learners`.

    Attributes:
        shares: each host's, in rank order, if hosts draw from shards of their own; empty: all draw from one order.
        shards: the shards that hold the examples; empty: all that are here.
        among: ranks that the rounds are cut for, if not all learners take part; empty: all. Minibatches keep their
            numbers; those of the other ranks are empty.
    """

    epoch: int
    examples: int
    minibatch: int
    learners: int
    seed: int
    shares: tuple[Share, ...] = ()
    shards: tuple[int, ...] = ()
    among: tuple[int, ...] = ()

    def for_living(self, living: Sequence[int]) -> "EpochPlan":
        """Return this plan with its rounds cut for the learners `living` alone, ranks."""
        return replace(self, among=() if len(living) == self.learners else tuple(living))

    @property
    def rounds(self) -> int:
        """Number of rounds in the epoch; the last may be smaller."""
        return -(-self.examples // self.minibatch)

    @property
    def pieces(self) -> int:
        """Number of minibatches in the epoch: rounds x learners (those of the last round may be empty)."""
        return self.rounds * self.learners

    def piece(self, index: int) -> Minibatch:
        """Return minibatch number `index` = round * learners + rank."""
        round_, rank = divmod(index, self.learners)
        if self.shares:
            return self._piece_of_share(index, round_, rank)
        low = round_ * self.minibatch
        size = min(self.examples, low + self.minibatch) - low
        start, stop = self._part(rank, 0, self.learners, size)
        return Minibatch(epoch=self.epoch, index=index, start=low + start, stop=low + stop)

    def _part(self, rank: int, first: int, learners: int, size: int) -> tuple[int, int]:
        """Return the part of learner `rank` in `size` examples, shared by `learners` learners from rank `first` on."""
        place, places = rank - first, learners
        if self.among:
            there = [other for other in self.among if first <= other < first + learners]
            if rank not in there:
                return 0, 0
            place, places = there.index(rank), len(there)
        return size * place // places, size * (place + 1) // places

    def _piece_of_share(self, index: int, round_: int, rank: int) -> Minibatch:
        share, place, begin = self.share(rank)
        before, after = (min(self.examples, end * self.minibatch) for end in (round_, round_ + 1))
        low = share.examples * before // self.examples
        size = share.examples * after // self.examples - low
        start, stop = self._part(rank, rank - place, share.learners, size)
        return Minibatch(epoch=self.epoch, index=index, start=begin + low + start, stop=begin + low + stop)

    def examples_of(self, ranks: Sequence[int], first: int, end: int) -> int:
        """Return the number of examples that learners `ranks` draw in rounds `first` up to `end`, if all draw
        by round."""
        return sum(self.piece(r * self.learners + rank).frames for r in range(first, end) for rank in ranks)

    def examples_between(self, first: int, end: int) -> int:
        """Return the number of examples in rounds `first` up to `end`."""
        before, after = (min(self.examples, round_ * self.minibatch) for round_ in (first, end))
        if not self.shares:
            return after - before
        low, high = (sum(share.examples * at // self.examples for share in self.shares) for at in (before, after))
        return high - low

    @property
    def orders(self) -> Sequence[range]:
        """Ranges of ranks that draw from the same order, one for each order."""
        if not self.shares:
            return [range(self.learners)]
        ends = list(accumulate(share.learners for share in self.shares))
        return [range(end - share.learners, end) for share, end in zip(self.shares, ends, strict=True)]

    def share(self, rank: int) -> tuple[Share, int, int]:
        """Return the share that learner `rank` draws from, its rank among that share's learners, and the share's first
        position."""
        begin = 0
        for share in self.shares:
            if rank < share.learners:
                return share, rank, begin
            rank, begin = rank - share.learners, begin + share.examples
        raise ValueError(f"the rank is {rank} above the learners that have shares")

    def own(self, batch: Minibatch) -> tuple["EpochPlan", int]:
        """Return the plan of the order that a minibatch is drawn from, and the first position of that order."""
        if not self.shares:
            return self, 0
        share, _, begin = self.share(batch.index % self.learners)
        minibatch = max(1, self.minibatch * share.examples // self.examples)
        return EpochPlan(self.epoch, share.examples, minibatch, share.learners, self.seed, shards=share.shards), begin

    def division(self, shards: Sequence[int]) -> str:
        """Describe the hosts' shares in words, with the shards that no host has; "" where all draw from one order.

        Args:
            shards: number of examples in every shard, -1 for a shard that is not here; empty: there are no shards.
        """
        said = [
            f"host {host} draws from shards {_listed(share.shards)} ({share.examples:,} frames)"
            if share.shards
            else f"host {host} draws nothing"
            for host, share in enumerate(self.shares)
        ]
        there = {number for share in self.shares for number in share.shards}
        lacking = [n for n, some in enumerate(shards) if (n not in there if self.shares else some < 0)]
        if lacking:
            said.append(f"shards {_listed(lacking)} of {len(shards)} are nowhere: the corpus is smaller by them")
        return "; ".join(said)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a mapping, for JSON."""
        return {name: value for name, value in asdict(self).items() if name not in OPTIONAL or value}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "EpochPlan":
        """Return the plan in a mapping from `to_json`."""
        shares = [Share(**{**one, "shards": tuple(one["shards"])}) for one in value.get("shares", ())]
        lists = {name: tuple(value.get(name, ())) for name in OPTIONAL}
        return cls(**{**value, **lists, "shares": tuple(shares)})

    def order(self) -> NDArray[np.int64]:
        """Return the shuffled numbers of the epoch's examples, (examples,)."""
        return stream(self.seed, "order", self.epoch).permutation(self.examples)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
