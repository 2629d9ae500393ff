"""Members may say anything: the host is either served or lost; and the run goes on.

A member knows the secret: it may be another version, have broken memory, or be ill. Its messages are those of a host
that takes part, with anything in place of anything. The coordinator's threads live through all of them, nothing that a
message says by half is in the books, and nothing it said makes trouble later.
"""

import copy
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.runtime.base import Counts, SegmentPlan
from roundelay.runtime.hosts.control import finding
from roundelay.runtime.hosts.control.coordinator import MultiHostRuntime
from roundelay.runtime.hosts.control.leases import Leases
from roundelay.runtime.hosts.control.messages import HostAnswer
from roundelay.runtime.hosts.control.peers import RemoteHost
from roundelay.runtime.hosts.terms import CONTROL, identity
from roundelay.runtime.hosts.transport.heartbeat import Beat
from roundelay.runtime.hosts.transport.wire import Link, LinkError
from roundelay.runtime.messages import Frame
from support.hosts import SECRET, Hosts
from support.until import meanwhile, together, until

ROUNDS, MINIBATCH = 6, 64
EPOCH = EpochPlan(0, ROUNDS * MINIBATCH, MINIBATCH, 2, seed=1)
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    -1,
    0,
    1,
    7,
    2**31,
    2**53,
    2**63,
    2**70,
    -(2**70),
    0.5,
    -0.0,
    float("nan"),
    float("inf"),
    "",
    "1",
    "x" * 100_000,
    "\x1b[2J\x07",
    "ü",
    "\ud800",
    [],
    [[]],
    [0],
    [1, 2, 3],
    [None],
    ["0"],
    [2**70],
    list(range(5000)),
    {},
    {"a": 1},
    [{}],
    [{"rank": 1}],
    json.loads("[" * 500 + "]" * 500),
)
HELLO = {
    "what": CONTROL,
    "ranks": [1, 1],
    "learners": 2,
    "agreement": {"recipe": {"a": 1}},
    "address": ["127.0.0.1", 9],
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to all that is in a JSON value."""
    yield path
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def changed(value: dict[str, Any], draw: st.DataObject) -> dict[str, Any]:
    """A JSON object with one thing left out, or anything in its place; not another object altogether."""
    path = draw.draw(st.sampled_from([path for path in places(value) if path][:400]))
    found = inner = copy.deepcopy(value)
    for key in path[:-1]:
        inner = inner[key]
    if draw.draw(st.booleans()) and isinstance(inner, dict):
        del inner[path[-1]]
    else:
        inner[path[-1]] = draw.draw(st.sampled_from(ODD))
    return found


class Member:
    """Host 1, with learner 1, which trains nothing."""

    def __init__(self, port: int, hello: dict[str, Any] | None = None) -> None:
        expected = identity(0)
        self.link = Link.connect(("127.0.0.1", port), SECRET, hello or HELLO, 60.0, expected=expected)

    def hear(self, kind: str) -> Frame:
        while (message := self.link.receive(60.0)).kind != kind:
            pass
        return message

    def build(self) -> None:
        self.link.send("built", {"parameters": 37, "initial": 12345})
        self.hear("welcome")
        self.link.send("prepared", {})


class Run:
    """A run of two hosts, of which this is the conductor's."""

    def __init__(self) -> None:
        self.hosts = Hosts("adpsgd", (1, 1), terms={"agreement": HELLO["agreement"]})
        self.member: Member
        threading.Thread(target=self._come, daemon=True).start()
        self.runtime = MultiHostRuntime(self.hosts.cluster, self.hosts.place, self.hosts.all_terms)
        self.numbers = itertools.count(1)

    def _come(self) -> None:
        odd = Member(self.hosts.port, {**HELLO, "ranks": "nonsense"})  # which does not keep the run from beginning
        assert not _open(odd.link)
        odd.link.close()
        member = Member(self.hosts.port)
        member.build()
        self.member = member

    def ready(self) -> RemoteHost:
        """The member takes part in a new segment."""
        runtime = self.runtime
        if not runtime._hosts.inside():
            self.member.link.close()
            self.member = Member(self.hosts.port)

            def met() -> bool:
                runtime._hosts.attend()
                return any(remote.standing == "new" for remote in runtime._hosts.all())

            until(met)

            def inside() -> bool:
                runtime._hosts.attend()
                return bool(runtime._hosts.inside())

            with meanwhile(self.member.build):
                until(inside)
        runtime._parts += 1
        runtime._bases, runtime._past = {}, []
        runtime.local_runtime.arena.counts.clear()
        runtime._leases = Leases(EPOCH, 0, ROUNDS * 2)
        runtime._stopping = False
        remote = runtime._hosts.inside()[0]
        remote.answer = HostAnswer()
        runtime._order(remote, SegmentPlan(EPOCH, 0.1), [0, 1])
        self.member.link.send("want", {"part": runtime._parts, "wanted": 3})
        while (leases := self.member.hear("leases").header)["part"] != runtime._parts:
            pass
        assert len(leases["indices"]) == 3
        return remote

    def message(self, kind: str) -> tuple[dict[str, Any], bytes]:
        """As a host would send it now."""
        part, counts = self.runtime._parts, Counts.zeros(1, False)
        facts: dict[str, Any] = {name: table.tolist() for name, table in vars(counts).items()}
        facts |= {"exchanges": [[0, 0]], "frames": [64], "loss": [float("nan")]}
        report = {"part": part, "settled": [0, 1], "counts": facts}
        numbers = {"steps": [4], "versions": [8], "scalars": [[]]}
        said = {"doing": [[2], [0], [17]], "round": [3], "published": [0], "versions": [8]}
        lost = {"rank": 1, "reason": "killed", "replaced": True, "torn": [1]}
        messages: dict[str, dict[str, Any]] = {
            "want": {"part": part, "wanted": 2},
            "report": report,
            "interrupt": {"signal": "SIGTERM"},
            "sing": {},
            "done": {
                **report,
                "problem": "",
                "text": "",
                "rank": -1,
                "redrawn": 1,
                "lost": [lost],
                "joined": [{"rank": 1, "copied": None}],
                "traffic": [{"host": 1, "peer": 0, "sent_bytes": 5, "received_bytes": 6, "waited_s": 0.5}],
            },
            "state": {"said": said, "steps": [4], "alive": [1], "ready": []},
            "replied": {"integers": numbers, "reached": 2},
            "prepared": {},
            "built": {"parameters": 37, "initial": 5},
            "piece": {"name": "row", "rank": 1, "at": 30},
        }
        return messages[kind], bytes(28) if kind == "piece" else b""

    def served(self, remote: RemoteHost) -> bool:
        """Has the conductor heard all that was said, and does it answer? False: it has lost the host."""
        number = next(self.numbers)
        try:
            self.member.link.send("replied", {"reached": number})
            until(lambda: remote.reached == number or remote.standing == "gone")
        except LinkError:
            until(lambda: remote.standing == "gone")
        with self.runtime._hosts.gate:  # whatever belongs to its loss is done by then
            return remote.standing != "gone"

    def go_on(self) -> None:
        """All that the conductor does with what it has heard, and does a few times a second."""
        runtime = self.runtime
        runtime._hosts.attend()
        runtime._judge()
        runtime._watch_progress()
        runtime.who_waits()
        json.dumps([vars(seen) for seen in runtime._hosts.seen()])
        runtime._hosts.news()

    def go_on_until(self, so: Callable[[], bool]) -> None:
        """And again, until it is so."""

        def now() -> bool:
            self.go_on()
            return so()

        until(now)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    found = Run()
    with found.runtime:
        yield found
        found.member.link.close()


KINDS = ("want", "report", "done", "state", "replied", "built", "piece", "prepared", "interrupt", "sing")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sing"])
def test_what_a_host_says_is_understood(run: Run, kind: str) -> None:
    """The odd messages are made of these."""
    remote = run.ready()
    header, payload = run.message(kind)
    run.member.link.send(kind, header, [payload])
    assert run.served(remote)
    run.go_on()


def test_a_host_that_says_what_nobody_understands_is_lost(run: Run) -> None:
    remote = run.ready()
    header, payload = run.message("sing")
    run.member.link.send("sing", header, [payload])
    assert not run.served(remote)
    assert "'sing' is not a kind of message that is understood here" in run.runtime._hosts.lost[-1].reason


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("prepared", "interrupt", "sing")])
@given(draw=st.data())
def test_a_member_is_served_or_lost_whatever_it_says(run: Run, kind: str, draw: st.DataObject) -> None:
    remote = run.ready()
    leases = run.runtime._leases
    assert leases is not None
    header, payload = run.message(kind)
    if kind == "piece" and draw.draw(st.booleans()):
        payload = bytes(draw.draw(st.integers(0, 200)))
    else:
        header = changed(header, draw)
    run.member.link.send(kind, header, [payload])
    if not run.served(remote):
        assert run.runtime._hosts.lost[-1].reason
        assert run.member.link.closed or not _open(run.member.link)
        if kind in ("report", "done"):
            assert not run.runtime.local_runtime.arena.counts.frames[1], "nothing of it is in the books"
            assert leases.settled(1) == 0
    run.go_on()
    leases.give_back(1)
    drawn, more = leases.draw(0, 100)
    assert len(drawn) == ROUNDS * 2 - leases.settled(1)
    assert not more


