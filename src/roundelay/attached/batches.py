"""Minibatches of any iterable, shared out as they come: `session.share(batches)`.

Every learner goes through the same ones, and knows them by their numbers; it skips those that are others'. So they need
have neither a length nor an index, only one order.
"""

import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from roundelay.attached.data_position import PassLeft
from roundelay.attached.forward import fingerprint
from roundelay.attached.sharing import MISSING, Drawing, Fetch, Followed, LoopProgress, Shared
from roundelay.core.errors import UserError
from roundelay.runtime.attached.learner import AttachedLearner
from roundelay.runtime.attached.shares import ANY, COMPARED, COUNT, FINGERPRINTS, FOUND, STATED, UNSEEN, ShareTerms
from roundelay.runtime.procs.coordination.passes import ENDLESS

log = logging.getLogger("roundelay")

ORDERING = ("batch_sampler", "sampler", "dataset")
"""Attributes of a data loader, or of a sampler of batches, that order its batches."""
DEALS = ("world_size", "num_replicas")
"""Attributes of samplers that deal batches out by rank: lhotse's, torch's DistributedSampler."""
OWN = "generator"
"""Attribute of samplers of torch that draw their order, of the generator by which they do; None: of all."""
OF_LOADERS = ("dataset", "batch_sampler", "sampler", "batch_size", "drop_last", "num_workers", "collate_fn")
"""Attributes that toolkits ask a data loader for."""
LEVELS, ITEMS = 4, 256
"""Part of a batch that goes into its fingerprint: levels of containers, and items of each."""


