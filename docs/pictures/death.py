"""A segment of AD-PSGD in which a learner dies and a replacement joins: a real run of the simulator.

The picture shows what the learners' coroutines asked for and when they were answered, in virtual time.
"""

from collections.abc import Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any, final

from _ink import box, element, line, paragraph, picture, text

from roundelay.algorithms.local_update import Sgd
from roundelay.core.effects import Begin, Effect, Exchange, Grad
from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Me
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import Cluster, SegmentPlan
from roundelay.runtime.sim.cluster import Compute, Moment, Node, VirtualCluster
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies.adpsgd import AdPsgd
from roundelay.strategies.base import Strategy

LEARNERS, MINIBATCHES, DIES, DIES_AT, JOINS_AT = 4, 36, 2, 0.46, 0.77
LEFT, RIGHT, TOP, STEP, HIGH, WIDTH = 112.0, 34.0, 108.0, 62.0, 26.0, 980.0


@dataclass
class Span:
    """An effect that a learner asked for at virtual second `begin`. It was answered at `end`; None: never."""

    rank: int
    begin: float
    minibatch: int = -1
    peer: int = -1
    end: float | None = None
    reply: Any = None


@final
@dataclass(frozen=True)
class Watched(Strategy):
    """A strategy whose learners are watched: what each asks for is written down in `spans`."""

    name = AdPsgd.name
    traits = AdPsgd.traits
    inner: Strategy = AdPsgd("fixed-ring")
    spans: list[Span] = field(default_factory=list)
    clock: list[SimRuntime] = field(default_factory=list)

    async def learn(self, me: Me) -> None:
        await _Passing(self.inner.learn(me), me.rank, self)


@final
class _Passing:
    """Passes on what a coroutine asks for, and what it is answered."""

    def __init__(self, coroutine: Coroutine[Effect[Any], Any, None], rank: int, watched: Watched) -> None:
        self._coroutine, self._rank, self._watched = coroutine, rank, watched

    def __await__(self) -> Generator[Effect[Any], Any, None]:
        reply: Any = None
        while True:
            try:
                effect = self._coroutine.send(reply)
            except StopIteration:
                return
            begun = effect.effect if isinstance(effect, Begin) else effect
            span = Span(self._rank, self._watched.clock[0].now)
            if isinstance(begun, Grad):
                span.minibatch = begun.batch.index
            if isinstance(begun, Exchange):
                span.peer = begun.peer
            self._watched.spans.append(span)
            reply = yield effect
            span.end, span.reply = self._watched.clock[0].now, reply.reply if isinstance(effect, Begin) else reply


def happened() -> list[Span]:
    """Gradients and exchanges of the run, in order."""
    watched = Watched()
    cluster = Cluster(watched, Quadratic(parameters=8), Sgd(0.0), LEARNERS, seed=3)
    virtual = VirtualCluster(
        nodes=(Node(learners=LEARNERS),),
        compute=Compute(seconds=0.1, sigma=0.2),
        exchange=0.012,
        background=False,
        deaths=(Moment(DIES, DIES_AT),),
        joins=(Moment(DIES, JOINS_AT),),
    )
    runtime = SimRuntime(cluster, CostModel(cluster=virtual))
    watched.clock.append(runtime)
    runtime.segment(SegmentPlan(EpochPlan(0, MINIBATCHES * 16, LEARNERS * 16, LEARNERS, 1), 0.1))
    return [span for span in watched.spans if span.minibatch >= 0 or span.peer >= 0]


