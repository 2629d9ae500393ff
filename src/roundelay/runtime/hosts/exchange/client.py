"""Client of this host: it makes the exchanges and fetches of the host's learners with rows of other hosts.

The process that runs a client computes no gradients: sockets and vector operations let go of the interpreter, so no
learner is slowed down. There is a channel for each learner of the host, with a thread and links of its own to the other
hosts. For an exchange with a row of higher rank, or with the centre, it

    checks out  the learner's row: encodes it, or one fragment of it, under the row's lock
    sends       it to the host of the peer, whose server (server.py) applies the rule to the peer's row, under
                that row's lock, and replies with that row as it was
    applies     the reply to the learner's row, as it is now, under its lock, and checks the row in

The rows of two learners travel at the same time, one each way: the server checks its row out and sends it as soon as it
hears of the exchange, and applies the rule once the other has come. The centre's does not: it would be in flight, and
of use to one learner alone, for as long as a row takes.

(codec.py has the arithmetic, states.py the states and messages.) Only the row of the lower rank ever travels
like this: carrier.py says why. For an exchange with a row of lower rank the learner's client asks the client of that
rank, at its own host, to make it; it is made by whatever thread serves the asker there, under the lease of the row that
travels, so an exchange for another host never waits behind one of this learner's that is waiting for a lower rank.
Meanwhile the learner computes, unless it waits for the answer: outbox.py.

Every wait is bounded, the outermost for the longest: a learner waits longer than its client, a client that asks a lower
rank longer than the client that then carries the row, and that one longer than the server it visits.

Where learners keep all cores of a host busy, carrying rows takes time from them: copies, the kernel's work on packets,
and data pushed out of the caches, together about twice the time on the clocks of the carrying threads. So exchanges
live on an allowance (`CpuBudget`): a small share of the cores' time, and all time for which the cores are idle. While
more than that is spent, no new exchange is begun here, unless its learner already waits for it. On a host with a core
to spare, or whose learners compute on accelerators, the link alone decides.

Legend: P parameters, L learners.
"""

import os
import select
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import final

from torch import Tensor

from roundelay.core.codec import FP32
from roundelay.core.cores import cores, quota
from roundelay.core.flat import WHOLE
from roundelay.runtime.hosts.exchange.carrier import RowCarrier, RowLeases
from roundelay.runtime.hosts.exchange.links import HostNetwork, LearnerLinks, LinkTraffic, Outgoing
from roundelay.runtime.hosts.exchange.messages import DoneReply, ExchangeTerms, RequestMessage, RowReply
from roundelay.runtime.hosts.exchange.notes import NO_NOTES, ExchangeNotes
from roundelay.runtime.hosts.exchange.row_format import LinkForm, RowFormat
from roundelay.runtime.hosts.exchange.states import Event, ExchangeState, Role, State
from roundelay.runtime.hosts.transport.wire import Address, LinkError
from roundelay.runtime.procs.coordination.outbox import BY_RUN, LEFT_OUT, Gathering, PeerRequest, read_request
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views import NONE

MOST_SECONDS = 1.0
"""Most seconds for which an allowance may be saved up."""


def idle_seconds() -> float:
    """Return the idle seconds since the machine started, summed over the cores that this process may run on; 0 where
    they cannot be known."""
    try:
        mine = os.sched_getaffinity(0)
        with open("/proc/stat", encoding="ascii") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
        ticks = sum(int(line[4]) + int(line[5]) for line in lines if line[0][3:].isdigit() and int(line[0][3:]) in mine)
    except (OSError, ValueError, IndexError):
        return 0.0
    return ticks / os.sysconf("SC_CLK_TCK")


def left_over() -> list[Callable[[], float]]:
    """Return clocks of processor time that has gone unused, in seconds since some moment: by the cores, and, where this
    process's control group is limited, by the group."""
    granted = quota()
    if granted is None:
        return [idle_seconds]

    def unused() -> float:
        try:
            return granted.cores * time.monotonic() - granted.used_seconds()
        except (OSError, ValueError):
            return 0.0

    return [idle_seconds, unused]


