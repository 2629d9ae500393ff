"""The entrance of attached learners: they find each other, agree on the training, and share memory.

Legend: P parameters, L learners.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from roundelay.core.errors import UserError
from roundelay.core.rates import LearnersRate
from roundelay.runtime.attached.hosts.starting import HostProcess, SessionRequest, host_process, layout_of, named
from roundelay.runtime.attached.settings import said
from roundelay.runtime.attached.turns import replayed_host
from roundelay.runtime.hosts.options import SessionHostOptions
from roundelay.runtime.hosts.terms import check_may_be_recorded, check_may_join, differing
from roundelay.runtime.launch.local_rendezvous import LocalRendezvous, SessionRuns, given_name
from roundelay.runtime.launch.world import World
from roundelay.runtime.learners_rate import settled
from roundelay.runtime.procs.coordination.collectives import reach_each_other, rows_may_leave, shared_for_means, visible
from roundelay.runtime.procs.coordination.passes import PassTables
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.device_rows import DeviceVectors
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.row_host import Handles, RowHost, RowRequest, RowsNotHosted, mapped
from roundelay.runtime.procs.memory.vectors import ArenaAccess, Vectors
from roundelay.runtime.procs.memory.views import NONE
from roundelay.runtime.procs.processes import check_may_go_on
from roundelay.runtime.rows import Row
from roundelay.strategies.base import Strategy

log = logging.getLogger("roundelay")


RowsAre = Literal["on the host", "on the host, the module elsewhere", "on a device of its own", "shared on devices"]
"""The place of rows, seen from a module."""


AttachedDeaths = Literal["stop", "go-on"]
"""Meanings of a death among attached learners that wait for each other: it ends the session, or the others go on."""


@dataclass(frozen=True)
class AttachTerms:
    """Terms of a session that all its learners must agree on."""

    strategy: Strategy
    seed: int
    patience_seconds: float
    module: Mapping[str, Any] = field(default_factory=dict)  # its parameters and buffers, in words
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the optimizers; see settings.py
    tensors: int = 0  # trainable parameters of the module are in so many
    hosts: SessionHostOptions = SessionHostOptions()  # between hosts, where there are several
    live: str = ""  # the folder of live.json, if there is to be one
    record: str | Path | None = None  # the folder of the session's record, if it is recorded
    repeats: Path | None = None  # the one that is repeated, as `record`
    processes: int = 1  # of each learner
    on_death: AttachedDeaths = "stop"  # of learners that wait for each other; others go on anyway
    rate: LearnersRate = "auto"  # treatment of the optimizers' learning rates

    def __post_init__(self) -> None:
        if not self.patience_seconds > 0:
            raise UserError(f"patience is {self.patience_seconds}: give seconds above 0.")
        if self.rate not in get_args(LearnersRate):
            raise UserError(f"rate is {self.rate!r}: choose one of {', '.join(get_args(LearnersRate))}.")
        object.__setattr__(self, "record", str(Path(self.record).absolute()) if self.record else None)
        object.__setattr__(self, "rate", settled(self.rate, self.strategy, shared=False))
        object.__setattr__(self, "strategy", self.strategy.under(self.rate, shared=False))
        if self.on_death not in get_args(AttachedDeaths):
            raise UserError(f"on_death is {self.on_death!r}: choose one of {', '.join(get_args(AttachedDeaths))}.")
        if self.on_death == "go-on":
            check_may_go_on(self.strategy, "on_death")

    @property
    def goes_on(self) -> bool:
        """True if learners that wait for each other go on without one that dies."""
        return self.strategy.traits.synchronous and self.on_death == "go-on"

    @property
    def settings_in_common(self) -> Mapping[str, Any]:
        """Settings of optimizers that must be the same on all learners, where rows are equal and each steps its own."""
        equal = self.strategy.traits.rows == "equal"
        return {name: value for name, value in self.settings.items() if equal and name != "torch"}

    @property
    def needs_all(self) -> bool:
        """True if the death of one learner ends the session."""
        return self.strategy.traits.synchronous and not self.goes_on

    @property
    def advice(self) -> str:
        """A way to go on without a learner that has died, where its death ends the session."""
        return '; with attach(..., on_death="go-on") those who are left train on' if self.needs_all else ""


class Entrance:
    """Entrance of one learner, which finds the others, agrees on the terms, and opens their shared memory.

    Args:
        initial: the row at the beginning, (P,) float32; rank 0's counts.
        shown: bytes shown to the others at the start, (n,) uint8; as many on each learner.
        device: device of the module; None: the memory of the host.
        session: number of the session; learners attach in the same order everywhere.
    """

    def __init__(
        self,
        world: World,
        terms: AttachTerms,
        initial: Tensor,
        shown: Tensor,
        device: torch.device | None,
        session: int,
    ) -> None:
        if world.place is not None:
            check_may_join(terms.strategy, world.place)
            if terms.record:
                on_gpus = device is not None and device.type == "cuda"
                check_may_be_recorded(terms.strategy, terms.hosts, on_gpus)
        self._place, self._first, self._here, self._session = world.place, world.here[0], world.here, session
        self._given_name = given_name(world, session)
        self.rank, self.learners, self.strategy, self._terms = world.rank, world.learners, terms.strategy, terms
        self._initial, self._shown, self._device = initial, shown, device
        self.facts: dict[str, Any] = {
            "rate": terms.rate,  # first: weights of the strategy follow it
            "strategy": repr(terms.strategy),
            "seed": terms.seed,
            "on_death": terms.on_death,
            **terms.module,
            **terms.settings_in_common,
            "parameters": initial.numel(),
            "bytes of buffers": shown.numel(),
            "record": terms.record,
        }
        self._kept: list[Handles] | None = None  # of rows on devices; see `_keep`
        self.row_host: RowHost | None = None
        """The process that keeps rows on devices, if this learner has started it."""
        self.host_process: HostProcess | None = None
        """The process that speaks to other hosts, if this learner has started it."""
        self.wakes: dict[int, str] = {}
        """By rank of this host, the path of the pipe that wakes the carrier of a learner's exchanges to other hosts."""
        self.late = False
        """True if the session runs already, and this learner comes back to it."""
        self._alone = False  # does it come back to others of this host?

    @contextmanager
    def open(self, rendezvous: LocalRendezvous, patience: Patience) -> Iterator[ArenaAccess]:
        """Open the memory that all learners of this host share. In the `with`, the first of them goes on to `share` it.

        Raises:
            UserError: the learners do not agree, or this one cannot open the first one's memory.
        """
        layout, leads = self._layout(), self.rank == self._first
        others: list[dict[str, Any]] = []
        try:
            if leads:
                others = rendezvous.collect()
                self._kept = self._keep(layout, others)
                self._file, handles = create_file(layout), None if self._kept is None else self._kept[0]
            else:
                facts, self._file = rendezvous.enter({**self.facts, **self._whereabouts})
        except SessionRuns as running:
            self.late, self._alone, leads = True, True, False
            facts, self._file = rendezvous.come_back(running, self.facts)
        try:
            if not leads:
                self._check(facts)
                handles = facts.get("rows")
                self.wakes = {int(rank): path for rank, path in facts.get("wakes", {}).items()}
                self.late = self.late or bool(facts.get("late"))
            access = self._access(layout, self._on_devices(layout, handles), patience)
            if leads:
                self._fill(access)
                self._meet_other_hosts([os.getpid(), *(int(other["process"]) for other in others)])
            yield access
        except BaseException:
            if self.host_process is not None:
                self.host_process.drop()
            raise
        finally:
            os.close(self._file)  # it is mapped, and on its way to the others

    def _access(self, layout: Layout, on_devices: DeviceVectors | None, patience: Patience) -> ArenaAccess:
        try:
            return ArenaAccess(f"/proc/self/fd/{self._file}", layout, self.rank, patience, on_devices)
        except (OSError, ValueError) as error:
            raise UserError(f"rank {self.rank}: rank {self._first}'s memory cannot be opened ({error}).") from error

    def _fill(self, access: ArenaAccess) -> None:
        """Write the first rows of all learners of this host, and the centre."""
        for row in access.rows:
            if row.rank in self._here or row.rank == self.learners:
                write(row, self._initial)
        access.arena.view(PassTables).held[:] = NONE
        for rank in self._here:
            access.arena.shown(rank).copy_(self._shown)

    def _meet_other_hosts(self, processes: Sequence[int]) -> None:
        """Ask this host's process for other hosts to take part in the session, if there are several hosts. After that
        the rows here are rank 0's."""
        if self._place is None:
            return
        on_gpus = self._device is not None and self._device.type == "cuda"
        between = {
            "means over hosts": self._terms.hosts.library(on_gpus) or "chain",
            "silence": self._terms.hosts.silence,
        }
        request = SessionRequest(
            self._session,
            self._place,
            named(self.strategy),
            self._terms.hosts,
            {**self.facts, "record": bool(self._terms.record), "session": self._session, **between},
            self._terms.patience_seconds,
            self._initial.numel(),
            self._shown.numel(),
            self._terms.tensors,
            tuple(processes),
            self._terms.live,
            on_gpus,
            self._terms.goes_on,
            str(self._terms.record or ""),
            self._given_name,
            None if self._kept is None else self._kept[-1],
        )
        speaker = host_process()
        self.wakes, self.late = speaker.take_part(request, self._file)
        self.host_process = speaker

    def share(self, rendezvous: LocalRendezvous) -> None:
        """Tell the other learners of this host where the rows are; called by the first."""
        if self.rank != self._first or self._alone:
            return
        for rank in self._here[1:]:
            handles = None if self._kept is None else self._kept[self._here.index(rank)]
            told = {**self.facts, "rows": handles, "wakes": self.wakes, "late": self.late}
            rendezvous.tell(rank, told, self._file)

    def agrees(self, access: ArenaAccess) -> bool:
        """Return True if this learner came with rank 0's weights and buffers. Call it before the others may train,
        since they write this row then."""
        there = access.arena.vector("row", self.rank).cpu()
        same_bits = torch.equal(self._initial.cpu().view(torch.int32), there.view(torch.int32))
        return same_bits and torch.equal(self._shown, access.arena.shown(self.rank))

    def _layout(self) -> Layout:
        several, facts = self._place is not None, self.facts
        return layout_of(
            self.strategy, self.learners, facts["parameters"], facts["bytes of buffers"], self._terms.tensors, several
        )

    @property
    def _whereabouts(self) -> dict[str, Any]:
        """Facts of this learner that the first of its host needs to share rows on devices."""
        device = None if self._device is None else str(self._device)
        return {"device": device, "visible": visible(), "process": os.getpid()}

    def _keep(self, layout: Layout, others: Sequence[dict[str, Any]]) -> list[Handles] | None:
        """Keep the vectors that learners of this host share on devices, by the first of them, where all are on devices
        that reach each other; return the handles for each learner, and for the process that speaks to other hosts, if
        there are any. None: these vectors are in the arena.

        Args:
            others: facts that the other learners of this host have sent, by rank.
        """
        several = self._place is not None
        if self._device is None or not (others or several) or not self._names(layout):
            return None
        if (several and self._terms.record) or replayed_host(self._terms.repeats, self.rank):
            return None  # notes of exchanges between hosts are of rows in the arena
        every = [self._whereabouts, *others]
        if any(one.get("visible") != visible() or one.get("device") is None for one in every):
            return None
        devices = tuple(str(one["device"]) for one in every)
        if not reach_each_other(torch.device(device) for device in devices):
            return None
        own = dict(zip(self._here, devices, strict=True))
        wanted = RowRequest(
            self._names(layout),
            layout.parameters,
            layout.centre,
            tuple(own.get(rank, "") for rank in range(self.learners)),
            len(every) + several,
            layout.centre_memory,
        )
        try:
            self.row_host = RowHost(wanted, self._terms.patience_seconds)
        except RowsNotHosted as error:
            log.warning("the GPUs cannot keep what learners share (%s): it is in the memory of the host.", error)
            return None
        return self.row_host.handles

    def _names(self, layout: Layout) -> tuple[str, ...]:
        """Return the names of the vectors that others read and write, and that may be on devices."""
        if rows_may_leave(self.strategy, self._place is None):
            return ("row", *layout.memory)
        needs_all = self._place is None and self._terms.needs_all  # who comes back maps what is in the arena
        return shared_for_means(self.strategy) if needs_all else ()

    def _on_devices(self, layout: Layout, handles: Handles | None) -> DeviceVectors | None:
        if self.learners == 1 and self._device is not None:
            rows = DeviceVectors.allocate(
                ("row", *layout.memory), layout.parameters, layout.centre, [self._device], layout.centre_memory
            )
            return replace(rows, shared=False)
        if handles is None:
            return None
        try:
            here = [rank in self._here for rank in range(self.learners)]
            return mapped(handles, self._names(layout), layout.parameters, layout.centre, here, layout.centre_memory)
        except (OSError, ValueError) as error:
            raise UserError(f"rank {self.rank}: what learners share on devices cannot be mapped ({error}).") from error

    def _check(self, theirs: dict[str, Any]) -> None:
        found = differing(self.facts, {name: theirs.get(name) for name in self.facts})
        for name, mine, other in found[:1]:
            advice = (
                "what is not trained is not sent, so make it by the same seed on all, or load it from one file"
                if name.startswith("values of frozen")
                else "all learners must run the same script with the same options, and attach in the same order"
            )
            raise UserError(
                f"rank {self.rank} attaches with {name} {said(mine)}, rank {self._first} with {said(other)}: {advice}."
            )


def write(row: Row, vector: Tensor) -> None:
    """Write `vector` (P,) into `row` while no learner trains, under the row's lock: on a device, the write takes its
    time."""
    with row.lock:
        row.vector.copy_(vector)


def place_of_rows(arena: Arena, vectors: Vectors, device: torch.device | None) -> RowsAre:
    """Return the place of the rows of a learner whose module is on `device`."""
    if device is None:
        return "on the host"
    if not vectors.resident:
        return "on the host, the module elsewhere"
    return "shared on devices" if arena.has_rows_on_devices and arena.layout.learners > 1 else "on a device of its own"
