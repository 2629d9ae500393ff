"""Messages of the links by which hosts take means and mixes; all are of one part of a segment."""

from dataclasses import dataclass
from typing import Annotated, final

from roundelay.core.codec import FP32, Codec
from roundelay.runtime.messages import Dialect, Message, Range, Rank


@final
@dataclass(frozen=True)
class MeansDone:
    """Means that are complete on a host: their number, and of the last one the total weight and the elements."""

    done: int = 0
    total: float = 0.0
    elements: int = 0


@final
@dataclass(frozen=True)
class CommunicatorTerms:
    """A communicator on which hosts have agreed."""

    number: int  # of it, growing
    members: tuple[int, ...]  # hosts, in rank order
    progress: tuple[MeansDone, ...]  # of each member when it was made


class OfPart(Message):
    """A message about means or mixes; the part of the segment it belongs to."""

    part: int


# Of a chain -----------------------------------------------------------------------------------------------------------


class Weights(OfPart):
    """Weights of the learners of a host and of those before it, and the form in which sums go."""

    weights: tuple[float, ...]
    codec: Codec = FP32


class Weighed(OfPart):
    """Weights of all learners."""

    weights: tuple[float, ...]


class SumPiece(OfPart, kind="sum"):
    """A piece of the sum so far, beside it."""


class MeanPiece(OfPart, kind="mean"):
    """A piece of the mean, beside it."""


class Complete(OfPart):
    """A mean that some hosts have complete, beside it."""


# Of mixes -------------------------------------------------------------------------------------------------------------


class Read(OfPart):
    """Learners of a host, with the numbers of the last mix of which each has read all that it was to read."""

    read: tuple[tuple[Rank, int], ...]


class MixAnnounced(OfPart, kind="mix"):
    """A learner's vector for a mix comes next."""

    rank: Rank
    number: int
    elements: Annotated[int, Range(0, "elements")]
    weight: float
    codec: Codec = FP32


class Contribution(OfPart):
    """The vector announced, beside the message."""


# Of an agreement (agreement.py) ---------------------------------------------------------------------------------------


class ReadyForMeans(OfPart, kind="come"):
    """A host to the one that leads: it is ready for the next communicator, and the highest number of any it has heard
    of."""

    progress: MeansDone
    newest: int = 0


class CommunicatorMade(OfPart, kind="communicator"):
    """The host that leads to all that live: the next communicator."""

    terms: CommunicatorTerms


class Key(OfPart):
    """A host to all members: something that libraries want to know of each other, such as an address."""

    number: int
    key: str
    value: bytes


class MeanWeights(OfPart):
    """A host to all members: its learners have come to a mean, with these weights."""

    number: int
    mean: int
    weights: tuple[float, ...]


class Broken(OfPart):
    """A host to all members: this communicator is of no more use. All of them come again."""

    number: int


def dialect(learners: int, parameters: int) -> Dialect:
    """Return the messages that hosts understand over links for means and mixes."""
    of_chains, of_mixes = (Weights, Weighed, SumPiece, MeanPiece, Complete), (Read, MixAnnounced, Contribution)
    of_agreements = (ReadyForMeans, CommunicatorMade, Key, MeanWeights, Broken)
    return Dialect(*of_chains, *of_mixes, *of_agreements, rank=learners - 1, elements=parameters)
