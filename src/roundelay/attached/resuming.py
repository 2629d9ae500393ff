"""From a save on disk to what a learner of another session begins with.

With the learners of the save, under their strategy, each takes its own part back, bit for bit. With more or fewer of
them, after deaths, or under another strategy, rows, memory, centre and steps go by the rules of runtime/resize.py, and:

    optimizer    that of learner r mod L of the L that were saved, and what it knows of the noise of gradients
    buffers      by their rule (buffers.py)
    data         what is left of passes under way is dealt out (data_position.py)
    random       torch's generators are left as they are

Legend: P parameters, L learners that were saved.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roundelay.algorithms.averaging import weights_of
from roundelay.attached.buffers import Buffers
from roundelay.attached.data_position import DataPosition, Key, PassLeft, dealt_out, pieces_of, position_of, single
from roundelay.attached.save_files import FoundSave, from_plain
from roundelay.checkpoint import Part, read_meta, read_part
from roundelay.core.checksums import Damaged
from roundelay.core.errors import UserError
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
    """The first so many entries of `module` are trained parameters."""
    caches: frozenset[str] = frozenset()
    """Names of buffers that saves do not have; earlier versions saved them."""


@dataclass(frozen=True)
class Resumed:
    """State that a learner begins with.

    Attributes:
        state: for `SavedState.load`.
        buffers: packed, (B,).
        random: states of torch's generators, by device; none where learners have changed.
        samplers: by number.
        also: what the user saved beside it.
        said: in words, what was kept and what begins anew.
    """

    state: Mapping[str, Any]
    buffers: Tensor
    optimizers: Sequence[Any]
    random: Mapping[str, Tensor]
    samplers: Mapping[int, DataPosition]
    also: Mapping[str, Any]
    said: str


def check_fits(found: FoundSave, fitting: Fitting) -> None:
    """Refuse a save that is not one of such a session.

    Raises:
        UserError: it is of another module or optimizer; names both.
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
    """Return the state that a learner begins with.

    Raises:
        Damaged: a file is missing or not what was written; names it.
    """
    try:
        return _dealt(found, fitting, buffers) if found.dealt else own_state(_part_of(found.paths[0], fitting))
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise Damaged(f"{found.paths[0]}: no part of a save ({error!r}).") from error


def _part_of(path: Path, fitting: Fitting) -> Part:
    """Read a part, without caches that an earlier version has saved among the buffers."""
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
    """Return the state that a learner's own part has, with which it goes on where it was."""
    meta, tensors = part.meta, part.tensors
    return Resumed(
        {
            **_vectors(part),
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
    """Return weights of the rows of `holders` in their mean, by rank: those by mass, where the strategy weighs rows."""
    masses = {meta["rank"]: meta.get("mass") for meta in metas if meta["rank"] in holders}
    given = [0.0 if mass is None else float(mass) for mass in masses.values()]
    return dict(zip(masses, weights_of(given), strict=True))


def _data(
    metas: Sequence[Mapping[str, Any]], fitting: Fitting, passes: Sequence[Sequence[Any]]
) -> tuple[list[Any], dict[int, DataPosition]]:
    """Return the passes that all draw from, and positions by sampler. `passes` are those of the save; it has none of
    learners that waited for each other. Where these go on, all that was not drawn is dealt out; where they did, nothing
    is left to be drawn."""
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


def _vectors(part: Part) -> dict[str, Any]:
    memory = {name: part.tensors[f"memory.{name}"] for name in part.meta["memory"]}
    return {"row": part.tensors["row"], "memory": memory}


def _shared(part: Part) -> dict[str, Any]:
    """Return all that learners share, if it is in this part."""
    found = {"passes": part.meta["passes"]} if part.meta["passes"] is not None else {}
    return found | {name: tensor for name, tensor in part.tensors.items() if name.split(".")[0] == "centre"}
