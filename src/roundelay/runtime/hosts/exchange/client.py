"""Carries exchanges and fetches of this host's learners to rows of other hosts.

The process that runs an `ExchangeClient` computes no gradients: sockets and vector operations let go of the
interpreter, so no learner is slowed down. There is a thread for each learner of the host, with links of its own to the
other hosts. For an exchange it

    reads   the learner's row, or one fragment of it, under the row's lock
    sends   it to the host of the peer, whose ExchangeServer (server.py) applies the rule to the peer's row, under
            that row's lock, and answers with what that row was
    applies the rule's effect to the learner's row, as it is now, under its lock

(codec.py has the arithmetic). Only the row of the lower rank ever travels like this: row_leases.py says why. If the
peer's rank is lower the request is turned round: the client says *please*, gets the peer's row, answers with its own
learner's, and the other host's session applies it. Meanwhile the learner computes, unless it waits for the answer:
outbox.py. If the link breaks the client connects again and asks what became of the request, so it is done once at both
ends, or at neither end, or, if the peer's host is never heard of again, at neither end that lives.

Legend: P parameters, L learners.
"""

import os
import secrets
import select
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from roundelay.algorithms.rules import find
from roundelay.core.effects import Rule
from roundelay.runtime.hosts.exchange.codec import Buffer, Fragment, RowFormat, Scratch, answer, land, load, turned
from roundelay.runtime.hosts.exchange.cpu_budget import CpuBudget
from roundelay.runtime.hosts.exchange.row_leases import RowLeases
from roundelay.runtime.hosts.terms import EXCHANGE, identity
from roundelay.runtime.hosts.transport.wire import (
    Address,
    BadFrame,
    Link,
    LinkClosed,
    LinkError,
    LinkTimeout,
    Message,
    RejectedConnections,
    Tampered,
)
from roundelay.runtime.learner_state import Row
from roundelay.runtime.procs.coordination.outbox import read_text
from roundelay.runtime.procs.memory.arena import Arena, Layout
from roundelay.runtime.procs.memory.patience import Patience
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views.work_queue import NONE

ATTEMPT_SECONDS = 2.0
"""For one attempt to connect."""
SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
"""Seconds between attempts: each pause is twice the one before."""

LARGEST = 1 << 62
"""Beyond all numbers of requests and versions."""
ONCE_MORE = ("answer", "forget")
"""What may simply be sent again when a link has broken."""


@dataclass
class LinkTraffic:
    """What went over the links of one end with one other host, since the run began."""

    exchanges: int = 0  # and fetches: begun here, or there where a FerryServer says so
    lost: int = 0  # of them, that came to nothing
    sent_bytes: int = 0
    received_bytes: int = 0
    waited_s: float = 0.0  # from the beginning of a request to the end of its reply, summed

    def __add__(self, other: "LinkTraffic") -> "LinkTraffic":
        return LinkTraffic(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))