class CpuBudget:
    """Allowance of processor time for one host's exchanges. Safe to use from any thread.

    Args:
        share: share of each core's time that exchanges may take, above 0; 1 is no limit worth the name.
        processors: how many cores this host's processes may use; None: as the system says.
        now: seconds of a clock.
        idle: seconds for which processor time has gone unused, by several accounts, of which the least counts; None: as
            the system says.
    """

    def __init__(
        self,
        share: float,
        processors: int | None = None,
        now: Callable[[], float] = time.monotonic,
        idle: Sequence[Callable[[], float]] | None = None,
    ) -> None:
        self._rate = share * (processors or cores())
        self._now, self._idle, self._gate = now, left_over() if idle is None else idle, threading.Lock()
        self._left, self._at, self._idle_at = 0.0, now(), [account() for account in self._idle]

    def spent(self, seconds: float) -> None:
        """Note that `seconds` of processor time went into an exchange, or an answer to one."""
        with self._gate:
            self._left -= seconds

    def pause(self) -> float:
        """Return the seconds after which, at the latest, the next exchange may begin; 0: now."""
        with self._gate:
            now, idle = self._now(), [account() for account in self._idle]
            unused = min(after - before for after, before in zip(idle, self._idle_at, strict=True))
            earned = self._rate * (now - self._at) + max(0.0, unused)
            self._left = min(self._rate * MOST_SECONDS, self._left + earned)
            self._at, self._idle_at = now, idle
            return max(0.0, -self._left / self._rate)


TO_BE_DONE = 1.75
"""Multiple of the network's patience that an exchange made by a lower rank's client may take. That client takes half of
the patience to check the row out, and all of it for the conversation."""


@final
class ExchangeClient:
    """One host's client for all its learners. Start it before the learners, close it after them.

    Args:
        arena: of the host, as this process has mapped it; it has rows for all learners of the run.
        network: the other hosts.
        row_leases: leases of the rows of this host, shared with its server.
        row_format: the form in which rows travel.
        cpu_budget: allowance of this host, shared with its server; None: exchanges begin as soon as they are asked for.
        notes: notes of each sending and change of rows of this host, shared with its server.

    Run it where torch uses one thread (`torch.set_num_threads(1)`): its operations are small and in many threads.
    """

    def __init__(
        self,
        arena: Arena,
        network: HostNetwork,
        row_leases: RowLeases,
        row_format: RowFormat | None = None,
        cpu_budget: CpuBudget | None = None,
        notes: ExchangeNotes = NO_NOTES,
    ) -> None:
        self.notes = notes
        self.arena, self.layout, self.network, self.row_leases = arena, arena.layout, network, row_leases
        self.row_format, self.cpu_budget = row_format or RowFormat(), cpu_budget
        self.here = tuple(rank for rank, home in enumerate(network.homes) if home == network.host)
        self.error = ""
        """The traceback of an unexpected error, if there was one."""
        self.channels = {rank: LearnerChannel(self, rank) for rank in self.here}
        """By rank; the server uses them for exchanges that others ask for."""
        self.wake = {rank: channel.wake for rank, channel in self.channels.items()}
        """By rank: the path that a learner is told as `WorkerSpec.client`."""

    def start(self) -> None:
        """Begin to serve requests of learners."""
        for channel in self.channels.values():
            channel.start()

    def peers_changed(self, addresses: Mapping[int, Address]) -> None:
        """Note the addresses of the hosts that live, by number. Requests to any other host fail at once."""
        before, self.network.addresses = self.network.addresses, dict(addresses)
        for host in before:
            if before[host] != self.network.addresses.get(host):
                for channel in self.channels.values():
                    channel.cut(host)

    def living_changed(self) -> None:
        """Check in, unchanged, rows that are in flight to learners that the arena says are dead."""
        for channel in self.channels.values():
            channel.carrier.living_changed()

    def spent(self, seconds: float) -> None:
        """Count `seconds` of processor time that went into an exchange."""
        if self.cpu_budget is not None:
            self.cpu_budget.spent(seconds)

    def traffic(self) -> dict[int, LinkTraffic]:
        """Return the traffic with each other host, summed over the learners of this host."""
        return LinkTraffic.summed(channel.traffic() for channel in self.channels.values())

    def forms(self) -> dict[int, str]:
        """Return, in words, the form of rows on the link to each host with which rows were exchanged; of several
        learners here, that of the first which has one."""
        found: dict[int, str] = {}
        for channel in self.channels.values():
            found = {**channel.forms(), **found}
        return found

    def close(self) -> None:
        """End all requests under way without a result, and close all links. Safe to call twice."""
        self.network.closing = True
        for channel in self.channels.values():
            channel.close()


