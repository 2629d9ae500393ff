"""Lease of the host that leads a session: two never lead at the same time, however the network fails.

The voters are processes of hosts. The leader says in each heartbeat when it was sent; a voter repeats it, and follows
no other host for `seconds` after it has heard it. So the leader, which counts from the moment of sending, knows for how
long the voter is its own. It leads as long as that is said of half of the voters, itself among them; a host that wants
to lead in its place needs more than half of them, so there is always one that both would need. Two hosts cannot tell a
leader that is gone from one that is cut off, so the leader goes on, and the other does not.

Voters change as hosts come and are lost. The leader numbers these views; a view is *in force* until a later one has
been heard of by half of its voters, and a host that leads, or wants to, needs its voters in all views in force. One
that wants to lead goes by the newest views that any of the hosts that come to it has heard. So there is a voter in
common again: half of an old view knows of the new one.

A voter whose process is known to have ended votes for no host. The leader need not count it; nor need a host that wants
to lead, if it knows the same of all voters that do not come.

Times are those of the clock of the host itself, in seconds. Nothing here waits, sends, or looks at a clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from roundelay.runtime.messages import Address

ViewNumber = tuple[int, int]
"""Number of a view: how many hosts led before, and how many views the leader had before."""


@final
@dataclass(frozen=True, order=True)
class Voter:
    """Process that votes for a host."""

    rank: int  # the lowest of its host
    life: str  # tells the process from others that have spoken for that host
    address: Address  # at which it listens


@final
@dataclass(frozen=True)
class VoterView:
    """Voters from some moment on, in the order of their ranks."""

    number: ViewNumber
    voters: tuple[Voter, ...]

    @property
    def lives(self) -> frozenset[str]:
        """Lives of all voters of the view."""
        return frozenset(voter.life for voter in self.voters)


Views = tuple[VoterView, ...]
"""Views in force, the oldest first."""


def newest(*views: Views) -> Views:
    """Return the newest of `views`, each of which one host has heard."""
    return max((one for one in views if one), key=lambda one: (one[-1].number, one[0].number), default=())


def may_win(views: Views, without: Iterable[str]) -> bool:
    """Return True if a host may lead when all voters of `views` follow it except those of the lives `without`."""
    lost = {*without}
    return bool(views) and all(2 * len(view.lives - lost) > len(view.lives) for view in views)


@final
class Promise:
    """Promise of a host to follow no other leader for `seconds` after it has heard the present one."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.views: Views = ()
        """Views that it has heard of last."""
        self.until = 0.0
        """The moment until which it follows no other."""

    def heard(self, views: Views, now: float) -> None:
        """Note that a heartbeat of the leader with `views` was heard at `now` seconds."""
        self.views, self.until = newest(self.views, views), now + self._seconds


@final
class Lease:
    """Lease of one host: its right to lead the session.

    Args:
        own: the life of the host's process.
        seconds: how long a voter follows no other host after it has heard a heartbeat.
        views: views in force, as far as the host knows.
        leads: True for the first leader; False if the host wants to lead in the place of another.
    """

    def __init__(self, own: str, seconds: float, views: Views, now: float, leads: bool) -> None:
        self._own, self._seconds, self.views, self.leads = own, seconds, views, leads
        self._over = False  # it led, and does no more
        self._ended = set[str]()
        self._seen: dict[str, ViewNumber] = {}  # the newest view of which a voter has heard
        self._until: dict[str, float] = {}  # up to when a voter follows this host
        if leads:  # no voter has heard of a view, so no other can lead in its place
            self._until = {life: now + seconds for view in views for life in view.lives}

    def heard(self, life: str, sent: float, seen: ViewNumber, now: float) -> None:
        """Note that voter `life` has heard the heartbeat sent at `sent` seconds, and of views up to `seen`."""
        if sent <= now:
            self._until[life] = max(self._until.get(life, 0.0), sent + self._seconds)
        self._seen[life] = max(self._seen.get(life, seen), seen)
        self._retire()

    def ended(self, life: str, now: float) -> None:
        """Note that the process of voter `life` has surely ended."""
        if not self.leads or self.holds(now):  # a vote given before its process ended still counts
            self._ended.add(life)

    def learn(self, views: Views) -> None:
        """Note that a host which comes to this one, that wants to lead, has heard of `views`."""
        if not self.leads:
            self.views = newest(self.views, views)

    def begin(self, voters: Iterable[Voter], now: float) -> None:
        """Lead from now on, with `voters`; call it only while the lease is held."""
        self.leads, (term, _) = True, self.views[-1].number
        self._append(VoterView((term + 1, 0), tuple(sorted(voters))), now)

    def change(self, voters: Iterable[Voter], now: float) -> None:
        """Let `voters` vote from now on, if this host holds the lease. New ones among them follow no host yet."""
        term, number = self.views[-1].number
        self._append(VoterView((term, number + 1), tuple(sorted(voters))), now)

    def _append(self, view: VoterView, now: float) -> None:
        if self.holds(now) and view.lives != self.views[-1].lives:
            for life in view.lives.difference(*(one.lives for one in self.views)):
                self._until[life] = now + self._seconds
            self.views += (view,)
            self._retire()

    def holds(self, now: float) -> bool:
        """Return True if this host may lead at `now` seconds: enough voters follow no other host."""
        mine = {self._own, *(life for life, until in self._until.items() if until > now)}
        enough = self._enough if self.leads else self._more
        found = not self._over and bool(self.views) and all(enough(view.lives, mine) for view in self.views)
        self._over = self._over or (self.leads and not found)
        return found

    def _enough(self, voters: frozenset[str], mine: set[str]) -> bool:
        living = voters - self._ended
        return 2 * len(living & mine) >= len(living)

    def _more(self, voters: frozenset[str], mine: set[str]) -> bool:
        return 2 * len(voters & mine) > len(voters) or voters - mine <= self._ended

    def _retire(self) -> None:
        """Retire views of which enough voters of all in force know a later one."""
        for at in reversed(range(1, len(self.views) if self.leads else 0)):
            know = {self._own, *(life for life, seen in self._seen.items() if seen >= self.views[at].number)}
            if all(self._enough(view.lives, know) for view in self.views[: at + 1]):
                self.views = self.views[at:]
                return
