"""Shards of hosts: every shard is trained by one host that has it, and hosts that have the same are not divided."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.runtime.hosts.control.leases import Division, HostShards, disagreement, shares_of

FRAMES = st.lists(st.integers(1, 1000), min_size=1, max_size=6)


@given(FRAMES, st.data())
def test_every_shard_somewhere_is_trained_by_one_host_that_has_it(frames: list[int], data: st.DataObject) -> None:
    one = st.lists(st.booleans(), min_size=len(frames), max_size=len(frames))
    has = data.draw(st.lists(one, min_size=1, max_size=4))
    hosts = [
        HostShards(
            data.draw(st.integers(1, 3)),
            tuple(some if there else -1 for some, there in zip(frames, own, strict=True)),
            alive=number == 0 or data.draw(st.booleans()),
        )
        for number, own in enumerate(has)
    ]
    wanted = {number for number in range(len(frames)) for host in hosts if host.alive and host.examples[number] >= 0}
    if len({host.examples for host in hosts}) == 1:
        assert shares_of(hosts) == ()
        return
    if not wanted:
        with pytest.raises(UserError, match="no host that takes part has a shard"):
            shares_of(hosts)
        return
    shares = shares_of(hosts)
    owned = [number for share in shares for number in share.shards]
    assert sorted(owned) == sorted(wanted)
    for host, share in zip(hosts, shares, strict=True):
        assert share.learners == host.learners
        assert all(host.alive and host.examples[number] >= 0 for number in share.shards)
        assert share.examples == sum(frames[number] for number in share.shards)


def test_a_shard_goes_to_whoever_has_least_to_do() -> None:
    """The second host has half of them, the first all: the first trains what it has alone."""
    shares = shares_of([HostShards(1, (10, 10, 10, 10)), HostShards(1, (-1, -1, 10, 10))])
    assert [share.shards for share in shares] == [(0, 1), (2, 3)]
    shares = shares_of([HostShards(1, (10, 10, 10)), HostShards(2, (10, 10, -1))])
    assert [share.shards for share in shares] == [(2,), (0, 1)]


def test_a_division_stays_until_the_epoch_ends() -> None:
    hosts = [HostShards(1, (10, 20, -1)), HostShards(1, (10, -1, 30))]
    division = Division(lambda: hosts)
    plan = EpochPlan(0, 30, 8, 2, 0)
    first = division.divided(plan)
    assert [share.shards for share in first.shares] == [(0, 1), (2,)]
    assert first.examples == 60
    hosts[0] = HostShards(1, (10, 20, -1), alive=False)
    assert division.divided(plan) == first, "a checkpoint inside the epoch changes nothing"
    assert division.has_its_share(0, (10, 20, -1))
    assert not division.has_its_share(0, (10, -1, 30)), "it comes back without what it is to train"
    following = division.divided(EpochPlan(1, 30, 8, 2, 0))
    assert [share.shards for share in following.shares] == [(), (0, 2)]
    assert following.examples == 40


def test_hosts_with_the_same_shards_are_not_divided() -> None:
    for examples in ((), (10, 20), (10, -1)):
        plan = EpochPlan(0, 30, 8, 2, 0)
        assert Division(lambda examples=examples: [HostShards(1, examples)] * 2).divided(plan) is plan  # type: ignore[misc]


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ((1, 2), (1, -1), ""),
        ((), (), ""),
        ((), (1, 2), "not in shards on one and in 2 shards on another"),
        ((1, 2, 3), (1, 2), "in 3 shards on one and in 2 shards on another"),
        ((1, 2, -1), (-1, 5, 6), "shard 1 has 2 labelled frames on one and 5 on another"),
    ],
)
def test_hosts_that_disagree_say_in_what(ours: tuple[int, ...], theirs: tuple[int, ...], message: str) -> None:
    found = disagreement(ours, theirs, "one", "another")
    assert message in found
    assert bool(found) == bool(message)