@final
class SharedBatches(Shared):
    """Batches of an iterable, each of which goes to one learner. Made by `session.share`.

    All learners go through the same batches in the same order, in every pass from the beginning. Under a synchronous
    strategy learner l of L takes the l-th of every L; under an asynchronous one all claim them from one queue, so that
    a slow learner takes fewer. Batches that a learner has claimed and not trained when it dies are claimed by others.

    A source with `set_epoch` (or a data loader whose sampler or dataset has one) is told the number of each pass before
    it begins; where the loop has told it another, that one counts. A sampler of torch that draws its order
    (RandomSampler and the like, also of a loader that shuffles) draws it by the seed of its generator, or 0, and the
    number of the pass; other sources find torch's random numbers seeded by that.
    """

    def __init__(
        self,
        learner: AttachedLearner | Followed,
        number: int,
        batches: Iterable[Any],
        compared: bool,
        progress: Callable[[], LoopProgress],
    ) -> None:
        _check(batches, learner.rank)
        super().__init__(learner, number, ShareTerms(first=UNSEEN if compared else ANY), progress)
        self._batches = batches
        self._parts: list[Any] = [part for part in _parts(batches) if callable(getattr(part, "set_epoch", None))]
        self._told = self._told_epoch()
        self._epoch = self._told or 0
        self._drawn = [*_drawn(batches)]
        self._going_through: _Numbered | None = None

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the source that is shared, as toolkits ask a loader for one."""
        if name not in OF_LOADERS:
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        return getattr(self._batches, name)

    def __len__(self) -> int:
        """Return the average number of batches that a learner is given in a pass, where the source has a length."""
        batches: Any = self._batches
        return math.ceil(len(batches) / len(self._together))

    def begin(self, now: Drawing) -> None:
        """Begin the next pass, at the epoch that the loop has set at the source, if it has set one."""
        said = self._told_epoch()
        if said != self._told and said is not None:
            self.set_epoch(said)
        super().begin(now)

    def _told_epoch(self) -> int | None:
        said = (getattr(part, "epoch", None) for part in self._parts)
        return next((epoch for epoch in said if isinstance(epoch, int)), None)

    def _whole_pass(self) -> PassLeft:
        together, rest = self._together, tuple[range, ...]()
        if self._synchronous:
            rest = (range(together.index(self._learner.rank), ENDLESS, len(together)),)
        return PassLeft(len(together), 0, (), rest)

    def _open(self, epoch: int, left: PassLeft) -> tuple[Fetch, Callable[[], int]]:
        for part in self._parts:
            part.set_epoch(epoch)
        self._told = self._told_epoch()
        note = partial(self._learner.note_pass, self._number, epoch)
        note(STATED, UNSEEN if (length := _length(self._batches)) is None else 1 + length)
        self._going_through = _Numbered(self._batches, self._learner.rank, note, _Randomness(epoch, self._drawn))
        numbered = self._going_through
        return numbered.fetch, lambda: numbered.count

    def ended(self, given: int) -> None:
        """Note that a pass is over, with `given` batches for this learner; let others know the number of all."""
        super().ended(given)
        if self._going_through is not None:
            self._going_through.note_end()

    @property
    def _most_pieces(self) -> int:
        return ENDLESS

    @property
    def _shuffled_source(self) -> object:
        batches = self._batches
        of = getattr(batches, "dataset", getattr(getattr(batches, "sampler", batches), "data_source", batches))
        return of if self._parts or self._drawn else None


@final
class _Numbered:
    """The batches of one pass by their numbers, asked for mostly in ascending order. One that lies behind is found by
    going through all from the beginning once more, which happens where a learner has died.

    Args:
        note: is called with what is known of the pass; see `Shares.note`.
        randomness: the random numbers that the source draws.
    """

    def __init__(
        self, batches: Iterable[Any], rank: int, note: Callable[[int, int], None], randomness: "_Randomness"
    ) -> None:
        self._batches, self._rank, self._note, self._randomness = batches, rank, note, randomness
        self.count = ENDLESS
        """Number of batches; ENDLESS until it is known."""
        self._at, self._most, self._first, self._farthest = 0, 0, 0, 0
        self._iterator: Iterator[Any] | None = None

    def fetch(self, number: int) -> Any:
        """Return the batch `number` of the pass; MISSING if there are fewer."""
        again = self._iterator is None or number < self._at
        if again:
            self._randomness.begin()
        with self._randomness.drawn_from():
            return self._found(number, again)

    def _found(self, number: int, again: bool) -> Any:
        if self._iterator is None or again:
            self._iterator, self._at = iter(self._batches), 0
        found = MISSING
        while self._at <= number < self.count:
            found = next(self._iterator, MISSING)
            if found is MISSING:
                self.count = self._at
                return MISSING
            if self._at == 0 and not self._is_first(found):
                self.count = 0
                return MISSING
            if self._at in COMPARED and self._at > self._farthest:
                self._farthest = self._at
                self._note(FINGERPRINTS + COMPARED.index(self._at), batch_fingerprint(found))
            self._at += 1
            self._most = max(self._most, self._at)
        return found

    def note_end(self) -> None:
        """Let other learners know how many batches the pass has, as far as that is known."""
        self._note(FOUND, 1 + self._most)
        if self._most <= self.count < ENDLESS:  # else it was given up
            self._note(COUNT, 1 + self.count)

    def _is_first(self, found: object) -> bool:
        """Return True if `found` is the same first batch as when this pass was first begun; warn if it is another."""
        first = batch_fingerprint(found)
        if self._first and first != self._first:
            log.warning(
                f"rank {self._rank}: {type(self._batches).__name__} gives other batches when it is gone through a "
                "second time in one pass, so those that a learner has left untrained when it died cannot be found "
                "again, and this learner ends the pass. Let iter() begin with the same order until set_epoch() is "
                "called."
            )
            return False
        if not self._first:
            self._first = first
            self._note(FINGERPRINTS, first)
        return True


@final
class _Randomness:
    """Random numbers of torch for a source in one pass: a function of its epoch. They are kept apart from the process's
    own, which differ between learners after different numbers of steps.

    Args:
        generators: the source's own generators, with their seeds.
    """

    def __init__(self, epoch: int, generators: Sequence[tuple[torch.Generator, int]]) -> None:
        self._epoch, self._generators = epoch, generators
        self._state = torch.empty(0)

    def begin(self) -> None:
        """Seed all generators for a pass from its beginning; also when it is gone through once more."""
        for generator, seed in self._generators:
            generator.manual_seed((seed + self._epoch) % (1 << 63))
        self._state = torch.Generator().manual_seed(self._epoch).get_state()

    @contextmanager
    def drawn_from(self) -> Iterator[None]:
        """Let torch draw from these random numbers in the `with`; torch's own state is as before afterwards."""
        before = torch.get_rng_state()
        torch.set_rng_state(self._state)
        try:
            yield
        finally:
            self._state = torch.get_rng_state()
            torch.set_rng_state(before)


