"""Going through minibatches that learners share out, by their numbers in a pass.

Under a synchronous strategy some numbers are a learner's own; under an asynchronous one all draw from one queue
(runtime/procs/coordination/passes.py). Those that a learner has drawn and not trained are held for it: others draw them
if it dies, and a save has them as not trained.

A minibatch that is drawn need not be trained soon: a loader with workers draws ahead, and other wrappers do. How far
ahead is seen when the first step of a pass begins: the loop has the first minibatch in its hands, and all else that is
drawn is on its way. From then on the loop has got one whenever one more is asked for, also where there is none left. A
minibatch is trained when a step is completed that the loop has come to after it got that minibatch.
"""

import heapq
import logging
import sys
import weakref
from abc import abstractmethod
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from torch.utils.data import BatchSampler, Sampler

from roundelay.attached.data_position import DataPosition, Key, PassLeft, Pieces
from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.runtime.attached.groups import Group
from roundelay.runtime.attached.learner import AttachedLearner
from roundelay.runtime.attached.shares import ShareTerms
from roundelay.runtime.procs.coordination.passes import ENDLESS
from roundelay.strategies.base import Strategy

log = logging.getLogger("roundelay")
CLOSED_PASS = 1 << 30
"""Number of a segment later than any, for a pass that no other learner can join."""
MISSING = object()
"""Value in the place of a minibatch whose number is too high."""


@dataclass(frozen=True)
class LoopProgress:
    """Numbers of steps that a learner's loop has begun and completed."""

    begun: int = 0
    completed: int = 0


@final
class Followed:
    """The learner as seen by its processes that follow the first, which draws minibatches for all of them."""

    together: Sequence[int] = ()  # ranks that take part in the segment that runs, as last heard

    def __init__(self, beside: AttachedLearner, rank: int, learners: int, strategy: Strategy) -> None:
        self._beside, self.rank, self.learners, self.strategy = beside, rank, learners, strategy
        self.group = beside.group

    @property
    def segment(self) -> int:
        """The segment that runs; this and all below are as in `AttachedLearner`."""
        return self._beside.segment

    @property
    def left(self) -> bool:
        return self._beside.left

    @property
    def forked(self) -> bool:
        return self._beside.forked

    def check_may_draw(self) -> None:
        self._beside.check_may_draw()

    def make_share(self, number: int, terms: ShareTerms) -> None: ...

    def note_pass(self, number: int, epoch: int, what: int, value: int) -> None: ...

    def share_is_agreed(self, number: int) -> bool:
        return True

    def draw_piece(self, key: tuple[int, int, int], pieces: int, keep: int) -> int | None:
        raise RuntimeError("the first process of a learner draws")


Fetch = Callable[[int], Any]
"""Function that returns the minibatch of a number, or MISSING."""


@dataclass
class _Drawn:
    number: int
    shared: bool  # from the queue
    real: bool


