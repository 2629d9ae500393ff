"""Learners that are dead when a segment begins, where those that wait for each other go on without them."""

from roundelay.runtime.attached.membership import Attendance
from roundelay.runtime.attached.votes import VoteTables
from roundelay.runtime.procs.memory.arena import Arena


def forget_absent(arena: Arena) -> None:
    """Before a segment begins and while nobody trains: nothing that an absent learner has done in the last one counts
    in this one. Learners that are present forget theirs by themselves."""
    absent = arena.view(Attendance).present == 0
    for table in (arena.sequences.sent_seq, arena.sequences.acked_seq, arena.queue.rounds, arena.view(VoteTables).cast):
        table[absent] = 0