class ExchangeClient:
    """One host's side that asks. Start it before the learners, close it after them.

    Args:
        arena: path of the host's arena, as learners are told it.
        layout: of that arena; it has rows for all learners of the run.
        host: number of this host.
        homes: the host of each learner, by rank. The centre is where learner 0 is.
        addresses: by host: where the others' listeners are, whose links are given to their FerryServers.
        secret: of the run.
        flights: which rows of this host are under way; its FerryServer's too.
        pace: of this host; its FerryServer's too. None: exchanges are begun as soon as they are asked for.
        carriage: how rows are carried.
        patience: seconds, for which a request is tried before the reply is None. Not how long hosts may be silent:
            whoever knows that one is dead says so by `peers_changed`.
        tally: counts malformed frames.
        encrypts: is what goes over the links hidden?

    Run it where torch uses one thread (`torch.set_num_threads(1)`): its operations are small and in many threads.
    """

    def __init__(
        self,
        arena: str,
        layout: Layout,
        host: int,
        homes: Sequence[int],
        addresses: Mapping[int, Address],
        secret: bytes,
        row_leases: RowLeases,
        row_format: RowFormat | None = None,
        patience: float = 60.0,
        rejected: RejectedConnections | None = None,
        cpu_budget: CpuBudget | None = None,
        encrypts: bool = True,
    ) -> None:
        self.arena, self.layout, self.host, self.homes, self.row_leases = arena, layout, host, tuple(homes), row_leases
        self.secret, self.row_format, self.patience = secret, row_format or RowFormat(), patience
        self.rejected, self.cpu_budget, self.encrypts = rejected or RejectedConnections(), cpu_budget, encrypts
        self.here = tuple(rank for rank, home in enumerate(homes) if home == host)
        self.largest = largest(layout)
        self.life = secrets.token_hex(8)
        self.addresses = dict(addresses)
        self.closing = False
        self.error = ""
        """The traceback of what should not have happened, if something did."""
        self._channels = {rank: LearnerChannel(self, rank) for rank in self.here}
        self.wake = {rank: channel.wake for rank, channel in self._channels.items()}
        """By rank: the path that a learner is told as `WorkerSpec.client`."""

    def start(self) -> None:
        """From now on learners are heard."""
        for channel in self._channels.values():
            channel.start()

    def peers_changed(self, addresses: Mapping[int, Address]) -> None:
        """These hosts live, there. Requests to any other come to nothing at once."""
        before, self.addresses = self.addresses, dict(addresses)
        for host in before:
            if before[host] != self.addresses.get(host):
                for channel in self._channels.values():
                    channel.cut(host)

    def traffic(self) -> dict[int, LinkTraffic]:
        """By host, all learners together."""
        found: dict[int, LinkTraffic] = {}
        for channel in self._channels.values():
            for host, traffic in list(channel.traffic.items()):
                found[host] = found.get(host, LinkTraffic()) + traffic
        return found

    def close(self) -> None:
        """Requests under way come to nothing. Safe to call twice."""
        self.closing = True
        for channel in self._channels.values():
            channel.close()


