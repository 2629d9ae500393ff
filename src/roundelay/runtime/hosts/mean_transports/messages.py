"""Messages of the links by which hosts take means and mixes; all are of one part of a segment."""

from dataclasses import dataclass
from typing import Annotated, final

from roundelay.core.codec import FP32, Codec
from roundelay.runtime.messages import Dialect, Message, Range, Rank


@final
@dataclass(frozen=True)
class MeansDone:
    """Means that are complete on a host: their number, and total weight and number of elements of the last one."""

    done: int = 0
    total: float = 0.0
    elements: int = 0


@final
@dataclass(frozen=True)
class CommunicatorTerms:
    """Terms of a communicator, on which hosts have agreed."""

    number: int  # of it, growing
    members: tuple[int, ...]  # hosts, in rank order
    progress: tuple[MeansDone, ...]  # of each member when it was made


class OfPart(Message):
    """Message about means or mixes, with the number of the part of the segment to which it belongs."""

    part: int


# Of a chain -----------------------------------------------------------------------------------------------------------


class Weights(OfPart):
    """Weights of the learners of a host and of the hosts before it, and the codec of the sums."""

    weights: tuple[float, ...]
    codec: Codec = FP32


class Weighed(OfPart):
    """Weights of all learners, by rank."""

    weights: tuple[float, ...]


class SumPiece(OfPart, kind="sum"):
    """Piece of the sum so far, as the payload."""


class MeanPiece(OfPart, kind="mean"):
    """Piece of the mean, as the payload."""


class Complete(OfPart):
    """Mean that some hosts have complete, as the payload."""


# Of mixes -------------------------------------------------------------------------------------------------------------


class Read(OfPart):
    """Learners of a host, each with the number of the last mix of which it has read all that it was to read."""

    read: tuple[tuple[Rank, int], ...]


class MixAnnounced(OfPart, kind="mix"):
    """Message that a learner's vector for a mix comes next."""

    rank: Rank
    number: int
    elements: Annotated[int, Range(0, "elements")]
    weight: float
    codec: Codec = FP32


class Contribution(OfPart):
    """Vector that `MixAnnounced` has announced, as the payload."""


# Of an agreement (agreement.py) ---------------------------------------------------------------------------------------


class ReadyForMeans(OfPart, kind="come"):
    """Message to the leader that a host is ready for the next communicator; `newest` is the highest number of any that
    it has heard of."""

    progress: MeansDone
    newest: int = 0


class CommunicatorMade(OfPart, kind="communicator"):
    """Message of the leader to all hosts that live, with the next communicator."""

    terms: CommunicatorTerms


class Key(OfPart):
    """Message to all members with a value that libraries want to know of each other, such as an address."""

    number: int
    key: str
    value: bytes


class MeanWeights(OfPart):
    """Message to all members that the learners of a host have come to a mean, with these weights."""

    number: int
    mean: int
    weights: tuple[float, ...]


class Broken(OfPart):
    """Message to all members that a communicator is of no more use; all of them come to the next."""

    number: int


def dialect(learners: int, parameters: int) -> Dialect:
    """Return the messages that hosts understand over links for means and mixes."""
    of_chains, of_mixes = (Weights, Weighed, SumPiece, MeanPiece, Complete), (Read, MixAnnounced, Contribution)
    of_agreements = (ReadyForMeans, CommunicatorMade, Key, MeanWeights, Broken)
    return Dialect(*of_chains, *of_mixes, *of_agreements, rank=learners - 1, elements=parameters)
