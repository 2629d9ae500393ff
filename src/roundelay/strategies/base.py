"""Strategies: who talks to whom, when, and by which equation. Nothing else."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from roundelay.algorithms.local_update import LocalOptimizer
from roundelay.core.codec import FP32, Codec
from roundelay.core.configure import check_values
from roundelay.core.errors import UserError
from roundelay.core.rates import LearnersRate
from roundelay.core.state import Me


@dataclass(frozen=True)
class Traits:
    """Properties a strategy declares of itself; the laws under tests/laws hold it to every line."""

    synchronous: bool
    """Draws go by (round, rank); results do not depend on timing, and simulator and processes agree bit for bit."""
    conserves: bool
    """With learning rate 0 the sum of all rows (of the holders', and the centre, if there is one) stays as it was; of a
    strategy that is `weighed`, under each exchange the sum of both rows times their masses."""
    staleness_bound: int | None
    """Largest number of versions between reading a row and applying the gradient taken there; None: no bound."""
    waits: str
    """Learners that wait, and for whom, in words."""
    model: Literal["mean", "centre"] = "mean"
    """Model that is evaluated and kept: the mean of the holders' rows, or the centre row, which exists only then."""
    ages: Literal["row", "centre"] = "row"
    """Row whose versions staleness counts: the learner's own, or, at each report to it, the centre."""
    joins: Literal["at once", "next segment"] = "at once"
    """Time at which a new learner may take a dead one's place: in the running segment, or, where groups form at the
    beginning of a segment, in the next. Asynchronous strategies only."""
    one_host: bool = False
    """Exchanges are of fragments with more than rows, or use vectors that only the peer's learner has. Neither travels,
    so all learners must be on one host."""
    alone_is_sgd: bool = True
    """With one learner the strategy is plain SGD."""
    rows: Literal["equal", "one model", "own"] = "one model"
    """Rows are equal after every step, for all learners update by one mean of gradients; or learners go on from one
    model when a block ends; or each from a row of its own, which is never quite the others'."""
    mixes: bool = True
    """Learners may ask for a `Mix`. Synchronous strategies only; see `Strategy.mixes`."""
    goes_on: bool = True
    """Learners can go on without one that dies. Synchronous strategies only; not if the model is the centre, which
    learner 0 keeps."""
    rebuilt_from: str = ""
    """Learners' vector from which a centre lost with its host is made again (algorithms/lost_centre.py): "row", or the
    name of their copy of the centre; "": it cannot be made again."""
    paced_by_links: bool = False
    """A learner begins its next exchange when the last is complete. So links between hosts set the pace, and the codec
    and fragments of a run's exchanges (`--wire`, `--fragments`) apply to this strategy."""

    @property
    def joins_at_once(self) -> bool:
        """True if a new learner may take a dead one's place in the running segment."""
        return self.joins == "at once" and not self.synchronous


HostOption = Literal["wire", "fragments", "exchange_share", "means"]
"""Option of a run on several hosts that means something to some strategies only (runtime/hosts/options.py)."""


class Strategy(ABC):
    """A strategy: a frozen dataclass that is its own configuration, with one coroutine per learner and segment."""

    name: ClassVar[str]
    traits: ClassVar[Traits]

    def __post_init__(self) -> None:
        check_values(self, self.name)

    @abstractmethod
    async def learn(self, me: Me) -> None:
        """Train until `Draw` answers None; leave nothing in flight."""

    @property
    def memory(self) -> tuple[str, ...]:
        """Names of the vectors (P,) that a learner keeps for this strategy in `me.memory`: zero at the start, in every
        checkpoint."""
        return ()

    @property
    def centre_memory(self) -> tuple[str, ...]:
        """Names of the vectors (P,) kept beside the centre: zero at the start, in every checkpoint, guarded by the
        centre's lock. An `Exchange` with the centre reaches them by `theirs`."""
        return ()

    @property
    def gives_vectors(self) -> bool:
        """True if a learner gives vectors to means (`Mean`, `Mix`), besides uncoded gradients (`GradMean`)."""
        return True

    @property
    def weighed(self) -> bool:
        """True if every row has a mass, by which exchanges (`Exchange.decay`) and the model to evaluate weigh it."""
        return False

    @property
    def label(self) -> str:
        """Name of the strategy with the options by which people distinguish runs."""
        return self.name

    @property
    def block(self) -> int:
        """Rounds at a multiple of which an interrupted segment ends, so that stopping and going on changes nothing."""
        return 1

    @property
    def form(self) -> Codec:
        """The codec of vectors that learners give to means."""
        return FP32

    @property
    def mixes(self) -> bool:
        """True if learners read vectors of single others, in a `Mix` or in a mean of coded vectors. Then each host of a
        synchronous run has a link to every other; else only to its neighbours in the chain of means."""
        return self.traits.mixes or not self.form.exact

    @property
    def cuts_rows(self) -> bool:
        """True if parts of a row are exchanged separately: local optimizers must be elementwise, as a matrix may be of
        two moments."""
        return False

    def holders(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Return the living `ranks` whose rows are models; the others' rows are copies."""
        return ranks

    def under(self, rate: LearnersRate, shared: bool) -> "Strategy":
        """Return the strategy with a value for each option left open, for learners under this `rate` that share a
        round's minibatch (`shared`) or have one each."""
        return self

    def distance(self, learners: int, minibatches_a_round: int) -> float:
        """Return the distance travelled under a constant gradient without local momentum, as a share of the distance
        that `sgd` travels at the same rate over the same examples.

        By default a round is one step: 1 where `learners` share a round's minibatch (`minibatches_a_round` is 1), 1/L
        where each has its own. A strategy that goes another distance overrides this, and says why on its page.
        """
        return 1 / minibatches_a_round

    def moves(self, learners: int, minibatches_a_round: int) -> float:
        """Return the distance that one gradient of one learner moves the common model, as a share of the distance that
        it moves a learner alone: `distance` by gradient. 1/L under averages of `learners`, 1 where a server adds each
        report."""
        return self.distance(learners, minibatches_a_round) * minibatches_a_round / learners

    def largest_factor(self, learners: int, shared: bool) -> float:
        """Return the factor on the learning rate with which the common model moves by the sum of all gradients, each of
        a minibatch of its own, or, where a round's minibatch is `shared`, as far as `sgd` moves by it; 1 where it moves
        as far, or further, already."""
        return 1.0 if learners == 1 else max(1.0, 1 / self.distance(learners, 1 if shared else learners))

    def minibatches_in_an_update(self, learners: int) -> int:
        """Return the number of learners over whose minibatches the gradient of a local update is a mean."""
        return learners if self.traits.rows == "equal" else min(learners, self.node_learners)

    @property
    def host_options(self) -> frozenset[HostOption]:
        """Names of the options for traffic between hosts that have an effect on this strategy."""
        if self.traits.paced_by_links:
            return frozenset(("wire", "fragments", "exchange_share"))
        return frozenset(("means",)) if self.traits.synchronous else frozenset()

    @property
    def node_learners(self) -> int:
        """Learners a node, if the strategy has nodes (neighbouring ranks that belong on one machine); else 1."""
        return 1

    def check_optimizer(self, optimizer: LocalOptimizer) -> None:
        """Raise a UserError if learners cannot have this local optimizer."""
        if optimizer.by_parameters and self.cuts_rows:
            raise UserError(
                f"optimizer.name is {optimizer.name}, which updates matrices as a whole, and {self.label} cuts rows "
                "into fragments that go their own ways: choose a strategy without fragments, or an elementwise "
                "optimizer."
            )

    def check(self, learners: int) -> None:
        """Raise a UserError if this strategy cannot run with `learners` learners."""
        if learners < 1:
            raise UserError(f"learners is {learners}: at least one learner is needed.")
