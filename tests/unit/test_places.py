"""Hosts as the environment describes them."""

import os
from pathlib import Path

import pytest

from roundelay.core.errors import UserError
from roundelay.runtime.launch.local_rendezvous import LocalLeader, wait_for_leader
from roundelay.runtime.launch.world import HostPlace, launched, read_place
from support.until import meanwhile

HOSTS = {
    "WORLD_SIZE": "6",
    "RANK": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "4321",
    "ROUNDELAY_SECRET": "sixteen letters!",
}


def test_ranks_of_a_host_follow_each_other() -> None:
    place = read_place(None, HOSTS)
    assert place == HostPlace((4, 5), 6, 0, "127.0.0.1", 4321, False, ("127.0.0.1", 0), b"sixteen letters!")
    assert not place.conducts
    assert not place.alone


def test_the_first_host_listens_where_the_others_look_for_it() -> None:
    first = read_place(None, {**HOSTS, "RANK": "0"})
    assert first is not None
    assert first.conducts
    assert first.listen == ("127.0.0.1", 4321)
    # Where the launcher has a store at that port, the store says which port it is instead.
    hosted = read_place(None, {**HOSTS, "RANK": "0", "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert hosted is not None
    assert (hosted.hosted, hosted.listen) == (True, ("127.0.0.1", 0))


@pytest.mark.parametrize(
    ("listen", "expected"),
    [
        ("10.0.0.7", ("10.0.0.7", 0)),
        ("10.0.0.7:99", ("10.0.0.7", 99)),
        ("[fd00::1]:99", ("fd00::1", 99)),
        ("fd00::1", ("fd00::1", 0)),
    ],
)
def test_an_address_to_listen_at_can_be_given(listen: str, expected: tuple[str, int]) -> None:
    place = read_place(listen, HOSTS)
    assert place is not None
    assert place.listen == expected


def test_without_local_ranks_every_process_is_a_host() -> None:
    environment = {name: value for name, value in HOSTS.items() if not name.startswith("LOCAL")}
    place = read_place(None, environment)
    assert place is not None
    assert place.ranks == (4,)


@pytest.mark.parametrize("environment", [{}, {"WORLD_SIZE": "1", "RANK": "0"}])
def test_one_process_is_no_world(environment: dict[str, str]) -> None:
    assert read_place(None, environment) is None


def test_one_host_needs_neither_secret_nor_address() -> None:
    place = read_place(None, {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"})
    assert place == HostPlace((0, 1), 2)
    assert place.alone
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "7", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    found = [read_place(None, {**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
    assert found == [HostPlace((0, 1), 2, rank, "127.0.0.1", 7) for rank in range(2)], "they find each other"


def test_our_names_are_read_like_torchruns_and_win() -> None:
    ours = {name if name.startswith("ROUNDELAY") else f"ROUNDELAY_{name}": value for name, value in HOSTS.items()}
    assert read_place(None, ours) == read_place(None, HOSTS)
    others = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert read_place(None, {**others, **ours}) == read_place(None, HOSTS)
    assert launched(ours)
    assert not launched({"ROUNDELAY_SECRET": "x"})


def test_runs_of_two_launches_on_one_host_are_told_apart() -> None:
    """`roundelay launch` gives its learners no port, but a key."""
    names = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    launch = dict(zip((f"ROUNDELAY_{name}" for name in names), "2002", strict=True))
    one, other = (read_place(None, {**launch, "ROUNDELAY_JOB": key}) for key in ("0a", "0b"))
    assert one is not None
    assert other is not None
    assert one.alone
    slots = [LocalLeader(one), LocalLeader(other)]
    with pytest.raises(UserError, match="another run on this host"):
        LocalLeader(one)
    for each in slots:
        each.release(0)


def test_a_secret_may_lie_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("of another sixteen letters\n")
    place = read_place(None, {**HOSTS, "ROUNDELAY_SECRET_FILE": str(file)})
    assert place is not None
    assert place.secret == b"of another sixteen letters"
    assert "sixteen" not in repr(place)


def test_there_may_be_more_places_than_learners_that_begin() -> None:
    place = read_place(None, {**HOSTS, "RANK": "8", "ROUNDELAY_PLACES": "10"})
    assert place is not None
    assert (place.ranks, place.learners, place.first) == ((8, 9), 10, tuple(range(6)))
    one = read_place(None, {**HOSTS, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "ROUNDELAY_PLACES": "2"})
    assert one is not None
    assert (one.alone, one.first) == (False, (0,))
    same = read_place(None, {**HOSTS, "ROUNDELAY_PLACES": "6"})
    assert same == read_place(None, HOSTS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ROUNDELAY_PLACES": "5"}, r"ROUNDELAY_PLACES is '5': give a whole number, WORLD_SIZE \(6\) or more"),
        ({"RANK": "8", "ROUNDELAY_PLACES": "8"}, "ROUNDELAY_PLACES is 8: ranks go from 0 to ROUNDELAY_PLACES - 1"),
        ({"RANK": None}, "RANK is not"),
        ({"RANK": "6"}, "ranks go from 0"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK goes from 0"),
        ({"LOCAL_RANK": None}, "only one of LOCAL_RANK"),
        ({"LOCAL_WORLD_SIZE": "two"}, "must be a whole number"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR is not set"),
        ({"MASTER_ADDR": "no host of this name.invalid"}, "cannot be reached from here"),
        ({"MASTER_PORT": None}, "MASTER_PORT is not"),
        ({"ROUNDELAY_SECRET": None}, "several hosts need a secret .*head -c 32"),
        ({"ROUNDELAY_SECRET": "short"}, "the secret has 5 characters"),
        ({"ROUNDELAY_SECRET_FILE": "/nowhere/secret"}, "cannot be read"),
    ],
)
def test_what_is_missing_or_wrong_is_named(changes: dict[str, str | None], message: str) -> None:
    environment = {name: value for name, value in {**HOSTS, **changes}.items() if value is not None}
    with pytest.raises(UserError, match=message):
        read_place(None, environment)


def test_the_other_local_ranks_end_with_the_status_of_the_first() -> None:
    facts = {"MASTER_PORT": str(os.getpid()), "LOCAL_WORLD_SIZE": "3", "RANK": "3", "WORLD_SIZE": "6"}
    places = [
        read_place(None, {**HOSTS, **facts, "RANK": str(3 + local), "LOCAL_RANK": str(local)}) for local in range(3)
    ]
    statuses: list[int] = []
    others = [place for place in places[1:] if place is not None]
    # Those who come before the first wait for it.
    with meanwhile(*(lambda place=place: statuses.append(wait_for_leader(place, 30)) for place in others)):
        assert places[0] is not None
        slots = LocalLeader(places[0])
        while slots.waiting < len(others):
            slots.look()
        slots.release(130)
    assert statuses == [130, 130]


def test_two_runs_on_one_host_are_told_apart() -> None:
    place = read_place(None, {**HOSTS, "MASTER_PORT": str(os.getpid())})
    assert place is not None
    slots = LocalLeader(place)
    try:
        with pytest.raises(UserError, match="another run on this host has the same MASTER_ADDR and MASTER_PORT"):
            LocalLeader(place)
    finally:
        slots.release(0)


@pytest.mark.parametrize(
    ("peers", "port"),
    [
        ("127.0.0.1:77,127.0.0.2", 77),
        ("127.0.0.2, 127.0.0.1", 4321),
        ("127.0.0.2:77", 0),
        ("127.0.0.1:77,127.0.0.1:78", 0),
        ("", 0),
    ],
)
def test_a_host_that_may_lead_listens_where_others_will_look_for_it(peers: str, port: int) -> None:
    place = read_place(None, {**HOSTS, "ROUNDELAY_PEERS": peers})
    assert place is not None
    assert place.listen == ("127.0.0.1", port)
    assert [host for host, _ in place.peers] == [one.strip().partition(":")[0] for one in peers.split(",") if one]
    given = read_place("127.0.0.9", {**HOSTS, "ROUNDELAY_PEERS": peers})
    assert given is not None
    assert given.listen == ("127.0.0.9", 0)


def test_hosts_that_may_lead_must_be_addresses_and_are_not_under_torchrun() -> None:
    with pytest.raises(UserError, match="ROUNDELAY_PEERS 'a:b': write ADDRESS"):
        read_place(None, {**HOSTS, "ROUNDELAY_PEERS": "127.0.0.2,a:b"})
    with pytest.raises(UserError, match="ROUNDELAY_PEERS is set under torchrun"):
        read_place(None, {**HOSTS, "ROUNDELAY_PEERS": "127.0.0.2", "TORCHELASTIC_USE_AGENT_STORE": "True"})


def test_a_host_may_be_reached_by_a_relay() -> None:
    variables = {**HOSTS, "ROUNDELAY_LISTEN": "relay"}
    assert read_place(None, {**HOSTS}).relay is None  # type: ignore[union-attr]
    assert read_place(None, variables).relay == ("", 0)  # type: ignore[union-attr]
    assert read_place("relay=[fd00::1]:4000", {**HOSTS}).relay == ("fd00::1", 4000)  # type: ignore[union-attr]
    assert read_place("127.0.0.9", variables).listen == ("127.0.0.9", 0)  # type: ignore[union-attr]
    with pytest.raises(UserError, match="relay=ADDRESS:PORT of a host of the run"):
        read_place("relay=10.0.0.1", {**HOSTS})
    with pytest.raises(UserError, match="rank 0: the others look for this host at"):
        read_place("relay", {**HOSTS, "RANK": "0"})
