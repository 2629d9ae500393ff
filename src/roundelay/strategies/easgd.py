"""EASGD: every learner is tied to a centre by a spring (Zhang, Choromanska and LeCun 2015; Li et al. 2017, eq. 7 to 9).

    easgd        every `period` steps of its own a learner and the centre pull each other: an atomic exchange, eq. 9
    easgd-sync   all learners at once, eq. 8, by one mean of all rows:

        w_l <- w_l - lr grad f(w_l) - alpha (w_l - w~)        gradient and pull both from the rows as they were

The equations are in algorithms/elastic.py; `beta` / L is the moving rate alpha. EAMSGD, the form with Nesterov
momentum, is either of them with `optimizer.momentum` and `optimizer.nesterov`: the local update is the authors'
(v <- delta v, w <- w + v, g = grad f(w), w <- w - lr g, v <- v - lr g), written at the look-ahead point w + delta v,
and it is that point which is tied to the centre.

Sent: one model each way (8 P bytes) every `period` steps; easgd-sync one model (4 P). Waits: no learner for a slow one,
exchanges queue up at the centre; easgd-sync: all learners for the slowest, every period, behind a gradient. The centre
is the model.

Where we differ: easgd pulls between two steps, as Li et al. ran it, so that the next gradient is taken after the pull;
the authors' own code takes it before, and applies both together. Pulled first, larger rates are stable.
"""

from dataclasses import dataclass
from typing import ClassVar

from roundelay.algorithms.elastic import Pull, elastic_mean_, elastic_row, set_centre_
from roundelay.core.bounds import Count, Share
from roundelay.core.effects import Begin, Draw, Exchange, Fetch, Grad, Mean, Wait
from roundelay.core.state import Me
from roundelay.strategies.base import HostOption, Strategy, Traits


@dataclass(frozen=True)
class _Elastic(Strategy):
    """The base of both forms of EASGD, with their options."""

    period: Count = 4
    """Local steps between two communications."""
    beta: Share = 0.9
    """Strength of the springs between learners and centre together, from 0 to 1."""

    @property
    def label(self) -> str:
        return f"{self.name} period {self.period}"

    def distance(self, learners: int, minibatches_a_round: int) -> float:
        return learners / (learners + 1) / minibatches_a_round


@dataclass(frozen=True)
class Easgd(_Elastic):
    """Asynchronous elastic averaging: each learner and the centre pull each other now and then."""

    name: ClassVar[str] = "easgd"
    traits: ClassVar[Traits] = Traits(
        synchronous=False,
        conserves=True,
        staleness_bound=0,
        waits="none for the slowest; all for the centre",
        model="centre",
        alone_is_sgd=False,
        rows="own",
        rebuilt_from="row",
    )

    @property
    def host_options(self) -> frozenset[HostOption]:
        return frozenset(("wire", "fragments"))  # a learner waits for its pull, so nothing paces them

    async def learn(self, me: Me) -> None:
        pull, steps = Pull(self.beta / me.learners), me.steps
        while batch := await Draw():
            if steps % self.period == 0:
                await Exchange(me.centre, pull)
            me.step(await Grad(me.snapshot(), batch))
            steps += 1


@dataclass(frozen=True)
class EasgdSync(_Elastic):
    """Synchronous elastic averaging. Every learner knows the centre; at the end learner 0 writes it into its row."""

    name: ClassVar[str] = "easgd-sync"
    memory: ClassVar[tuple[str, ...]] = ("centre_seen",)
    traits: ClassVar[Traits] = Traits(
        synchronous=True,
        conserves=True,
        staleness_bound=1,
        waits="all for the slowest, every period, behind the gradient",
        model="centre",
        alone_is_sgd=False,
        rows="own",
        mixes=False,
    )

    async def learn(self, me: Me) -> None:
        alpha, centre, steps = self.beta / me.learners, me.memory["centre_seen"], me.steps
        await Fetch(me.centre, centre)
        while batch := await Draw():
            if steps % self.period:
                me.step(await Grad(me.snapshot(), batch))
            else:
                mean = await Begin(Mean(me.everyone, me.x))
                gradient = await Grad(me.snapshot(), batch)
                found = await Wait(mean)
                me.replace(elastic_row(me.x, centre, alpha))
                elastic_mean_(centre, found, alpha, me.learners)
                me.step(gradient)
            steps += 1
        if me.rank == 0:
            await Exchange(me.centre, set_centre_, (centre,))