def _check(batches: object, rank: int) -> None:
    """Check that every learner can go through all of `batches`.

    Raises:
        UserError: `batches` can be gone through only once, or gives each rank different batches.
    """
    name = type(batches).__name__
    if not (hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")):
        raise UserError(f"rank {rank}: session.share({name}): give an iterable of batches (a sampler, a list).")
    if isinstance(batches, Iterator) and not callable(getattr(batches, "set_epoch", None)):
        raise UserError(
            f"rank {rank}: session.share was given a {name}, which can be gone through once. Give what it was made of: "
            "an object whose iter() begins anew in every pass (a class with __iter__, a list, a sampler, a loader)."
        )
    for part in _parts(batches):
        if getattr(part, "concurrent", False) is True:
            raise UserError(
                f"rank {rank}: {type(part).__name__} was made with concurrent=True, which fills buckets on a thread: "
                "what it gives then depends on timing, and differs between learners. Make it with concurrent=False."
            )
        for deals in DEALS:
            world = getattr(part, deals, 1)
            if isinstance(world, int) and world > 1:
                raise UserError(
                    f"rank {rank}: {type(part).__name__} was made with {deals}={world}: it deals batches out by rank, "
                    "however fast a rank is, so there would be nothing to share. Make it the same on all learners, "
                    "with world_size=1, rank=0 (num_replicas=1, rank=0 of torch's), and session.share gives each batch "
                    "to whichever learner is free."
                )


def _length(batches: object) -> int | None:
    """Return the number of batches that a source says it has; None if it does not say."""
    known: Any = batches
    try:
        return len(known)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def _parts(batches: object) -> Iterator[object]:
    """Yield the source `batches`, and all objects within it that may order its batches."""
    found = [batches]
    for part in found:
        inner = (getattr(part, name, None) for name in ORDERING)
        found += [one for one in inner if one is not None and not any(one is before for before in found)]
        yield part


def _drawn(batches: object) -> Iterator[tuple[torch.Generator, int]]:
    """Yield the generators, with their seeds, of torch's samplers in `batches` that draw an order. A sampler without a
    generator is given one."""
    for part in _parts(batches):
        sampler: Any = part
        if isinstance(part, Sampler) and type(part).__module__.startswith("torch.utils.data") and hasattr(part, OWN):
            if sampler.generator is None:
                sampler.generator = torch.Generator().manual_seed(0)
            yield sampler.generator, sampler.generator.initial_seed()


def batch_fingerprint(batch: object) -> int:
    """Return a number above 0 for a batch, the same for equal batches: of numbers, texts, arrays, and containers of
    them. Of other objects their class counts, `id` or `ids`, as lhotse's cuts have them, and the tensors and arrays in
    them."""
    digest = hashlib.blake2b(digest_size=7)
    for fact in _facts(batch, LEVELS):
        digest.update(repr(fact).encode())
    return 1 + int.from_bytes(digest.digest(), "little")


def _facts(batch: object, depth: int) -> Iterator[object]:
    if isinstance(batch, Tensor):
        yield fingerprint([batch])
    elif isinstance(batch, np.ndarray):
        yield batch.shape, str(batch.dtype), hashlib.blake2b(np.ascontiguousarray(batch).tobytes()).hexdigest()
    elif isinstance(batch, str | bytes | int | float | complex | np.generic) or batch is None:
        yield batch
    elif depth and isinstance(batch, Mapping):
        for key in list(batch)[:ITEMS]:
            yield key
            yield from _facts(batch[key], depth - 1)
    elif depth and isinstance(batch, Sequence):
        for item in batch[:ITEMS]:
            yield from _facts(item, depth - 1)
    else:
        yield type(batch).__qualname__
        name, ids = getattr(batch, "id", None), getattr(batch, "ids", ())
        if isinstance(name, str | int):
            yield name
        if depth and isinstance(ids, Iterable):
            yield from list(ids)[:ITEMS]
        for key, value in sorted(getattr(batch, "__dict__", {}).items()) if depth else ():
            if isinstance(value, Tensor | np.ndarray):
                yield key
                yield from _facts(value, depth - 1)