@final
class Drawing(Iterator[Any]):
    """One pass over minibatches, begun when the first is asked for: some loaders make two iterators and use one."""

    def __init__(self, shared: "Shared") -> None:
        self._shared = shared
        self._asked, self._ended = 0, False

    def begin(self, key: Key, begun: PassLeft, fetch: Fetch, pieces: Callable[[], int]) -> None:
        """Begin the pass.

        Args:
            key: the epoch of the pass, and how often the sampler has gone through that epoch before.
            begun: minibatches that are left of the pass when it begins.
            pieces: returns the number of minibatches in the pass, as far as it is known.
        """
        self.key, self._begun, self._fetch, self._pieces = key, begun, fetch, pieces
        self._own = heapq.merge(begun.pieces, *begun.rest)
        self.segment, self._together = self._shared.segment, self._shared.dealt_among(begun)
        self._last = -1  # of its own numbers
        self._ahead: int | None = None  # minibatches on their way to the loop
        progress = self._shared.progress()
        self._begun_before, self._completed = progress.begun, progress.completed
        self._drawn: deque[_Drawn] = deque()  # and not trained
        self._trained = self._gone = 0  # minibatches trained, and those of them that are not in `_drawn` any more
        self._held = 0  # those that the queue holds for this learner

    def __next__(self) -> Any:
        if not self._asked:
            self._shared.begin(self)
        self._note_trained()
        self._asked += 1
        # A loader with workers asks again as often as it has drawn ahead: by then a learner may have died that had.
        while not self._ended or self._shared.draws_late:
            number, shared = self._next_number()
            if number is None:
                if not self._ended:
                    self._ended = True
                    self._shared.ended(self._asked - 1)
                break
            self._drawn.append(drawn := _Drawn(number, shared, True))
            item = self._fetch(number)
            if item is not MISSING:
                return item
            drawn.real = False
        self.settle()
        raise StopIteration

    def _next_number(self) -> tuple[int | None, bool]:
        """Return the number of the next minibatch (None: none is left), and whether the queue holds it for this
        learner. The first of a learner's processes tells the others the number."""
        self._shared.agree()
        group = self._shared.group
        if group is None:
            return self._own_number()
        number, held = self._own_number() if group.place == 0 else (None, False)
        return group.number(number), held

    def _own_number(self) -> tuple[int | None, bool]:
        own = next(self._own, None)
        if own is not None:
            self._last = own
            return (own, False) if own < self._pieces() else (None, False)
        number = self._shared.draw(self.key, self._pieces(), self._keep())
        self._held = self._keep() + (number is not None)
        return number, True

    def _keep(self) -> int:
        return sum(drawn.shared for drawn in self._drawn)

    def _note_trained(self) -> None:
        """Note which minibatches of the pass have been trained by now."""
        progress = self._shared.progress()
        if self._ahead is None:
            if progress.begun == self._begun_before:
                return
            self._ahead = max(0, self._asked - 1)
        if progress.completed != self._completed:
            self._completed = progress.completed
            self._trained = self._asked - self._ahead
        while self._drawn and (self._gone < self._trained or not self._drawn[0].real):
            self._gone += self._drawn.popleft().real

    def settle(self) -> None:
        """Tell the shared queue which minibatches of the pass have been trained by now."""
        self._note_trained()
        if self._keep() < self._held:
            self._shared.draw(self.key, 0, self._keep())
            self._held = self._keep()

    def left(self) -> PassLeft | None:
        """Return the minibatches of the pass that are still this learner's: those drawn and not trained, and those of
        its own that are not drawn. None: the pass is over."""
        self._note_trained()
        pieces = [drawn.number for drawn in self._drawn if drawn.real]
        if self._ended and not pieces:
            return None
        begun, last = self._begun, self._last
        own = () if self._ended else begun.pieces[bisect_right(begun.pieces, last) :]
        rest = () if self._ended else tuple(run[bisect_right(run, last) :] for run in begun.rest)
        return PassLeft(begun.cut, begun.examples, sorted([*pieces, *own]) if pieces else own, rest)

    @property
    def joinable(self) -> bool:
        """True if it is known which learners share the pass out, and how."""
        return bool(self._together)

    def left_for(self, rank: int) -> PassLeft | None:
        """Return the part of the pass for learner `rank`, who joins it at the round in which this learner is. None: the
        pass is over."""
        if (mine := self.left()) is None:
            return None
        first = min([*mine.pieces[:1], *(run.start for run in mine.rest if run)], default=None)
        if first is None:
            return PassLeft(mine.cut, mine.examples, ())
        start = first // mine.cut * mine.cut + self._together.index(rank)
        if mine.rest:
            return PassLeft(mine.cut, mine.examples, (), (range(start, ENDLESS, mine.cut),))
        return PassLeft(mine.cut, mine.examples, range(start, self._pieces(), mine.cut))


