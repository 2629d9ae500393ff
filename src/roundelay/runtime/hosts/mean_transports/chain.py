"""Means along the chain of hosts, in the order of their ranks, and back:

    up      a host takes the sum so far from the host before it, adds its own learners' vectors in rank order, and gives
            it to the host after it
    down    the last host has the mean; each hands it to the host before it

Both directions are under way at the same time, piece by piece, so each link carries one vector each way, as it would in
a ring allreduce; pieces are smaller where there are many hosts or few parameters (`chain_piece`). They go from the last
to the first, as backward goes through the layers: a gradient's are sent while the rest of it is computed. The sum is
taken in rank order, product and sum of each element rounded apart: L learners on many hosts end bit for bit as L
learners on one.

Gradients may travel in a form of the run's (a codec: core/codec.py). Each host codes the sum it hands on, the last one
the mean, which it then takes as the others get it, so that all hosts have the same; the part the codec leaves out is
added to the sum that the same host hands on in the next step. A model is never coded unasked: learners are to go on
from all of its bits.

Where learners go on without a host that is lost, a communicator is a chain of its own, with the bits of the chain of
all: each of its hosts dials the one before it. When it is given up its links are closed, so a host in the middle
of a message to one that no longer listens hears of it.

Legend: P parameters, L learners.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from roundelay.algorithms.averaging import chain_piece
from roundelay.core.codec import FP32, Codec
from roundelay.core.flat import CHUNK
from roundelay.runtime.hosts.mean_transports.agreement import AgreedTransport, CommunicatorAgreement, CommunicatorBroken
from roundelay.runtime.hosts.mean_transports.base import (
    LISTEN_SECONDS,
    LocalMean,
    MeansPart,
    MeanTransport,
    PartOver,
    as_bytes,
    decode,
)
from roundelay.runtime.hosts.mean_transports.messages import (
    CommunicatorTerms,
    Complete,
    MeanPiece,
    SumPiece,
    Weighed,
    Weights,
)
from roundelay.runtime.hosts.transport.wire import Link, LinkError


@final
class ChainTransport(MeanTransport):
    """Transport of means along a chain of hosts, on one of them.

    Args:
        hosts: number of hosts in the chain.
        before, after: links to the hosts before and after this one; None at an end of the chain.
        parameters: P.
        codec: codec of gradients; that of the first host counts.
    """

    def __init__(
        self, part: MeansPart, hosts: int, before: Link | None, after: Link | None, parameters: int, codec: Codec
    ) -> None:
        self._part, self._before, self._after = part, before, after
        self._parameters, self._codec = parameters, codec
        self._piece = min(chain_piece(hosts, parameters), parameters)  # elements of one
        self._sum = torch.empty(self._piece)
        self._mean: LocalMean  # under way
        self._pieces: list[slice] = []  # of it, from the last to the first
        self._form = FP32  # of it
        self._error: Tensor | None = None  # the part the codec left out of the last mean, (P,)
        self._weights: tuple[float, ...] = ()
        self._weighed = threading.Semaphore(0)

    def threads(self) -> Mapping[str, Callable[[], None]]:
        return {} if self._after is None else {"down": self._down}

    def take(self, mean: LocalMean) -> None:
        """Hand the sum of a mean on from the first host to the last."""
        before, after, part = self._before, self._after, self._part
        self._mean, self._pieces = mean, mean.pieces(self._piece)
        weights = self._weigh(mean.weights, self._codec if mean.gradient else FP32)
        form, room = self._form, self._room(self._form)
        mean, total = mean.alike_unless(weights)
        for piece in self._pieces:
            sum_ = self._sum[: piece.stop - piece.start]
            carried = sum_ if form.exact else room[: form.bytes_of(len(sum_))]
            if before is None:
                sum_.zero_()
            else:
                part.receive(before, SumPiece, carried)
                decode(form, carried, sum_)
            mean.add(sum_, piece, total)
            if not form.exact:
                self._encode(sum_, piece, carried)
            if after is not None:
                after.say(SumPiece(part.number), [as_bytes(carried)])
            else:
                mean.mean[piece].copy_(sum_)
                if before is not None:
                    before.say(MeanPiece(part.number), [as_bytes(carried)])
        if after is None:
            mean.complete(total)

    def _room(self, codec: Codec) -> Tensor:
        """Return room for one coded piece, (bytes,); none is needed where a vector goes as it is."""
        return torch.empty(0 if codec.exact else codec.bytes_of(self._piece), dtype=torch.uint8)

    def _encode(self, sum_: Tensor, piece: slice, coded: Tensor) -> None:
        """Code `sum_`, of elements `piece`, into `coded`; set `sum_` to what arrives, and remember the rest."""
        if self._error is None:
            self._error = torch.zeros(self._parameters)
        chunks = zip(
            torch.split(sum_, CHUNK),
            torch.split(self._error[piece], CHUNK),
            self._form.parts(coded, len(sum_)),
            strict=True,
        )
        for x, error, out in chunks:
            self._form.remember(x, error, out, x)

    def _weigh(self, mine: Sequence[float], codec: Codec) -> tuple[float, ...]:
        """Return all learners' weights, by rank, given those of this host, `mine`; all hosts learn the codec."""
        before, after, part, weights = self._before, self._after, self._part, tuple(mine)
        if before is not None:
            said = part.receive(before, Weights)
            weights, codec = (*said.weights, *mine), said.codec
        self._form = codec
        if after is not None:
            after.say(Weights(part.number, weights, codec))
            while not self._weighed.acquire(timeout=LISTEN_SECONDS):
                part.check()
            return self._weights
        if before is not None:
            before.say(Weighed(part.number, weights))
        return weights

    def _down(self) -> None:
        """Hand each mean on to the host before this one, as it comes from the host after."""
        part, before, after = self._part, self._before, self._after
        assert after is not None
        while True:
            self._weights = part.receive(after, Weighed).weights
            if before is not None:
                before.say(Weighed(part.number, self._weights))
            mean, form, room = self._mean, self._form, self._room(self._form)
            self._weighed.release()
            for piece in self._pieces:
                place = mean.mean[piece]
                carried = place if form.exact else room[: form.bytes_of(len(place))]
                part.receive(after, MeanPiece, carried)
                decode(form, carried, place)
                if before is not None:
                    before.say(MeanPiece(part.number), [as_bytes(carried)])
            mean.complete(sum(self._weights))


