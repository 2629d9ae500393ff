"""Saves of a session, and going on from one: what `Session.save` and `attach(resume=...)` do."""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundelay.attached.buffers import Buffers, cache_names, kept_buffers
from roundelay.attached.data_position import DataPosition
from roundelay.attached.resuming import Fitting, Resumed, check_fits, own_state, resumed_from
from roundelay.attached.save_files import FoundSave, find, folder_of, part_path, prune, saves, to_plain
from roundelay.attached.sharing import Shared
from roundelay.attached.steps import Steps
from roundelay.checkpoint import Room, bytes_of, pack_part, unpack_part, write_part
from roundelay.core.errors import UserError
from roundelay.runtime.attached.groups import local
from roundelay.runtime.attached.handover import Giver
from roundelay.runtime.resize import TrainedBy
from roundelay.strategies.base import Strategy

log = logging.getLogger("roundelay")

Meet = Callable[[str, Callable[[], None]], None]
"""`meet(kind, read)`: a meeting of the session's."""


def fitting(
    module: nn.Module, optimizers: Sequence[Optimizer], rank: int, learners: int, strategy: Strategy
) -> Fitting:
    """Return facts that a save must agree on with this learner."""
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    shapes = [[name, list(local(one).shape), str(one.dtype)] for name, one in (*trained, *kept_buffers(module))]
    kinds = [type(one).__name__ for one in optimizers]
    return Fitting(rank, learners, strategy, shapes, kinds, len(trained), frozenset(cache_names(module)))


def look_for(directory: Path, wanted: Fitting) -> FoundSave | None:
    """Return the newest save of which a learner can take its state; None: there is none.

    Raises:
        UserError: it does not fit, or is damaged; says in what, or names the file.
    """
    found = find(directory, wanted.rank, wanted.learners, wanted.strategy)
    if found is not None:
        check_fits(found, wanted)
    return found


