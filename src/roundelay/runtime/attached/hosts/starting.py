"""The process that speaks to other hosts, as the first learner of its host holds it: started once, for all sessions.

A request to take part in a session goes over a socket pair that no other process has, as JSON, with a descriptor of the
arena beside it.
"""

import dataclasses
import json
import os
import select
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, final

from roundelay.core.errors import UserError
from roundelay.runtime.attached.between_hosts import BetweenHosts
from roundelay.runtime.attached.meetings import MeetingTables, SaveTables
from roundelay.runtime.attached.membership import Attendance
from roundelay.runtime.attached.settings import SettingsTables
from roundelay.runtime.attached.shares import InputTables, ShareTables
from roundelay.runtime.attached.turns import TurnTables
from roundelay.runtime.attached.votes import VoteTables
from roundelay.runtime.hosts.control.succession import may_be_led_by_another
from roundelay.runtime.hosts.options import SessionHostOptions
from roundelay.runtime.hosts.terms import HostTerms, check_may_go_on_between_hosts, check_may_travel, check_options
from roundelay.runtime.launch.local_rendezvous import receive_fact, send_fact
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.messages import plain
from roundelay.runtime.procs.coordination.passes import PassTables
from roundelay.runtime.procs.memory.arena import Layout
from roundelay.runtime.procs.memory.views import BellTable, HostMeanSequences, View
from roundelay.strategies import STRATEGIES, make_strategy
from roundelay.strategies.base import Strategy

ATTACHED_VIEWS: tuple[type[View], ...] = (
    Attendance,
    PassTables,
    MeetingTables,
    VoteTables,
    InputTables,
    SaveTables,
    SettingsTables,
    ShareTables,
    TurnTables,
)
"""Views of the arena of attached learners, besides those of every arena."""
HOSTS_VIEWS: tuple[type[View], ...] = (HostMeanSequences, BellTable, BetweenHosts)
"""Further views of the arena on one of several hosts."""


def layout_of(
    strategy: Strategy, learners: int, parameters: int, shown_bytes: int, tensors: int, several: bool
) -> Layout:
    """Return the layout of the arena of attached learners, on one host or on one of several."""
    return Layout(
        learners,
        parameters,
        strategy.memory,
        strategy.traits.model == "centre",
        views=ATTACHED_VIEWS + HOSTS_VIEWS * several,
        shown_bytes=shown_bytes,
        tensors=tensors,
        centre_memory=strategy.centre_memory,
        weighed=strategy.weighed,
    )


@final
@dataclass(frozen=True)
class SessionRequest:
    """Request to this host's process for other hosts to take part in one session, with all it must know of it."""

    number: int  # of the session; learners attach in the same order everywhere
    place: HostPlace
    of: tuple[str, dict[str, Any]]  # the strategy: its name and its options
    options: SessionHostOptions
    agreement: dict[str, Any]  # what must be the same on all hosts
    patience_seconds: float  # how long learners wait for each other
    parameters: int
    # shown_bytes, tensors: see `Layout`.
    shown_bytes: int
    tensors: int
    processes: tuple[int, ...]  # of the learners of this host
    live: str = ""  # the folder of live.json, if there is to be one
    on_gpus: bool = False  # learners compute on GPUs
    goes_on: bool = False  # learners that wait for each other go on without one that dies
    record: str = ""  # the folder of the script's record, if it is recorded
    given_name: Any = ""  # of sockets on this host (handover.py), which begins with a zero
    rows: Any = None  # where those of this host are, if they are on devices: Handles for `mapped`

    @cached_property
    def strategy(self) -> Strategy:
        """The session's strategy, made from its name and options."""
        return make_strategy(*self.of)

    @property
    def layout(self) -> Layout:
        """Layout of the host's arena."""
        return layout_of(
            self.strategy, self.place.learners, self.parameters, self.shown_bytes, self.tensors, several=True
        )

    @property
    def terms(self) -> HostTerms:
        """Terms of this session that hosts agree on."""
        return HostTerms.of(
            self.options,
            patience_seconds=self.patience_seconds,
            on_death="go-on" if self.goes_on or not self.strategy.traits.synchronous else "stop",
            agreement=self.agreement,
            agreed="script",
            on_gpus=self.on_gpus,
            silence=self.options.silence,
            session=self.number,
        )

    @property
    def outlives_its_leader(self) -> bool:
        """True if another host leads the session when the first is lost."""
        return may_be_led_by_another(self.strategy, self.goes_on)

    def to_json(self) -> dict[str, Any]:
        """
        Raises:
            UserError: the strategy is for one host, or an option has no effect under it.
        """
        strategy = self.strategy
        check_may_travel(strategy)
        check_options(strategy, self.options)
        if self.options.silence != "majority" and not self.outlives_its_leader:
            raise UserError(
                f"hosts: silence is {self.options.silence!r}, but under {strategy.label} no host can lead in the "
                "place of the first, so that would have no effect. Leave it out."
            )
        if self.goes_on:
            check_may_go_on_between_hosts(strategy)
        found: dict[str, Any] = json.loads(json.dumps(plain(self), default=plain))
        return found


