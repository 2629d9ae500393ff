"""Division of an epoch between hosts of which some have only some shards of the training examples.

Where all hosts have the same shards nothing is divided: all draw from one order, as without shards. Else every host
draws from an order of its own shards. A shard that several have is trained by one of them: shards are given out one by
one, those that fewest hosts have first, each to the host that has the fewest examples a learner so far.

Who trains what is settled when an epoch begins, and stays so until it ends. What a host that is lost had not trained is
trained by nobody in that epoch, unless the host comes back; from the next epoch on another that has the same shards
trains them.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import final

from roundelay.core.epochs import EpochPlan, Share
from roundelay.core.errors import UserError
from roundelay.learner.base import Task
from roundelay.runtime.hosts.control.messages import Common
from roundelay.runtime.messages import Message
from roundelay.runtime.procs.driver import LOOK_SECONDS


@final
@dataclass(frozen=True)
class HostShards:
    """A host's shards.

    Attributes:
        learners: number of its learners.
        examples: in every shard, -1 where the host has it not; none: its corpus is not in shards.
        alive: it takes part.
    """

    learners: int
    examples: Sequence[int]
    alive: bool = True


def disagreement(ours: Sequence[int], theirs: Sequence[int]) -> str:
    """Return the difference, in words, between the shards of two hosts that keeps them from training together; "" for
    none."""
    if len(ours) != len(theirs):
        cuts = [f"in {len(some)} shards" if some else "not in shards" for some in (ours, theirs)]
        return f"the training features are {cuts[0]} here and {cuts[1]} there"
    odd = [
        number for number, some in enumerate(zip(ours, theirs, strict=True)) if -1 not in some and some[0] != some[1]
    ]
    if not odd:
        return ""
    return f"shard {odd[0]} has {ours[odd[0]]} labelled frames here and {theirs[odd[0]]} there: copy one alignment"


def shares_of(hosts: Sequence[HostShards]) -> tuple[Share, ...]:
    """Return the share of every host in an epoch; none where all have the same shards.

    Raises:
        UserError: no host that takes part has anything to train.
    """
    if len({tuple(host.examples) for host in hosts}) == 1:
        return ()
    owned: list[list[int]] = [[] for _ in hosts]
    examples = [0] * len(hosts)
    having = {
        number: [h for h, host in enumerate(hosts) if host.alive and host.examples[number] >= 0]
        for number in range(len(hosts[0].examples))
    }
    for number in sorted(having, key=lambda number: (len(having[number]), number)):
        if having[number]:
            owner = min(having[number], key=lambda h: (examples[h] / hosts[h].learners, h))
            owned[owner].append(number)
            examples[owner] += hosts[owner].examples[number]
    if not sum(examples):
        raise UserError("no host that takes part has a shard with labelled frames. Copy some shards to one of them.")
    return tuple(
        Share(host.learners, some, tuple(sorted(shards)))
        for host, some, shards in zip(hosts, examples, owned, strict=True)
    )


def task_in_common(task: Task, orders: SimpleQueue[Message], check: Callable[[], None], seconds: float) -> Task:
    """Return the task of this host with what the first one has measured on its examples, which may be others.

    Args:
        orders: what the first host says.
        check: raises, when there is no reason to wait any more.

    Raises:
        UserError: the first host has not said for so many seconds.
    """
    for _ in range(math.ceil(seconds / LOOK_SECONDS)):
        check()
        with suppress(Empty):
            order = orders.get(timeout=LOOK_SECONDS)
            if isinstance(order, Common):
                return task.begun_as(order.numbers) if order.numbers else task
    raise UserError(f"the first host has not begun within {seconds:g} s: raise training.patience_seconds.")


@final
class Division:
    """The division of the running epoch.

    Args:
        hosts: asked, when an epoch begins, for all of them in rank order.
    """

    def __init__(self, hosts: Callable[[], Sequence[HostShards]]) -> None:
        self._hosts = hosts
        self._now: tuple[int, tuple[Share, ...]] = (-1, ())

    def divided(self, plan: EpochPlan) -> EpochPlan:
        """Return the plan with the shares of its epoch.

        Raises:
            UserError: there is nothing to train.
        """
        if self._now[0] != plan.epoch:
            self._now = plan.epoch, shares_of(self._hosts())
        shares = self._now[1]
        if not shares:
            return plan
        return dataclasses.replace(plan, examples=sum(share.examples for share in shares), shares=shares)

    def has_its_share(self, host: int, examples: Sequence[int]) -> bool:
        """Return True if a host that comes back with these shards has all that it is to train in this epoch. One that
        joins a run whose epochs are divided between shards has no share."""
        shares = self._now[1]
        return not shares or (host < len(shares) and all(examples[number] >= 0 for number in shares[host].shards))
