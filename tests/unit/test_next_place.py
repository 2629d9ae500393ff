"""Places of hosts in a run that goes on without its first one."""

from dataclasses import replace

from roundelay.runtime.hosts.control.next_place import place_without_first
from roundelay.runtime.launch.world import HostPlace

HOSTS = [(0, 1), (2,), (3, 4, 5), (6,)]
ADDRESSES = [("10.0.0.1", 500), ("10.0.0.2", 501), ("10.0.0.3", 502), ("10.0.0.4", 503)]


def place(host: int) -> HostPlace:
    listen = (ADDRESSES[host][0], 9)
    return HostPlace(HOSTS[host], 7, 0, "10.0.0.1", 500, False, listen, b"secret", peers=(("10.0.0.1", 500),))


def test_those_that_are_left_follow_each_other_and_the_lowest_is_the_first() -> None:
    places = [place_without_first(place(host), host, HOSTS, ADDRESSES) for host in range(1, 4)]
    assert [one.ranks for one in places if one] == [(0,), (1, 2, 3), (4,)]
    assert {(one.learners, one.address, one.port) for one in places if one} == {(5, "10.0.0.2", 501)}
    assert [one.listen for one in places if one] == [("10.0.0.2", 501), ("10.0.0.3", 0), ("10.0.0.4", 0)]
    assert [one.conducts for one in places if one] == [True, False, False]


def test_hosts_that_are_lost_already_have_no_place() -> None:
    lost = [ADDRESSES[0], ("", 0), *ADDRESSES[2:]]
    assert place_without_first(place(1), 1, HOSTS, lost) is None
    third = place_without_first(place(2), 2, HOSTS, lost)
    assert third is not None
    assert (third.ranks, third.learners, third.port) == ((0, 1, 2), 4, 502)
    last = place_without_first(place(3), 3, HOSTS[:1] + HOSTS[3:], [ADDRESSES[0], ADDRESSES[3]][:1])
    assert last is None, "nobody has said where it listens"


def test_nobody_leads_in_its_place_where_the_user_names_nobody_or_places_are_open() -> None:
    assert place_without_first(replace(place(1), peers=()), 1, HOSTS, ADDRESSES) is None
    assert place_without_first(replace(place(1), begin=3), 1, HOSTS, ADDRESSES) is None
