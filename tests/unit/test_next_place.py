"""Places of hosts in a run that goes on without its first one."""

from dataclasses import replace

from roundelay.runtime.hosts.control.succession import KnownHosts, led_by_another
from roundelay.runtime.launch.world import HostPlace

HOSTS = [(0, 1), (2,), (3, 4, 5), (6,)]
ADDRESSES = [("10.0.0.1", 500), ("10.0.0.2", 501), ("10.0.0.3", 502), ("10.0.0.4", 503)]


def place(host: int) -> HostPlace:
    listen = (ADDRESSES[host][0], 9)
    return HostPlace(HOSTS[host], 7, 0, "10.0.0.1", 500, False, listen, b"secret", peers=(("10.0.0.1", 500),))


def test_those_that_are_left_follow_each_other_and_the_lowest_is_the_first() -> None:
    found = [led_by_another(place(host), KnownHosts(host, ranks=HOSTS, addresses=ADDRESSES)) for host in range(1, 4)]
    assert {one.former for one in found if one} == {(2, 3, 4, 5, 6)}
    places = [one.place for one in found if one]
    assert [one.ranks for one in places] == [(0,), (1, 2, 3), (4,)]
    assert {(one.learners, one.address, one.port) for one in places} == {(5, "10.0.0.2", 501)}
    assert [one.listen for one in places] == [("10.0.0.2", 501), ("10.0.0.3", 0), ("10.0.0.4", 0)]
    assert [one.conducts for one in places] == [True, False, False]


def test_hosts_that_are_lost_already_have_no_place() -> None:
    lost = [ADDRESSES[0], ("", 0), *ADDRESSES[2:]]
    assert led_by_another(place(1), KnownHosts(1, ranks=HOSTS, addresses=lost)) is None
    third = led_by_another(place(2), KnownHosts(2, ranks=HOSTS, addresses=lost))
    assert third is not None
    assert (third.place.ranks, third.place.learners, third.place.port) == ((0, 1, 2), 4, 502)
    assert third.former == (3, 4, 5, 6)
    last = led_by_another(place(3), KnownHosts(3, ranks=HOSTS[:1] + HOSTS[3:], addresses=ADDRESSES[:1]))
    assert last is None, "nobody has said where it listens"


def test_a_host_that_waits_to_be_let_in_leads_after_all_others() -> None:
    known = KnownHosts(2, 3, ranks=HOSTS, addresses=ADDRESSES)
    assert known.after() == [0, 1, 2]
    assert replace(known, let_in=(1, 2, 3)).after() == [1, 2, 0]
    relayed = [ADDRESSES[0], ("2@10.0.0.2", 501), *ADDRESSES[2:]]
    assert replace(known, addresses=relayed, let_in=(1, 2, 3)).after() == [2, 1, 0]


def test_nobody_leads_in_its_place_where_the_user_names_nobody_or_places_are_open() -> None:
    known = KnownHosts(1, ranks=HOSTS, addresses=ADDRESSES)
    assert led_by_another(replace(place(1), peers=()), known) is None
    assert led_by_another(replace(place(1), begin=3), known) is None
