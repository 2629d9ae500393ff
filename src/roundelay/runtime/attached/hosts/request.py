"""Requests of a host's first learner to the process that speaks to other hosts: take part in this session.

They go over a socket pair that nobody else has, as JSON, with a descriptor of the arena beside them.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, final

from roundelay.core.errors import UserError
from roundelay.runtime.attached.between_hosts import BetweenHosts
from roundelay.runtime.attached.inputs import InputTables
from roundelay.runtime.attached.meetings import MeetingTables
from roundelay.runtime.attached.membership import Attendance
from roundelay.runtime.attached.save_tables import SaveTables
from roundelay.runtime.attached.settings import SettingsTables
from roundelay.runtime.attached.shares import ShareTables
from roundelay.runtime.attached.turns import TurnTables
from roundelay.runtime.attached.votes import VoteTables
from roundelay.runtime.hosts.control.succession import may_be_led_by_another
from roundelay.runtime.hosts.options import SessionHostOptions
from roundelay.runtime.hosts.terms import HostTerms, check_may_go_on_between_hosts, check_may_travel, check_options
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.messages import plain, read
from roundelay.runtime.procs.coordination.passes import PassTables
from roundelay.runtime.procs.memory.arena import Layout
from roundelay.runtime.procs.memory.tables import View
from roundelay.runtime.procs.memory.views import BellTable, HostMeanSequences
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
HOSTS_VIEWS: tuple[type[View], ...] = (*ATTACHED_VIEWS, HostMeanSequences, BellTable, BetweenHosts)
"""The same, on one of several hosts."""


@final
@dataclass(frozen=True)
class SessionRequest:
    """One session, as a host takes part in it.

    Attributes:
        number: of the session; learners attach in the same order everywhere.
        agreement: what must be the same on all hosts.
        patience_seconds: how long learners wait for each other.
        shown_bytes, tensors: see `Layout`.
        processes: of the learners of this host.
        live: the folder of live.json, if there is to be one.
        on_gpus: learners compute on GPUs.
        goes_on: learners that wait for each other go on without one that dies.
        record: the folder of the script's record, if it is recorded.
        given_name: of sockets on this host (handover.py).
    """

    number: int
    place: HostPlace
    strategy: Strategy
    options: SessionHostOptions
    agreement: Mapping[str, Any]
    patience_seconds: float
    parameters: int
    shown_bytes: int
    tensors: int
    processes: tuple[int, ...]
    live: str = ""
    on_gpus: bool = False
    goes_on: bool = False
    record: str = ""
    given_name: str = ""

    @property
    def layout(self) -> Layout:
        """Layout of the host's arena."""
        return Layout(
            self.place.learners,
            self.parameters,
            self.strategy.memory,
            self.strategy.traits.model == "centre",
            views=HOSTS_VIEWS,
            shown_bytes=self.shown_bytes,
            tensors=self.tensors,
            centre_memory=self.strategy.centre_memory,
            weighed=self.strategy.weighed,
        )

    @property
    def terms(self) -> HostTerms:
        """Between hosts."""
        return HostTerms.of(
            self.options,
            patience_seconds=self.patience_seconds,
            on_death="go-on" if self.goes_on or not self.strategy.traits.synchronous else "stop",
            agreement=self.agreement,
            agreed="script",
            on_gpus=self.on_gpus,
            silence=self.options.silence,
        )

    @property
    def outlives_its_leader(self) -> bool:
        """Does another host lead the session when the first is lost?"""
        return may_be_led_by_another(self.strategy, self.goes_on)

    def to_json(self) -> dict[str, Any]:
        """
        Raises:
            UserError: the strategy is none of those that hosts know by name, or for one host, or an option has no
                effect under it.
        """
        check_may_travel(self.strategy)
        check_options(self.strategy, self.options)
        if self.options.silence != "majority" and not self.outlives_its_leader:
            raise UserError(
                f"hosts: silence is {self.options.silence!r}, but under {self.strategy.label} no host can lead in the "
                "place of the first, so that would have no effect. Leave it out."
            )
        if self.goes_on:
            check_may_go_on_between_hosts(self.strategy)
        name, options = self.strategy.name, dataclasses.asdict(self.strategy)  # type: ignore[call-overload]
        if STRATEGIES.get(name) is not type(self.strategy) or make_strategy(name, options) != self.strategy:
            raise UserError(
                f"{self.strategy.label} is a Strategy of your own: on several hosts those that have a name are known "
                "(`roundelay list strategies`). Attach it on one host."
            )
        return {
            **{field: getattr(self, field) for field in PLAIN},
            "place": {**plain(self.place), "secret": self.place.secret.hex(), "job": ""},
            "strategy": [name, options],
            "options": plain(self.options),
            "agreement": dict(self.agreement),
            "processes": list(self.processes),
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Self:
        """Return the story of this JSON: the inverse of `to_json`."""
        return cls(
            place=read(HostPlace, said["place"]),
            strategy=make_strategy(*said["strategy"]),
            options=read(SessionHostOptions, said["options"]),
            agreement=said["agreement"],
            processes=tuple(said["processes"]),
            **{field: said[field] for field in PLAIN},
        )


PLAIN = (
    *("number", "patience_seconds", "parameters", "shown_bytes", "tensors"),
    *("live", "on_gpus", "goes_on", "record", "given_name"),
)
"""Fields that are in JSON as they are."""
