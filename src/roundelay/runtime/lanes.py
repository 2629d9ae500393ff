"""Lanes of the report's timeline: activities of each learner at the beginning of a segment.

A lane is bounded, so that it costs a few microseconds a step for a few hundred steps, and then nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Final, final

from roundelay.core.effects import Begin, Draw, Effect, Gather, GradMean, Mean, Mix, Wait
from roundelay.core.records import SPAN_KINDS

ON_GRADIENT, ON_UPDATE, ON_EXCHANGE, ON_MEAN, ON_MINIBATCH = range(len(SPAN_KINDS))
MOST_SPANS: Final = 400
"""Most spans of a lane."""
SHORTEST: Final = 2e-5
"""Fewest seconds of a span, below which it could not be seen."""
LANE_SEGMENTS: Final = 2
"""Number of first segments of a run, or of its continuation, that have lanes: the very first is slowed by work that
libraries do once."""

Span = tuple[int, float, float]
"""Index into SPAN_KINDS, and the seconds of its beginning and its end on the runtime's clock."""
_KINDS: Final = {Draw: ON_MINIBATCH, Mean: ON_MEAN, Mix: ON_MEAN, GradMean: ON_MEAN, Gather: ON_MEAN}


def span_kind(effect: Effect[object]) -> int:
    """Return the index into SPAN_KINDS for the time that `effect` takes, without that of its gradient."""
    if isinstance(effect, Wait):
        effect = effect.handle.pending[0]
    elif isinstance(effect, Begin):
        effect = effect.effect
    return _KINDS.get(type(effect), ON_EXCHANGE)


@final
class Lane:
    """The lane of one learner in one segment: spans in the order of time, which do not overlap."""

    __slots__ = ("full", "spans")

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.full = False

    def note(self, kind: int, start: float, end: float) -> None:
        """Add a span to the lane, unless it is too short or the lane is full."""
        if end - start >= SHORTEST and not self.full:
            self.spans.append((kind, start, end))
            self.full = len(self.spans) == MOST_SPANS


def since_the_first(lanes: Mapping[int, Sequence[Span]]) -> dict[int, list[Span]]:
    """Return the lanes that have spans, by rank, in seconds since the first span of all, to the microsecond."""
    known = {rank: spans for rank, spans in lanes.items() if spans}
    begin = min((spans[0][1] for spans in known.values()), default=0.0)
    return {
        rank: [(kind, round(start - begin, 6), round(end - begin, 6)) for kind, start, end in spans]
        for rank, spans in known.items()
    }
