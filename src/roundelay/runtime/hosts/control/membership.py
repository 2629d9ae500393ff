"""Membership: the hosts that take part, those that are lost, those that come back. The host that leads keeps it.

It is the same for a run of `roundelay train`, whose coordinator gives orders, and for a session of attached learners,
whose coordinator gives none. How a learner is found dead, and how others hear of it:
runtime/procs/coordination/lives.py.

Links have threads of their own, which note messages. The consequences are drawn in `attend`, which the coordinator
calls a few times a second from its main thread, so that nothing changes while it is being read.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from roundelay.core.errors import UserError
from roundelay.core.live import HostSeen
from roundelay.runtime.base import HostBack, HostGone, wall_clock
from roundelay.runtime.clocks import pause
from roundelay.runtime.hosts.control import bulk, messages
from roundelay.runtime.hosts.control.finding import PendingJoins, StartWait
from roundelay.runtime.hosts.control.host_links import HostLinks
from roundelay.runtime.hosts.control.leases import Division, HostShards, disagreement
from roundelay.runtime.hosts.control.peers import LocalLearners, RemoteHost
from roundelay.runtime.hosts.control.succession import KnownHosts, turn
from roundelay.runtime.hosts.terms import HostTerms, JoinHello, differing, fingerprint, host_of
from roundelay.runtime.hosts.transport.heartbeat import BEATS, MonitoredLink, until
from roundelay.runtime.hosts.transport.wire import BadFrame, LinkError, Reading, TrafficCounters
from roundelay.runtime.launch.world import PLACES, HostPlace
from roundelay.runtime.messages import Address, Dialect, InvalidMessage, Message
from roundelay.runtime.procs.coordination import activity
from roundelay.runtime.procs.memory.views import NONE

LEAVES = "this host leaves"
"""Reason for the end of a link that says that the other host is not lost: it goes on without this one."""
GOODBYE_SECONDS = 5.0
"""Seconds that the coordinator waits for the others to hear that the run has ended."""


@final
@dataclass(frozen=True)
class HostEvents:
    """Functions that are called when something happens to another host."""

    kinds: Sequence[type[Message]]  # messages that hosts may say besides those about membership
    message: Callable[[RemoteHost, Message], None]  # for each of these, from that host's thread
    # when a host is gone, and why, from any thread; how many minibatches come back from it for others.
    left: Callable[[RemoteHost, str], int]
    # for each host that takes part from now on; says that its learners live, or will.
    came: Callable[[RemoteHost], None]
    takes_back: bool = False  # a host that was lost may come back also where learners wait for each other


@final
class HostMembership:
    """All other hosts of a run or session, as the host that leads knows them.

    Args:
        local_runtime: the learners of this host; facts about the others are written into its arena.
        links: the links of this host for its learners' exchanges and means with others.
        arrivals: hosts that want to join.
        events: functions that are called when something happens to another host.
    """

    def __init__(
        self,
        local_runtime: LocalLearners,
        links: HostLinks,
        arrivals: PendingJoins,
        place: HostPlace,
        terms: HostTerms,
        events: HostEvents,
    ) -> None:
        self._local_runtime, self._links, self._place, self._terms = local_runtime, links, place, terms
        self._events, self._listener = events, arrivals.listener
        self.gate = threading.RLock()
        self._arrivals = arrivals
        self._remotes: dict[int, RemoteHost] = {}
        self._placeless: list[RemoteHost] = []  # they have come, and wait for their places, which others may have
        self.hosts: list[tuple[int, ...]] = [place.ranks]
        """The ranks of each host: of those that began in rank order, then of those that joined later."""
        self.lost: list[HostGone] = []
        self.joined: list[HostBack] = []
        self._told: list[object] = []  # the lives and addresses that all were told
        self._generation = 0
        self._begun = False  # all have come
        self._complete = False  # and have been let in
        self._let_in: set[int] = set()  # hosts that were, and are not lost
        self.takes_over = False
        """Is this host about to lead in the place of another? Hosts that come back wait until it does."""
        self.holds_back = False
        """Do hosts that come back wait until they are `let_in`?"""
        self.own = 0
        """Number of this host."""
        self.division = Division(self.shards)
        self.traffic = TrafficCounters(self.own, self._readings)
        """Counters of all links of this host."""

    def take_over(self, known: KnownHosts) -> None:
        """Go on in the place of another leader, from the hosts `known` that all have heard of from it last."""
        self.own, self.hosts, self._begun = known.own, [tuple(ranks) for ranks in known.ranks], True
        self._let_in = {*known.let_in}
        self._complete = self.takes_over = True

    # The beginning ----------------------------------------------------------------------------------------------------

    def open(self, stop: Callable[[], object] = lambda: None) -> None:
        """Wait until all hosts have come and have begun where this one does, and, where learners wait for those of
        other hosts, until hosts have links to each other. `stop` is called again and again meanwhile, and may raise.

        Raises:
            UserError: some hosts did not come, or one disagrees about the run; names their ranks.
            LinkError, TimeoutError: hosts do not reach each other.
        """
        self._gather(stop)
        self._links.settle(self.own, self.hosts, self._local_runtime.parameters)
        if self._local_runtime.cluster.strategy.traits.synchronous:
            self.ask(messages.Meet(tuple(self.addresses())), "that it has met the others")
            self._links.meet(self.addresses())

    def _gather(self, stop: Callable[[], object]) -> None:
        """Wait until all hosts have come, have built their learners, and take part."""
        deadline = wall_clock() + self._terms.patience_seconds
        where, lasts = self._listener.address, StartWait(self._place.ranks[0], self._terms.patience_seconds, stop)
        while not self._begun or len(self.inside()) < len(self.hosts) - 1:
            if self._begun:  # some are being let in
                pause(0.01)
            elif (monitored := self._arrivals.next(0.05)) is not None and (remote := self._examine(monitored)):
                self._placeless.append(remote)
            if not self._begun:  # until then they are known by their lowest ranks, and hear of an end before that
                self._remotes |= {remote.ranks[0]: remote for remote in self._placed(self.all())}
            here = {*self._place.ranks, *(rank for remote in self.all() for rank in remote.ranks)}
            missing = sorted(set(self._place.first) - here)
            if not missing and not self._begun:
                self.hosts = sorted([self._place.ranks, *(remote.ranks for remote in self.all())])
                self._remotes = {self.hosts.index(remote.ranks): remote for remote in self.all()}
                for host, remote in self._remotes.items():
                    remote.host = host
                self._begun = True
            slow = [rank for remote in self.all() if remote.standing != "in" for rank in remote.ranks]
            what = f"to come to {where[0]}:{where[1]}" if missing else "to be built"
            why = "".join([*self._listener.rejected.reasons][:1])
            lasts.look(f"learners {', '.join(map(str, missing or slow))} {what}", why)
            if self._begun:
                self.attend()
            if wall_clock() > deadline:
                raise self._incomplete(missing)
        self._let_in = {*range(len(self.hosts))}
        self._complete, self.lost = True, []  # a host that was started again meanwhile is not missed

    def _incomplete(self, missing: Sequence[int]) -> UserError:
        learners, seconds = self._local_runtime.cluster.learners, self._terms.patience_seconds
        if not missing:
            slow = [remote.ranks for remote in self.all() if remote.standing != "in"]
            return UserError(f"learners {slow} were not built within {seconds:g} s: raise training.patience_seconds.")
        where = ":".join(map(str, self._listener.address))
        reasons = self._listener.rejected.reasons
        refused = f" The last connection that was refused: {reasons[-1]}." if reasons else ""
        return UserError(
            f"learners {missing} of {learners} have not come to {where} within {seconds:g} s: is Roundelay running on "
            f"their hosts, with the same MASTER_ADDR, MASTER_PORT and secret, and can they reach that address?{refused}"
        )

    def _examine(self, monitored: MonitoredLink) -> RemoteHost | None:
        """Return the host at the other end of a link, if it belongs to this run; None: its hello is malformed, and is
        counted as such.

        Raises:
            UserError: the host does not belong to this run; it is told why.
        """
        learners = self._local_runtime.cluster.learners
        try:
            hello = JoinHello.of(monitored.link)
            found = differing(self._terms.agreement, hello.agreement)
        except (BadFrame, RecursionError):
            monitored.close()
            return None
        (first, count), all_ = hello.ranks, hello.learners
        remote = RemoteHost(-1, tuple(range(first, first + min(count, learners))), monitored, hello, wall_clock())
        here, there = host_of(self._place.ranks), host_of(remote.ranks)
        if all_ != learners:
            why = (
                f"{learners} learners on {here}, {all_} on {there}: WORLD_SIZE, and {PLACES} where learners may join "
                "later, must be the same on all hosts"
            )
        elif found:
            differ = "; ".join(f"{what} is {one!r} on {here} and {other!r} on {there}" for what, one, other in found)
            why = f"the {self._terms.agreed} must be the same on all hosts, but {differ}"
        elif not 1 <= count <= learners or not set(remote.ranks) <= set(range(learners)) - {*self._place.ranks}:
            why = f"ranks {first} to {first + count - 1} are not those of another host"
        else:
            why = ""

        def handle(message: Message) -> None:
            if not why:
                self._heard(remote, message)

        dialect = Dialect(*messages.OF_ALL, *self._events.kinds, rank=learners - 1, row=learners)
        monitored.listen(dialect, handle, lambda reason: self.evict(remote, reason))
        if why:
            raise self._refuse(remote, why)
        remote.tell(messages.Common(self._local_runtime.common))
        return remote

    def _refuse(self, remote: RemoteHost, why: str) -> UserError:
        remote.tell(messages.HostRefused(why))
        until(lambda: remote.standing == "gone", 1.0)
        self.evict(remote, why)
        return UserError(f"{host_of(remote.ranks)} cannot take part: {why}.")

    def _welcome(self, remote: RemoteHost) -> None:
        """Tell a host its place, and give it all that it needs to take part: where it comes late, the row of a learner
        of this host. On a thread of its own: a slow link may take long."""
        rows, source = self._local_runtime.cluster_rows, None
        if remote.late or remote.initial != fingerprint(rows.copy(self._local_runtime.here[0])["row"]):
            source = self._source(remote)
        remote.welcomed, remote.copied = True, None if self._local_runtime.cluster.centre else source
        send = self._sends(remote, source, lambda numbers: messages.Welcome(remote.host, tuple(self.hosts), numbers))
        threading.Thread(target=send, daemon=True, name=f"welcome {remote.host}").start()

    def _source(self, remote: RemoteHost) -> int:
        """Return the rank of the learner whose state the learners of host `remote` are given: one of this host, or,
        where all here are dead, one that is mirrored."""
        local_runtime = self._local_runtime
        everybody = local_runtime.arena.liveness.living()
        living = [rank for rank in everybody if rank in local_runtime.here] or everybody
        return local_runtime.cluster_rows.source(remote.ranks[0], living) if living else local_runtime.here[0]

    def _sends(
        self, remote: RemoteHost, source: int | None, word: Callable[[dict[str, Any]], Message]
    ) -> Callable[[], None]:
        """Return a function that sends host `remote` the row and the memory of learner `source`, as they are now, for
        all its learners, and then the message that `word` makes of their numbers. `source` None: that message alone."""
        arena, ranks = self._local_runtime.arena, list(remote.ranks)
        copy = {} if source is None else self._local_runtime.cluster_rows.copy(source)
        scalars = copy.pop("scalars").tolist() if source is not None else None
        alike = self._local_runtime.cluster.strategy.traits.synchronous
        stepped = [source] * len(ranks) if alike and source is not None else ranks
        numbers = {
            "steps": arena.optimizer.steps[stepped].tolist(),
            "versions": (arena.row_versions.versions[ranks] + 1 & ~1).tolist(),
            "scalars": [scalars or arena.optimizer.scalars[rank].tolist() for rank in ranks],
        }

        def send() -> None:
            with suppress(LinkError):
                for name, vector in copy.items():
                    bulk.send_vector(remote.monitored, name, messages.EVERYONE, vector)
                remote.monitored.say(word(numbers))

        return send

    def _has_its_shards(self, remote: RemoteHost) -> bool:
        """Return False where a host that comes back is refused: its shards are of another corpus, or not those it
        trains.

        Raises:
            UserError: the host is refused, and the run, which has not begun, cannot begin without it.
        """
        hosts = host_of(self._place.ranks), host_of(remote.ranks)
        why = disagreement(self._local_runtime.shards, remote.shards, *hosts)
        if not why and remote.late and not self.division.has_its_share(remote.host, remote.shards):
            why = f"host {remote.host} has not the shards that it is to train in this epoch"
        if why:
            error = self._refuse(remote, why)
            if not remote.late:
                raise error
        return not why

    def shards(self) -> list[HostShards]:
        """Return the shards of every host, in rank order."""
        found = [HostShards(len(self._place.ranks), self._local_runtime.shards)]
        for _, remote in sorted(self._remotes.items()):
            found.append(HostShards(len(remote.ranks), remote.shards, remote.standing == "in"))
        return found

    def addresses(self) -> list[Address]:
        """Return the addresses at which hosts listen, in rank order; ("", 0) in the place of a host that is lost."""
        found = [("", 0)] * len(self.hosts)
        found[self.own] = self._listener.address
        for remote in self.all():
            found[remote.host] = remote.hello.address
        return found

    # Hosts and lives --------------------------------------------------------------------------------------------------

    def all(self) -> list[RemoteHost]:
        """Return the other hosts that are not lost."""
        return [remote for remote in self._remotes.values() if remote.standing != "gone"]

    def inside(self) -> list[RemoteHost]:
        """Return the other hosts that take part."""
        return [remote for remote in self._remotes.values() if remote.standing == "in"]

    def in_turn(self) -> list[RemoteHost]:
        """Return the other hosts that take part, in the order in which they would lead if those before were lost."""
        return sorted(self.inside(), key=lambda one: turn(self._let_in, one.host, one.hello.address))

    def _note_let_in(self) -> None:
        """Note which hosts are lost, and where learners live that came late."""
        alive, there = self._local_runtime.arena.liveness.alive, {self.own, *(remote.host for remote in self.all())}
        lives = {remote.host for remote in self.inside() if alive[list(remote.ranks)].any()}
        if self._complete:
            self._let_in = lives | (self._let_in if self.takes_over else self._let_in & there)

    def who_waits(self) -> str:
        """Return a table of every learner's present effect, as far as it is known here."""
        here, now = activity.HostActivity.of(self._local_runtime.arena, self._place.ranks), activity.milliseconds()
        said = [self._remotes[host].said if host in self._remotes else None for host in range(len(self.hosts))]
        said[self.own] = activity.ReportedActivity(here, now)
        return activity.table(self._local_runtime.arena, list(zip(self.hosts, said, strict=True)))

    def _readings(self) -> Iterator[Reading]:
        for remote in self.all():
            yield remote.host, remote.monitored.link.sent_bytes, remote.monitored.link.received_bytes, 0.0
        yield from self._links.readings()

    def forms(self) -> Mapping[int, str]:
        """Return the form of rows that learners here exchange with each host, in words."""
        return self._links.endpoint.forms()

    def seen(self) -> tuple[HostSeen, ...]:
        """Return every host as it looks from here, this one first."""
        traffic, forms = self.traffic.bytes(), self.forms()
        found = [HostSeen(name=self._listener.address[0], ranks=list(self._place.ranks))]
        now = wall_clock()
        for host, remote in sorted(self._remotes.items()):
            sent, received = traffic.get(host, (0, 0))
            found.append(
                HostSeen(
                    name=remote.hello.address[0],
                    ranks=list(remote.ranks),
                    alive=remote.standing == "in",
                    heard_s=round(now - remote.monitored.heard, 3),
                    sent_bytes=sent,
                    received_bytes=received,
                    rows=forms.get(host, ""),
                )
            )
        return tuple(found)

    def _heard(self, remote: RemoteHost, message: Message) -> None:
        """Handle a message of host `remote`, on the thread of its link."""
        match message:
            case messages.Piece():
                if remote.standing != "in":
                    raise InvalidMessage("a row from a host that does not take part")
                bulk.take_piece(self._local_runtime.arena, message, remote.ranks)
            case messages.Replied():
                if message.integers is not None:
                    bulk.enter_integers(self._local_runtime.arena, remote.ranks, message.integers)
                remote.reached = message.reached
                remote.replied.set()
            case messages.Built():
                if message.parameters != self._local_runtime.parameters:
                    raise InvalidMessage(
                        f"{message.parameters} parameters there, {self._local_runtime.parameters} here"
                    )
                remote.shards, remote.initial = message.shards, message.initial
            case messages.Prepared():
                with self.gate:
                    if remote.standing == "new":
                        remote.standing = "ready"
            case messages.HostState():
                self._take_state(remote, message)
            case _:
                self._events.message(remote, message)

    def _take_state(self, remote: RemoteHost, state: messages.HostState) -> None:
        """Store the report of host `remote` on its learners, which comes a few times a second."""
        arena, ranks = self._local_runtime.arena, list(remote.ranks)
        with self.gate:
            if remote.standing != "in":
                return
            if {*state.said.learners, len(state.steps), len(state.alive)} != {len(ranks)}:
                raise InvalidMessage(f"a state that is not of the {len(ranks)} learners of a host")
            remote.said = activity.ReportedActivity(state.said, activity.milliseconds())
            arena.optimizer.steps[ranks] = state.steps
            arena.row_versions.versions[ranks] = state.said.versions  # for the time it is lost
            arena.liveness.mark(ranks, state.alive)
            remote.ready = [rank for rank in state.ready if rank in remote.ranks]

    def evict(self, remote: RemoteHost, reason: str) -> None:
        """Note that host `remote` is lost, for `reason`."""
        arena = self._local_runtime.arena
        with self.gate:
            if remote.standing == "gone":
                return
            took_part, remote.standing, remote.busy, remote.ready = remote.standing == "in", "gone", False, []
            if took_part:
                redrawn = self._events.left(remote, reason)
                arena.liveness.mark(remote.ranks, False)
                self.lost.append(HostGone(remote.host, remote.ranks, reason, redrawn))
        remote.replied.set()
        remote.monitored.close()

    def attend(self) -> None:
        """Let in hosts that are ready, look at hosts that have come, and tell all hosts which learners live."""
        while self._begun and (monitored := self._arrivals.next()) is not None:
            self._come_back(monitored)
        for remote in self._placed(self._remotes.values()) if self._begun else ():
            self._take_back(remote)
        for remote in self.all():  # without the gate, which the end of the link to one that is refused needs
            built = remote.standing == "new" and remote.initial is not None and not remote.welcomed
            lost = self._local_runtime.arena.requests.centre[0] == NONE  # the centre it would begin with
            waits = remote.late and (lost or self.takes_over or self.holds_back)
            if built and not waits and self._has_its_shards(remote):
                self._welcome(remote)
        with self.gate:
            for remote in self.all():
                if remote.standing == "ready":
                    remote.standing = "in"
                    self._events.came(remote)
                    if remote.late:
                        self.joined.append(HostBack(remote.host, remote.ranks, remote.copied))
                        self._meet_again(remote)
            self._note_let_in()
            inside, let_in = [remote.host for remote in self.inside()], tuple(sorted(self._let_in))
            now: list[object] = [self._local_runtime.arena.liveness.alive.tolist(), self.addresses(), inside, let_in]
            if now == self._told:
                return
            self._told, self._generation = now, self._generation + 1
        alive, where = tuple(self._local_runtime.arena.liveness.alive.tolist()), tuple(self.addresses())
        self._links.peers(where, self.hosts)
        for remote in self.in_turn():
            remote.tell(messages.Living(self._generation, alive, where, tuple(self.hosts), let_in))

    def _meet_again(self, remote: RemoteHost) -> None:
        """Tell a host that comes back where the others that take part are, where learners wait for each other."""
        if self._local_runtime.cluster.strategy.traits.synchronous:
            there = {self.own, *(one.host for one in self.inside())} - {remote.host}
            addresses = [at if host in there else ("", 0) for host, at in enumerate(self.addresses())]
            remote.tell(messages.Meet(tuple(addresses), again=True))

    def let_in(self) -> None:
        """Let in, while no learner trains, hosts that have come back and are built: they are given the present vectors
        of learners here, and connect to all others. One that does not get that far is lost again. Then replacements on
        hosts that take part: they begin with what another learner there has, or, where none lives, one of this host.

        Raises:
            TimeoutError: a host lives and does not say that it has let in its own.
        """
        seconds, alive = self._terms.patience_seconds, self._local_runtime.arena.liveness.alive

        def missing() -> list[RemoteHost]:
            self.attend()
            return [one for one in self.all() if one.late and one.initial is not None and not one.replied.is_set()]

        self.holds_back = False
        if not until(lambda: not missing(), seconds):
            for remote in missing():
                self.evict(remote, f"it came back, and has not reached all others within {seconds:g} s")
        self.holds_back = True
        waiting = [remote for remote in self.inside() if remote.ready]
        for remote in waiting:
            remote.replied.clear()
            if alive[list(remote.ranks)].any():
                remote.tell(messages.LetIn())
            else:
                source = self._source(remote)
                self._sends(remote, source, partial(messages.LetIn, source))()
        for remote in waiting:
            self._wait(remote, "that learners which take the place of dead ones take part")

    def _placed(self, had: Iterable[RemoteHost]) -> list[RemoteHost]:
        """Return the hosts that wait for a place and may have it now: the host that `had` the place is lost, or is the
        same process, whose link was cut, and which speaks on its second link. (A link that its other end gave up may
        come after the link made in its place, and says nothing.) The second host waits until that is known, and is
        refused once the first has said something after the second came."""
        seconds, found = self._terms.host_patience / BEATS, list[RemoteHost]()
        for remote in [*self._placeless]:
            there = (one for one in (*had, *found) if one.standing != "gone")
            first = next((one for one in there if {*one.ranks} & {*remote.ranks}), None)
            if first is not None and first.hello.life and first.hello.life == remote.hello.life:
                if remote.monitored.heard > remote.came:
                    self.evict(first, "it came again")
            elif first is not None and first.monitored.heard > remote.came + seconds:
                address, port = first.hello.address
                self._refuse(
                    remote,
                    f"{host_of(first.ranks)} takes part already, at {address} port {port}, and lives. Give this one "
                    "other ranks, or end that one: once it is dead, another may come in its place",
                )
            if remote.standing == "gone" or first is None or first.standing == "gone":
                self._placeless.remove(remote)
                found += [remote] if remote.standing != "gone" else []
        return found

    def _come_back(self, monitored: MonitoredLink) -> None:
        """Examine a host that comes back or joins; another host may still have its place, which it then waits for."""
        traits, label = self._local_runtime.cluster.strategy.traits, self._local_runtime.cluster.strategy.label
        with suppress(UserError):  # a host that is refused has been told why
            if (remote := self._examine(monitored)) is None:
                return
            new = remote.ranks not in self.hosts
            needed = traits.synchronous and (new or not self._events.takes_back)
            if self._begins_late(remote) and (needed or self._terms.on_death == "stop"):
                under = label if traits.synchronous else "--on-death stop"
                raise self._refuse(
                    remote,
                    f"under {under} no host joins a run, or comes back to it, once it has begun. When it has stopped, "
                    "the same command on all hosts goes on with all of them",
                )
            self._placeless.append(remote)

    def _begins_late(self, remote: RemoteHost) -> bool:
        """Return True if host `remote` begins in the middle of the run. A host started again before all were there does
        not: it counts as coming first. Nor does one that `stays`: it has begun."""
        return (self._complete or remote.ranks not in self.hosts) and not remote.hello.stays

    def _take_back(self, remote: RemoteHost) -> None:
        """Give host `remote` its place among the hosts, which no other has now."""
        if remote.ranks not in self.hosts and {rank for host in self.hosts for rank in host} & {*remote.ranks}:
            self._refuse(remote, f"it comes with learners {remote.ranks}, but hosts have {self.hosts}")
            return
        remote.late = self._begins_late(remote)
        self.hosts += [remote.ranks] if remote.ranks not in self.hosts else []
        remote.host = self.hosts.index(remote.ranks)
        if remote.hello.stays:  # it has all it needs
            remote.welcomed, remote.standing = True, "ready"
        with self.gate:
            self._remotes[remote.host] = remote

    # Questions --------------------------------------------------------------------------------------------------------

    def ask(self, message: Message, what: str) -> list[RemoteHost]:
        """Send a message to all hosts that take part, and wait for their replies; return the hosts that take part then.

        Raises:
            TimeoutError: a host lives and does not reply; the error says `what` it has not said.
        """
        asked = self.inside()
        for remote in asked:
            remote.replied.clear()
            remote.tell(message)
        for remote in asked:
            self._wait(remote, what)
        return [remote for remote in asked if remote.standing == "in"]

    def _wait(self, remote: RemoteHost, what: str) -> None:
        seconds = self._terms.patience_seconds
        if not until(lambda: remote.replied.is_set() or remote.standing == "gone", seconds):
            raise TimeoutError(
                f"host {remote.host} (learners {remote.ranks}) lives, but has not said for {seconds:g} s {what}"
            )

    def close(self, why: str, signal: str = "") -> None:
        """Tell all hosts that the run has ended, and close the links. Safe to call twice.

        Args:
            why: the reason; "" if the run has ended well.
            signal: the name of the signal that has stopped it, or "".
        """
        for remote in (*self.all(), *self._placeless):
            remote.tell(messages.End(why, signal))
        until(lambda: not self.all(), min(GOODBYE_SECONDS, self._terms.host_patience))
        for remote in (*self.all(), *self._placeless):
            self.evict(remote, "the run has ended")
        self._begun = False
        while (monitored := self._arrivals.next()) is not None:
            monitored.close()

    def let_go(self) -> None:
        """Close all links without a message: the run of the others goes on without this host."""
        for remote in (*self.all(), *self._placeless):
            self.evict(remote, LEAVES)

    # For the records --------------------------------------------------------------------------------------------------

    def news(self) -> tuple[tuple[HostGone, ...], tuple[HostBack, ...]]:
        """Return the hosts that were lost, and those that came back, since the last call."""
        with self.gate:
            found = tuple(self.lost), tuple(self.joined)
            self.lost, self.joined = [], []
            return found
