"""Lines and doors: whatever is said over one link is that link's problem, and is noticed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink, Router
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.wire import Link, LinkClosed
from roundelay.runtime.messages import Message
from support.messages import WORDS
from support.until import until

SECRET = b"a secret of these tests"


@contextmanager
def router(roles: tuple[str, ...] = ("control", "mix"), patience: float = 60.0) -> Iterator[Router]:
    found = Router(Listener(("127.0.0.1", 0), SECRET, patience=60.0), roles, patience)
    try:
        yield found
    finally:
        found.close()


def come(to: Router, what: Any) -> Link:
    return Link.connect(to.listener.address, SECRET, {"what": what}, 60.0)


def is_closed(link: Link) -> bool:
    try:
        link.receive(60.0)
    except LinkClosed:
        return True
    return False


@pytest.mark.parametrize(
    "error",
    [KeyError("x"), RuntimeError("too long"), OverflowError("huge"), RecursionError(), AssertionError(), OSError(5)],
)
def test_any_error_about_a_message_ends_its_link_is_counted_and_loses_the_host(error: Exception) -> None:
    links: list[Link] = []
    with router() as entrance:
        entrance.give("control", links.append)
        near = come(entrance, "control")
        until(lambda: bool(links))
        line, reasons = MonitoredLink(links[0], 60.0), list[str]()

        def handle(message: Message) -> None:
            raise error

        line.listen(WORDS, handle, reasons.append)
        near.send("word", {})
        until(lambda: bool(reasons))
        assert "no message of ours" in reasons[0]
        assert type(error).__name__ in reasons[0]
        assert is_closed(near)
        assert entrance.listener.rejected.malformed == 1
        assert type(error).__name__ in entrance.listener.rejected.reasons[-1]
        line.close()
        near.close()


@pytest.mark.parametrize("what", ["nothing", None, 7, ["control"], {"control": 1}, "host"])
def test_a_link_for_nothing_we_know_is_closed_at_once_and_counted(what: Any) -> None:
    with router() as entrance:
        near = come(entrance, what)
        assert is_closed(near)
        assert entrance.listener.rejected.malformed == 1
        near.close()


def test_a_link_that_nobody_takes_is_closed_in_time_and_one_that_is_taken_is_not() -> None:
    taken: list[Link] = []
    with router(patience=0.2) as entrance:
        early = come(entrance, "mix")
        entrance.give("control", taken.append)
        good = come(entrance, "control")
        assert is_closed(early)
        assert "was not attended to" in entrance.listener.rejected.reasons[-1]
        until(lambda: bool(taken))
        taken[0].send("word", {})
        assert good.receive(60.0).kind == "word"
        for link in (early, good, *taken):
            link.close()


def test_who_comes_early_is_given_to_whoever_asks_later() -> None:
    taken: list[Link] = []
    with router() as entrance:
        early = come(entrance, "mix")
        until(lambda: bool(entrance._early))
        entrance.give("mix", taken.append)
        assert [link.hello for link in taken] == [{"what": "mix"}]
        for link in (early, *taken):
            link.close()


def test_one_who_cannot_be_attended_to_keeps_nobody_else_out() -> None:
    taken: list[Link] = []

    def take(link: Link) -> None:
        if not taken:
            taken.append(link)
            raise RuntimeError("no room")
        taken.append(link)

    with router() as entrance:
        entrance.give("control", take)
        first = come(entrance, "control")
        assert is_closed(first)
        second = come(entrance, "control")
        until(lambda: len(taken) == 2)
        taken[1].send("word", {})
        assert second.receive(60.0).kind == "word"
        for link in (first, second, *taken):
            link.close()
