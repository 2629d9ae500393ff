"""Agreement of hosts on a communicator: its members, how its ends find each other, and the weight of each in a mean.

All of it is said over the links for mixes, which are sealed; the process group itself (group.py) carries vectors only.
The host that leads the run says which take part, so two halves of a network that was cut in two never both go on. Where
all its own learners are dead it says so all the same, and takes no part. With C communicators so far:

    ReadyForMeans     a host to the leader: it is ready for the next communicator; how many means are complete there
    CommunicatorMade  the leader to all that live: number C + 1, its members, and their complete means
    Key, MeanWeights, Broken    a host to all members (messages.py)

A host that waits for one of these ends its wait when the communicator is broken, a member is lost, or the part is over.
Where the leader itself is lost, the others wait for one that leads in its place (control/succession.py), and come to
that. It may begin this part later than they: what comes before waits for that (base.py).

There is one communicator a part of a segment, made at the first mean. When a host is lost, or the communicator fails,
it is given up, and the hosts that are left make another and repeat the mean under way without the lost host. Some may
have completed that mean before: then the others are given theirs, so that all have the same. So a host comes to another
communicator also while its learners have not come to the next mean, and where that was their last (`attend`). Whether a
run goes on without a host is not for means to say.
"""

import math
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar, final

from roundelay.runtime.hosts.mean_transports.base import LISTEN_SECONDS, LocalMean, MeansPart, MeanTransport
from roundelay.runtime.hosts.mean_transports.messages import (
    Broken,
    CommunicatorMade,
    CommunicatorTerms,
    Key,
    MeansDone,
    MeanWeights,
    OfPart,
    ReadyForMeans,
)
from roundelay.runtime.hosts.transport.wire import Link, LinkError
from roundelay.runtime.messages import InvalidMessage
from roundelay.runtime.procs.coordination.means import MemberLost

CALL_SECONDS = 1e-3
"""Most seconds between two looks whether a call of a library is complete, since the library rings no bell."""


class CommunicatorBroken(Exception):
    """Error: a communicator is of no more use, since a member is lost or could not go on; says which."""


