"""Saves of a session, and going on from one: the work of `Session.save` and `attach(resume=...)`.

From a save on disk to the state that a learner of another session begins with.

With the learners of the save, under their strategy, each takes its own part back, bit for bit. With more or fewer of
them, after deaths, or under another strategy, rows, memory, centre and steps go by the rules of runtime/resize.py, and:

    optimizer    that of learner r mod L of the L that were saved, and its estimate of the noise of gradients
    buffers      by their rule (parameters.py)
    data         the rest of passes under way is dealt out (data_position.py)
    random       torch's generators are left as they are
"""

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundelay.algorithms.averaging import weights_of
from roundelay.attached.data_position import DataPosition, Key, PassLeft, dealt_out, pieces_of, position_of, single
from roundelay.attached.parameters import Buffers, cache_names, kept_buffers
from roundelay.attached.save_files import FoundSave, find, folder_of, from_plain, part_path, prune, saves, to_plain
from roundelay.attached.sharing import Shared
from roundelay.attached.steps import Steps
from roundelay.checkpoint import Part, Room, bytes_of, pack_part, read_meta, read_part, unpack_part, write_part
from roundelay.core.checksums import Damaged
from roundelay.core.errors import UserError
from roundelay.runtime.attached.groups import local
from roundelay.runtime.attached.handover import Giver
from roundelay.runtime.resize import RunningMean, TrainedBy
from roundelay.strategies.base import Strategy

Module = list[list[Any]]
"""Name, shape and type of each trained parameter and each buffer."""


@dataclass(frozen=True)
class Fitting:
    """Facts that a save and a session must agree on, for the session to resume from it; and who resumes."""

    rank: int
    learners: int
    strategy: Strategy
    module: Module
    optimizers: list[str]
    trained: int
    """Number of entries at the beginning of `module` that are trained parameters."""
    caches: frozenset[str] = frozenset()
    """Names of buffers that saves do not have; earlier versions saved them."""


@dataclass(frozen=True)
class Resumed:
    """The state that a learner begins with when it goes on from a save."""

    state: Mapping[str, Any]  # for `SavedState.load`
    buffers: Tensor  # packed, (B,)
    optimizers: Sequence[Any]
    random: Mapping[str, Tensor]  # states of torch's generators, by device; none where learners have changed
    samplers: Mapping[int, DataPosition]  # by number
    also: Mapping[str, Any]  # what the user saved beside it
    said: str  # in words, what was kept and what begins anew


def check_fits(found: FoundSave, fitting: Fitting) -> None:
    """Refuse a save that this session cannot go on from.

    Raises:
        UserError: the save is of another module or optimizer; names both.
    """
    path = found.paths[0]
    meta = read_meta(path)
    saved = f"rank {fitting.rank}: {path.parent}"
    module = [entry for entry in meta["module"] if entry[0] not in fitting.caches]
    for theirs, mine in zip(module, fitting.module, strict=False):
        if theirs != mine:
            raise UserError(
                f"{saved} is of another model: {theirs[0]} {theirs[1]} {theirs[2]} there is {mine[0]} {mine[1]} "
                f"{mine[2]} here. Build the model as it was when it was saved."
            )
    if len(module) != len(fitting.module):
        raise UserError(
            f"{saved} is of another model: it has {len(module)} trained parameters and buffers, this one "
            f"{len(fitting.module)}. Build the model as it was when it was saved."
        )
    if meta["optimizers"] != fitting.optimizers:
        raise UserError(
            f"{saved} was saved with {', '.join(meta['optimizers'])}, and this session has "
            f"{', '.join(fitting.optimizers)}: give attach the same optimizers."
        )


def resumed_from(found: FoundSave, fitting: Fitting, buffers: Buffers) -> Resumed:
    """Return the state that a learner takes from the save `found`.

    Raises:
        Damaged: a file is missing or not as it was written; names it.
    """
    try:
        return _dealt(found, fitting, buffers) if found.dealt else own_state(_part_of(found.paths[0], fitting))
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise Damaged(f"{found.paths[0]}: no part of a save ({error!r}).") from error


def _part_of(path: Path, fitting: Fitting) -> Part:
    """Return a learner's part of a save, without caches that an earlier version has saved among the buffers."""
    part, kept, offset = read_part(path), list[Tensor](), 0
    for name, shape, kind in part.meta["module"][fitting.trained :]:
        end = offset + math.prod(shape) * getattr(torch, kind.removeprefix("torch.")).itemsize
        if name not in fitting.caches:
            kept.append(part.tensors["buffers"][offset:end])
        offset = end
    if kept:
        return replace(part, tensors={**part.tensors, "buffers": torch.cat(kept)})
    return replace(part, tensors={**part.tensors, "buffers": part.tensors["buffers"][:0]})


