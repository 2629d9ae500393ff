"""The work queue of an asynchronous segment: whoever is ready draws the next minibatch.

A learner may be killed between any two stores. Therefore it claims a minibatch before it takes it out: killed in
between, it holds a claim on something still to be drawn, which `give_back` can tell. In the other order the minibatch
would be lost.
"""

from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch
from roundelay.runtime.procs.arena import NONE, Arena


def draw(arena: Arena, rank: int, plan: EpochPlan) -> Minibatch | None:
    """The next minibatch, claimed by `rank`; None at the end of the segment."""
    queue, claim, returned = arena.table("queue"), arena.table("claim"), arena.table("returned")
    arena.queue_lock.acquire()
    try:
        if returned[0]:  # what a dead learner left undone comes first
            batch = plan.piece(int(returned[returned[0]]))
            claim[rank] = batch.index
            returned[0] -= 1
            return batch
        while queue[0] < arena.table("stop_round")[0] * plan.learners:
            batch = plan.piece(int(queue[0]))
            claim[rank] = batch.index if batch.frames else NONE
            queue[0] += 1
            if batch.frames:
                return batch
        return None
    finally:
        arena.queue_lock.release()


def give_back(arena: Arena, rank: int) -> None:
    """Put the minibatch on which a dead learner worked back, unless it died before it was out."""
    claim, returned = arena.table("claim"), arena.table("returned")
    arena.queue_lock.acquire()
    try:
        index = int(claim[rank])
        waiting = returned[1 : 1 + returned[0]]
        if index != NONE and index < arena.table("queue")[0] and index not in waiting:
            returned[0] += 1
            returned[returned[0]] = index
        claim[rank] = NONE
    finally:
        arena.queue_lock.release()