class Shared(Sampler[Any]):
    """Passes over minibatches that all learners share out, as one learner goes through them.

    Args:
        number: number of this sampler; learners make their samplers in the same order.
        progress: returns the progress of the learner's loop.
    """

    def __init__(
        self, learner: AttachedLearner | Followed, number: int, terms: ShareTerms, progress: Callable[[], LoopProgress]
    ) -> None:
        self._learner, self._number, self._terms, self.progress = learner, number, terms, progress
        self._agreed = False
        learner.make_share(number, terms)
        self._epoch = 0
        self._gone_through: Counter[int] = Counter()
        self._left: dict[Key, PassLeft] = {}
        """Passes that a session before has left under way."""
        self._now: Callable[[], Drawing | None] = lambda: None
        self._before: Shared | None = None
        self._said_again = False
        self._not_trained = 0  # minibatches of a pass that ended before the first step

    @abstractmethod
    def _whole_pass(self) -> PassLeft:
        """Return this learner's part of a pass that no learner has begun."""

    @abstractmethod
    def _open(self, epoch: int, left: PassLeft) -> tuple[Fetch, Callable[[], int]]:
        """Begin a pass over `epoch`, with `left` of it left; return `fetch` and `pieces` for `Drawing.begin`."""

    @property
    @abstractmethod
    def _most_pieces(self) -> int:
        """Number of minibatches in a whole pass."""

    @property
    def epoch(self) -> int:
        """Epoch of the next pass: where a session has resumed in the middle of one, that epoch, so that a loop
        begins with it: `for epoch in range(sampler.epoch, epochs)`."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the order of the next pass. Without a call each pass takes the next order."""
        self._epoch = epoch

    @property
    def _synchronous(self) -> bool:
        return self._learner.strategy.traits.synchronous

    @property
    def _together(self) -> Sequence[int]:
        """Ranks that share out the next pass: under a synchronous strategy those that take part in this segment."""
        learner = self._learner
        return range(learner.learners) if learner.left or not self._synchronous else learner.together

    def __iter__(self) -> Iterator[Any]:
        return Drawing(self)

    @property
    @abstractmethod
    def _shuffled_source(self) -> object:
        """Data that come in another order in every epoch; None if they do not, or if only their number is known."""

    def comes_after(self, before: "Sequence[Shared]") -> None:
        """Find, among the samplers that the learner made `before` this one, the last with the same data and
        arguments."""
        source = self._shuffled_source
        alike = (one for one in reversed(before) if source is not None and one._shuffled_source is source)
        self._before = next((one for one in alike if one._terms == self._terms), None)

    def _say_again(self, epoch: int) -> None:
        """Warn, once a session, if the sampler made before this one has already given the order of `epoch`."""
        before, self._before = self._before, None
        if before is None or self._gone_through[epoch]:
            return
        self._said_again = before._said_again or bool(before._gone_through[epoch])
        if self._said_again and not before._said_again:
            log.warning(
                f"rank {self._learner.rank}: a further sampler of the same data begins with the order of epoch "
                f"{epoch}, which the one before has given. Samplers made anew in every epoch all give one order, and a "
                "save knows no place in them: make one before the epochs, each pass over which takes the next order, "
                "or call set_epoch(epoch)."
            )

    def begin(self, now: Drawing) -> None:
        """Begin the next pass, as `now`.

        Raises:
            UserError: minibatches cannot be shared out in this process; see `AttachedLearner.check_may_draw`.
        """
        if self._learner.forked:
            self._learner.check_may_draw()
        epoch = self._epoch
        self._say_again(epoch)
        times = self._gone_through[epoch]
        self._epoch, self._gone_through[epoch] = epoch + 1, times + 1
        left = self._left.pop((epoch, times), None) or self._whole_pass()
        now.begin((epoch, times), left, *self._open(epoch, left))
        self._now = weakref.ref(now)  # a loop that is left early has done with it

    @property
    def group(self) -> Group | None:
        """The processes of this learner, if it has several."""
        return self._learner.group

    @property
    def draws_late(self) -> bool:
        """True if minibatches of a dead learner may be drawn from a pass that had none left before."""
        return not (self._synchronous or self._learner.left) and self.group is None

    @property
    def segment(self) -> int:
        """The segment that runs; see `AttachedLearner`."""
        return self._learner.segment

    def dealt_among(self, left: PassLeft) -> Sequence[int]:
        """Return the ranks among which a pass is dealt out in turn, this learner's part of it being `left`; an empty
        sequence if it is dealt out otherwise."""
        if not self._synchronous:
            return ()
        whole = left == self._whole_pass()
        together = tuple(self._together) if whole else tuple(range(self._learner.learners))
        place = together.index(self._learner.rank)
        mine = left.cut == len(together) and all(_in_turn(run, left.cut, place) for run in (left.pieces, *left.rest))
        return together if mine else ()

    @property
    def cut(self) -> int:
        """The segment in which the pass under way has begun; 0 if there is none; CLOSED_PASS if no other learner can
        join it."""
        now = self._now()
        if now is not None and now.left() is None:
            now = None
        if self._left or (now is not None and not now.joinable):
            return CLOSED_PASS
        return 0 if now is None else now.segment

    def agree(self) -> None:
        """Compare this sampler with the other learners' samplers of the same number, until all have been compared.

        Raises:
            UserError: another learner has made its sampler otherwise.
        """
        self._agreed = self._agreed or self._learner.share_is_agreed(self._number)

    def draw(self, key: Key, pieces: int, keep: int) -> int | None:
        """Return the number of the next minibatch in the shared queue; None at its end, or under a synchronous
        strategy, which has no queue. See `passes.draw`."""
        return None if self._synchronous else self._learner.draw_piece((self._number, *key), pieces, keep)

    def ended(self, given: int) -> None:
        """Note that a pass is over, in which this learner was given `given` minibatches."""
        self._not_trained = 0 if self.progress().completed else given

    def settle(self) -> None:
        """Tell the shared queue, before a meeting, which minibatches are trained; warn of a pass that trained none."""
        if self._not_trained and not self.progress().completed:
            log.warning(
                f"rank {self._learner.rank}: a pass over shared batches is over, and no step trained the "
                f"{self._not_trained} of them that came here. It counts as an epoch. To look at batches without "
                "training, go through what `share` was given."
            )
        self._not_trained = 0
        if (now := self._now()) is not None:
            now.settle()

    def state(self, rank: int | None = None) -> dict[str, Any]:
        """Return the sampler's position for a save: in the pass under way, or at the next one. With `rank`, the
        position at which that learner joins the pass."""
        now, times, left = self._now(), dict(self._gone_through), dict(self._left)
        key, terms = (self._epoch, times.get(self._epoch, 0)), self._terms
        mine = None if now is None else now.left() if rank is None else now.left_for(rank)
        if now is not None and mine is not None:
            key = now.key
            times[key[0]], left[key] = key[1], mine
        return {
            "number": self._number,
            "learners": self._learner.learners,
            "batch_size": terms.batch_size,
            "dataset": terms.examples,
            "examples": self._whole_pass().examples,
            "epoch": key[0],
            "nth": key[1],
            "times": [list(one) for one in times.items()],
            "left": [[*key, one.to_plain()] for key, one in left.items()],
        }

    def resume(self, position: DataPosition) -> None:
        """Continue at the position that a session before has saved.

        Raises:
            UserError: the saved sampler shared out other examples, or minibatches of another size.
        """
        mine = self._terms.batch_size, self._terms.examples
        if (position.batch_size, position.dataset) != mine:
            raise UserError(
                f"sampler {self._number} of this session shares out {_words(*mine)}, that of the save "
                f"{_words(position.batch_size, position.dataset)}: make the same samplers in the same order to resume "
                "where the data were."
            )
        self._epoch, self._gone_through = position.epoch, Counter(position.times)
        self._left = dict(position.left)

    def join(self, under_way: Callable[[int, int], tuple[int, int]]) -> None:
        """Continue at the epoch that the learners of a running session go through.

        Args:
            under_way: see `SavedState.epoch_under_way`.
        """
        self._epoch, times = under_way(self._number, self._most_pieces)
        self._gone_through[self._epoch] = times


