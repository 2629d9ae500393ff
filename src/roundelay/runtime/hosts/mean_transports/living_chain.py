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
from roundelay.runtime.hosts.mean_transports.agreement import CommunicatorAgreement, CommunicatorBroken
from roundelay.runtime.hosts.mean_transports.base import LocalMean
from roundelay.runtime.hosts.mean_transports.chain import ChainTransport
from roundelay.runtime.hosts.mean_transports.forms import as_bytes
from roundelay.runtime.hosts.mean_transports.messages import CommunicatorTerms, Complete
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
    """A chain as hosts have agreed on it.

    Args:
        part: of the segment.
        check: raises CommunicatorBroken, PartOver where the chain is of no more use to somebody.
    """

    def __init__(self, terms: CommunicatorTerms, part: MeansPart, check: Callable[[], None]) -> None:
        self.terms, self.idle, self._check_others = terms, True, check
        self.part = MeansPart(part.number, part.bell, part.dialect, self.check)
        self.before: Link | None = None
        self.after: Link | None = None
        self.transport: ChainTransport
        self._failed = ""
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start: from now on it carries means, and nothing else."""
        for name, work in ({} if self._threads else self.transport.threads()).items():
            self._threads.append(threading.Thread(target=self._run, args=(work,), daemon=True, name=f"means {name}"))
            self._threads[-1].start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except PartOver:
            pass
        except (CommunicatorBroken, LinkError, TimeoutError) as error:
            self._failed = str(error)

    def check(self) -> None:
        """
        Raises:
            CommunicatorBroken: the chain is.
            PartOver.
        """
        self._check_others()
        if self._failed:
            raise CommunicatorBroken(self._failed)

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
        chain = _Chain(terms, self._part, lambda: self._agreement.check(terms))
        ends = ChainEnds(
            members[place - 1] if place else None,
            members[place + 1] if place + 1 < len(members) else None,
            (self._part.number, terms.number),
            chain.check,
        )
        try:
            chain.before, chain.after = self._open_chain(ends)
        except (CommunicatorBroken, LinkError, TimeoutError) as error:
            self._agreement.abandon(terms)
            raise CommunicatorBroken(str(error)) from error
        chain.transport = ChainTransport(
            chain.part, len(members), chain.before, chain.after, self._parameters, self._codec
        )
        return chain

    def _pass_on(self, communicator: _Chain, mean: LocalMean, source: int) -> None:
        """Pass on from the source to both ends of the chain."""
        place, number = communicator.terms.members.index(self._host), communicator.part.number
        vector = mean.share.last(communicator.terms.progress[source].elements)
        before, after = communicator.before, communicator.after
        towards = [link for link, goes in ((before, place <= source), (after, place >= source)) if goes]
        try:
            from_ = after if place < source else before if place > source else None
            if from_ is not None:
                communicator.part.receive(from_, Complete, vector)
            for link in towards:
                if link is not None:
                    link.say(Complete(number), [as_bytes(vector)])
        except LinkError as error:
            raise CommunicatorBroken(str(error)) from error

    def _sum(self, communicator: _Chain, mean: LocalMean) -> None:
        share = mean.share
        communicator.start()

        def complete() -> bool:
            if share.done < mean.number:
                communicator.check()
            return share.done >= mean.number

        try:
            communicator.transport.take(mean)
        except (LinkError, TimeoutError) as error:
            raise CommunicatorBroken(str(error)) from error
        self._agreement.until(communicator.terms, complete, lambda: True)
        self._note(mean)
