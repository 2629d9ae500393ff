"""The host that leads a session: its lease (lease.py), renewed by heartbeats, and the messages that name the leader to
others."""

import threading
from collections.abc import Callable
from typing import final

from roundelay.core.errors import UserError
from roundelay.runtime.hosts.control.finding import PeerState, boot_clock, say_who_leads
from roundelay.runtime.hosts.control.lease import Lease, Views, Voter, VoterView
from roundelay.runtime.hosts.control.membership import HostMembership
from roundelay.runtime.hosts.control.messages import LeaderHeard, Leads
from roundelay.runtime.hosts.control.peers import RemoteHost
from roundelay.runtime.hosts.control.succession import look_for
from roundelay.runtime.hosts.terms import HostTerms
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.launch.world import HostPlace


@final
class Leading:
    """Leadership of a host that leads a session, or wants to. Where the strategy allows no other leader, the host leads
    as long as it lives.

    Args:
        listener: names the leader to hosts that ask.
        session: number of the session.
        needs_lease: True if another host may lead in its place.
        ring: called when this host may begin to lead, or must lead no longer.
        views: views in force, as a host that wants to lead has heard last; none for the first leader.
        ended: lives of processes that have surely ended.
    """

    def __init__(
        self,
        place: HostPlace,
        terms: HostTerms,
        listener: Listener,
        session: int,
        needs_lease: bool,
        ring: Callable[[], object],
        views: Views = (),
        ended: frozenset[str] = frozenset(),
    ) -> None:
        self._place, self._terms, self._listener, self._session = place, terms, listener, session
        self._life = str(listener.hello["life"])
        self._needs_lease, self._ring = needs_lease, ring
        self._gate = threading.Lock()
        self._lease: Lease | None = None
        if views:
            self._lease = Lease(self._life, self._terms.host_patience, views, boot_clock(), leads=False)
            for life in ended:
                self._lease.ended(life, boot_clock())
            for voter in {voter for view in views for voter in view.voters} - {self.own}:
                self._ask_after(voter)
        else:
            say_who_leads(listener, session, self.own, 0)

    @property
    def own(self) -> Voter:
        """Voter of this host."""
        return Voter(self._place.ranks[0], self._life, self._listener.address)

    def begin(self, hosts: HostMembership) -> None:
        """Lead from now on, when all of `hosts` have come that are not lost."""
        if not self._needs_lease:
            return
        with self._gate:
            voters = [self.own, *map(_voter, hosts.inside())]
            if self._lease is None:
                views = (VoterView((0, 0), tuple(sorted(voters))),)
                self._lease = Lease(self._life, self._terms.host_patience, views, boot_clock(), leads=True)
            else:
                self._lease.begin(voters, boot_clock())
                say_who_leads(self._listener, self._session, self.own, self._lease.views[-1].number[0])
        for remote in hosts.inside():
            self._beat(remote)

    def check(self) -> None:
        """Check that this host still leads.

        Raises:
            UserError: more than half of the hosts may follow another leader by now.
        """
        if self._lease is not None and self._lease.leads and not self.holds():
            raise UserError(
                f"the host of learner {self._place.ranks[0]} leads the session no more: it has not heard from enough "
                f"of the other hosts for {self._terms.host_patience:g} s, and they may go on without it. Start its "
                "learners again, and they come back."
            )

    def holds(self) -> bool:
        """Return True if this host may lead now."""
        with self._gate:
            return self._lease is None or self._lease.holds(boot_clock())

    # Other hosts ------------------------------------------------------------------------------------------------------

    def came(self, remote: RemoteHost, hosts: HostMembership) -> None:
        """Note that host `remote` takes part from now on."""
        if self._lease is None:
            return
        if self._lease.leads:
            self._change(hosts)
        self._beat(remote)

    def _beat(self, remote: RemoteHost) -> None:
        remote.monitored.says = self._say
        remote.tell(self._say())  # at once

    def _say(self) -> Leads:
        with self._gate:
            assert self._lease is not None
            return Leads(boot_clock(), self._lease.views)

    def heard(self, remote: RemoteHost, message: LeaderHeard) -> None:
        """Note that host `remote` has heard the heartbeat that `message` names."""
        if self._lease is not None:
            with self._gate:
                self._lease.heard(remote.hello.life, message.sent, message.seen, boot_clock())

    def stays(self, views: Views) -> None:
        """Note that a host has come that followed another leader, and had heard of `views`."""
        if self._lease is not None:
            with self._gate:
                self._lease.learn(views)

    def left(self, remote: RemoteHost, hosts: HostMembership, emptied: bool) -> None:
        """Note that host `remote` is lost; `emptied`: all its learners had gone before, so its process counts as
        ended."""
        if self._lease is None or not self._lease.leads:
            return
        voter = _voter(remote)
        if emptied or self._terms.silence == "dead":
            with self._gate:
                self._lease.ended(voter.life, boot_clock())
        else:
            self._ask_after(voter)
        self._change(hosts)

    def _change(self, hosts: HostMembership) -> None:
        with self._gate:
            assert self._lease is not None
            self._lease.change([self.own, *map(_voter, hosts.inside())], boot_clock())

    def _ask_after(self, voter: Voter) -> None:
        """Find out, on a thread, if the process of `voter` has ended, and note it in the lease."""

        def ask() -> None:
            state = look_for(voter, self._place, self._terms)
            if state is PeerState.ENDED or (state is PeerState.SILENT and self._terms.silence == "dead"):
                with self._gate:
                    assert self._lease is not None
                    self._lease.ended(voter.life, boot_clock())
                self._ring()

        threading.Thread(target=ask, daemon=True, name=f"ask after {voter.rank}").start()


def _voter(remote: RemoteHost) -> Voter:
    return Voter(remote.ranks[0], remote.hello.life, remote.hello.address)
