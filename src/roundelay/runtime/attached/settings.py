"""Settings of a learner's optimizers, which learners compare: their classes, and the options of their parameter groups.

    as attached    must be the same where rows are to stay equal, each row stepped by an optimizer of its own
                   (entering.py refuses others); elsewhere a difference is said, once
    as they are    numbers, which a schedule changes. They travel with every vote. Where a mean of gradients is taken,
                   all update by those of the lowest rank that had a gradient. So learners stay one model whose
                   schedules are not equally far, for they had minibatches for different numbers of steps, or go by
                   losses of their own

Where several learners differ from the lowest, each says so for itself.
"""

import json
import logging
import zlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundelay.algorithms.local_update import LocalOptimizer
from roundelay.core.errors import UserError
from roundelay.runtime.hosts.terms import differing
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views import Floats, Integers, L, View, table
from roundelay.strategies.base import Strategy

log = logging.getLogger("roundelay")

TEXT_WORDS = 128
"""Words of 8 bytes for a learner's settings as text; the first is the text's length in bytes."""
NUMBERS = 64
"""Numbers of a learner that others can read: a checksum of all, how many there are, and the first of them."""
APART, APART_STEPS = 1.5, 10
"""Ratio of two learners' steps, and their difference, from which on schedules by steps may be far apart."""
NAMED_SETTINGS = 3
"""Number of settings that a message names."""

Numbers = NDArray[np.float64]
"""Settings as numbers, (NUMBERS,)."""


@dataclass(frozen=True)
class SettingsTables(View):
    """Tables in which each learner writes its own settings, then publishes `told`. It writes the items after `told`
    before it goes to a meeting."""

    PUBLISHED = ("told",)

    text: Integers = table(L, TEXT_WORDS)  # The settings a learner has attached with, packed
    told: Integers = table(L)  # 1: it has said so
    taken: Integers = table(L)  # Steps it has had gradients for, at its last meeting
    numbers: Floats = table(L, NUMBERS, kind=np.float64)  # Its numbers then
    frozen: Integers = table(L, lambda of: max(1, of.tensors))  # 1: a parameter that it has frozen since


class SteppedByLoop(LocalOptimizer):
    """Optimizers of a user's loop, whose numbers the loop and its schedules change."""

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """Names of `numbers`: learning rates first."""

    @property
    @abstractmethod
    def rates(self) -> int:
        """Number of learning rates."""

    @abstractmethod
    def numbers(self) -> tuple[float, ...]:
        """Return all numbers of all parameter groups, as they are now."""

    @abstractmethod
    def under(self, numbers: Sequence[float]) -> AbstractContextManager[None]:
        """Set the first of the optimizers' numbers to `numbers` until the end of the `with`."""


class KeptNumbers:
    """The numbers of one learner's optimizers as others read them, packed anew when they change."""

    def __init__(self, optimizer: SteppedByLoop) -> None:
        self._optimizer = optimizer
        self._packed: tuple[tuple[float, ...], Numbers] = (), np.zeros(NUMBERS)

    def packed(self) -> Numbers:
        """Return the numbers of the optimizers as they are now, packed."""
        now = self._optimizer.numbers()
        if now != self._packed[0]:
            every, found = np.asarray(now, np.float64), np.zeros(NUMBERS)
            found[:2] = zlib.crc32(every.tobytes()), len(every)
            found[2 : 2 + len(every)] = every[: NUMBERS - 2]
            self._packed = now, found
        return self._packed[1]