def named(strategy: Strategy) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a strategy, from which other processes make it.

    Raises:
        UserError: hosts do not know the strategy by name.
    """
    name, options = strategy.name, dataclasses.asdict(strategy)  # type: ignore[call-overload]
    if STRATEGIES.get(name) is not type(strategy) or make_strategy(name, options) != strategy:
        raise UserError(
            f"{strategy.label} is a Strategy of your own: on several hosts those that have a name are known "
            "(`roundelay list strategies`). Attach it on one host."
        )
    return name, options


GRACE_SECONDS = 30.0
"""Seconds that the process may take longer than hosts have patience, to start and to say why."""


@final
class HostProcess:
    """The process of this host that speaks to others, as the host's first learner holds it. It outlives this learner,
    if other learners of the host do."""

    def __init__(self) -> None:
        self._busy = False
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "roundelay.runtime.attached.hosts.process"],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def lives(self) -> bool:
        """True if the process has not ended."""
        return self.process.poll() is None

    def take_part(self, request: SessionRequest, descriptor: int) -> tuple[dict[int, str], bool]:
        """Let the process take part in a session, with the arena of `descriptor`. Return, by rank, the path of the pipe
        that wakes the carrier of a learner's exchanges; and True if this host comes back to a session that runs.

        Raises:
            UserError: the hosts do not find each other or do not agree, or the process has ended.
        """
        first = request.place.ranks[0]
        if self._busy:
            raise UserError(
                f"rank {first}: on several hosts there is one session at a time: close() the first before the next is "
                "attached. Several optimizers of one module are one session: attach(module, [first, second])."
            )
        seconds = request.patience_seconds + GRACE_SECONDS
        try:
            send_fact(self._channel, {"do": "session", "request": request.to_json()}, descriptor)
            if not select.select([self._channel], [], [], seconds)[0]:
                raise UserError(f"rank {first}: the process that speaks to other hosts said nothing for {seconds:g} s.")
            answer, _ = receive_fact(self._channel)
        except (OSError, EOFError, ValueError) as error:
            raise UserError(
                f"rank {first}: the process that speaks to other hosts has ended ({error}); what it printed says why."
            ) from error
        if "problem" in answer:
            raise UserError(str(answer["problem"]))
        self._busy = True
        return {int(rank): str(path) for rank, path in answer["wakes"].items()}, bool(answer["late"])

    def leave(self) -> None:
        """Note that this learner has left the session."""
        self._busy = False

    def drop(self) -> None:
        """Give up the session that the process was asked to take part in, for learners will not enter it."""
        self._busy = False
        with suppress(OSError):
            send_fact(self._channel, {"do": "drop"})


@cache
def _started() -> list[HostProcess]:
    return []


def host_process() -> HostProcess:
    """Return the process of this host that speaks to others; start it if it does not run."""
    found = _started()
    if not found or not found[-1].lives:
        found.append(HostProcess())
    return found[-1]