def _in_turn(run: Pieces, cut: int, place: int) -> bool:
    """Return True if the minibatches `run` are those of `place` where every `cut` are dealt out in turn."""
    if isinstance(run, range):
        return not run or (run.start % cut == place and run.step % cut == 0)
    return all(number % cut == place for number in run)


def _words(batch_size: int, dataset: int) -> str:
    return f"{dataset} examples in minibatches of {batch_size}" if batch_size else "batches as they come"


class SharedSampler(Shared):
    """Batch sampler for a `DataLoader`, in the place of DistributedSampler. Made by `session.sampler`.

    All learners make it alike: another length, size of minibatches, seed or the like is refused. Each epoch has one
    shuffled order, the same on all learners, cut into rounds of one minibatch a learner
    (core/epochs.py). Under a synchronous strategy learner l of L takes the l-th of every round; each gets the same
    number, the last ones smaller, or none if there are fewer examples than learners. Under an asynchronous strategy all
    draw from one queue, so a learner that is slow draws fewer; minibatches it has drawn and not trained are drawn by
    others if it dies.

    A data loader with workers draws ahead: `num_workers x prefetch_factor` minibatches belong to a learner before it
    comes to train them. So keep both small (0 or 1 worker, prefetch_factor 2) where learners differ in speed. None of
    them is lost where a session is saved in the middle of an epoch, nor where the learner dies (sharing.py).
    """

    def __init__(
        self,
        learner: AttachedLearner | Followed,
        number: int,
        dataset: Sized | int,
        batch_size: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        progress: Callable[[], LoopProgress],
    ) -> None:
        examples = dataset if isinstance(dataset, int) else len(dataset)
        if examples < 1 or batch_size < 1:
            raise UserError(f"a sampler of {examples} examples in minibatches of {batch_size}: both must be 1 or more.")
        self._shuffle, self._seed, self.batch_size, self.drop_last = shuffle, seed, batch_size, drop_last
        self._dataset = None if isinstance(dataset, int) or not shuffle else dataset
        whole = batch_size * learner.learners
        self._examples = examples // whole * whole if drop_last else examples
        self._of = examples
        terms = ShareTerms(examples, batch_size, seed % (1 << 63), int(bool(shuffle)), int(bool(drop_last)))
        super().__init__(learner, number, terms, progress)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over this learner's minibatches of the next pass.

        Raises:
            UserError: a loader was given this as `sampler`, and would make minibatches of minibatches.
        """
        asks = sys._getframe(1).f_locals.get("self")  # nothing else tells
        if isinstance(asks, BatchSampler) and getattr(asks, "sampler", None) is self:
            raise UserError(
                f"rank {self._learner.rank}: session.sampler gives whole minibatches: write DataLoader(dataset, "
                f"batch_sampler=session.sampler(dataset, {self.batch_size})), without sampler= and batch_size=."
            )
        return super().__iter__()

    @property
    def sampler(self) -> "SharedSampler":
        """This sampler itself, for toolkits that look for a sampler in a batch sampler, to tell it the epoch."""
        return self

    def __len__(self) -> int:
        """Return the number of minibatches that a learner is given in an epoch: exact under a synchronous strategy,
        else on average."""
        return self._plan(0, len(self._together), self._examples).rounds

    def _plan(self, epoch: int, cut: int, examples: int) -> EpochPlan:
        """Return the plan of an epoch over `examples` examples, cut for `cut` learners."""
        return EpochPlan(epoch, examples, self.batch_size * cut, cut, self._seed)

    def _whole_pass(self) -> PassLeft:
        together, own = self._together, range(0)
        if self._synchronous:
            place, cut = together.index(self._learner.rank), len(together)
            own = range(place, self._plan(0, cut, self._examples).pieces, cut)
        return PassLeft(len(together), self._examples, own)

    def _open(self, epoch: int, left: PassLeft) -> tuple[Fetch, Callable[[], int]]:
        plan = self._plan(epoch, left.cut, left.examples)
        order = self._plan(epoch, left.cut, self._of).order() if self._shuffle else np.arange(self._of)

        def fetch(index: int) -> Any:
            piece = plan.piece(index)
            return order[piece.start : piece.stop].tolist() if piece.frames else MISSING

        return fetch, lambda: plan.pieces

    @property
    def _most_pieces(self) -> int:
        return self._plan(0, self._learner.learners, self._examples).pieces

    @property
    def _shuffled_source(self) -> object:
        return self._dataset