class Settings:
    """One learner's optimizer settings, and their comparison with those of the other learners.

    Args:
        facts: settings that the learner has attached with, by readable names.
    """

    def __init__(
        self, tables: SettingsTables, rank: int, facts: Mapping[str, Any], optimizer: SteppedByLoop, strategy: Strategy
    ) -> None:
        self._tables, self._rank, self._optimizer = tables, rank, optimizer
        self._label, self._keeps_equal = strategy.label, strategy.traits.rows == "equal"
        self._synchronous, self._highest = strategy.traits.synchronous, np.zeros(1)
        self._mine = {name: _short(value) for name, value in facts.items()}
        self.kept = KeptNumbers(optimizer)
        self.taken = 0
        """Steps that this learner has had gradients for."""
        self.frozen: Mapping[str, bool] = {}
        """True for a trained parameter that needs no gradient any more, by its name."""
        self._said_numbers = self._said_rates = self._said_frozen = False
        words = np.zeros(TEXT_WORDS, np.int64)
        text = _packed(self._mine)
        words[0] = len(text)
        words.view(np.uint8)[8 : 8 + len(text)] = np.frombuffer(text, np.uint8)
        tables.text[rank] = words
        publish(tables.told, rank, 1)

    # As attached ------------------------------------------------------------------------------------------------------

    def say_differences(self, living: Sequence[int]) -> bool:
        """Warn if the lowest rank that lives has attached with other settings; return False if it has not told."""
        lowest = min(living, default=self._rank)
        if lowest == self._rank:
            return True
        if not self._tables.told[lowest]:
            return False
        words = self._tables.text[lowest]
        theirs = json.loads(zlib.decompress(words.view(np.uint8)[8 : 8 + int(words[0])].tobytes()))
        found = differing(json.loads(zlib.decompress(_packed(self._mine))), theirs)
        if found:
            self._said_rates = True
            log.warning(
                f"rank {self._rank} has attached with "
                f"{named([(name, mine, other) for name, mine, other in found], lowest)}. Under {self._label} each "
                "learner steps its own row, so that is possible; if it is not meant, give all the same."
            )
        return True

    # As they are ------------------------------------------------------------------------------------------------------

    def note(self) -> None:
        """Write, before a meeting, the numbers, the steps taken, and the frozen parameters, for others to read."""
        self._tables.taken[self._rank], self._tables.numbers[self._rank] = self.taken, self.kept.packed()
        self._tables.frozen[self._rank, : len(self.frozen)] = [*self.frozen.values()]

    def say_frozen_apart(self, living: Sequence[int]) -> None:
        """Warn in a meeting, once, if this learner has frozen a parameter and the lowest rank has not, or the other way
        about."""
        lowest = min(living, default=self._rank)
        mine, theirs = self._tables.frozen[self._rank], self._tables.frozen[lowest]
        names = [*self.frozen]
        number = next((n for n, _ in enumerate(names) if mine[n] != theirs[n]), None)
        if number is None or self._said_frozen:
            return
        self._said_frozen = True
        froze, other = (self._rank, lowest) if mine[number] else (lowest, self._rank)
        log.warning(
            f"rank {froze} has frozen parameter {names[number]} (requires_grad_(False)) and rank {other} has not: the "
            "others go on changing it, in means and exchanges for all. Freeze the same parameters on all learners."
        )

    def say_rates_apart(self, living: Sequence[int]) -> None:
        """Warn in a meeting, once, if the lowest rank has other learning rates after as many steps as this learner.
        After more or fewer steps a schedule may well have others; under an asynchronous strategy, far others."""
        lowest, tables = min(living, default=self._rank), self._tables
        if self._said_rates or self._keeps_equal:
            return
        rates = slice(2, 2 + min(self._optimizer.rates, NUMBERS - 2))
        mine, theirs = tables.numbers[self._rank][rates], tables.numbers[lowest][rates]
        if not self._synchronous:
            self._say_schedules_apart(int(tables.taken[lowest]), mine, theirs, lowest)
        elif tables.taken[lowest] == self.taken and len(mine) and mine.tobytes() != theirs.tobytes():
            self._said_rates = True
            log.warning(
                f"rank {self._rank} has {named(_pairs(self._optimizer.names, mine, theirs), lowest)}, both after "
                f"{self.taken} steps: a schedule that goes by a learner's own loss does that. Under {self._label} each "
                "learner steps its own row, so that is possible; if it is not meant, give all the same."
            )

    def _say_schedules_apart(self, taken: int, mine: Numbers, theirs: Numbers, lowest: int) -> None:
        """Warn if learning rates are far apart, of the highest that the two had at meetings, and so are the steps, of
        which the learner `lowest` has `taken`: a schedule goes by each learner's own."""
        if not len(mine) or len(mine) != len(theirs):
            return
        self._highest = np.fmax(self._highest, np.fmax(mine, theirs))
        few, many = sorted((taken, self.taken))
        if many - few < APART_STEPS or many < APART * few or not (abs(mine - theirs) > self._highest / 4).any():
            return
        self._said_rates = True
        log.warning(
            f"rank {self._rank} has {named(_pairs(self._optimizer.names, mine, theirs), lowest)}, after {self.taken} "
            f"and {taken} steps: their schedules go by each learner's own. Let them go by epochs, or by the steps of "
            "all, of which there were sum(session.summary()['steps']) // session.learners since attach."
        )

    def under(self, lowest: int, mine: Numbers, theirs: Numbers, had: bool) -> AbstractContextManager[None]:
        """Use, for an update by a mean of gradients, the numbers of `lowest`, the lowest rank that had a gradient.

        Args:
            mine: the numbers of this learner; `had`: this learner had a gradient too.

        Raises:
            UserError: the numbers differ, and learners have unequally many, or too many to be read.
        """
        if mine.tobytes() == theirs.tobytes():
            return self._under(theirs)
        pairs = _pairs(self._optimizer.names, mine[2:], theirs[2:])
        if mine[1] != theirs[1] or mine[1] > NUMBERS - 2:
            raise UserError(
                f"rank {self._rank} has {named(pairs, lowest) or 'other options of its optimizer'} in step "
                f"{self.taken}; {self._label} averages gradients, and learners who update by them otherwise would "
                "train different models. Change options on all learners alike."
            )
        if had and not self._said_numbers:
            self._said_numbers = True
            log.warning(
                f"rank {self._rank} has {named(pairs, lowest)} in step {self.taken}. {self._label} averages gradients "
                "and keeps one model, so from here on all update by the numbers of the lowest rank that has a "
                "gradient. A schedule does that which goes by a learner's own loss, or by steps where learners take "
                "different numbers of them."
            )
        return self._under(theirs)

    def under_at_meeting(self, present: Sequence[int]) -> AbstractContextManager[None]:
        """Use, for an update by a mean that was begun before the last meeting, the numbers that the lowest of `present`
        had there. Where all had the same, each uses its own as they are now, which may have been loaded since."""
        tables, lowest = self._tables, min(present, default=self._rank)
        mine, theirs = tables.numbers[self._rank], tables.numbers[lowest]
        return nullcontext() if mine.tobytes() == theirs.tobytes() else self.under(lowest, mine, theirs, had=False)

    def _under(self, numbers: Numbers) -> AbstractContextManager[None]:
        if self.kept.packed().tobytes() == numbers.tobytes():
            return nullcontext()
        return self._optimizer.under(numbers[2 : 2 + int(numbers[1])].tolist())