def _open(link: Link) -> bool:
    try:
        while True:
            link.receive(60.0)
    except LinkError:
        return False


def test_whoever_disagrees_is_told_in_what(run: Run) -> None:
    run.ready()
    stranger = Member(run.hosts.port, {**HELLO, "agreement": {"recipe": {"a": 2}}})
    heard: list[str] = []

    def listen() -> None:
        heard.append(stranger.hear("refused").header["why"])
        stranger.link.close()

    with meanwhile(listen):
        run.go_on_until(lambda: bool(heard))
    there = "1 on the host of learner 0 and 2 on the host of learner 1"
    assert heard == [f"the recipe must be the same on all hosts, but recipe.a is {there}"]


def test_the_gate_is_free_while_a_host_with_other_shards_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that hears the end of its link needs it, and whoever refuses waits for that thread."""
    run.ready()
    hosts, heard, free = run.runtime._hosts, list[str](), list[bool]()
    refuse = hosts._refuse

    def look() -> None:
        free.append(hosts.gate.acquire(blocking=False))
        if free[-1]:
            hosts.gate.release()

    def refuse_freely(remote: RemoteHost, why: str) -> object:
        together(look)
        return refuse(remote, why)

    monkeypatch.setattr(hosts, "_refuse", refuse_freely)
    run.member.link.close()
    run.go_on_until(lambda: not hosts.all())
    run.member = Member(run.hosts.port)

    def build() -> None:
        run.member.link.send("built", {"parameters": 37, "initial": 12345, "shards": [64]})
        heard.append(run.member.hear("refused").header["why"])
        run.member.link.close()

    with meanwhile(build):
        run.go_on_until(lambda: bool(heard))
    why = "the training features are not in shards on the host of learner 0 and in 1 shards on the host of learner 1"
    assert (heard, free) == ([why], [True])


def test_hosts_that_have_come_hear_why_a_run_ends_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the user hears whom the first host waits for."""
    monkeypatch.setattr(finding, "NOTICE_SECONDS", 0.0)
    hosts = Hosts("adpsgd", (1, 1, 1), terms={"agreement": HELLO["agreement"]})
    heard: list[str] = []

    def come() -> None:
        first = Member(hosts.port, {**HELLO, "learners": 3})
        first.hear("common")
        second = Member(hosts.port, {**HELLO, "learners": 3, "ranks": [2, 1], "agreement": {}})
        second.hear("refused")
        second.link.close()
        heard.append(first.hear("end").header["why"])
        first.link.close()

    with meanwhile(come), pytest.raises(UserError) as error:
        MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms)
    assert heard == [str(error.value)]
    said = [line for line in capsys.readouterr().err.splitlines() if "waits for" in line]
    where = f"to come to 127.0.0.1:{hosts.port}, 300 s at most"
    assert said in [[f"roundelay: rank 0 waits for learners {missing} {where}"] for missing in ("1, 2", "2")]