class SessionSaves(Giver):
    """Saves of one session. What a learner that comes back is given is what a save would have of the one that gives it.

    Args:
        wanted: facts that saves and this session agree on.
        device: of the module; None: the memory of the host.
        meet: of the session.
        room: waits where a disk is full.
        made: the samplers of the session, as they are made.
    """

    def __init__(
        self,
        wanted: Fitting,
        steps: Steps,
        buffers: Buffers,
        optimizers: Sequence[Optimizer],
        device: torch.device | None,
        meet: Meet,
        room: Room,
        made: Sequence[Shared],
    ) -> None:
        self._made, self._also = made, dict[str, Any]()  # the `also` of the last save
        self._fitting, self._buffers, self._optimizers = wanted, buffers, optimizers
        self._learner, self._device, self._meet, self._room = steps.learner, device, meet, room
        self._parameters = steps.parameters
        self._whole: dict[Path, int] = {}  # by directory, the newest save that this learner has whole there
        self._last = 0  # the highest number of a save so far
        self.random: Mapping[str, Tensor] = {}
        """States of the generators of other processes of this learner, by device and place: for the next save, and of
        the one that was gone on from."""
        self.samplers: Mapping[int, DataPosition] = {}
        """Positions in data that samplers of this session begin at, by their numbers."""

    # Saving -----------------------------------------------------------------------------------------------------------

    def save(self, directory: Path, also: Mapping[str, Any], samplers: Sequence[Shared], keep: int) -> Path:
        """Save the session, and keep so many saves; the folder of this one.

        Raises:
            UserError: it cannot be written, or the directory holds saves of another training.
        """
        if keep < 2:
            raise UserError(f"save(keep={keep}): 2 is the least, for one stays whole while the next is written.")
        self._also = dict(also)
        directory, learner = directory.absolute(), self._learner
        repeats = learner.record.repeats  # then what is saved was written when that was recorded
        if directory not in self._whole and saves(directory) and not learner.late and not repeats:
            raise UserError(
                f"{directory} holds saves of another training: attach with resume={str(directory)!r} to go on from "
                "the newest, or save to another directory."
            )
        before = self._whole.setdefault(directory, 0)
        tensors: dict[str, Tensor] = {}
        meta: dict[str, Any] = {"also": to_plain(dict(also), "also", tensors)}
        learner.saved.note(before, self._last)
        oldest = 0

        def read() -> None:
            nonlocal oldest
            noted = learner.saved.noted()
            self._last, oldest = noted.last + 1, noted.whole
            meta.update(self._own(tensors), before=noted.whole, samplers=[one.state() for one in samplers])

        self._meet("save()", read)
        folder = folder_of(directory, self._last)
        if not repeats:
            prune(directory, oldest, keep)
            path = part_path(folder, learner.rank, learner.learners)
            self._room.wait_for(lambda: write_part(path, meta, tensors), directory, bytes_of(tensors.values()))
        self._whole[directory] = self._last
        return folder

    def _own(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Return all that is this learner's, in a meeting: plain values; tensors are put into `tensors`."""
        saved, wanted = self._learner.saved, self._fitting
        own, shared, strategy = saved.own(), saved.shared(), self._learner.strategy
        tensors |= {"row": own["row"], "buffers": self._buffers.pack()}
        tensors |= {f"memory.{name}": vector for name, vector in own["memory"].items()}
        tensors |= {name: vector for name, vector in shared.items() if isinstance(vector, Tensor)}
        random = {**random_states(self._device), **self.random}
        tensors |= {f"random.{device}": state for device, state in random.items()}
        ranks = saved.ranks
        states = [to_plain(one.state_dict(), f"optimizer.{n}", tensors) for n, one in enumerate(self._optimizers)]
        return {
            **TrainedBy.of(strategy, ranks).to_json(),
            "rank": wanted.rank,
            "learners": wanted.learners,
            "ranks": ranks,
            "options": dataclasses.asdict(strategy),  # type: ignore[call-overload]
            "module": wanted.module,
            "optimizers": wanted.optimizers,
            "optimizer_states": states,
            "steps": own["steps"],
            "mean_weight": own["mean_weight"],
            "noise": own["noise"],
            "mass": own.get("mass"),
            "passes": shared.get("passes"),
            "random": list(random),
        }

    # Going on ---------------------------------------------------------------------------------------------------------

    def resume(self, directory: Path, found: FoundSave | None) -> Mapping[str, Any] | None:
        """Go on from the newest save that all learners have; what the user saved beside it. None: there is none yet.

        Args:
            found: the newest that this learner has.

        Raises:
            UserError: only some learners have one, or it is damaged; names them.
        """
        directory, learner = directory.absolute(), self._learner
        chosen: list[Resumed] = []
        whole, last = 0 if found is None else found.number, max(saves(directory), default=0)
        if learner.group is not None and not learner.group.whole:  # a save is whole when all shards have it
            whole = learner.group.least(whole)
        if learner.record.resumed is not None:
            (whole, last), wanted = learner.record.resumed, self._fitting
            found = find(directory, wanted.rank, wanted.learners, wanted.strategy, whole) if whole else None
        learner.saved.note(whole, last)

        def read() -> None:
            noted = learner.saved.noted()
            self._last, self._whole[directory] = noted.last, noted.whole
            learner.record.note_resumed(noted.whole, noted.last)
            if noted.whole:
                resumed = self._resumed(directory, found, noted.whole)
                learner.saved.load(resumed.state)
                chosen.append(resumed)
            elif found is not None and found.before:
                raise UserError(
                    f"learners {list(noted.lacking)} find no save in {directory}, learner {learner.rank} has save "
                    f"{found.number}: give every learner the directory with its part, or all parts to all."
                )

        self._meet("attach(resume=...)", read)
        if not chosen:
            level = logging.INFO if found is None else logging.WARNING
            log.log(level, "rank %d: no save in %s that all learners have; training begins.", learner.rank, directory)
            return None
        self._take(chosen[0], folder_of(directory, self._whole[directory]))
        return chosen[0].also

    def come_back(self, directory: Path, found: FoundSave | None) -> Mapping[str, Any] | None:
        """Return what a learner that comes back to a running session needs of its own part of the newest save, and the
        others do not have: the optimizers' state, and what the user saved beside it. None: it has no part."""
        if found is None:
            return None
        if found.dealt:  # saved while somebody was missing, maybe this learner
            own = part_path(found.paths[0].parent, self._fitting.rank, self._fitting.learners)
            if own not in found.paths:
                return None
            found = dataclasses.replace(found, paths=(own,), dealt=False)
        resumed = resumed_from(found, self._fitting, self._buffers)
        self._load_optimizers(resumed, found.paths[0].parent)
        self._whole[directory.absolute()] = found.number
        return resumed.also

    def _resumed(self, directory: Path, found: FoundSave | None, number: int) -> Resumed:
        if found is None or found.number != number:  # some learner has not written the newest
            wanted = self._fitting
            found = find(directory, wanted.rank, wanted.learners, wanted.strategy, number)
        if found is None or found.number != number:
            raise UserError(
                f"rank {self._learner.rank}: {folder_of(directory, number)} is the newest save that all learners have, "
                "and this learner has no part of it: copy it here, or remove newer ones everywhere."
            )
        check_fits(found, self._fitting)
        return resumed_from(found, self._fitting, self._buffers)

    def _take(self, resumed: Resumed, folder: Path) -> None:
        """Take what is this learner's alone, after the meeting."""
        self._buffers.unpack(resumed.buffers)
        self._load_optimizers(resumed, folder)
        set_random_states(resumed.random, self._device)
        self.random = {name: state for name, state in resumed.random.items() if "." in name}
        self.samplers, self._also = resumed.samplers, dict(resumed.also)
        level = logging.INFO if resumed.random else logging.WARNING
        log.log(level, "rank %d goes on from %s: %s.", self._learner.rank, folder, resumed.said)

    def _load_optimizers(self, resumed: Resumed, folder: Path | str) -> None:
        for optimizer, state in zip(self._optimizers, resumed.optimizers, strict=True):
            try:
                optimizer.load_state_dict(state)
                self._parameters.take_state(optimizer)
            except (KeyError, ValueError) as error:
                raise UserError(
                    f"rank {self._learner.rank}: {type(optimizer).__name__} cannot go on from {folder} ({error}): give "
                    "it the parameter groups it had when it was saved."
                ) from error

    # Learners that come back, where all wait for each other -----------------------------------------------------------

    @property
    def cut(self) -> int:
        return max((one.cut for one in self._made), default=0)

    def state_for(self, rank: int) -> bytes:
        tensors: dict[str, Tensor] = {}
        meta = {"also": to_plain(self._also, "also", tensors), **self._own(tensors)}
        return pack_part(meta | {"samplers": [one.state(rank) for one in self._made]}, tensors)

    def take(self, given: bytes) -> Mapping[str, Any] | None:
        """Begin with the state that another learner has given to this one, which has come back; what the user last
        saved beside it, None: nothing."""
        resumed = own_state(unpack_part(given))
        self._learner.saved.load(resumed.state)
        self._learner.me.snapshot()
        self._buffers.unpack(resumed.buffers)
        self._load_optimizers(resumed, "the state that another learner gives it")
        self._learner.settings.note()  # as if it had come to the meeting with them
        self.samplers, self._also = resumed.samplers, dict(resumed.also)
        return resumed.also or None


def random_states(device: torch.device | None) -> dict[str, Tensor]:
    """Return states of torch's generators, by device."""
    found = {"cpu": torch.get_rng_state()}
    if device is not None and device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def set_random_states(states: Mapping[str, Tensor], device: torch.device | None) -> None:
    """Put torch's generators in these states, by device."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if device is not None and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