class LearnerChannel:
    """One learner's ferry: a thread, links, and room for what they carry."""

    def __init__(self, client: ExchangeClient, rank: int) -> None:
        self._client, self._rank = client, rank
        self._pipe, self._bell = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._bell, False)
        self.wake = f"/proc/{os.getpid()}/fd/{self._bell}"
        self._arena = arena = Arena(
            os.open(client.arena, os.O_RDWR | os.O_CLOEXEC), client.layout, Patience(rank, client.patience)
        )
        versions, in_flight = arena.row_versions.versions, arena.row_versions.in_flight
        self._row = Row(rank, arena.vector("row", rank), versions, arena.row_locks[rank], in_flight)
        self._alive, self._asked, self._done = arena.liveness.alive, arena.requests.asked, arena.requests.done
        parameters = client.layout.parameters
        self._sent, self._found, self._scratch = Buffer(parameters), Buffer(parameters), Scratch()
        self._error = torch.zeros(parameters) if client.row_format.wire != "fp32" else None
        self._links: dict[int, Link] = {}
        self._gate = threading.Lock()
        self._turn = 0
        self.traffic: dict[int, LinkTraffic] = {}
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """The thread begins."""
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"ferry of learner {self._rank}")
        self._thread.start()

    def _run(self) -> None:
        rank, versions = self._rank, self._arena.requests.version
        while os.read(self._pipe, 4096) and not self._client.closing:
            while not self._client.closing and (number := int(self._asked[rank])) != self._done[rank]:
                if self._rests(number):
                    continue
                used = time.thread_time()
                versions[rank] = self._perform(number)
                publish(self._done, rank, number)  # last: the learner acts on it
                if self._client.cpu_budget is not None:
                    self._client.cpu_budget.spent(time.thread_time() - used)

    def _rests(self, number: int) -> bool:
        """Leave the learners the processor for a while, if that is due, or until somebody rings. False: go on."""
        cpu_budget = self._client.cpu_budget
        if (
            cpu_budget is None
            or self._arena.requests.awaited[self._rank] == number
            or not (pause := cpu_budget.pause())
        ):
            return False
        if select.select([self._pipe], [], [], pause)[0]:
            os.read(self._pipe, 4096)
        return True

    def _perform(self, number: int) -> int:
        """The answer to a request."""
        try:
            request = read_text(self._arena, self._rank)
            if not request:  # a learner that has just begun
                return NONE
            traffic = self.traffic.setdefault(self._home(request["peer"]), LinkTraffic())
            traffic.exchanges += 1
            version = self._carry(number, request)
        except (LinkError, TimeoutError):
            version = NONE
        except Exception:
            self._client.error = traceback.format_exc()
            return NONE
        traffic.lost += version == NONE
        return version

    def _home(self, row: int) -> int:
        return self._client.homes[0 if row == self._client.layout.learners else row]

    def _carry(self, number: int, request: dict[str, Any]) -> int:
        client, peer, rank, parameters = self._client, request["peer"], self._rank, self._client.layout.parameters
        header: dict[str, Any] = {"n": number, "peer": peer}
        if "into" in request:
            whole = Fragment.whole(parameters)
            message = self._ask("fetch", header, [], self._home(peer), parameters)
            if message is None:
                return NONE
            for out, x in zip(
                whole.parts(self._arena.vector(request["into"], rank)),
                self._found.parts(parameters, "fp32"),
                strict=True,
            ):
                out.copy_(x)
            return _integer(message, "version")
        private = [self._arena.vector(name, rank) for name in request["private"]]
        since = request["since"]
        simple = not private and since is None
        fragment = client.row_format.fragment(parameters, self._turn) if simple else Fragment.whole(parameters)
        wire = client.row_format.wire if simple else "fp32"
        header |= {
            "rule": request["rule"],
            "since": since,
            "private": len(private),
            "wire": wire,
            "chunks": [fragment.first, fragment.stop],
        }
        rule = find(request["rule"], len(private), since is not None)
        if simple and peer < rank:
            version = self._receive_row(header, fragment, wire, rule)
        else:
            version = self._send_row(header, fragment, wire, rule, private)
        self._turn += simple and version != NONE
        return version

    def _send_row(
        self, header: dict[str, Any], fragment: Fragment, wire: str, rule: Rule, private: Sequence[Tensor]
    ) -> int:
        """Exchange with a row of higher rank, or with the centre."""
        client, row, number, peer = self._client, self._row, header["n"], header["peer"]
        lease = client.row_leases.take(self._rank, client.patience)
        try:
            row.lock.acquire()
            try:
                load(row, fragment, wire, self._sent, self._error, self._scratch)
                seen = row.version
                row.leave(lease)
            finally:
                row.lock.release()
            payload = [self._sent.filled(fragment.size, wire), *(_bytes(vector) for vector in private)]
            message = self._ask("exchange", header, payload, self._home(peer), fragment.size, wire)
            if message is None:
                return NONE
            aged = {} if header["since"] is None else {"age": _integer(message, "age")}
            row.lock.acquire()
            try:
                if not row.check_in(lease) or not self._is_wanted(number):
                    return NONE
                row.begin()
                land(
                    row,
                    fragment,
                    wire,
                    self._sent,
                    self._found,
                    self._scratch,
                    partial(rule, **aged),
                    private,
                    row.version == seen,
                )
                row.end()
            finally:
                row.lock.release()
            return _integer(message, "version")
        finally:
            self._come_back(lease)
            client.row_leases.give(self._rank, lease)

    def _come_back(self, lease: int) -> None:
        """If it is still under way: nothing has come of it."""
        with suppress(TimeoutError):
            self._row.lock.acquire()
            try:
                self._row.check_in(lease)
            finally:
                self._row.lock.release()

    def _receive_row(self, header: dict[str, Any], fragment: Fragment, wire: str, rule: Rule) -> int:
        """Exchange with a row of lower rank: that one travels."""
        client, row, number, home = self._client, self._row, header["n"], self._home(header["peer"])
        message, done = self._ask("please", header, [], home, fragment.size, wire), False
        if message is None:
            return NONE
        try:
            with client.row_leases.still(self._rank, client.patience / 2):
                row.lock.acquire()
                try:
                    done = self._is_wanted(number)
                    if done:
                        row.begin()
                        answer(row, fragment, wire, self._found, self._error, self._scratch, turned(rule), 0)
                        row.end()
                finally:
                    row.lock.release()
        finally:
            if not done:
                self._ask("forget", {"n": number}, [], home, 0)
        if not done:
            return NONE
        message = self._ask("answer", {"n": number}, [self._found.filled(fragment.size, wire)], home, 0)
        return NONE if message is None else _integer(message, "version")

    def _is_wanted(self, number: int) -> bool:
        """Has the learner not died meanwhile, and its row become another's?"""
        return bool(self._asked[self._rank] == number and self._alive[self._rank])

    # Links ------------------------------------------------------------------------------------------------------------

    def _ask(
        self, kind: str, header: dict[str, Any], payload: list[memoryview], host: int, size: int, wire: str = "fp32"
    ) -> Message | None:
        """The reply of `host`, with `size` parameters in `found`; None: it has nobody there.

        Raises:
            LinkError: no reply.
        """
        started, traffic = time.monotonic(), self.traffic[host]
        deadline, again, pause = started + self._client.patience, False, SHORTEST_PAUSE
        while True:
            link = self._link(host, deadline)
            before = link.sent_bytes, link.received_bytes
            try:
                reply = None
                if again and kind not in ONCE_MORE:
                    link.send("again", {"n": header["n"]})
                    reply = self._hear(link, deadline)
                if reply is None or reply.kind == "unknown":
                    link.send(kind, header, payload)
                    reply = self._hear(link, deadline)
                break
            except (LinkClosed, Tampered):  # the peer has said nothing wrong
                again = True  # the next turn of this loop may find that there is no such host any more
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            except (LinkTimeout, BadFrame):
                self.cut(host)
                raise
            finally:
                traffic.sent_bytes += link.sent_bytes - before[0]
                traffic.received_bytes += link.received_bytes - before[1]
                traffic.waited_s += time.monotonic() - started
                started = time.monotonic()
        if reply.kind == "gone":
            return None
        if reply.kind != ("row" if size else "done") or len(reply.payload) != len(self._found.filled(size, wire)):
            self.cut(host)
            raise BadFrame(f"{link.peer} answers with {reply.kind} of {len(reply.payload)} bytes")
        return reply

    def _hear(self, link: Link, deadline: float) -> Message:
        return link.receive(max(0.0, deadline - time.monotonic()), into=self._found.view)

    def _link(self, host: int, deadline: float) -> Link:
        """The link to `host`: the one there is, or a new one."""
        client, pause = self._client, SHORTEST_PAUSE
        while True:
            with self._gate:
                link = self._links.get(host)
                if link is not None and not link.closed:
                    return link
            address, left = client.addresses.get(host), deadline - time.monotonic()
            if address is None or client.closing or left <= 0:
                raise LinkClosed(f"host {host} is not there")
            hello = {"what": EXCHANGE, "host": client.host, "rank": self._rank, "life": client.life}
            try:
                link = Link.connect(
                    address,
                    client.secret,
                    hello,
                    client.patience,
                    client.rejected,
                    client.largest,
                    min(left, ATTEMPT_SECONDS),
                    client.encrypts,
                    identity(client.homes.index(host)),
                )
            except LinkError:
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            with self._gate:
                self._links[host] = link
            if client.closing or client.addresses.get(host) != address:  # meanwhile
                link.close()

    def cut(self, host: int) -> None:
        """Close the link to `host`, from any thread."""
        with self._gate:
            link = self._links.pop(host, None)
        if link is not None:
            link.close()

    def close(self) -> None:
        """End the thread; nobody is heard any more."""
        if self._pipe < 0:
            return
        for host in list(self._links):
            self.cut(host)
        os.write(self._bell, b"!")
        if self._thread is not None:
            self._thread.join()
        for host in list(self._links):
            self.cut(host)
        for descriptor in (self._pipe, self._bell):
            os.close(descriptor)
        self._pipe = -1
        self._arena.close()


def largest(layout: Layout) -> int:
    """Bytes that may go over a link for exchanges at once: a row, and all that a learner remembers besides."""
    return 4 * layout.parameters * (1 + len(layout.memory))


def _bytes(vector: Tensor) -> memoryview:
    lying: Any = vector.numpy()
    return memoryview(lying).cast("B")


def _integer(message: Message, name: str) -> int:
    value = message.header.get(name)
    if type(value) is not int or abs(value) >= LARGEST:
        raise BadFrame(f"a reply without {name}")
    return value