def named(found: Sequence[tuple[str, Any, Any]], lowest: int) -> str:
    """Return differences from the settings of learner `lowest`, in words."""
    parts = [f"{name} {said(mine)} where rank {lowest} has {said(theirs)}" for name, mine, theirs in found]
    return ", ".join(parts[:NAMED_SETTINGS]) + (f", and {len(parts) - NAMED_SETTINGS} more" * (len(parts) > 3))


def said(value: Any) -> str:
    """Return the value of a setting in words."""
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _short(value: Any) -> Any:
    """Return, for a list of names, their number and the first; any other value as it is."""
    if not isinstance(value, list | tuple):
        return value
    return f"{len(value)} from {value[0]} on" if value else "none"


def _pairs(names: Sequence[str], mine: Numbers, theirs: Numbers) -> list[tuple[str, float, float]]:
    pairs = zip(names, mine.tolist(), theirs.tolist(), strict=False)
    return [(name, one, other) for name, one, other in pairs if one != other]


def _packed(facts: Mapping[str, Any]) -> bytes:
    """Return `facts` as compressed text that fits into the table; if too long, with a checksum for the options."""
    text = zlib.compress(json.dumps(facts, default=str).encode())
    if len(text) <= 8 * (TEXT_WORDS - 1):
        return text
    few = {name: value for name, value in facts.items() if name.split()[0] in ("optimizer", "torch")}
    few = dict(list(few.items())[:8]) | {"checksum of all options": zlib.crc32(text)}
    return zlib.compress(json.dumps(few).encode())
