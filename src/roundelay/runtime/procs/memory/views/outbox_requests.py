"""Requests of learners that concern rows of other hosts, and the replies.

The learner's side is runtime/procs/coordination/outbox.py, the other runtime/hosts/exchange/client.py.
"""

from dataclasses import dataclass

from roundelay.runtime.procs.memory.views.view import Integers, Sizes, Table, View

REQUEST_BYTES = 1024
"""Of one request."""


@dataclass(frozen=True)
class OutboxRequests(View):
    """A learner writes its own `text`, then publishes `asked`; who carries requests writes `version`, then publishes
    `done`."""

    PUBLISHED = ("asked", "done", "awaited")

    asked: Integers
    """(L,) Number of the last request."""
    done: Integers
    """(L,) Number of the last request that is answered."""
    awaited: Integers
    """(L,) Number of the last request that its learner has stopped to wait for."""
    version: Integers
    """(L,) The answer: the version of the other row, or NONE: nobody is there."""
    text: Integers
    """(L, REQUEST_BYTES / 8) The request, as JSON, padded with zeros."""

    @classmethod
    def tables(cls, sizes: Sizes) -> dict[str, Table]:
        each = Table((sizes.learners,))
        return {
            "asked": each,
            "done": each,
            "awaited": each,
            "version": each,
            "text": Table((sizes.learners, REQUEST_BYTES // 8)),
        }
