"""Means over learners of several hosts, and mixes of neighbours on several hosts. A few threads of each host's own
process do it: learners never touch the network.

Means of all learners go between hosts in one of several ways (mean_transports/): along the chain of hosts, in rank
order, unless the run says otherwise. A thread of each host takes part in one after the other.

For a mix each host sends the vectors that learners of another host read, into mirrors of its mailboxes, and says how
far its own learners have read (`acked_seq`). A learner waits for that on the reader's behalf (means.py), so a mailbox
that is written here is free there. Vectors travel in the form that their learner's effect asks for (`codec`); its
mailbox has them as they arrive, so that coding them for the way changes nothing.

Legend: P parameters, L learners.
"""

import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from roundelay.algorithms.codecs import codec_of, form_names
from roundelay.core.codec import FP32, Codec
from roundelay.runtime.hosts.mean_transports.agreement import CommunicatorAgreement
from roundelay.runtime.hosts.mean_transports.base import (
    LISTEN_SECONDS,
    LocalShare,
    MeansPart,
    MeanTransport,
    PartOver,
    as_bytes,
    decode,
    encoded,
)
from roundelay.runtime.hosts.mean_transports.chain import ChainTransport, LivingChainTransport, OpenChain
from roundelay.runtime.hosts.mean_transports.group import GroupOptions, GroupTransport
from roundelay.runtime.hosts.mean_transports.messages import Contribution, MixAnnounced, OfPart, Read, dialect
from roundelay.runtime.hosts.transport.wire import Link, LinkError
from roundelay.runtime.messages import InvalidMessage
from roundelay.runtime.procs.coordination.means import Means
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.bell import bell_of_means
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views import HostMeanSequences


@final
@dataclass(frozen=True)
class MeanLinks:
    """Links by which hosts take means and mixes; nothing else is sent over them."""

    hosts: Sequence[Sequence[int]]  # the ranks of each host, in rank order
    host: int  # number of this one
    chain: Mapping[int, Link]  # by host, links to the one before and the one after this
    mix_links: Mapping[int, Link]  # by host, links to all others, for mixes
    # makes other links for a chain, where learners go on without hosts that are lost; else None.
    open_chain: OpenChain | None = None
    leader: Callable[[], int] = lambda: 0  # number of the host that leads, as far as is known


