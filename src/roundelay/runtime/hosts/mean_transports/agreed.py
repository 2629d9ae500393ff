"""Means of everybody over a communicator on which hosts have agreed: what ways of means have in common that survive the
loss of a host.

There is one communicator a part of a segment, made at the first mean. When a host is lost, or the communicator fails,
it is given up, and the hosts that are left make another and repeat the mean under way without the lost host. Some may
have completed that mean before: then the others are given theirs, so that all have the same. Whether a run goes on
without a host is not for means to say.
"""

import math
import time
from abc import abstractmethod
from typing import Generic, Protocol, TypeVar

from roundelay.runtime.hosts.mean_transports.agreement import CommunicatorAgreement, CommunicatorBroken
from roundelay.runtime.hosts.mean_transports.base import LocalMean, MeanTransport
from roundelay.runtime.hosts.mean_transports.messages import CommunicatorTerms, MeansDone, OfPart
from roundelay.runtime.hosts.transport.wire import LinkError
from roundelay.runtime.procs.coordination.means import MemberLost


class Communicator(Protocol):
    """The part of a communicator that each way of means has of its own."""

    idle: bool
    """Is nothing of it under way?"""

    @property
    def terms(self) -> CommunicatorTerms:
        """As hosts have agreed on it."""
        ...

    def end(self) -> None:
        """End it."""
        ...


C = TypeVar("C", bound=Communicator)


class AgreedTransport(MeanTransport, Generic[C]):
    """One host of those that take means over communicators.

    Args:
        way: a word for it, for people.
        seconds: that a mean which has failed is tried again.
    """

    def __init__(self, agreement: CommunicatorAgreement, way: str, seconds: float) -> None:
        self._agreement, self._way, self._seconds = agreement, way, seconds
        self._communicator: C | None = None
        self._progress = MeansDone()

    def heard(self, host: int, message: OfPart) -> bool:
        return self._agreement.heard(host, message)

    def lost(self, host: int) -> bool:
        self._agreement.lost(host)
        return True

    def close(self) -> None:
        if self._communicator is not None:
            self._communicator.end()

    def take(self, mean: LocalMean) -> None:
        deadline = math.inf  # of a mean that has failed
        while self._progress.done < mean.number:
            try:
                if self._communicator is None:
                    self._communicator = self._connect(self._agreement.agree(self._progress))
                    self._catch_up(self._communicator, mean)
                else:
                    self._sum(self._communicator, mean)
                self._communicator.idle = True
            except (CommunicatorBroken, MemberLost) as broken:
                self._abandon()
                self._note(mean)
                deadline = min(deadline, time.monotonic() + self._seconds)
                if time.monotonic() > deadline:
                    raise LinkError(f"means by {self._way} have ended: {broken}") from broken
                if self._progress.done < mean.number:
                    mean = mean.share.next(mean.number)  # perhaps without a learner that has died

    def _abandon(self) -> None:
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            self._agreement.abandon(communicator.terms)
            communicator.end()

    def _note(self, mean: LocalMean) -> None:
        """Note it where the mean is complete, whoever has seen to that: this host's learners may have used it."""
        if mean.share.done >= mean.number:
            self._progress = MeansDone(mean.number, mean.share.total(mean.number), len(mean.mean))

    def _complete(self, mean: LocalMean, total: float) -> None:
        mean.complete(total)
        self._note(mean)

    @abstractmethod
    def _connect(self, terms: CommunicatorTerms) -> C:
        """Return the communicator of these terms.

        Raises:
            CommunicatorBroken, LinkError, TimeoutError, PartOver.
        """

    def _catch_up(self, communicator: C, mean: LocalMean) -> None:
        """Give a mean that some hosts have complete, and others not, to these."""
        progress = communicator.terms.progress
        newest = max(progress, key=lambda one: one.done)
        if any(one.done != newest.done for one in progress):
            self._pass_on(communicator, mean, progress.index(newest))
            if self._progress.done < newest.done:
                self._complete(mean, newest.total)

    @abstractmethod
    def _pass_on(self, communicator: C, mean: LocalMean, source: int) -> None:
        """Give the last mean that the member at place `source` has complete to all; here it belongs into `mean`, where
        it is not complete yet.

        Raises:
            CommunicatorBroken, PartOver.
        """

    @abstractmethod
    def _sum(self, communicator: C, mean: LocalMean) -> None:
        """Take the next mean.

        Raises:
            CommunicatorBroken, MemberLost, PartOver.
        """
