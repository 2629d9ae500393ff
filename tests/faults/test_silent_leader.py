"""A leader of an attached session whose address answers nothing, when the link to it is cut."""

import socket
from dataclasses import replace

import pytest

from roundelay.runtime.attached.between_hosts import FIRST_HOST_LOST
from roundelay.runtime.hosts.control.lease import Voter, VoterView
from support.session_hosts import session_hosts
from support.until import until


@pytest.mark.parametrize(
    ("silence", "hosts", "leads"),
    [("majority", 2, False), ("dead", 2, True), ("majority", 3, True), ("majority", 1, False)],
)
def test_the_next_host_wants_to_lead_where_more_than_half_may_come_to_it(silence: str, hosts: int, leads: bool) -> None:
    """Or where silence counts as death. One that has heard nothing of voters follows nobody."""
    with socket.create_server(("127.0.0.1", 0)) as silent, session_hosts("adpsgd") as found:
        agent, other = found.agent, found.other
        until(lambda: bool(agent.promise.views))
        leader, own = agent.promise.views[-1].voters
        assert (leader.life, leader.rank) == (agent.hosts.life, 0)
        voters = replace(leader, address=silent.getsockname()[:2]), own, Voter(2, "another", ("127.0.0.1", 9))
        agent.promise.views = (VoterView((9, 0), voters[:hosts] if hosts > 1 else (own,)),)
        agent.promise.until = 0.0
        agent._terms = replace(agent._terms, silence=silence)  # type: ignore[arg-type]
        for remote in found.coordinator._hosts.all():
            remote.monitored.close()
        until(lambda: agent.succeeds or bool(other.between.over[0]))
        assert agent.succeeds == leads
        assert other.between.over[0] == (0 if leads else FIRST_HOST_LOST)
        assert not other.arena.liveness.alive[0]