class HostMeans:
    """This host's share of means and mixes of all learners, for one part of a segment.

    Args:
        part: a number that no other part of the run has.
        failed: called with the reason, from a thread, when a link is gone.
        codec: codec of gradients along the chain; that of the first host counts.
        group: options of means by a process group; None: they go along the chain.
        seconds: how long hosts wait for each other, where learners go on without lost hosts.
    """

    def __init__(
        self,
        arena: Arena,
        links: MeanLinks,
        part: int,
        failed: Callable[[str], None],
        codec: Codec = FP32,
        group: GroupOptions | None = None,
        seconds: float = 300.0,
    ) -> None:
        host, mix_links = links.host, links.mix_links
        self._arena, self._hosts, self._here = arena, links.hosts, tuple(links.hosts[host])
        self._mix_links, self._parameters = mix_links, arena.layout.parameters
        self._failed, self._bell = failed, bell_of_means(arena)
        self._part = MeansPart(part, self._bell, dialect(arena.layout.learners, self._parameters))
        self._ended = self._part.ended
        self._sequences, self._between = arena.sequences, arena.view(HostMeanSequences)
        self._between.begin_part()
        self._goes_on = links.open_chain is not None  # without hosts that are lost
        self._transport = self._chosen(links, codec, group, seconds)
        self._threads = [self._thread("of everybody", self._take_means)]
        self._threads += [self._thread(name, work) for name, work in self._transport.threads().items()]
        if mix_links:
            self._threads.append(self._thread("contributions", self._forward_contributions))
        self._threads += [
            self._thread(f"contributions of {other}", self._listen, other, link) for other, link in mix_links.items()
        ]

    def _chosen(self, links: MeanLinks, codec: Codec, group: GroupOptions | None, seconds: float) -> MeanTransport:
        host, parameters = links.host, self._parameters
        if group is None and links.open_chain is None:
            before, after = links.chain.get(host - 1), links.chain.get(host + 1)
            return ChainTransport(self._part, len(links.hosts), before, after, parameters, codec)
        waits = seconds if group is None else group.seconds
        agreement = CommunicatorAgreement(self._part, host, links.mix_links, self._lives, waits, links.leader)
        if group is not None:
            return GroupTransport(agreement, host, parameters, group)
        assert links.open_chain is not None
        return LivingChainTransport(agreement, self._part, host, parameters, codec, links.open_chain, seconds)

    def start(self) -> None:
        """Start the threads; call it after all tables are set, and before learners begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads, once this host's learners have ended; vectors that they have published are still sent."""
        self._ended.set()
        self._bell.ring()
        for thread in self._threads:
            thread.join()
        self._transport.close()

    def _thread(self, name: str, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except PartOver:
                pass
            except (LinkError, TimeoutError) as error:
                if not self._ended.is_set():
                    self._failed(str(error))
            except Exception:
                self._failed(traceback.format_exc())

        return threading.Thread(target=run, daemon=True, name=f"means {name}")

    def _lives(self, host: int) -> bool:
        return bool(self._arena.liveness.alive[list(self._hosts[host])].any())

    def _take_means(self) -> None:
        share, number = LocalShare(self._arena, self._here, self._part, self._transport.attend, self._goes_on), 0
        while True:
            number += 1
            self._transport.take(share.next(number))

    # Mixes of neighbours ----------------------------------------------------------------------------------------------

    def _forward_contributions(self) -> None:
        """Forward local vectors to the hosts that read them, and acknowledge those that local learners have read."""
        sent, acked, forwarded = self._sequences.sent_seq, self._sequences.acked_seq, self._between.forwarded_seq
        told = dict.fromkeys(self._here, 0)
        while True:
            heard, last = self._bell.heard(), self._ended.is_set()
            for rank in self._here:
                while forwarded[rank] < sent[rank]:
                    number = int(forwarded[rank]) + 1
                    self._forward_contribution(rank, number)
                    publish(forwarded, rank, number)
                    self._bell.ring()
            now = {rank: int(acked[rank]) for rank in self._here}
            read = tuple((rank, number) for rank, number in now.items() if number > told[rank])
            if read:
                for host in self._mix_links:
                    self._tell(host, Read(self._part.number, read))
                told = now
            if last:
                return
            self._bell.wait(heard, LISTEN_SECONDS)

    def _tell(self, host: int, message: OfPart, payload: Sequence[Any] = ()) -> None:
        """Send a message over the link for mixes; drop it for a lost host that learners go on without."""
        try:
            self._mix_links[host].say(message, payload)
        except LinkError:
            if not (self._goes_on and self._transport.lost(host)):
                raise

    def _forward_contribution(self, rank: int, number: int) -> None:
        sequences, parity = self._sequences, number % 2
        readers = self._between.readers[parity, rank]
        hosts = [host for host in self._mix_links if readers[list(self._hosts[host])].any()]
        if not hosts:
            return
        codec = codec_of(
            form_names()[self._between.codec[parity, rank]], self._between.codec_numbers[parity, rank].tolist()
        )
        elements = int(self._between.elements[parity, rank])
        vector = self._arena.vector(Means.SOURCES[sequences.source[parity, rank]], rank)[:elements]
        carried = vector if codec.exact else encoded(codec, vector)
        part, weight = self._part.number, float(sequences.weights[parity, rank])
        for host in hosts:
            self._tell(host, MixAnnounced(part, rank, number, elements, weight, codec))
            self._tell(host, Contribution(part), [as_bytes(carried)])

    def _listen(self, other: int, link: Link) -> None:
        """Handle messages of host `other` over its link for mixes."""
        try:
            self._receive_contributions(other, link)
        except LinkError:
            if not self._transport.lost(other):
                raise

    def _receive_contributions(self, other: int, link: Link) -> None:
        arena, sequences, there = self._arena, self._sequences, set(self._hosts[other])
        while True:
            message = self._part.receive_any(link)
            try:
                if self._transport.heard(other, message):
                    continue
            except InvalidMessage as error:
                raise link.blame(f"says of a mean what makes no sense: {error}") from error
            if isinstance(message, Read):
                for rank, number in message.read:
                    if rank in there:
                        publish(sequences.acked_seq, rank, number)
                self._bell.ring()
            elif isinstance(message, MixAnnounced) and message.rank in there:
                rank, number, codec = message.rank, message.number, message.codec
                parity = number % 2
                vector = arena.vector(Means.SOURCES[1 + parity], rank)[: message.elements]
                room = vector if codec.exact else torch.empty(codec.bytes_of(len(vector)), dtype=torch.uint8)
                self._part.receive(link, Contribution, room)
                decode(codec, room, vector)
                sequences.source[parity, rank] = 1 + parity
                sequences.weights[parity, rank] = message.weight
                publish(sequences.sent_seq, rank, number)
                self._bell.ring()
            else:
                raise LinkError(f"{link.peer} sent {message.kind!r}, which is no contribution of its learners to a mix")
