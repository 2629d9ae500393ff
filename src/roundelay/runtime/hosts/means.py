"""Means over learners of several hosts, and mixes of neighbours on several hosts. A few threads of each host's own
process do it: learners never touch the network.

A mean of everybody goes along the chain of hosts, in the order of their ranks, and back:

    up      a host takes the sum so far from the host before it, adds its own learners' vectors in rank order, and gives
            it to the host after it
    down    the last host has the mean; each hands it to the host before it

Both directions are under way at the same time, piece by piece, so each link carries one vector each way, as it would in
a ring allreduce; pieces are smaller where there are many hosts (`chain_piece`). They go from the last to the first, as
backward goes through the layers: a gradient's are sent while the rest of it is computed (`ready_from`). The sum is
taken in rank order, product and sum of each element rounded apart: L learners on many hosts end bit for bit as L
learners on one.

Gradients may travel in a form of the run's (a codec: core/codec.py). Each host codes the sum it hands on, the last one
the mean, which it then takes as the others get it, so that all hosts have the same; what the codec leaves out is added
to what the same host hands on in the next step. A model is never coded unasked: what learners go on from is not to lose
its last bits.

For a mix each host sends the vectors that learners of another host read, into mirrors of its mailboxes, and says how
far its own learners have read (`acked_seq`). That is what one learner waits for on the other's behalf (means.py), so a
mailbox that is written here is free there. Vectors travel in the form that their learner's effect asks for (`codec`);
its mailbox has them as they arrive, so that coding them for the way changes nothing.

Legend: P parameters, L learners.
"""

import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from roundelay.algorithms.averaging import add_shares_, chain_piece
from roundelay.algorithms.codecs import CODECS, FORMS, codec_of
from roundelay.core.codec import FP32, Codec
from roundelay.core.flat import CHUNK
from roundelay.runtime.hosts.transport.wire import Link, LinkError, LinkTimeout, Message
from roundelay.runtime.procs.coordination.means import Means
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.bell import bell_of_means
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views.host_mean_sequences import HostMeanSequences

LISTEN_SECONDS = 0.1
"""Interval at which a thread that hears nothing, from a link or a learner, looks whether the part of the segment is
over."""


class _Ended(Exception):
    """The part of the segment is over."""


@final
@dataclass(frozen=True)
class MeanLinks:
    """Links by which hosts take means and mixes; nothing else is sent over them.

    Attributes:
        hosts: the ranks of each host, in rank order.
        host: number of this one.
        chain: by host, links to the one before and the one after this.
        mix_links: by host, links to all others, for mixes.
    """

    hosts: Sequence[Sequence[int]]
    host: int
    chain: Mapping[int, Link]
    mix_links: Mapping[int, Link]


