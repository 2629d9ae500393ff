"""Hosts that are busy and get nothing done are found, whatever their hearts do."""

from hypothesis import given
from hypothesis import strategies as st

from roundelay.runtime.hosts.control.coordinator import SUSPENDED_SECONDS, HostProgress

PATIENCE = 10.0
STEP = 0.5


def looks(progress: HostProgress, *done: dict[int, int], start: float = 0.0) -> list[list[int]]:
    return [progress.look(start + STEP * number, amounts) for number, amounts in enumerate(done)]


def test_a_host_that_was_idle_starts_anew() -> None:
    busy = [{1: 7}] * 18
    assert not any(looks(HostProgress(PATIENCE), *busy, {}, *busy))


def test_time_in_which_nobody_looked_is_not_held_against_anybody() -> None:
    progress = HostProgress(PATIENCE)
    assert progress.look(0.0, {1: 7}) == []
    assert progress.look(3600.0, {1: 7}) == []
    assert progress.look(3600.0 + PATIENCE - SUSPENDED_SECONDS, {1: 7}) == []


@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), max_size=100))
def test_whoever_did_something_within_the_patience_is_never_named(gains: list[list[int]]) -> None:
    progress, done, since = HostProgress(PATIENCE), [0, 0, 0], [0.0, 0.0, 0.0]
    for number, gain in enumerate(gains):
        now = STEP * number
        for host in range(3):
            done[host] += gain[host]
            if gain[host] or not number:
                since[host] = now
        found = progress.look(now, dict(enumerate(done)))
        assert found == [host for host in range(3) if now - since[host] > PATIENCE]
