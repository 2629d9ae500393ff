"""Tables by which the attached learners of one host and the process that speaks to other hosts for them agree.

The learner's side is surroundings.py, the other is hosts/.

Legend: P parameters, L learners.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roundelay.algorithms.averaging import weighted_mean
from roundelay.core.flat import chunks
from roundelay.runtime.hosts.control.messages import DrawRequest
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views import Integers, L, View, table

FIRST_HOST_LOST, PROCESS_FAILED, TOO_FEW_HOSTS, ALL_DEAD = 1, 2, 3, 4
"""Reasons why a session is over."""
SINCE_IT_BEGAN, SINCE_ANOTHER = 1, 2
"""A host leads a session since it began, or since another that led is lost."""


@dataclass(frozen=True)
class BetweenHosts(View):
    """Tables for a host's learners and its process for other hosts. The process publishes `conducted`, `over`, `leads`
    and `answered`, and writes `drawn` and `made_again`; a learner writes its own items of `process`, and of `key`,
    `pieces` and `keep` before it publishes `asked`."""

    PUBLISHED = ("conducted", "over", "leads", "asked", "answered")

    conducted: Integers = table(1)
    """Number of the last meeting that the first host has conducted: the model to evaluate is here, and all that
    learners show."""
    over: Integers = table(1)  # 0, or the reason why learners of other hosts will not be heard of again
    leads: Integers = table(1)  # 0: this host does not lead the session, or else since when it does
    key: Integers = table(L, 3)  # The pass that a learner wants to draw from
    pieces: Integers = table(L)  # Number of minibatches in it
    keep: Integers = table(L)  # How many of those drawn before are not trained
    asked: Integers = table(L)  # Number of a learner's last request for a minibatch
    drawn: Integers = table(L)  # The minibatch it was given, or NONE
    answered: Integers = table(L)  # Number of the last request that is answered
    process: Integers = table(L)  # Process of a learner that has come back
    made_again: Integers = table(1)  # How often the centre was, after its host was lost

    def request(self, rank: int) -> DrawRequest:
        """Return the last request of learner `rank` for a minibatch."""
        sampler, epoch, times = self.key[rank].tolist()
        pieces, keep = int(self.pieces[rank]), int(self.keep[rank])
        return DrawRequest(rank, int(self.asked[rank]), (sampler, epoch, times), pieces, keep)

    def answer(self, rank: int, number: int, index: int) -> None:
        """Answer request `number` of learner `rank`: with the minibatch `index`, or NONE."""
        self.drawn[rank] = index
        publish(self.answered, rank, number)


def place_of_model(everybody: Iterable[int], here: Sequence[int]) -> int:
    """Return the rank whose place holds the learners' common model after a meeting, on a host with the ranks `here`:
    where the mean of a group elsewhere would lie, which no learner of this host takes."""
    return next(rank for rank in everybody if rank not in here)


def model_to_evaluate(arena: Arena, here: Sequence[int]) -> Tensor:
    """Return the model (P,) that all learners have in common after a meeting, as this host has it."""
    return arena.vector("mean", place_of_model(range(arena.layout.learners), here))


def take_mean(out: Tensor, rows: Sequence[Tensor], shares: Sequence[float] | None) -> None:
    """Write into `out` (P,) the mean of `rows`, (P,) each, in their order, weighted by `shares` or equally: the same
    bits on every learner."""
    for part in chunks(out.numel()):
        here = [row[part].cpu() for row in rows]
        out[part] = torch.stack(here).mean(0) if shares is None else weighted_mean(here, shares)