@final
class _Chart:
    """Places of learners and seconds."""

    def __init__(self, until: float) -> None:
        self.until = until

    def x(self, seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * seconds / self.until

    def top(self, rank: int) -> float:
        return TOP + STEP * rank

    def middle(self, rank: int) -> float:
        return self.top(rank) + HIGH / 2

    def life(self, rank: int, begin: float, end: float, class_: str = "rule") -> str:
        return line((self.x(begin), self.middle(rank)), (self.x(end), self.middle(rank)), class_=class_)

    def exchange(self, span: Span) -> str:
        """A line between two rows, at the moment of their average."""
        low, high = sorted((span.rank, span.peer))
        assert span.end is not None
        ends = [(self.x(span.end), self.top(low) + HIGH), (self.x(span.end), self.top(high))]
        dots = [element("circle", cx=x, cy=y, r=2.6, class_="green-mark") for x, y in ends]
        return line(*ends, class_="green-line") + "".join(dots)

    def gradient(self, span: Span, end: float, hue: str) -> str:
        x, width = self.x(span.begin), self.x(end) - self.x(span.begin)
        number = text(str(span.minibatch), x + width / 2, self.middle(span.rank) + 4, "small", "middle")
        return box(x, self.top(span.rank), width, HIGH, hue, 4) + number

    def seconds(self, y: float) -> str:
        """The axis."""
        parts = [line((self.x(0), y), (self.x(self.until), y), class_="rule")]
        for tenth in range(0, int(self.until * 10) + 1, 2):
            x = self.x(tenth / 10)
            parts += [
                line((x, y), (x, y + 5), class_="rule"),
                text(f"{tenth / 10:g} s", x, y + 19, "small quiet", "middle"),
            ]
        return "".join(parts)


def _legend(y: float) -> str:
    said = [("blue", "gradient of minibatch n"), ("red", "lost with its learner"), ("amber", "drawn again by another")]
    x, parts = LEFT, []
    for hue, words in said:
        parts += [box(x, y, 22, 14, hue, 3), text(words, x + 30, y + 11.5, "small quiet")]
        x += 56 + 6.6 * len(words)
    parts += [
        line((x + 8, y - 2), (x + 8, y + 16), class_="green-line"),
        text("exchange: both rows take their mean", x + 20, y + 11.5, "small quiet"),
    ]
    return "".join(parts)


def draw() -> str:
    """The picture."""
    spans = happened()
    chart = _Chart(max(span.end or 0.0 for span in spans))
    gradients, exchanges = [s for s in spans if s.minibatch >= 0], [s for s in spans if s.peer >= 0]
    lost = next(span for span in gradients if span.end is None)
    again = next(span for span in gradients if span.minibatch == lost.minibatch and span is not lost)
    back = min(span.begin for span in spans if span.rank == DIES and span.begin > DIES_AT)
    refused = [span for span in exchanges if span.end is not None and span.reply is None]
    parts = [text(f"learner {rank}", 28, chart.middle(rank) + 4.5) for rank in range(LEARNERS)]
    parts += [chart.life(rank, 0, chart.until) for rank in range(LEARNERS) if rank != DIES]
    parts += [chart.life(DIES, 0, DIES_AT), chart.life(DIES, back, chart.until)]
    parts.append(chart.life(DIES, DIES_AT, back, "red-line dashed faint"))
    parts += [chart.exchange(span) for span in exchanges if span.reply is not None]
    for span in gradients:
        hue = "red" if span is lost else "amber" if span is again else "blue"
        parts.append(chart.gradient(span, DIES_AT if span.end is None else span.end, hue))
    x, y = chart.x(DIES_AT), chart.middle(DIES)
    parts += [line((x - 6, y + d), (x + 6, y - d), class_="red-line") for d in (-6, 6)]
    said = [
        f"Learner {DIES} dies at {DIES_AT:g} s of a simulated AD-PSGD segment. Its minibatch, number {lost.minibatch}, "
        f"goes back to the queue, and learner {again.rank} draws it next.",
        f"The others go on; {len(refused)} of their exchanges met nobody. The replacement has copied a neighbour's row "
        "when it draws its first minibatch.",
    ]
    bottom = chart.top(LEARNERS)
    head = paragraph(said, 28, 60, "small quiet")
    return picture(
        WIDTH, bottom + 76, "A segment with a death", head, *parts, chart.seconds(bottom - 8), _legend(bottom + 36)
    )
