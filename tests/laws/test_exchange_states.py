"""The table of states of an exchange between hosts, without a host: every pair of state and event, and every order."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest

from roundelay.runtime.hosts.exchange import states
from roundelay.runtime.hosts.exchange.states import TRANSITIONS, WORDS, Event, ExchangeState, OutOfTurn, Role, State

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


@dataclass(frozen=True)
class Link:
    """One link, and the conversation over it: its client waits for a reply once it has sent something."""

    there: str = ""  # a message to the server
    back: str = ""
    waits: bool = False
    stale: bool = False  # the server still works on a message of a link that has been cut


@dataclass(frozen=True)
class World:
    """Client and server of the row that travels; if `down`, the asker, and the session its request goes to."""

    down: bool = False
    cuts: int = 1
    can_lose: str = ""  # the host that may be lost: that of the client or that of the server
    lost: bool = False
    client: State = State.IDLE
    server: State = State.IDLE
    asker: State = State.IDLE
    session: State = State.IDLE
    rows: Link = Link()
    requests: Link = Link()
    sent: int = 0  # mutations of the row that travels
    visited: int = 0  # of the row that is visited
    begun: bool = False
    ended: bool = False


ROLES = {"client": Role.CLIENT, "server": Role.SERVER, "asker": Role.ASKER, "session": Role.SERVER}


def walk(world: World) -> tuple[set[World], list[World]]:
    """All worlds that can come of this one, and those of them in which nothing more can happen."""
    seen, ends, open_ = {world}, [], [world]
    while open_:
        here = open_.pop()
        following = list(moves(here))
        if not following:
            ends.append(here)
        for one in following:
            if one not in seen:
                seen.add(one)
                open_.append(one)
    return seen, ends


def moves(world: World) -> Iterator[World]:
    """Everything that may happen next."""
    alive = not world.lost
    if world.cuts:
        for name, sender, server in (("rows", "client", "server"), ("requests", "asker", "session")):
            yield from _cut(world, name, sender, server)
    if alive and world.can_lose:
        yield _lose(world)
    yield from _begin(world)
    yield from _talk(world, "rows", "client", "server")
    if alive or world.can_lose == "server":
        yield from _end_of_client(world)
    if alive or world.can_lose == "client":
        yield from _visit(world)
    if world.down:
        yield from _talk(world, "requests", "asker", "session")
        yield from _carry(world)


def machine(world: World, end: str) -> ExchangeState:
    found = ExchangeState(ROLES[end])
    found.state = getattr(world, end)
    return found


def step(world: World, end: str, event: Event, **changed: Any) -> World:
    """That end takes an event."""
    return changed_to(world, {end: machine(world, end).take(event), **changed})


def changed_to(world: World, changed: dict[str, Any]) -> World:
    """With these fields instead."""
    return replace(world, **changed)


def can(world: World, end: str, event: Event) -> bool:
    return machine(world, end).offer(event)


def _begin(world: World) -> Iterator[World]:
    if not world.begun:
        end, event = ("asker", Event.ASK) if world.down else ("client", Event.CHECK_OUT)
        yield step(world, end, event, begun=True)


def _talk(world: World, name: str, sender: str, server: str) -> Iterator[World]:
    """The sender sends what its state says and hears the reply; the server hears what comes, one after another."""
    link: Link = getattr(world, name)
    word = machine(world, sender).word
    if word and not link.waits and not (world.lost and world.can_lose == "client"):
        yield step(world, sender, Event.SEND, **{name: replace(link, there=word, waits=True)})
    if link.back and link.waits:
        end = machine(world, sender)
        end.hear("done" if sender == "asker" and link.back == "row" else link.back)
        yield changed_to(world, {sender: end.state, name: replace(link, back="", waits=False)})
    if link.there and getattr(world, server) is not State.RECEIVED and not _is_lost(world, server):
        again = link.there == "again" or (link.there == "request" and getattr(world, server) is not State.IDLE)
        after = step(world, server, Event.AGAIN if again else Event.RECEIVE)
        back = machine(after, server).word if again else ""
        yield changed_to(after, {name: replace(link, there="", back=back, stale=False)})


def _is_lost(world: World, end: str) -> bool:
    host = {"client": "client", "server": "server", "asker": "server", "session": "client"}[end]
    return world.lost and world.can_lose == host


def _settle(world: World, end: str, event: Event, name: str, **changed: int) -> World:
    """The server decides, and replies, unless its link is another by now."""
    after = step(world, end, event, **changed)
    link: Link = getattr(world, name)
    back = link.back if link.stale else machine(after, end).word
    return changed_to(after, {name: replace(link, back=back, stale=False)})


def _visit(world: World) -> Iterator[World]:
    if world.server is not State.RECEIVED:
        return
    yield _settle(world, "server", Event.GIVE_UP, "rows")
    if world.rows.stale:  # it may notice that nobody waits for it any more
        yield step(world, "server", Event.CUT, rows=replace(world.rows, stale=False))
    if not world.down:
        yield _settle(world, "server", Event.APPLY, "rows", visited=world.visited + 1)
    elif can(world, "asker", Event.APPLY):
        yield _settle(step(world, "asker", Event.APPLY), "server", Event.APPLY, "rows", visited=world.visited + 1)


def _end_of_client(world: World) -> Iterator[World]:
    if world.client is State.REPLIED:
        yield step(world, "client", Event.APPLY, sent=world.sent + 1)
    if world.client in (State.COMMITTED, State.VOID) and not world.down and not world.ended:
        yield step(world, "client", Event.CHECK_IN, ended=True)
    if world.lost and world.can_lose == "server" and can(world, "client", Event.GIVE_UP) and not world.rows.back:
        yield step(world, "client", Event.GIVE_UP)  # patience ends


def _carry(world: World) -> Iterator[World]:
    """The session has its host's client make the exchange, and replies when that has ended."""
    if _is_lost(world, "session"):
        if can(world, "asker", Event.GIVE_UP) and not world.requests.back:
            yield step(world, "asker", Event.GIVE_UP)
        return
    if world.session is State.RECEIVED and not world.ended:
        if world.client is State.IDLE:
            yield step(world, "client", Event.CHECK_OUT)
        if world.client in (State.COMMITTED, State.VOID):
            event = Event.APPLY if world.client is State.COMMITTED else Event.GIVE_UP
            yield _settle(step(world, "client", Event.CHECK_IN, ended=True), "session", event, "requests")
    if can(world, "asker", Event.GIVE_UP):  # patience ends, at any moment
        deaf = replace(world.requests, waits=False, back="", stale=world.session is State.RECEIVED)
        yield step(world, "asker", Event.GIVE_UP, requests=deaf)


def _cut(world: World, name: str, sender: str, server: str) -> Iterator[World]:
    link: Link = getattr(world, name)
    if not (link.waits or link.there or link.back):
        return
    after = replace(world, cuts=world.cuts - 1)
    if link.waits and can(world, sender, Event.CUT):
        after = step(after, sender, Event.CUT)
    yield changed_to(after, {name: Link(stale=getattr(world, server) is State.RECEIVED)})


def _lose(world: World) -> World:
    """A host is gone, and all that was on its way from it or to it."""
    after = replace(world, lost=True, rows=Link(), requests=Link())
    for sender, link in (("client", world.rows), ("asker", world.requests)):
        if link.waits and can(after, sender, Event.CUT):
            after = step(after, sender, Event.CUT)
    return after
