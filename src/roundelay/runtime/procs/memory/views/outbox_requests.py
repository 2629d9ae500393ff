"""Requests of learners that concern rows of other hosts, and the replies.

The learner's side is runtime/procs/coordination/outbox.py, the other runtime/hosts/exchange/client.py.
"""

from dataclasses import dataclass

from roundelay.runtime.procs.memory.views.view import Integers, L, View, table

REQUEST_BYTES = 1024
"""Of one request."""


@dataclass(frozen=True)
class OutboxRequests(View):
    """A learner writes its own `text`, then publishes `asked`; who carries requests writes `version`, then publishes
    `done`."""

    PUBLISHED = ("asked", "done", "awaited")

    asked: Integers = table(L)  # Number of the last request
    done: Integers = table(L)  # Number of the last request that is answered
    awaited: Integers = table(L)  # Number of the last request that its learner has stopped to wait for
    version: Integers = table(L)  # The answer: the version of the other row, or NONE: nobody is there
    text: Integers = table(L, REQUEST_BYTES // 8)  # The request, as JSON, padded with zeros
