"""Points of curves inside an epoch: differences between two looks at a running segment.

Learners only count, as they do anyway; whoever leads the run looks at the counts a few times a second. A point is
written when so many minibatches have been trained since the last, so that an epoch has about as many points however
long it takes.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from roundelay.core.records import CurvePoint
from roundelay.runtime.base import Glance, SegmentPlan, wall_clock


class CurvePoints:
    """Points of one segment.

    Args:
        period: minibatches of all learners between two points; 0: there are none.
        frames: trained before the segment.
        say: is given each point.
        time: the fields of a record that say when it was.
    """

    def __init__(
        self,
        segment: SegmentPlan,
        period: int,
        frames: int,
        say: Callable[[CurvePoint], None],
        time: Callable[[], dict[str, Any]],
    ) -> None:
        self._segment, self._period, self._frames, self._say, self._time = segment, period, frames, say, time
        self._before = Glance(0, 0.0, 0.0, 0)
        self._at, self._virtual_start = wall_clock(), None if period else 0.0

    def look(self, glance: Glance) -> None:
        """Write a point if it is time for one."""
        if self._virtual_start is None and glance.virtual_seconds is not None:  # the clock has gone on since the start
            self._virtual_start = glance.virtual_seconds
            self._before = dataclasses.replace(self._before, virtual_seconds=glance.virtual_seconds)
        if not self._period or glance.steps - self._before.steps < self._period:
            return
        before, now = self._before, wall_clock()
        seconds, time = now - self._at, self._time()
        if glance.virtual_seconds is not None and before.virtual_seconds is not None:
            seconds = glance.virtual_seconds - before.virtual_seconds
            time["virtual_s"] = (time["virtual_s"] or 0.0) + glance.virtual_seconds - (self._virtual_start or 0.0)
        frames, steps = glance.frames - before.frames, glance.steps - before.steps
        norms = glance.gradient_norms - before.gradient_norms
        self._say(
            CurvePoint(
                **time,
                epoch=self._segment.epoch.epoch,
                frames=self._frames + glance.frames,
                learning_rate=self._rate(glance.steps),
                loss=(glance.loss * glance.frames - before.loss * before.frames) / max(1, frames),
                frames_per_second=round(frames / max(1e-9, seconds), 3),
                staleness=(glance.staleness * glance.steps - before.staleness * before.steps) / steps,
                gradient_norm=(glance.gradient_norm_sum - before.gradient_norm_sum) / norms if norms else None,
                consensus_distance=glance.consensus_distance,
            )
        )
        self._before, self._at = glance, now

    def _rate(self, steps: int) -> float:
        """Return the learning rate of the round that so many minibatches lead to."""
        segment = self._segment
        return segment.rate(min(segment.end_round - 1, segment.first_round + steps // segment.epoch.learners))
