"""The table of states of an exchange between hosts, without a host: every pair of state and event, and every order."""

from itertools import product

import pytest

from roundelay.runtime.hosts.exchange import states
from roundelay.runtime.hosts.exchange.states import TRANSITIONS, WORDS, Event, ExchangeState, OutOfTurn, Role, State
from support.exchange_walk import World, walk

WAYS = [(down, cuts) for down in (False, True) for cuts in (0, 1, 2)]


@pytest.mark.parametrize("role", Role)
def test_every_event_is_a_transition_or_is_refused_and_changes_nothing(role: Role) -> None:
    for state, event in product(TRANSITIONS[role], Event):
        end = ExchangeState(role)
        end.state = state
        following = TRANSITIONS[role][state].get(event)
        if following is None:
            assert not end.offer(event)
            with pytest.raises(OutOfTurn, match=f"{event.value}.* while the {role.value} .* is {state.value}"):
                end.take(event)
            assert end.state is state
        else:
            assert end.take(event) is following is end.state


def test_replies_are_events_and_nothing_else_is_one() -> None:
    end = ExchangeState(Role.CLIENT)
    end.state = State.SENT
    for nonsense in ("apply", "check in", "", "done", "unknown"):
        with pytest.raises(OutOfTurn):
            end.hear(nonsense)
        assert end.state is State.SENT
    assert end.hear("row") is State.REPLIED


@pytest.mark.parametrize("role", Role)
def test_every_state_is_reached_and_leads_back_to_idle(role: Role) -> None:
    table = TRANSITIONS[role]
    for state in table:
        assert state in _reached(role, State.IDLE)
        assert State.IDLE in _reached(role, state)
    assert {following for row in table.values() for following in row.values()} == set(table)


@pytest.mark.parametrize("role", Role)
def test_a_state_that_sends_says_what(role: Role) -> None:
    """A client sends of its own accord; a server replies in the states in which something is decided."""
    sends = {state for state, row in TRANSITIONS[role].items() if Event.SEND in row}
    if role is Role.SERVER:
        sends = {state for state, row in TRANSITIONS[role].items() if Event.AGAIN in row}
    assert set(WORDS[role]) == sends


@pytest.mark.parametrize("role", [Role.CLIENT, Role.SERVER])
def test_only_applying_commits(role: Role) -> None:
    table = TRANSITIONS[role]
    into = {
        (state, event)
        for state, row in table.items()
        for event, following in row.items()
        if following is State.COMMITTED and state is not State.COMMITTED
    }
    assert {event for _, event in into} == {Event.APPLY}


def test_a_row_that_is_checked_out_is_checked_in() -> None:
    """By no other way is its client idle again."""
    into = {event for row in TRANSITIONS[Role.CLIENT].values() for event, state in row.items() if state is State.IDLE}
    assert into == {Event.CHECK_IN}


@pytest.mark.parametrize(("down", "cuts"), WAYS)
def test_whatever_is_cut_both_ends_have_applied_the_exchange_once_or_neither(down: bool, cuts: int) -> None:
    worlds, ends = walk(World(down, cuts))
    assert all(world.sent <= world.visited <= 1 for world in worlds)
    assert all(world.sent == world.visited for world in ends)
    assert {world.sent for world in ends} == {0, 1}
    if down:
        assert all(world.sent == 1 for world in worlds if world.asker is State.COMMITTED)
    assert len(worlds) > 10


@pytest.mark.parametrize(("down", "cuts"), WAYS)
def test_nobody_waits_for_ever_for_a_host_that_lives(down: bool, cuts: int) -> None:
    """In every end all ends are at rest, and the row is checked in."""
    _, ends = walk(World(down, cuts))
    for world in ends:
        assert world.client is State.IDLE
        assert world.server in (State.IDLE, State.COMMITTED, State.VOID)
        assert not world.down or world.asker in (State.COMMITTED, State.VOID)


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("host", ["client", "server"])
def test_a_host_that_is_lost_leaves_the_other_a_whole_row(down: bool, host: str) -> None:
    """Changed once, or as it was; the row that travels is changed only after the one that is visited."""
    worlds, ends = walk(World(down, 1, host))
    assert any(world.lost for world in worlds)
    assert all(world.sent <= world.visited <= 1 for world in worlds)
    if host == "server":
        assert all(world.client is not State.SENT for world in ends), "the client has given up"


@pytest.mark.parametrize(
    ("wrong", "down"),
    [("sends once more unasked", False), ("sends once more unasked", True), ("forgets its reply", False)],
)
def test_the_walk_finds_what_is_wrong(wrong: str, down: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it to pass for these tables, too, it could not fail. An asker's row is not visited twice even so: its own
    machine refuses; but one end is left alone with the exchange."""
    if wrong == "forgets its reply":
        server = {**TRANSITIONS[Role.SERVER]}
        server[State.COMMITTED] = {**server[State.COMMITTED], Event.AGAIN: State.IDLE}
        monkeypatch.setattr(states, "TRANSITIONS", {**TRANSITIONS, Role.SERVER: server})
    else:
        client = {**WORDS[Role.CLIENT], State.IN_DOUBT: "exchange"}
        monkeypatch.setattr(states, "WORDS", {**WORDS, Role.CLIENT: client})
    worlds, ends = walk(World(down, cuts=1))
    assert max(world.visited for world in worlds) == (1 if down else 2)
    assert any(world.sent != world.visited for world in ends)


def _reached(role: Role, start: State) -> set[State]:
    found, open_ = {start}, [start]
    while open_:
        for state in TRANSITIONS[role][open_.pop()].values():
            if state not in found:
                found.add(state)
                open_.append(state)
    return found
