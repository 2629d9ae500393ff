"""Agreement of hosts on a communicator: who is in it, how its ends find each other, and what each brings to a mean.

All of it is said over the links for mixes, which are sealed; the process group itself (group.py) carries vectors only.
The host that leads the run says who takes part, so two halves of a network that was cut in two never both go on. With
C communicators so far:

    ReadyForMeans     a host to the leader: it is ready for the next communicator; how many means are complete there
    CommunicatorMade  the leader to all that live: number C + 1, its members, and what is complete where
    Key, MeanWeights, Broken    a host to all members (messages.py)

Whoever waits for one of these ends its wait when the communicator is broken, a member is lost, or the part is over.
Where the leader itself is lost, the others wait for one that leads in its place (control/succession.py), and come to
that. It may have begun this part later than they, so they come to it again and again.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import final

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
from roundelay.runtime.hosts.mean_transports.part import LISTEN_SECONDS, MeansPart
from roundelay.runtime.hosts.transport.wire import Link, LinkError
from roundelay.runtime.messages import InvalidMessage

READY_AGAIN_SECONDS = 1.0
"""Interval at which a host that is ready says so again."""
CALL_SECONDS = 1e-3
"""Longest pause between two looks whether a call of a library is through, which rings no bell."""


class CommunicatorBroken(Exception):
    """A communicator is of no more use: somebody in it is lost, or could not go on; says who."""


@final
class CommunicatorAgreement:
    """This host's part in it, for one part of a segment.

    Args:
        host: number of this one.
        links: by host, to all others.
        alive: does a host take part in the run, as far as is known here?
        seconds: that hosts wait for each other.
        leader: number of the host that leads, as far as is known here; one that is lost as long as no other does.
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
        self._come: dict[int, ReadyForMeans] = {}  # to this host, if it leads: who is ready for the next communicator
        self._answered: dict[int, int] = {}  # by host, the number of the last communicator this one has made with it
        self._terms = CommunicatorTerms(0, (), ())  # the newest
        self._broken = 0  # number of the newest that is of no more use
        self._keys: dict[tuple[int, str], bytes] = {}
        self._weights: dict[tuple[int, int], dict[int, tuple[float, ...]]] = {}  # by communicator and mean, by host

    # What is said -----------------------------------------------------------------------------------------------------

    def _tell(self, hosts: Sequence[int], message: OfPart) -> None:
        """Tell all others among `hosts`; whoever does not hear it is lost, as its link will say."""
        for host in hosts:
            if host != self._host and host not in self._lost:
                with suppress(LinkError):
                    self._links[host].say(message)

    def heard(self, host: int, message: OfPart) -> bool:
        """Take a message; False: it is about something else.

        Raises:
            InvalidMessage: it makes no sense here.
        """
        with self._changed:
            match message:
                case ReadyForMeans():
                    if message.newest >= self._answered.get(host, 0):  # else it was said again before it was answered
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
        """Note that the link to a host is gone."""
        with self._changed:
            self._lost.add(host)
            self._changed.notify_all()

    # What is waited for -----------------------------------------------------------------------------------------------

    def _gone(self, hosts: Sequence[int]) -> list[int]:
        return [host for host in hosts if host != self._host and (host in self._lost or not self._alive(host))]

    def check(self, terms: CommunicatorTerms) -> None:
        """
        Raises:
            CommunicatorBroken: a communicator is of no more use.
            PartOver.
        """
        self._part.check()
        if gone := self._gone(terms.members):
            raise CommunicatorBroken(f"host {gone[0]} is lost")
        if terms.number <= self._broken:
            raise CommunicatorBroken("another host could not go on with it")

    def until(self, terms: CommunicatorTerms, ready: Callable[[], bool], called: Callable[[], bool]) -> None:
        """Wait for something of this host: for learners, or for calls of a library where there are such (`called`).

        Raises:
            CommunicatorBroken, PartOver.
        """
        pause, bell = 50e-6, self._part.bell
        heard = bell.heard()
        while not ready():
            self.check(terms)
            bell.wait(heard, pause if called() else LISTEN_SECONDS)
            heard, pause = bell.heard(), min(2 * pause, CALL_SECONDS)

    def _wait(self, ready: Callable[[], bool], check: Callable[[], None], what: str, seconds: float | None) -> None:
        """Wait until it is `ready`, under the lock."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not ready():
            check()
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"host {self._host} has waited {seconds:g} s {what}")
            self._changed.wait(LISTEN_SECONDS)

    def agree(self, progress: MeansDone) -> CommunicatorTerms:
        """Return the next communicator, with all hosts that live.

        Raises:
            LinkError: the host that leads does without this one.
            TimeoutError: somebody does not come, or nobody leads.
            PartOver.
        """
        deadline, leader, ready = time.monotonic() + self._seconds, -1, self._ready(progress)
        while (now := self._leader()) != self._host:
            if now != leader:
                leader, ready = now, self._ready(progress)
            self._tell([leader], ready)
            if self._await_terms(ready, leader):
                return self._terms
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"host {self._host} has waited {self._seconds:g} s for the host that leads to begin means"
                )
        return self._invite(self._ready(progress))

    def _ready(self, progress: MeansDone) -> ReadyForMeans:
        """Return what this host says that is ready. The next communicator has a number of which nobody has heard: a
        leader that is lost may have told some of one and not others."""
        with self._changed:
            heard = [number for number, _ in (*self._weights, *self._keys)]
            return ReadyForMeans(self._part.number, progress, max(self._terms.number, self._broken, *heard, 0))

    def _invite(self, ready: ReadyForMeans) -> CommunicatorTerms:
        everybody = sorted({*self._links, self._host})

        def missing() -> list[int]:
            return [host for host in everybody if host not in self._come and not self._gone([host])]

        with self._changed:
            self._come[self._host] = ready
            self._wait(lambda: not missing(), self._part.check, "for all hosts to be ready for means", self._seconds)
            members = tuple(host for host in everybody if not self._gone([host]))
            came, self._come = self._come, {}
            number = 1 + max(came[host].newest for host in members)
            self._terms = terms = CommunicatorTerms(number, members, tuple(came[host].progress for host in members))
            self._answered.update(dict.fromkeys(members, number))
        self._tell(everybody, CommunicatorMade(self._part.number, terms))
        return terms

    def _await_terms(self, ready: ReadyForMeans, leader: int) -> bool:
        """Wait for the next communicator, for a while; False: none was made meanwhile."""
        again = time.monotonic() + READY_AGAIN_SECONDS

        def answered() -> bool:
            return self._terms.number > ready.newest or self._leader() != leader or time.monotonic() > again

        with self._changed:
            self._wait(answered, self._part.check, "", None)
            made = self._terms.number > ready.newest
        if made and self._host not in self._terms.members:
            raise LinkError("the host that leads takes this one for lost")
        return made

    def abandon(self, terms: CommunicatorTerms) -> None:
        """Let all members know that a communicator is of no more use."""
        with self._changed:
            self._broken = max(self._broken, terms.number)
            self._keys = {where: value for where, value in self._keys.items() if where[0] > terms.number}
            self._weights = {where: found for where, found in self._weights.items() if where[0] > terms.number}
        self._tell(terms.members, Broken(self._part.number, terms.number))

    def weights(self, terms: CommunicatorTerms, number: int, mine: Sequence[float]) -> list[float]:
        """Return all learners' weights in mean `number`, by rank, once all members' learners have come to it.

        Raises:
            CommunicatorBroken, PartOver.
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
        """Tell all members something."""
        with self._changed:
            self._keys[terms.number, key] = value
            self._changed.notify_all()
        self._tell(terms.members, Key(self._part.number, terms.number, key, value))

    def key(self, terms: CommunicatorTerms, key: str, seconds: float | None = None) -> bytes:
        """Return the value that a member has set, once it has.

        Raises:
            CommunicatorBroken, TimeoutError, PartOver.
        """
        where, seconds = (terms.number, key), self._seconds if seconds is None else seconds
        with self._changed:
            self._wait(lambda: where in self._keys, lambda: self.check(terms), f"for {key!r} of a member", seconds)
            return self._keys[where]

    def has_key(self, terms: CommunicatorTerms, key: str) -> bool:
        """Return True if a member has said it."""
        with self._changed:
            return (terms.number, key) in self._keys