@final
class LearnerChannel:
    """One learner's channel to other hosts: a thread for its requests, with links and buffers."""

    def __init__(self, client: ExchangeClient, rank: int) -> None:
        self._client, self._network, self._rank = client, client.network, rank
        self._pipe, self._bell = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._bell, False)
        self.wake = f"/proc/{os.getpid()}/fd/{self._bell}"
        self.carrier = RowCarrier(rank, client.arena, client.network, client.row_leases, client.spent, client.notes)
        self._arena = self.carrier.arena
        self._asked, self._done = self._arena.requests.asked, self._arena.requests.done
        self._requests = LearnerLinks(self._network, rank, True, 0)
        self._gate = threading.RLock()
        self._asking = ExchangeState(Role.ASKER, self._gate)
        self._request = 0, NONE  # of a lower rank: the number it has in the arena, and that rank
        self._forms: dict[int, LinkForm] = {}  # by host
        self._counts: dict[int, LinkTraffic] = {}
        self._reads_centre = False  # does the centre come back by the request that is performed?
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"exchange client of {self._rank}")
        self._thread.start()

    # Requests of the learner ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        rank, versions = self._rank, self._arena.requests.version
        while not self._network.closing and os.read(self._pipe, 4096):  # the bell may have been heard in `_rests`
            while not self._network.closing and (number := int(self._asked[rank])) != self._done[rank]:
                cpu_budget = self._client.cpu_budget
                if cpu_budget is not None and self._rests(cpu_budget, number):
                    continue
                used = time.thread_time()
                version = self._perform(number)
                versions[rank] = NONE if version is None else version
                if version is not None and self._reads_centre:
                    self._arena.requests.read[rank] = version
                publish(self._done, rank, number)  # last: the learner acts on it
                self._client.spent(time.thread_time() - used)

    def _rests(self, cpu_budget: CpuBudget, number: int) -> bool:
        """Wait a while, or until the learner rings, if request `number` is to wait; return False if it may begin."""
        if self._arena.requests.awaited[self._rank] == number or not (pause := cpu_budget.pause()):
            return False
        if select.select([self._pipe], [], [], pause)[0]:
            os.read(self._pipe, 4096)
        return True

    def _perform(self, number: int) -> int | None:
        """Carry out request `number`, and return the version of the peer's row; None: the request has failed."""
        traffic, started, version = LinkTraffic(), time.monotonic(), None
        try:
            request = read_request(self._arena, self._rank)
            if request.peer == NONE:  # a learner that has just begun
                return None
            self._reads_centre = request.peer == self._client.layout.learners and request.gather is None
            traffic = self._counts.setdefault(self._network.home(request.peer), traffic)
            traffic.exchanges += 1
            if request.gather is not None:
                version = self._gather(number, request, request.gather)
            else:
                version = (self._fetch if request.into else self._exchange)(number, request)
        except (LinkError, TimeoutError):
            pass
        except Exception:
            self._client.error = traceback.format_exc()
        traffic.waited_s += time.monotonic() - started
        traffic.lost += version is None
        return version

    def _fetch(self, number: int, request: PeerRequest) -> int | None:
        return self.carrier.fetch(request.peer, self._arena.vector(request.into, self._rank))

    def _terms(self, request: PeerRequest) -> tuple[ExchangeTerms, list[Tensor]]:
        """Return the terms of the exchange that `request` asks for, and the private vectors (P,) that take part."""
        private = [self._arena.vector(name, self._rank) for name in request.private]
        return ExchangeTerms.asked_for(request, self._client.layout), private

    def _exchange(self, number: int, request: PeerRequest) -> int | None:
        terms, private = self._terms(request)
        if not terms.mutual:
            return self._carry(number, terms, private)
        carry = self._ask_lower if terms.peer < self._rank else self._carry
        if request.part != WHOLE:
            part = replace(terms.fragment, part=request.part)
            return carry(number, terms.carried(part, FP32, True)) if part.size else None
        if not terms.simple:
            return carry(number, terms)
        form, by_run, started = self._form(terms.peer), request.memory == BY_RUN, time.monotonic()
        fragment, codec = form.next()
        codec = codec if by_run else replace(request.wire, memory=request.memory)
        version = carry(number, terms.carried(fragment, codec, by_run))
        if version is not None:
            form.took(time.monotonic() - started)
        return version

    def _form(self, peer: int) -> LinkForm:
        """Return the form of rows that are exchanged with the host of `peer`."""
        host = self._network.home(peer)
        if host not in self._forms:
            self._forms[host] = LinkForm(self._client.row_format, self._client.layout.parameters)
        return self._forms[host]

    def forms(self) -> dict[int, str]:
        """Return the form of rows exchanged with each host, in words; from any thread."""
        return {host: form.said() for host, form in list(self._forms.items())}

    def _carry(self, number: int, terms: ExchangeTerms, private: Sequence[Tensor] = ()) -> int | None:
        """Exchange with a row of higher rank, or with the centre; return its version; None: the exchange failed."""
        carried = self.carrier.exchange(terms, private, partial(self._is_wanted, number))
        return None if carried is None else carried.reply.version

    def _gather(self, number: int, request: PeerRequest, gather: Gathering) -> int | None:
        """Bring the learner to a gathering on the host that has the centre, and wait until it may go on from there;
        return the centre's version, LEFT_OUT if nothing given counts, None if the request failed."""
        version, wanted = LEFT_OUT, partial(self._is_wanted, number)
        said: RowReply | None
        if request.rule is not None:
            terms, private = self._terms(request)
            carried = self.carrier.exchange(terms, private, wanted, gather=gather)
            if carried is None:
                return None
            said = carried.reply
            version = said.version if said.counts else LEFT_OUT
        else:
            said = self.carrier.ask(request.peer, gather, comes=True)
        while said is not None and said.waits:
            if not wanted():
                return None
            said = self.carrier.ask(request.peer, gather)
        return None if said is None else version

    def _ask_lower(self, number: int, terms: ExchangeTerms) -> int | None:
        """Have a lower rank's client exchange with this learner's row; return that rank's version; None: it failed."""
        state, peer = self._asking, terms.peer
        with self._gate:
            self._request = number, peer
            state.take(Event.ASK)
        try:
            message = Outgoing(terms.message(number, RequestMessage))
            patience = TO_BE_DONE * self._network.patience
            look = partial(self.carrier.look_at, peer)
            reply = self._requests.talk(self._network.home(peer), state, message, patience, look)
            return reply.version if isinstance(reply, DoneReply) else None
        finally:
            with self._gate:
                state.offer(Event.GIVE_UP)
                state.take(Event.CHECK_IN)

    def awaits(self, asked: int, by: int) -> bool:
        """Return True if an exchange with row `by` that this learner's request number `asked` has asked for is still
        wanted, and its row was not yet visited for it."""
        with self._gate:
            asks = self._asking.state is State.ASKED
            return asks and self._request == (asked, by) and self._is_wanted(asked)

    def visited(self, asked: int, by: int) -> bool:
        """Return True if the exchange with row `by` for request number `asked` is still wanted, and note that it is
        made now: a second call returns False. The server calls this under the row's lock, and then applies the rule."""
        with self._gate:
            return self.awaits(asked, by) and self._asking.offer(Event.APPLY)

    def _is_wanted(self, number: int) -> bool:
        """Return True if the learner that made request `number` has not died, nor been replaced."""
        return bool(self._asked[self._rank] == number and self.carrier.alive[self._rank])

    # Links ------------------------------------------------------------------------------------------------------------

    def traffic(self) -> dict[int, LinkTraffic]:
        """Return the traffic of this channel with each other host."""
        return LinkTraffic.summed([self._counts, self.carrier.links.traffic, self._requests.traffic])

    def cut(self, host: int) -> None:
        """Close the links to `host`, from any thread."""
        self.carrier.links.cut(host)
        self._requests.cut(host)

    def hang_up(self) -> None:
        """Close all links, from any thread."""
        self.carrier.links.close()
        self._requests.close()

    def close(self) -> None:
        """End the thread, so that no request is served any more. Call it when the network is closing."""
        if self._pipe < 0:
            return
        self.hang_up()
        os.write(self._bell, b"!")
        if self._thread is not None:
            self._thread.join()
        self.hang_up()
        with suppress(TimeoutError):  # a thread of the server still has the row: it ends with this process
            self.carrier.close()
        for descriptor in (self._pipe, self._bell):
            os.close(descriptor)
        self._pipe = -1