@final
@dataclass(frozen=True)
class ChainEnds:
    """Numbers of the hosts before and after this one in a new chain; None at an end."""

    # before, after: numbers of the hosts before and after this one, where there are such.
    before: int | None
    after: int | None
    number: tuple[int, int]  # of the part and of the communicator, which no other chain has
    check: Callable[[], None]  # raises an error where the chain is needed no more


OpenChain = Callable[[ChainEnds], tuple[Link | None, Link | None]]
"""Function that returns links to the hosts before and after; raises LinkError, TimeoutError, and errors of `check`."""


@final
class _Chain:
    """Chain of hosts as a communicator on which they have agreed.

    Args:
        part: the part of a segment.
        check: raises CommunicatorBroken, PartOver where the chain is of no more use to a member.
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
        """Start the threads of the chain; from now on its links carry means alone."""
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
        """Check that the chain is still of use.

        Raises:
            CommunicatorBroken: the chain has failed.
            PartOver: the part of the segment is over.
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
    """Transport of means along chains of the hosts that live, each a communicator, on one of them.

    Args:
        part: the part of a segment.
        host: number of this host.
        parameters: P.
        codec: codec of gradients; that of the first host counts.
        open_chain: opens the links of a chain.
        seconds: how long a mean that has failed is tried again.
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
        """Pass the last complete mean on from member `source` to both ends of the chain."""
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
