"""Two hosts never lead a session at the same time, and one does where it can: leases, in a network and on a clock of
the test's own."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from roundelay.runtime.hosts.control.lease import (
    Lease,
    Promise,
    Views,
    Voter,
    VoterView,
    may_win,
    newest,
)
from roundelay.runtime.hosts.control.messages import Leads
from roundelay.runtime.messages import InvalidMessage
from support.messages import received

SECONDS, TICK, BEAT = 10.0, 0.25, 1.0
SLOWEST = 3.0
"""Seconds of a message on its way."""


@dataclass
class Host:
    """A host, as its process acts in a session."""

    voter: Voter
    promise: Promise = field(default_factory=lambda: Promise(SECONDS))
    lease: Lease | None = None
    leader: str = ""
    heard: dict[str, float] = field(default_factory=dict)  # of those that follow it, by their lives
    lives: bool = True
    over: bool = False
    asks_until: float = 0.0
    beats_at: float = 0.0


class Network:
    """Hosts, messages between them, and a clock. The first leads from the beginning."""

    def __init__(self, size: int, seed: int) -> None:
        self.draw, self.now = random.Random(seed), 100.0
        self.hosts: dict[str, Host] = {}
        self.messages: list[tuple[float, str, str, Callable[[], None]]] = []
        self.parts: dict[str, int] = {}
        self.led = list[str]()
        for _ in range(size):
            self.add()
        first = next(iter(self.hosts.values()))
        voters = tuple(host.voter for host in self.hosts.values())
        first.lease = Lease(first.voter.life, SECONDS, (VoterView((0, 0), voters),), self.now, leads=True)
        for life, host in self.hosts.items():
            host.leader = first.voter.life
            first.heard |= {life: self.now} if host is not first else {}

    def add(self) -> Host:
        rank = len(self.hosts)
        host = Host(Voter(rank, f"{rank:02d}", ("", rank)))
        self.hosts[host.voter.life] = host
        self.parts[host.voter.life] = 0
        return host

    def reach(self, one: str, other: str) -> bool:
        return self.parts[one] == self.parts[other]

    def send(self, sender: str, to: str, what: Callable[[], None]) -> None:
        self.messages.append((self.now + self.draw.uniform(0, SLOWEST), sender, to, what))

    def ended(self, asker: str, life: str) -> bool:
        """Does whoever asks hear that this process has ended?"""
        return not self.hosts[life].lives and self.reach(asker, life)

    def leaders(self) -> list[str]:
        found = [one for one in self.hosts.values() if one.lives and one.lease is not None and one.lease.leads]
        return [one.voter.life for one in found if one.lease is not None and one.lease.holds(self.now)]

    def tick(self) -> None:
        self.now += TICK
        due = [one for one in self.messages if one[0] <= self.now]
        self.messages = [one for one in self.messages if one[0] > self.now]
        for _, sender, to, what in due:
            if self.reach(sender, to) and self.hosts[to].lives:
                what()
            elif self.draw.random() < 0.5:  # it is sent again, and comes late
                self.send(sender, to, what)
        for life in list(self.hosts):
            host = self.hosts[life]
            if host.lives and not host.over:
                self.act(life, host)
        leaders = self.leaders()
        assert len(leaders) <= 1
        self.led += [one for one in leaders if self.led[-1:] != [one]]

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / TICK)):
            self.tick()

    def act(self, life: str, host: Host) -> None:
        if host.lease is None:
            if host.leader and self.now > host.promise.until and host.promise.views:
                self.follow_another(life, host)
        elif host.lease.leads:
            self.lead(life, host, host.lease)
        elif host.lease.holds(self.now):
            host.lease.begin([host.voter, *(self.hosts[one].voter for one in host.heard)], self.now)
        elif self.now > host.asks_until:
            host.over = True
        if host.lease is not None and self.now >= host.beats_at:
            host.beats_at = self.now + BEAT
            self.beat(life, host, host.lease)

    def lead(self, life: str, host: Host, lease: Lease) -> None:
        if not lease.holds(self.now):
            host.over = True
            return
        silent = [one for one, at in host.heard.items() if self.now - at > SECONDS or self.ended(life, one)]
        for one in silent:
            del host.heard[one]
            if self.ended(life, one):
                lease.ended(one, self.now)
        if silent:
            lease.change([host.voter, *(self.hosts[one].voter for one in host.heard)], self.now)

    def beat(self, life: str, host: Host, lease: Lease) -> None:
        sent, views = self.now, lease.views
        for one in host.heard:

            def hear(one: str = one) -> None:
                other = self.hosts[one]
                if other.leader != life or other.over:
                    return
                other.promise.heard(views, self.now)
                seen = other.promise.views[-1].number
                self.send(one, life, lambda: self.echo(host, one, sent, seen))

            self.send(life, one, hear)

    def echo(self, host: Host, one: str, sent: float, seen: tuple[int, int]) -> None:
        if host.lease is not None and one in host.heard and not host.over:
            host.heard[one] = self.now
            host.lease.heard(one, sent, seen, self.now)

    def follow_another(self, life: str, host: Host) -> None:
        voters = [voter.life for voter in host.promise.views[-1].voters if voter.life != host.leader]
        found = next((one for one in voters if self.reach(life, one) and self.hosts[one].lives), "")
        host.leader = ""
        if found == life:
            host.lease = Lease(life, SECONDS, host.promise.views, self.now, leads=False)
            host.asks_until = self.now + 2 * SECONDS
            for one in {one for view in host.promise.views for one in view.lives}:
                if self.ended(life, one):
                    host.lease.ended(one, self.now)
        elif found:
            host.leader, views = found, host.promise.views
            host.promise.until = self.now + 2 * SECONDS
            self.send(life, found, lambda: self.stays(self.hosts[found], life, views))
        else:
            host.over = True

    def stays(self, host: Host, life: str, views: Views) -> None:
        if host.lease is not None and not host.lease.leads and not host.over:
            host.lease.learn(views)
            host.heard[life] = self.now

    def join(self) -> None:
        """A new host comes to the one that leads."""
        for life in self.leaders():
            host, new = self.hosts[life], self.add()
            self.parts[new.voter.life], new.leader = self.parts[life], life
            host.heard[new.voter.life] = self.now
            assert host.lease is not None
            host.lease.change([host.voter, *(self.hosts[one].voter for one in host.heard)], self.now)


@pytest.mark.parametrize("seed", range(60))
def test_two_never_lead_whatever_is_cut_killed_delayed_or_joins(seed: int) -> None:
    network = Network(2 + seed % 6, seed)
    draw = network.draw
    for _ in range(12):
        network.run(draw.choice([0.5, 2.0, 5.0, 12.0, 25.0]))
        lives = list(network.hosts)
        match draw.choice(["cut", "cut", "cut", "heal", "kill", "join"]):
            case "cut":
                parts = draw.choice([2, 2, 3])
                network.parts = {life: draw.randrange(parts) for life in lives}
            case "heal":
                network.parts = dict.fromkeys(lives, 0)
            case "kill":
                network.hosts[draw.choice(lives)].lives = False
            case "join":
                network.join()
    network.run(30.0)


@pytest.mark.parametrize("size", [3, 4, 5])
def test_when_the_first_falls_silent_the_next_leads_if_more_than_half_are_there(size: int) -> None:
    network = Network(size, 0)
    network.run(20.0)
    network.parts["00"] = 1
    network.run(4 * SECONDS)
    assert network.led == ["00", "01"]
    assert network.hosts["00"].over
    network.parts["01"] = 2
    network.run(4 * SECONDS)
    assert network.leaders() == (["01"] if size == 3 else ["02"]), "of two that are left the leader goes on"


def test_of_two_hosts_the_leader_goes_on_and_the_other_does_not() -> None:
    network = Network(2, 0)
    network.run(20.0)
    network.parts["00"] = 1
    network.run(4 * SECONDS)
    assert (network.leaders(), network.led) == (["00"], ["00"])
    assert not may_win(network.hosts["01"].promise.views, {"00"})


def test_when_the_process_of_the_first_has_ended_one_that_is_left_leads_alone() -> None:
    network = Network(3, 0)
    network.run(20.0)
    for life in ("00", "01"):
        network.hosts[life].lives = False
    network.run(4 * SECONDS)
    assert network.leaders() == ["02"]


def test_half_of_the_voters_hold_a_lease_for_as_long_as_they_have_promised() -> None:
    voters = tuple(Voter(rank, str(rank), ("", rank)) for rank in range(4))
    lease = Lease("0", SECONDS, (VoterView((0, 0), voters),), 0.0, leads=True)
    assert lease.holds(9.9)
    lease.heard("1", 5.0, (0, 0), 9.9)
    assert lease.holds(14.9)
    lease.heard("2", 16.0, (0, 0), 14.9)  # of what was not sent yet
    assert not lease.holds(15.0)
    lease.heard("1", 14.0, (0, 0), 15.0)
    assert not lease.holds(15.0), "who has stopped does not begin again by itself"


def test_a_view_is_in_force_until_half_of_its_voters_know_a_later_one() -> None:
    voters = tuple(Voter(rank, str(rank), ("", rank)) for rank in range(5))
    lease = Lease("0", SECONDS, (VoterView((0, 0), voters),), 0.0, leads=True)
    lease.change(voters[:4], 1.0)
    assert [view.number for view in lease.views] == [(0, 0), (0, 1)]
    lease.heard("1", 1.0, (0, 1), 2.0)
    assert len(lease.views) == 2
    lease.heard("3", 1.0, (0, 1), 2.0)
    assert [view.number for view in lease.views] == [(0, 1)]


def test_who_has_ended_counts_no_more_for_a_leader_that_led_until_then_only() -> None:
    """Before it ended it may have followed another."""
    voters = tuple(Voter(rank, str(rank), ("", rank)) for rank in range(3))
    held, lost = (Lease("0", SECONDS, (VoterView((0, 0), voters),), 0.0, leads=True) for _ in range(2))
    held.ended("1", 9.0)
    assert held.holds(11.0)
    lost.ended("1", 11.0)
    assert not lost.holds(11.0)


def test_who_wants_to_lead_goes_by_what_those_who_come_have_heard() -> None:
    voters = tuple(Voter(rank, str(rank), ("", rank)) for rank in range(5))
    old, new = VoterView((0, 0), voters), VoterView((0, 1), voters[:3])
    lease = Lease("3", SECONDS, (old,), 0.0, leads=False)
    for life in ("1", "4"):
        lease.heard(life, 1.0, (0, 0), 2.0)
    assert lease.holds(2.0)
    lease.learn((new,))
    assert not lease.holds(2.0), "the leader goes on with two of three"


def test_a_promise_holds_from_the_last_that_was_heard() -> None:
    promise, views = Promise(SECONDS), (VoterView((0, 0), (Voter(0, "0", ("", 0)),)),)
    promise.heard(views, 5.0)
    assert (promise.views, promise.until) == (views, 15.0)


def test_views_travel() -> None:
    voters = (Voter(0, "a", ("10.0.0.1", 4)), Voter(2, "b", ("10.0.0.2", 5)))
    views = (VoterView((0, 3), voters), VoterView((1, 0), voters[1:]))
    assert received(Leads(1.0, views)).views == views
    assert newest((), views[:1], views, views[1:]) == views[1:]
    with pytest.raises(InvalidMessage, match="beat: views: voters: address is missing"):
        received(Leads(1.0, views), views=[{"number": [0, 1], "voters": [{"rank": 0, "life": "a"}]}])
