"""Means along the chain of the hosts that live, with the bits of the chain of all (chain.py), where learners go on
without a host that is lost.

A communicator is a chain of its own: each of its hosts dials the one before it. When it is given up its links are
closed, so whoever stands in the middle of a message for somebody who no longer listens hears of it.

Legend: P parameters.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from roundelay.core.codec import Codec
from roundelay.runtime.hosts.mean_transports.agreed import AgreedTransport
from roundelay.runtime.hosts.mean_transports.agreement import (
    CommunicatorAgreement,
    CommunicatorBroken,
    CommunicatorTerms,
    MeansDone,
)
from roundelay.runtime.hosts.mean_transports.base import LocalMean
from roundelay.runtime.hosts.mean_transports.chain import ChainTransport
from roundelay.runtime.hosts.mean_transports.forms import as_bytes
from roundelay.runtime.hosts.mean_transports.part import MeansPart, PartOver
from roundelay.runtime.hosts.transport.wire import Link, LinkError


@final
@dataclass(frozen=True)
class ChainEnds:
    """Ends of a new chain on this host.

    Attributes:
        before, after: numbers of the hosts before and after this one, where there are such.
        number: of the part and of the communicator, which no other chain has.
        check: raises an error where nobody needs it any more.
    """

    before: int | None
    after: int | None
    number: tuple[int, int]
    check: Callable[[], None]


OpenChain = Callable[[ChainEnds], tuple[Link | None, Link | None]]
"""Links to the hosts before and after this one; raises LinkError, TimeoutError, and what `check` raises."""


@final
class _Chain:
    """A chain as hosts have agreed on it."""

    def __init__(
        self,
        terms: CommunicatorTerms,
        part: MeansPart,
        before: Link | None,
        after: Link | None,
        transport: ChainTransport,
    ) -> None:
        self.terms, self.idle, self.part, self.before, self.after = terms, True, part, before, after
        self.transport = transport
        self._failed = ""
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        """Means are taken from now on. Before, nobody but `_pass_on` listens: each message is for one thread."""
        if self._threads:
            return
        self._threads = [
            threading.Thread(target=self._run, args=(work,), daemon=True, name=f"means {name}")
            for name, work in self.transport.threads().items()
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except PartOver:
            pass
        except (CommunicatorBroken, LinkError, TimeoutError) as error:
            self._failed = str(error)

    def check(self) -> bool:
        """False.

        Raises:
            CommunicatorBroken: the chain is.
        """
        if self._failed:
            raise CommunicatorBroken(self._failed)
        return False

    def end(self) -> None:
        self.part.ended.set()
        for link in (self.before, self.after):
            if link is not None:
                link.close()
        for thread in self._threads:
            thread.join()


@final
class LivingChainTransport(AgreedTransport[_Chain]):
    """One host of those that live.

    Args:
        part: the part of a segment.
        host: number of this one.
        parameters: P.
        codec: by which gradients travel; the first host's counts.
        open_chain: makes links.
        seconds: that a mean which has failed is tried again.
    """

    def __init__(
        self,
        agreement: CommunicatorAgreement,
        part: MeansPart,
        host: int,
        parameters: int,
        codec: Codec,
        open_chain: OpenChain,
        seconds: float,
    ) -> None:
        super().__init__(agreement, "chain", seconds)
        self._part, self._host, self._parameters, self._codec = part, host, parameters, codec
        self._open_chain = open_chain

    def _connect(self, terms: CommunicatorTerms) -> _Chain:
        place, members = terms.members.index(self._host), terms.members
        part = MeansPart(self._part.number, self._part.bell, lambda: self._agreement.check(terms))
        ends = ChainEnds(
            members[place - 1] if place else None,
            members[place + 1] if place + 1 < len(members) else None,
            (part.number, terms.number),
            part.check,
        )
        try:
            before, after = self._open_chain(ends)
        except (CommunicatorBroken, LinkError, TimeoutError) as error:
            self._agreement.abandon(terms)
            raise CommunicatorBroken(str(error)) from error
        transport = ChainTransport(part, len(members), before, after, self._parameters, self._codec)
        return _Chain(terms, part, before, after, transport)

    def _pass_on(self, communicator: _Chain, mean: LocalMean, source: int) -> None:
        """From the source to both ends of the chain."""
        place, number = communicator.terms.members.index(self._host), communicator.part.number
        vector = mean.share.last(communicator.terms.progress[source].elements)
        before, after = communicator.before, communicator.after
        towards = [link for link, goes in ((before, place <= source), (after, place >= source)) if goes]
        try:
            from_ = after if place < source else before if place > source else None
            if from_ is not None:
                communicator.part.receive(from_, "complete", vector)
            for link in towards:
                if link is not None:
                    link.send("complete", {"part": number}, [as_bytes(vector)])
        except LinkError as error:
            raise CommunicatorBroken(str(error)) from error

    def _sum(self, communicator: _Chain, mean: LocalMean) -> None:
        share = mean.share
        communicator.begin()
        try:
            communicator.transport.take(mean)
        except (LinkError, TimeoutError) as error:
            raise CommunicatorBroken(str(error)) from error
        complete = self._agreement.until
        complete(communicator.terms, lambda: share.done >= mean.number or communicator.check(), lambda: True)
        self._progress = MeansDone(mean.number, share.total(mean.number), len(mean.mean))