def own_state(part: Part) -> Resumed:
    """Return the state in a learner's own part of a save, with which it goes on exactly where it was."""
    meta, tensors = part.meta, part.tensors
    return Resumed(
        {
            "row": tensors["row"],
            "memory": {name: tensors[f"memory.{name}"] for name in meta["memory"]},
            "steps": meta["steps"],
            "mean_weight": meta["mean_weight"],
            "noise": meta.get("noise"),  # earlier versions had none
            "mass": meta.get("mass"),
            **_shared(part),
        },
        tensors["buffers"],
        from_plain(meta["optimizer_states"], tensors),
        {device: tensors[f"random.{device}"] for device in meta["random"]},
        {state["number"]: position_of(state) for state in meta["samplers"]},
        from_plain(meta["also"], tensors),
        f"{meta['learners']} learners go on where they were, after {meta['steps']} steps of this one",
    )


def _dealt(found: FoundSave, fitting: Fitting, buffers: Buffers) -> Resumed:
    rank, learners, strategy = fitting.rank, fitting.learners, fitting.strategy
    metas = [read_meta(path) for path in found.paths]
    trained, packed, shared = TrainedBy.from_json(metas[0]), [], dict[str, Any]()
    kept, weights = trained.remembered_by(strategy), _weights(metas, trained.holders)
    row, memory = RunningMean(), {name: RunningMean() for name in (strategy.memory if kept else ())}
    for path in found.paths:  # one at a time in memory
        part = _part_of(path, fitting)
        row.add(part.tensors["row"], weights.get(part.meta["rank"], 0.0))
        for name, one in memory.items():
            one.add(part.tensors[f"memory.{name}"])
        packed.append(part.tensors["buffers"])
        shared |= _shared(part)
    trained = replace(trained, centre="centre" in shared)
    model = shared["centre"] if trained.centre else row.value
    passes, positions = _data(metas, fitting, shared.pop("passes", ()))
    remembered = {name: one.value for name, one in memory.items()}
    if not kept:
        remembered = dict.fromkeys(strategy.memory, nothing := torch.zeros_like(model))
        beside = {f"centre.{name}": nothing for name in strategy.centre_memory}
        shared = {"centre": model, **beside} if strategy.traits.model == "centre" else {}
    own = read_part(found.paths[rank % len(found.paths)])
    state = {"row": model, "memory": remembered, "passes": passes, **shared}
    state |= {name: max(meta[name] for meta in metas) if kept else 0 for name in ("steps", "mean_weight")}
    optimizer = f"the optimizer state of learner {own.meta['rank']}"
    what = trained.become(strategy, f"the models of {len(trained.holders)}", optimizer)
    return Resumed(
        {**state, "noise": own.meta.get("noise")},
        buffers.mean(packed),
        from_plain(own.meta["optimizer_states"], own.tensors),
        {},
        positions,
        from_plain(own.meta["also"], own.tensors),
        f"saved by learners {metas[0]['ranks']} of {metas[0]['learners']}, now {learners}: {what}; what was left of "
        "epochs is dealt out anew, and random numbers begin anew",
    )


def _weights(metas: Sequence[Mapping[str, Any]], holders: Sequence[int]) -> dict[int, float]:
    """Return weights by rank of the rows of `holders` in their mean: by mass, where the strategy weighs rows."""
    masses = {meta["rank"]: meta.get("mass") for meta in metas if meta["rank"] in holders}
    given = [0.0 if mass is None else float(mass) for mass in masses.values()]
    return dict(zip(masses, weights_of(given), strict=True))


def _data(
    metas: Sequence[Mapping[str, Any]], fitting: Fitting, passes: Sequence[Sequence[Any]]
) -> tuple[list[Any], dict[int, DataPosition]]:
    """Return the passes over data that all learners draw from, and this learner's positions by sampler. `passes` are
    those of the save: none under a synchronous strategy. Where this session's strategy is synchronous, all that was not
    drawn is dealt out; where the save's was, nothing is left to be drawn."""
    queues, found, wait = list[Any](), dict[int, DataPosition](), fitting.strategy.traits.synchronous
    states: dict[int, dict[int, Mapping[str, Any]]] = {}
    for meta in metas:
        for state in meta["samplers"]:
            states.setdefault(state["number"], {})[meta["rank"]] = state
    for number, by_rank in states.items():
        drawn: dict[Key, Any] = {
            (key[1], key[2]): (following, again) for key, following, again in passes if key[0] == number
        }
        first = next(iter(by_rank.values()))
        lefts = {key: left for state in by_rank.values() for key, left in position_of(state).left.items()}
        whole = {key: PassLeft(first["learners"], first["examples"], ()) for key in drawn} | lefts
        pieces = {key: pieces_of(one, first["batch_size"]) for key, one in whole.items()}
        left = {
            key: [*map(single, again), *([range(following, pieces[key])] if wait else [])]
            for key, (following, again) in drawn.items()
        }
        found[number] = dealt_out(by_rank, fitting.rank, fitting.learners, not passes, left)
        if not wait:
            queues += [[[number, *key], drawn[key][0] if key in drawn else end, []] for key, end in pieces.items()]
    return queues, found