@final
class CommunicatorAgreement:
    """This host's side of the agreement on communicators, for one part of a segment.

    Args:
        host: number of this host.
        links: links to all other hosts, by their numbers.
        alive: returns True if a host takes part in the run, as far as is known here.
        seconds: how long hosts wait for each other.
        leader: returns the number of the host that leads, or led last, as far as is known here.
    """

    def __init__(
        self,
        part: MeansPart,
        host: int,
        links: Mapping[int, Link],
        alive: Callable[[int], bool],
        seconds: float,
        leader: Callable[[], int] = lambda: 0,
    ) -> None:
        self._part, self._host, self._links = part, host, links
        self._alive, self._seconds, self._leader = alive, seconds, leader
        self._changed = threading.Condition()
        self._lost: set[int] = set()  # hosts whose links are gone
        self._come: dict[int, ReadyForMeans] = {}  # to this host, if it leads: hosts ready for the next one
        self._coming: tuple[int, ReadyForMeans] | None = None  # said to a leader that has not answered
        self._terms = CommunicatorTerms(0, (), ())  # the newest
        self._broken = 0  # number of the newest that is of no more use
        self._keys: dict[tuple[int, str], bytes] = {}
        self._weights: dict[tuple[int, int], dict[int, tuple[float, ...]]] = {}  # by communicator and mean, by host

    # Messages ---------------------------------------------------------------------------------------------------------

    def _tell(self, hosts: Sequence[int], message: OfPart) -> None:
        """Send a message to all other `hosts`. One that cannot be reached is lost, as its link will say."""
        for host in hosts:
            if host != self._host and host not in self._lost:
                with suppress(LinkError):
                    self._links[host].say(message)

    def heard(self, host: int, message: OfPart) -> bool:
        """Handle a message of another host; return False if it is not about agreement.

        Raises:
            InvalidMessage: the message makes no sense in the present state.
        """
        with self._changed:
            match message:
                case ReadyForMeans():
                    self._come[host] = message
                case CommunicatorMade() if host != self._leader():
                    return True  # the last words of one that led
                case CommunicatorMade(terms=terms):
                    if not {*terms.members} <= {*self._links, self._host} or len(terms.progress) != len(terms.members):
                        raise InvalidMessage(f"a communicator of {terms.members}, which are not these hosts")
                    self._terms = terms
                case Key():
                    self._keys[message.number, message.key] = message.value
                case MeanWeights():
                    self._weights.setdefault((message.number, message.mean), {})[host] = message.weights
                case Broken():
                    self._broken = max(self._broken, message.number)
                case _:
                    return False
            self._changed.notify_all()
        return True

    def lost(self, host: int) -> None:
        """Note that the link to `host` is gone."""
        with self._changed:
            self._lost.add(host)
            self._changed.notify_all()

    # Waits ------------------------------------------------------------------------------------------------------------

    def _gone(self, hosts: Sequence[int]) -> list[int]:
        return [host for host in hosts if host in self._lost or not self._alive(host)]

    def check(self, terms: CommunicatorTerms) -> None:
        """Check that a communicator is still of use.

        Raises:
            CommunicatorBroken: a member is lost, or could not go on.
            PartOver: the part of the segment is over.
        """
        self._part.check()
        if gone := self._gone(terms.members):
            raise CommunicatorBroken(f"host {gone[0]} is lost")
        if terms.number <= self._broken:
            raise CommunicatorBroken("another host could not go on with it")

    def until(self, terms: CommunicatorTerms, ready: Callable[[], bool], called: Callable[[], bool]) -> None:
        """Wait until `ready`; while `called` returns True, a call of a library is under way, and is looked at often.

        Raises:
            CommunicatorBroken, PartOver: as `check`, before it is ready.
        """
        pause, bell = 50e-6, self._part.bell
        heard = bell.heard()
        while not ready():
            self.check(terms)
            bell.wait(heard, pause if called() else LISTEN_SECONDS)
            heard, pause = bell.heard(), min(2 * pause, CALL_SECONDS)

    def _wait(self, ready: Callable[[], bool], check: Callable[[], None], what: str, seconds: float | None) -> None:
        """Wait until `ready`, under the lock, for at most `seconds`; `check` may raise an error to end the wait."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not ready():
            check()
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"host {self._host} has waited {seconds:g} s {what}")
            self._changed.wait(LISTEN_SECONDS)

    def agree(self, progress: MeansDone) -> CommunicatorTerms:
        """Return the terms of the next communicator, made of all hosts that live.

        Raises:
            CommunicatorBroken: no learner of this host lives.
            LinkError: the host that leads takes this one for lost.
            TimeoutError: a host does not come, or none leads.
            PartOver: the part of the segment is over.
        """
        deadline = time.monotonic() + self._seconds
        while (terms := self.come(progress, deadline)) is None:
            if not self.lives:
                raise CommunicatorBroken(f"all learners of host {self._host} are dead")
            if time.monotonic() > deadline:
                leads = self._leader() == self._host
                whom = "all hosts to be ready for means" if leads else "the host that leads to begin means"
                raise TimeoutError(f"host {self._host} has waited {self._seconds:g} s for {whom}")
        return terms

    def come(self, progress: MeansDone, deadline: float) -> CommunicatorTerms | None:
        """Return the terms of the next communicator, once it is made; None: it was not made by `deadline`, or another
        host leads now. The leader makes it when all others have come; a host without living learners is in none.

        Raises:
            LinkError: the host that leads takes this one for lost.
            PartOver: the part of the segment is over.
        """
        leader, lived = self._leader(), self.lives

        def over() -> bool:
            return self._leader() != leader or self.lives != lived or time.monotonic() > deadline

        if leader == self._host:
            made = self._make(progress, over)
        else:
            made = lived and self._await_terms(leader, progress, over)
        return self._terms if made and self._host in self._terms.members else None

    @property
    def lives(self) -> bool:
        """True if a learner of this host lives."""
        return self._alive(self._host)

    def _ready(self, progress: MeansDone) -> ReadyForMeans:
        """Return the message that this host is ready for the next communicator. That communicator has a number of which
        no host has heard: a leader that is lost may have told some of one and not others."""
        with self._changed:
            heard = [number for number, _ in (*self._weights, *self._keys)]
            return ReadyForMeans(self._part.number, progress, max(self._terms.number, self._broken, *heard, 0))

    def _make(self, progress: MeansDone, over: Callable[[], bool]) -> bool:
        """Make the next communicator once all other hosts are ready; return False if it was `over` before."""

        def due() -> bool:
            ready = {*self._links} <= {*self._come, *self._gone([*self._links])}
            return ready and (bool(self._come) or self.lives)

        with self._changed:
            self._wait(lambda: due() or over(), self._part.check, "", None)
            if not due():
                return False
            came, self._come = self._come | {self._host: self._ready(progress)}, {}
            members = tuple(host for host in sorted(came) if not self._gone([host]))
            number = 1 + max(one.newest for one in came.values())
            self._terms = terms = CommunicatorTerms(number, members, tuple(came[host].progress for host in members))
        self._tell([*self._links], CommunicatorMade(self._part.number, terms))
        return True

    def _await_terms(self, leader: int, progress: MeansDone, over: Callable[[], bool]) -> bool:
        """Tell the leader that this host is ready, unless told before, and wait for the next communicator; return False
        if none was made before it was `over`."""
        if self._coming is None or self._coming[0] != leader:
            self._coming = leader, self._ready(progress)
            self._tell([leader], self._coming[1])
        ready = self._coming[1]
        with self._changed:
            self._wait(lambda: self._terms.number > ready.newest or over(), self._part.check, "", None)
            if self._terms.number <= ready.newest:
                return False
            self._coming = None
            if self._host not in self._terms.members:
                raise LinkError("the host that leads takes this one for lost")
        return True

    def abandon(self, terms: CommunicatorTerms) -> None:
        """Tell all members that the communicator is of no more use."""
        with self._changed:
            self._broken = max(self._broken, terms.number)
            self._keys = {where: value for where, value in self._keys.items() if where[0] > terms.number}
            self._weights = {where: found for where, found in self._weights.items() if where[0] > terms.number}
        self._tell(terms.members, Broken(self._part.number, terms.number))

    def weights(self, terms: CommunicatorTerms, number: int, mine: Sequence[float]) -> list[float]:
        """Return all learners' weights in mean `number`, by rank, once all members' learners have come to it.

        Raises:
            CommunicatorBroken, PartOver: as `check`, before that.
        """
        where = terms.number, number
        self._tell(terms.members, MeanWeights(self._part.number, *where, tuple(mine)))
        with self._changed:
            found = self._weights.setdefault(where, {})
            found[self._host] = tuple(mine)
            self._wait(lambda: len(found) == len(terms.members), lambda: self.check(terms), "", None)
            del self._weights[where]
        return [weight for host in terms.members for weight in found[host]]

    def set_key(self, terms: CommunicatorTerms, key: str, value: bytes) -> None:
        """Set `key` to `value`, for all members."""
        with self._changed:
            self._keys[terms.number, key] = value
            self._changed.notify_all()
        self._tell(terms.members, Key(self._part.number, terms.number, key, value))

    def key(self, terms: CommunicatorTerms, key: str, seconds: float | None = None) -> bytes:
        """Return the value of `key`, once a member has set it.

        Raises:
            CommunicatorBroken, TimeoutError, PartOver: `check` fails before, or `seconds` have passed.
        """
        where, seconds = (terms.number, key), self._seconds if seconds is None else seconds
        with self._changed:
            self._wait(lambda: where in self._keys, lambda: self.check(terms), f"for {key!r} of a member", seconds)
            return self._keys[where]

    def has_key(self, terms: CommunicatorTerms, key: str) -> bool:
        """Return True if a member has set `key`."""
        with self._changed:
            return (terms.number, key) in self._keys


class Communicator(Protocol):
    """Interface of communicators, which each way of means implements."""

    idle: bool
    """True if no call of the communicator is under way."""

    @property
    def terms(self) -> CommunicatorTerms:
        """Terms of the communicator, on which hosts have agreed."""

    def end(self) -> None:
        """End the communicator."""


C = TypeVar("C", bound=Communicator)


class AgreedTransport(MeanTransport, Generic[C]):
    """Transport of means over communicators on which hosts have agreed.

    Args:
        way: a word for the way of means, for people.
        seconds: how long a mean that has failed is tried again.
    """

    def __init__(self, agreement: CommunicatorAgreement, way: str, seconds: float) -> None:
        self._agreement, self._way, self._seconds = agreement, way, seconds
        self._communicator: C | None = None
        self._progress = MeansDone()
        self._last: LocalMean | None = None  # to which learners here have come

    def heard(self, host: int, message: OfPart) -> bool:
        return self._agreement.heard(host, message)

    def lost(self, host: int) -> bool:
        self._agreement.lost(host)
        return True

    def close(self) -> None:
        if self._communicator is not None:
            self._communicator.end()

    def attend(self) -> None:
        try:
            if self._communicator is not None:
                self._agreement.check(self._communicator.terms)
                return
            needed = self._progress.done or not self._agreement.lives
            soon = time.monotonic() + LISTEN_SECONDS
            if needed and (terms := self._agreement.come(self._progress, soon)) is not None:
                self._renew(terms)
        except CommunicatorBroken:
            self._give_up()

    def take(self, mean: LocalMean) -> None:
        deadline, self._last = math.inf, mean  # of a mean that has failed
        while self._progress.done < mean.number:
            try:
                if self._communicator is None:
                    self._renew(self._agreement.agree(self._progress))
                else:
                    self._sum(self._communicator, mean)
                    self._communicator.idle = True
            except (CommunicatorBroken, MemberLost) as broken:
                self._give_up()
                self._note(mean)
                deadline = min(deadline, time.monotonic() + self._seconds)
                if time.monotonic() > deadline:
                    raise LinkError(f"means by {self._way} have ended: {broken}") from broken
                if self._progress.done < mean.number:
                    mean = self._last = mean.share.next(mean.number)  # perhaps without a learner that has died

    def _renew(self, terms: CommunicatorTerms) -> None:
        """Begin with a communicator of these terms; its members then all have the newest mean that any has complete."""
        self._communicator = communicator = self._connect(terms)
        self._catch_up(communicator)
        communicator.idle = True

    def _give_up(self) -> None:
        """Give up the communicator, if there is one."""
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            self._agreement.abandon(communicator.terms)
            communicator.end()

    def _note(self, mean: LocalMean) -> None:
        """Note the number of `mean` if that is complete, by any thread: this host's learners may have used it."""
        if mean.share.done >= mean.number:
            self._progress = MeansDone(mean.number, mean.share.total(mean.number), len(mean.mean))

    def _complete(self, mean: LocalMean, total: float) -> None:
        mean.complete(total)
        self._note(mean)

    @abstractmethod
    def _connect(self, terms: CommunicatorTerms) -> C:
        """Return the communicator of these terms.

        Raises:
            CommunicatorBroken, LinkError, TimeoutError, PartOver: the members cannot be connected.
        """

    def _catch_up(self, communicator: C) -> None:
        """Give the newest complete mean to the hosts that do not have it."""
        progress = communicator.terms.progress
        newest = max(progress, key=lambda one: one.done)
        if self._last is not None and any(one.done != newest.done for one in progress):
            self._pass_on(communicator, self._last, progress.index(newest))
            if self._progress.done < newest.done:
                self._complete(self._last, newest.total)

    @abstractmethod
    def _pass_on(self, communicator: C, mean: LocalMean, source: int) -> None:
        """Give the last mean that is complete on the member at place `source` to all members; on a host where it is not
        complete yet, it is written into `mean`.

        Raises:
            CommunicatorBroken, PartOver: the mean was not passed on.
        """

    @abstractmethod
    def _sum(self, communicator: C, mean: LocalMean) -> None:
        """Sum the vectors of the next mean over all members, and complete it.

        Raises:
            CommunicatorBroken, MemberLost, PartOver: the mean was not taken.
        """
