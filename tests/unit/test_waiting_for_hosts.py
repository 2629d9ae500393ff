"""A host that waits for others at its start: its user hears for what, and it ends where nothing is left to wait for."""

import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import pytest

from roundelay.core.errors import UserError
from roundelay.runtime.attached.hosts.process import SessionServer
from roundelay.runtime.attached.hosts.session_host import SessionHost
from roundelay.runtime.attached.surroundings import SeveralHosts
from roundelay.runtime.base import LearnerDied
from roundelay.runtime.hosts.control import finding, host_agent
from roundelay.runtime.hosts.control.finding import PendingJoins, Search, StartWait, open_router, say_who_leads
from roundelay.runtime.hosts.control.lease import Voter
from roundelay.runtime.hosts.terms import CONTROL, identity
from roundelay.runtime.hosts.transport.heartbeat import Router
from roundelay.runtime.hosts.transport.wire import Link
from roundelay.runtime.launch.local_rendezvous import receive_fact, send_fact
from roundelay.runtime.messages import Frame
from roundelay.runtime.procs.memory.arena import create_file
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.vectors import ArenaAccess
from roundelay.runtime.trace import NO_TRACE
from support import session_hosts
from support.hosts import SECRET, TERMS, place
from support.ports import free_port
from support.until import meanwhile, until


@pytest.fixture
def router() -> Iterator[Router]:
    """Of the first host."""
    found = open_router(place((1, 1), 0, 0), TERMS)
    yield found
    found.close()


def test_a_session_has_ended_where_a_host_has_left_it_and_none_leads(router: Router) -> None:
    where = replace(place((1, 1), 1, router.listener.address[1]), peers=(router.listener.address,))
    first, second = (Search(where, TERMS, session, "another life") for session in (0, 1))
    assert first.leader() is None, "it may be about to begin"
    router.listener.say(leader=None, ended=0)
    with pytest.raises(UserError, match="rank 1: session 0 has ended: the host of learner 0 has left it"):
        first.leader()
    assert second.leader() is None
    other = Voter(2, "a life", ("127.0.0.1", 9))
    say_who_leads(router.listener, 0, other, 0)
    assert first.leader() == other, "whoever has left it, it goes on"


def test_a_first_host_begins_no_session_while_another_is_silent_that_may_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands still when it is asked first, and says later that it leads; or says nothing for as long as hosts are
    waited for, or is refused, where no process listens."""
    monkeypatch.setattr(finding, "ask", partial(finding.ask, within=0.2))
    peer = "127.0.0.1", free_port()
    where = replace(place((1, 1), 0, free_port()), peers=(peer,))
    search, routers = Search(where, TERMS, 0, "a life"), list[Router]()

    def answer_later() -> None:
        with silent:
            kept = [silent.accept()[0] for _ in range(2)]  # connections, of which the second is of another round
        for one in kept:
            one.close()
        routers.append(open_router(replace(place((1, 1), 1, 0), listen=peer), TERMS))
        say_who_leads(routers[0].listener, 0, Voter(1, "another life", peer), 1)

    silent = socket.create_server(peer)
    silent.settimeout(60)
    with meanwhile(answer_later):
        assert search.another_leads()
    routers[0].close()
    with socket.create_server(peer):
        assert not Search(where, replace(TERMS, host_patience=0.5), 0, "a life").another_leads()
    monkeypatch.setattr(Search, "leader", once := Mock(wraps=search.leader))
    assert not search.another_leads()
    assert once.call_count == 1


def test_who_looks_for_a_leader_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(finding, "NOTICE_SECONDS", 0.0)
    port = free_port()
    where = replace(place((1, 1), 1, port), peers=(("127.0.0.1", port),))
    lasts, search = StartWait(1, 9.0), Search(where, TERMS, 1, "a life")
    assert search.wait(0.0, lasts) is None
    assert search.wait(0.0, lasts) is None
    asked = f"asked are 127.0.0.1:{port}"
    assert capsys.readouterr().err == f"roundelay: rank 1 waits for a host that says who leads; {asked}, 9 s at most\n"
    for reason in ("", "a stranger", "another"):
        lasts.look("others", reason)
    assert capsys.readouterr().err == "roundelay: rank 1 has refused a connection: a stranger\n"


def test_a_host_that_comes_to_a_session_before_the_present_one_is_told(router: Router) -> None:
    arrivals = PendingJoins(router, place((1, 1), 0, 0), TERMS)
    arrivals.session = 2
    hello = {"what": CONTROL, "session": 1}
    link = Link.connect(("127.0.0.1", router.listener.address[1]), SECRET, hello, 60.0, expected=identity(0))
    heard: list[Frame] = []
    with meanwhile(lambda: heard.append(link.receive(60.0))):
        until(lambda: arrivals.next() is None and bool(heard))
    assert [(one.kind, one.header["why"]) for one in heard] == [
        ("refused", "session 1 has ended here, and session 2 has begun")
    ]
    link.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_the_process_between_hosts_ends_with_its_learners_also_where_no_other_host_has_come(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_agent, "ASKED_SECONDS", 0.1)
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    learner = subprocess.Popen(["sleep", "600"])
    asked = replace(session_hosts.request(session_hosts.place(rank, free_port()), "adpsgd"), processes=(learner.pid,))
    arena = create_file(asked.layout)
    with mine, theirs, meanwhile(SessionServer(theirs).serve):
        send_fact(mine, {"do": "session", "request": asked.to_json()}, arena)
        learner.kill()
        assert receive_fact(mine)[0] == {"problem": "all learners of this host have ended"}
    learner.wait()
    os.close(arena)


def test_learners_notice_that_the_process_between_hosts_has_ended(router: Router) -> None:
    """The kernel frees the locks that it has held, however it has ended."""
    asked = session_hosts.request(session_hosts.place(0, 0), "adpsgd")
    file, patience = create_file(asked.layout), Patience(0, 60.0)
    access = ArenaAccess(f"/proc/{os.getpid()}/fd/{file}", asked.layout, 0, patience, None, NO_TRACE)
    host = SessionHost(asked, file, router)
    around = SeveralHosts(access, asked.strategy, False, (0,), "")
    around.check()
    for life in host._lives:
        life.release()
    host.close()
    with pytest.raises(LearnerDied, match="learner 1 died: the process that speaks for this host to the others has"):
        around.check()
    access.arena.close()
    os.close(file)