def _shared(part: Part) -> dict[str, Any]:
    """Return the state that learners share, if it is in this part of a save; else an empty dict."""
    found = {"passes": part.meta["passes"]} if part.meta["passes"] is not None else {}
    return found | {name: tensor for name, tensor in part.tensors.items() if name.split(".")[0] == "centre"}


log = logging.getLogger("roundelay")

Meet = Callable[[str, Callable[[], None]], None]
"""Function `meet(kind, read)` that holds a meeting of the session; see `AttachedLearner.meet`."""


def fitting(
    module: nn.Module, optimizers: Sequence[Optimizer], rank: int, learners: int, strategy: Strategy
) -> Fitting:
    """Return the facts that a save must agree on for this learner to resume from it."""
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    shapes = [[name, list(local(one).shape), str(one.dtype)] for name, one in (*trained, *kept_buffers(module))]
    kinds = [type(one).__name__ for one in optimizers]
    return Fitting(rank, learners, strategy, shapes, kinds, len(trained), frozenset(cache_names(module)))


def look_for(directory: Path, wanted: Fitting) -> FoundSave | None:
    """Return the newest save from which a learner can go on; None if there is no save.

    Raises:
        UserError: the save does not fit, and says in what; or all saves are damaged, and names the files.
    """
    found = find(directory, wanted.rank, wanted.learners, wanted.strategy)
    if found is not None:
        check_fits(found, wanted)
    return found


class SessionSaves(Giver):
    """Writing and loading of one session's saves. A learner that comes back is given, by another, the state that a save
    of that one would have.

    Args:
        wanted: facts that saves and this session agree on.
        device: device of the module; None: the memory of the host.
        meet: holds a meeting of the session.
        room: waits where a disk is full.
        made: the list of the session's samplers, which grows as they are made.
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
        """Save the session, keep the newest `keep` saves, and return the folder of this one.

        Raises:
            UserError: the save cannot be written, or `directory` holds saves of another training.
        """
        if keep < 2:
            raise UserError(f"save(keep={keep}): 2 is the least, for one stays whole while the next is written.")
        self._also = dict(also)
        directory, learner = directory.absolute(), self._learner
        repeats = learner.record.repeats  # then the save was written when that was recorded
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
        """Return, in a meeting, this learner's own state as plain values; put its tensors into `tensors`."""
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
        """Go on from the newest save that all learners have; return the values that the user saved in it, or None if
        there is no save yet.

        Args:
            found: the newest save that this learner has.

        Raises:
            UserError: only some learners have a save, or it is damaged; names them.
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
        """Load, for a learner that comes back to a running session, the optimizers' state in its own part of the newest
        save; return the values that the user saved in it. None: it has no part."""
        if found is None:
            return None
        if found.dealt:  # saved while a learner was missing, maybe this one
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
        """Load this learner's own values, after the meeting: buffers, optimizers, random states, data positions."""
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
        """Begin with the state `given` by another learner to this one, which has come back. Return the values that the
        user saved in this learner's last save; None if there are none."""
        resumed = own_state(unpack_part(given))
        self._learner.saved.load(resumed.state)
        self._learner.me.snapshot()
        self._buffers.unpack(resumed.buffers)
        self._load_optimizers(resumed, "the state that another learner gives it")
        self._learner.settings.note()  # as if it had come to the meeting with them
        self.samplers, self._also = resumed.samplers, dict(resumed.also)
        return resumed.also or None


def random_states(device: torch.device | None) -> dict[str, Tensor]:
    """Return the states of torch's random generators, by device."""
    found = {"cpu": torch.get_rng_state()}
    if device is not None and device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def set_random_states(states: Mapping[str, Tensor], device: torch.device | None) -> None:
    """Set torch's random generators to these states, by device."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if device is not None and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