def test_a_second_host_waits_until_it_is_known_whether_the_first_with_its_ranks_lives(run: Run) -> None:
    """It is refused if that lives, and takes its place if it is lost, or was the same process and now speaks here."""
    first, hosts = run.ready(), run.runtime._hosts

    def comes(life: str) -> Member:
        run.go_on()
        rival = Member(run.hosts.port, {**HELLO, "life": life})
        run.go_on_until(lambda: life in [one.hello.life for one in hosts._placeless])
        return rival

    rival = comes("a")
    for _ in range(10):
        run.go_on()
    assert (first.standing, len(hosts._placeless)) == ("in", 1), "neither is gone before that is known"
    hosts._placeless[0].came -= run.hosts.all_terms.host_patience  # the first has spoken since
    heard: list[str] = []
    with meanwhile(lambda: heard.append(rival.hear("refused").header["why"])):
        run.go_on_until(lambda: bool(heard))
    rival.link.close()
    assert heard[0].startswith("the host of learner 1 takes part already, at 127.0.0.1 port 9, and lives.")
    assert (first.standing, hosts._placeless, hosts.lost) == ("in", [], [])
    second, third = comes("b"), comes("c")
    run.member.link.close()
    run.go_on_until(lambda: [one.hello.life for one in hosts.all()] == ["b"])
    assert [one.hello.life for one in hosts._placeless] == ["c"]
    third.link.close()
    run.go_on_until(lambda: not hosts._placeless)
    placed, given_up = hosts._remotes[1], comes("b")  # before it was through; it comes late all the same
    for _ in range(10):
        run.go_on()
    assert (hosts._remotes[1], placed.standing, len(hosts._placeless)) == (placed, "new", 1), "it has said nothing"
    given_up.link.close()
    run.go_on_until(lambda: not hosts._placeless)
    run.member = Member(run.hosts.port, {**HELLO, "life": "b"})  # its link was cut
    run.member.link.say(Beat())
    run.go_on_until(lambda: hosts._remotes[1] is not placed)
    second.link.close()
    assert [one.standing for one in (first, placed, hosts._remotes[1])] == ["gone", "gone", "new"]


@given(draw=st.data())
def test_whoever_comes_is_let_in_or_sent_away(run: Run, draw: st.DataObject) -> None:
    run.ready()
    stranger = Link.connect(("127.0.0.1", run.hosts.port), SECRET, changed(HELLO, draw), 60.0)
    stranger.close()
    assert run.served(run.runtime._hosts.inside()[0])
    run.go_on()
