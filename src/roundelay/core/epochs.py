"""Assignment of examples to minibatches.

One shuffled order per epoch, cut into rounds of `minibatch` examples, each round cut evenly into one minibatch per
learner. All strategies train the same cuts: a synchronous one takes (round, rank), an asynchronous one takes them from
a shared queue in the same order. So every strategy sees the same frames, and one learner with minibatch B sees per
round what L learners with B / L see together.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from roundelay.core.state import Minibatch
from roundelay.core.streams import stream


@dataclass(frozen=True)
class EpochPlan:
    """The cuts of one epoch: `examples` in all, `minibatch` of them a round, over `learners`."""

    epoch: int
    examples: int
    minibatch: int
    learners: int
    seed: int

    @property
    def rounds(self) -> int:
        """Rounds in the epoch; the last may be smaller."""
        return -(-self.examples // self.minibatch)

    @property
    def pieces(self) -> int:
        """Minibatches in the epoch: rounds x learners (those of the last round may be empty)."""
        return self.rounds * self.learners

    def piece(self, index: int) -> Minibatch:
        """Minibatch number `index` = round * learners + rank."""
        round_, rank = divmod(index, self.learners)
        low = round_ * self.minibatch
        size = min(self.examples, low + self.minibatch) - low
        start, stop = low + size * rank // self.learners, low + size * (rank + 1) // self.learners
        return Minibatch(epoch=self.epoch, index=index, start=start, stop=stop)

    def order(self) -> NDArray[np.int64]:
        """The shuffled example numbers, (examples,)."""
        return stream(self.seed, "order", self.epoch).permutation(self.examples)