class HostMeans:
    """This host's share of what all learners do together, for one part of a segment.

    Args:
        part: a number that no other part of the run has.
        failed: called with the reason, from a thread, when a link is gone.
        codec: by which gradients travel; the first host's counts.
    """

    def __init__(
        self, arena: Arena, links: MeanLinks, part: int, failed: Callable[[str], None], codec: Codec = FP32
    ) -> None:
        host, chain, mix_links = links.host, links.chain, links.mix_links
        self._arena, self._hosts, self._here, self._part = arena, links.hosts, tuple(links.hosts[host]), part
        self._before, self._after, self._mix_links = chain.get(host - 1), chain.get(host + 1), mix_links
        self._failed, self._ended, self._done = failed, threading.Event(), threading.Event()
        self._mean = arena.vector("mean", self._here[0])
        self._piece = min(chain_piece(len(links.hosts)), len(self._mean))  # elements of one
        self._pieces: list[slice] = []  # of the mean under way, from the last to the first
        self._error: Tensor | None = None  # what the codec left out of the last mean, (P,)
        self._codec, self._form = codec, FP32  # that of gradients, and that of the mean under way
        self._weights: list[float] = []
        self._weighed = threading.Semaphore(0)
        self._sequences, self._between = arena.sequences, arena.view(HostMeanSequences)
        self._bell = bell_of_means(arena)
        self._between.begin_part()
        self._threads = [self._thread("up", self._up)]
        if self._after is not None:
            self._threads.append(self._thread("down", self._down, self._after))
        if mix_links:
            self._threads.append(self._thread("contributions", self._forward_contributions))
        self._threads += [
            self._thread(f"contributions of {other}", self._receive_contributions, link)
            for other, link in mix_links.items()
        ]

    def start(self) -> None:
        """After all tables are set, and before learners begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End, after this host's learners have ended: what they have published is still sent."""
        self._ended.set()
        self._bell.ring()
        for thread in self._threads:
            thread.join()

    def _thread(self, name: str, work: Callable[..., None], *arguments: Link) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except _Ended:
                pass
            except LinkError as error:
                if not self._ended.is_set():
                    self._failed(str(error))
            except Exception:
                self._failed(traceback.format_exc())

        return threading.Thread(target=run, daemon=True, name=f"means {name}")

    def _until(self, ready: Callable[[], bool]) -> None:
        heard = self._bell.heard()
        while not ready():
            if self._ended.is_set():
                raise _Ended
            self._bell.wait(heard, LISTEN_SECONDS)
            heard = self._bell.heard()

    def _receive(self, link: Link, kind: str, into: Tensor | None = None) -> Message:
        """The next message of this part, which must be of this kind."""
        message = self._receive_any(link, into)
        if message.kind != kind:
            raise LinkError(f"{link.peer} sent {message.kind!r} where {kind!r} was due")
        return message

    # A mean of everybody ----------------------------------------------------------------------------------------------

    def _up(self) -> None:
        """Sum number k = 1, 2, ... from the first host to the last."""
        arena, before, after = self._arena, self._before, self._after
        sent, source, weights_of = self._sequences.sent_seq, self._sequences.source, self._sequences.weights
        global_sent, ready_from = self._between.global_sent_seq, self._between.ready_from
        here, number = list(self._here), 0
        sum_ = torch.empty(self._piece)
        while True:
            number += 1
            self._until(lambda k=number: bool((global_sent[here] >= k).all()))  # type: ignore[misc]
            parity = int(sent[here[0]]) % 2
            self._pieces = self._pieces_of(int(self._between.elements[parity, here[0]]))
            vectors = [arena.vector(Means.SOURCES[source[parity, rank]], rank) for rank in here]
            mine = [float(weights_of[parity, rank]) for rank in here]
            gradients = not source[parity, here].any()
            weights = self._weigh(mine, self._codec if gradients else FP32)
            form, room = self._form, self._room(self._form)
            shares = [weight / float(sum(weights)) for weight in mine]
            for piece in self._pieces:
                part = sum_[: piece.stop - piece.start]
                carried = part if form.exact else room[: form.bytes_of(len(part))]
                if before is None:
                    part.zero_()
                else:
                    self._receive(before, "sum", carried)
                    _decode(form, carried, part)
                self._until(lambda start=piece.start: bool((ready_from[here] <= start).all()))  # type: ignore[misc]
                for at in range(0, len(part), CHUNK):  # so much stays in cache
                    low, high = piece.start + at, min(piece.start + at + CHUNK, piece.stop)
                    add_shares_(part[at : at + CHUNK], [vector[low:high] for vector in vectors], shares)
                if not form.exact:
                    self._encode(part, piece, carried)
                if after is not None:
                    after.send("sum", {"part": self._part}, [_bytes(carried)])
                else:
                    self._mean[piece].copy_(part)
                    if before is not None:
                        before.send("mean", {"part": self._part}, [_bytes(carried)])
            if after is None:
                self._complete(number, weights)

    def _pieces_of(self, elements: int) -> list[slice]:
        starts = range(0, elements, self._piece)
        return [slice(at, min(at + self._piece, elements)) for at in reversed(starts)]

    def _room(self, codec: Codec) -> Tensor:
        """For one coded piece, (bytes,); none is needed where a vector goes as it is."""
        return torch.empty(0 if codec.exact else codec.bytes_of(self._piece), dtype=torch.uint8)

    def _encode(self, part: Tensor, piece: slice, coded: Tensor) -> None:
        """Code `part`, a `piece` of the sum, into `coded`; it is then as it arrives, and the rest is remembered."""
        if self._error is None:
            self._error = torch.zeros_like(self._mean)
        chunks = zip(
            torch.split(part, CHUNK),
            torch.split(self._error[piece], CHUNK),
            self._form.parts(coded, len(part)),
            strict=True,
        )
        for x, error, out in chunks:
            self._form.remember(x, error, out, x)

    def _weigh(self, mine: Sequence[float], codec: Codec) -> list[float]:
        """All learners' weights, by rank, given those of this host's; and all hosts hear by which codec it goes."""
        before, after, weights = self._before, self._after, [*mine]
        if before is not None:
            header = self._receive(before, "weights").header
            weights, codec = [*header["weights"], *mine], _known(header.get("codec"), before)
        self._form = codec
        if after is not None:
            after.send("weights", {"part": self._part, "weights": weights, "codec": codec.name})
            while not self._weighed.acquire(timeout=LISTEN_SECONDS):
                if self._ended.is_set():
                    raise _Ended
            return self._weights
        if before is not None:
            before.send("weighed", {"part": self._part, "weights": weights})
        return weights

    def _down(self, after: Link) -> None:
        """Hand means number k = 1, 2, ... on to the host before this one."""
        number, before = 0, self._before
        while True:
            number += 1
            self._weights = [float(weight) for weight in self._receive(after, "weighed").header["weights"]]
            if before is not None:
                before.send("weighed", {"part": self._part, "weights": self._weights})
            form, room = self._form, self._room(self._form)
            self._weighed.release()
            for piece in self._pieces:
                mean = self._mean[piece]
                carried = mean if form.exact else room[: form.bytes_of(len(mean))]
                self._receive(after, "mean", carried)
                _decode(form, carried, mean)
                if before is not None:
                    before.send("mean", {"part": self._part}, [_bytes(carried)])
            self._complete(number, self._weights)

    def _complete(self, number: int, weights: Sequence[float]) -> None:
        """Mean `number` is in its place."""
        self._between.total[number % 2] = sum(weights)
        publish(self._between.global_seq, 0, number)

    # Mixes of neighbours ----------------------------------------------------------------------------------------------

    def _forward_contributions(self) -> None:
        """Forward local vectors to the hosts that read them, and acknowledge what local learners have read."""
        sent, acked, forwarded = self._sequences.sent_seq, self._sequences.acked_seq, self._between.forwarded_seq
        told = dict.fromkeys(self._here, 0)
        while True:
            heard, last = self._bell.heard(), self._ended.is_set()
            for rank in self._here:
                while forwarded[rank] < sent[rank]:
                    number = int(forwarded[rank]) + 1
                    self._forward_contribution(rank, number)
                    publish(forwarded, rank, number)
            now = {rank: int(acked[rank]) for rank in self._here}
            read = [[rank, number] for rank, number in now.items() if number > told[rank]]
            if read:
                for link in self._mix_links.values():
                    link.send("read", {"part": self._part, "read": read})
                told = now
            if last:
                return
            self._bell.wait(heard, LISTEN_SECONDS)

    def _forward_contribution(self, rank: int, number: int) -> None:
        sequences, parity = self._sequences, number % 2
        readers = self._between.readers[parity, rank]
        links = [link for host, link in self._mix_links.items() if readers[list(self._hosts[host])].any()]
        if not links:
            return
        codec = codec_of(
            [*FORMS][self._between.codec[parity, rank]], self._between.codec_numbers[parity, rank].tolist()
        )
        elements = int(self._between.elements[parity, rank])
        vector = self._arena.vector(Means.SOURCES[sequences.source[parity, rank]], rank)[:elements]
        carried = vector if codec.exact else _encoded(codec, vector)
        facts = {"part": self._part, "rank": rank, "number": number, "elements": elements}
        facts["weight"] = sequences.weights[parity, rank]
        for link in links:
            link.send("mix", facts | {"codec": codec.name, "numbers": codec.numbers})
            link.send("contribution", {"part": self._part}, [_bytes(carried)])

    def _receive_contributions(self, link: Link) -> None:
        arena, sequences, there = self._arena, self._sequences, set()
        for other, ranks in enumerate(self._hosts):
            if self._mix_links.get(other) is link:
                there = set(ranks)
        while True:
            message = self._receive_any(link)
            if message.kind == "read":
                for rank, number in message.header["read"]:
                    if rank in there:
                        publish(sequences.acked_seq, rank, number)
            elif message.kind == "mix" and message.header["rank"] in there:
                rank, number = int(message.header["rank"]), int(message.header["number"])
                parity, codec = number % 2, _form(message.header, link)
                elements = _at_most(len(self._mean), message.header.get("elements"), link)
                vector = arena.vector(Means.SOURCES[1 + parity], rank)[:elements]
                room = vector if codec.exact else torch.empty(codec.bytes_of(len(vector)), dtype=torch.uint8)
                self._receive(link, "contribution", room)
                _decode(codec, room, vector)
                sequences.source[parity, rank] = 1 + parity
                sequences.weights[parity, rank] = float(message.header["weight"])
                publish(sequences.sent_seq, rank, number)
            else:
                raise LinkError(f"{link.peer} sent {message.kind!r}, which is no contribution of its learners to a mix")

    def _receive_any(self, link: Link, into: Tensor | None = None) -> Message:
        """The next message of this part. Whatever is left of an earlier one is passed over."""
        while True:
            try:
                message = link.receive(LISTEN_SECONDS, None if into is None else _bytes(into))
            except LinkTimeout:
                if self._ended.is_set():
                    raise _Ended from None
                continue
            if message.header.get("part") == self._part:
                return message


