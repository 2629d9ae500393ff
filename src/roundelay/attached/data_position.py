"""Position of a sampler in its data, as a save has it, and as learners of a session that resumes take it over.

A pass that was under way stays cut as it was, also where learners have become more or fewer. Under a synchronous
strategy the rest of it is dealt out in turn. Under an asynchronous one it is drawn from the shared queue, and only
minibatches that learners had drawn and not trained are dealt out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from roundelay.runtime.procs.coordination.passes import ENDLESS

Pieces = Sequence[int]
"""Numbers of minibatches."""
Key = tuple[int, int]
"""A pass: its epoch, and how often that was gone through before."""


@dataclass(frozen=True)
class PassLeft:
    """Minibatches of a pass that are left for one learner."""

    cut: int  # number of learners the pass is cut for
    examples: int  # that it shares out
    pieces: Pieces  # minibatches that are this learner's, before any that all draw from; in ascending order
    rest: tuple[range, ...] = ()  # further ones, of a pass whose end is not known

    def to_plain(self) -> list[Any]:
        """Return this position as plain values, for JSON."""
        rest = [[run.start, run.stop, run.step] for run in self.rest]
        return [self.cut, self.examples, runs(self.pieces), *([rest] if rest else [])]

    @classmethod
    def from_plain(cls, said: Sequence[Any]) -> Self:
        """Return the position that these plain values say: the inverse of `to_plain`."""
        cut, examples, pieces, *rest = said
        mine = from_runs(pieces)  # earlier versions have saved them in the order in which they were drawn
        ascending = mine if isinstance(mine, range) else sorted(mine)
        return cls(cut, examples, ascending, tuple(range(*run) for run in (rest[0] if rest else ())))


@dataclass(frozen=True)
class DataPosition:
    """Position of one learner in one sampler."""

    batch_size: int
    dataset: int  # examples in it
    epoch: int  # of the next pass
    times: Mapping[int, int]  # how often each epoch was gone through
    left: Mapping[Key, PassLeft] = field(default_factory=dict)  # of passes that were under way


def runs(pieces: Pieces) -> list[list[int]]:
    """Return `pieces` as runs of equal steps, [first, past the last, step] each, for an epoch may have millions."""
    if isinstance(pieces, range):
        return [[pieces.start, pieces.stop, pieces.step]] if pieces else []
    found: list[list[int]] = []
    for piece in pieces:
        last = found[-1] if found else None
        if last is not None and last[1] == last[0] + 1 and piece > last[0]:  # one number so far
            found[-1] = [last[0], piece + 1, piece - last[0]]
        elif last is not None and last[1] > last[0] + 1 and piece == last[1] - 1 + last[2]:
            last[1] = piece + 1
        else:
            found.append([piece, piece + 1, 1])
    return found


def from_runs(said: Sequence[Sequence[int]]) -> Pieces:
    """Return the pieces of the runs `said`: the inverse of `runs`."""
    if len(said) == 1:
        return range(*said[0])
    return [piece for run in said for piece in range(*run)]


def position_of(state: Mapping[str, Any]) -> DataPosition:
    """Return the position of one learner from the saved state of its sampler."""
    times = dict(state["times"])
    return DataPosition(state["batch_size"], state["dataset"], state["epoch"], times, _left(state))


def _left(state: Mapping[str, Any]) -> dict[Key, PassLeft]:
    return {(epoch, nth): PassLeft.from_plain(said) for epoch, nth, said in state["left"]}


def single(piece: int) -> range:
    """Return the range that holds only the number `piece`."""
    return range(piece, piece + 1)


def pieces_of(left: PassLeft, batch_size: int) -> int:
    """Return the number of minibatches in a pass that begins as `left`; ENDLESS for batches taken as they come
    (batch_size 0)."""
    return -(-left.examples // (batch_size * left.cut)) * left.cut if batch_size else ENDLESS


def dealt_out(
    states: Mapping[int, Mapping[str, Any]],
    rank: int,
    learners: int,
    synchronous: bool,
    undrawn: Mapping[Key, Sequence[range]],
) -> DataPosition:
    """Return the position of learner `rank` among `learners`, in a sampler that a save has other learners' states of.
    It begins where the one that was least far is.

    Args:
        states: states of the sampler, by the rank of the saved learners.
        undrawn: by pass, minibatches of the shared queue that are dealt out besides those left to each learner.
    """
    first = min(states.values(), key=lambda state: (state["epoch"], state["nth"]))
    lefts = {before: _left(state) for before, state in states.items()}
    cuts = dict.fromkeys(undrawn, (first["learners"], first["examples"]))
    cuts |= {key: (one.cut, one.examples) for left in lefts.values() for key, one in left.items()}
    everything: dict[Key, list[range]] = {key: list(undrawn.get(key, ())) for key in cuts}
    for before, state in states.items():
        for key, (cut, examples) in cuts.items():
            if key in lefts[before]:
                everything[key].extend(map(single, lefts[before][key].pieces))
                everything[key].extend(lefts[before][key].rest)
            elif synchronous and (state["epoch"], state["nth"]) <= key:  # it has not begun that pass
                everything[key].append(range(before, pieces_of(PassLeft(cut, examples, ()), state["batch_size"]), cut))
    left = {key: _part(PassLeft(*cuts[key], ()), pieces, rank, learners) for key, pieces in everything.items()}
    times = dict(first["times"])
    return DataPosition(first["batch_size"], first["dataset"], first["epoch"], times, left)


def _part(whole: PassLeft, left: Sequence[range], rank: int, learners: int) -> PassLeft:
    """Return learner `rank`'s part of all minibatches that are `left` of a pass: every `learners`-th one, and of passes
    without an end every `learners`-th of each run."""
    finite = sorted(piece for run in left if run.stop < ENDLESS for piece in run)
    rest = tuple(run[rank::learners] for run in left if run and run.stop >= ENDLESS)
    return PassLeft(whole.cut, whole.examples, finite[rank::learners], rest)