def _known(name: Any, link: Link) -> Codec:
    if not isinstance(name, str) or name not in CODECS:
        raise LinkError(f"{link.peer} sends vectors in the form {name!r}, which is none of ours")
    return CODECS[name]


def _form(header: Mapping[str, Any], link: Link) -> Codec:
    numbers = header.get("numbers")
    try:
        return codec_of(header.get("codec"), numbers if isinstance(numbers, list) else [])
    except ValueError as error:
        raise LinkError(f"{link.peer} sends vectors in a form that cannot be read: {error}") from error


def _at_most(parameters: int, elements: Any, link: Link) -> int:
    if not isinstance(elements, int) or not 0 <= elements <= parameters:
        raise LinkError(f"{link.peer} sends a vector of {elements!r} elements, where there are {parameters} parameters")
    return elements


def _encoded(codec: Codec, vector: Tensor) -> Tensor:
    """A vector (P,) that has been decoded before, as bytes."""
    coded = torch.empty(codec.bytes_of(len(vector)), dtype=torch.uint8)
    for x, out in zip(torch.split(vector, CHUNK), codec.parts(coded, len(vector)), strict=True):
        codec.encode(x, out)
    return coded


def _decode(codec: Codec, coded: Tensor, vector: Tensor) -> None:
    """Decode what has come into `vector`; a vector that goes as it is, is there already."""
    if not codec.exact:
        for x, part in zip(torch.split(vector, CHUNK), codec.parts(coded, len(vector)), strict=True):
            codec.decode(part, x)


def _bytes(vector: Tensor) -> Any:
    """As it lies in memory."""
    return vector.view(torch.uint8).numpy()
