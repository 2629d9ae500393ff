"""From a save on disk to what a learner of another session begins with.

With the learners of the save each takes its own part back, bit for bit. With more or fewer of them, or after deaths:

    row          the centre, or the mean of the rows that are models, by their masses where the strategy weighs them
    memory       of the strategy: the mean over all learners
    centre       stays
    steps        the largest
    optimizer    that of learner r mod L of the L that were saved, and what it knows of the noise of gradients
    buffers      by their rule (buffers.py)
    data         what is left of passes under way is dealt out (data_position.py)
    random       torch's generators are left as they are

Legend: P parameters, L learners that were saved.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from roundelay.algorithms.averaging import some_weight
from roundelay.attached.buffers import Buffers
from roundelay.attached.data_position import DataPosition, Key, dealt_out, position_of
from roundelay.attached.save_files import FoundSave, Part, from_plain, read_meta, read_part
from roundelay.core.checksums import Damaged
from roundelay.core.errors import UserError

Module = list[list[Any]]
"""Name, shape and type of each trained parameter and each buffer."""


@dataclass(frozen=True)
class Fitting:
    """Facts that a save and a session must agree on, for the session to resume from it."""

    rank: int
    learners: int
    strategy: str
    memory: tuple[str, ...]
    synchronous: bool
    module: Module
    optimizers: list[str]


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
    """Is the save one of such a session?

    Raises:
        UserError: it is of another strategy, module or optimizer; names both.
    """
    path = found.paths[0]
    meta = read_meta(path)
    saved = f"rank {fitting.rank}: {path.parent}"
    if meta["strategy"] != fitting.strategy:
        raise UserError(
            f"{saved} was saved under strategy {meta['strategy']}, and this session is {fitting.strategy}: give that "
            "strategy, or load the model alone, before attach."
        )
    if sorted(meta["memory"]) != sorted(fitting.memory):
        raise UserError(
            f"{saved} has {', '.join(meta['memory']) or 'nothing'} as memory of its strategy, this session "
            f"{', '.join(fitting.memory) or 'nothing'}: give {fitting.strategy} the options {meta['options']}."
        )
    for theirs, mine in zip(meta["module"], fitting.module, strict=False):
        if theirs != mine:
            raise UserError(
                f"{saved} is of another model: {theirs[0]} {theirs[1]} {theirs[2]} there is {mine[0]} {mine[1]} "
                f"{mine[2]} here. Build the model as it was when it was saved."
            )
    if len(meta["module"]) != len(fitting.module):
        raise UserError(
            f"{saved} is of another model: it has {len(meta['module'])} trained parameters and buffers, this one "
            f"{len(fitting.module)}. Build the model as it was when it was saved."
        )
    if meta["optimizers"] != fitting.optimizers:
        raise UserError(
            f"{saved} was saved with {', '.join(meta['optimizers'])}, and this session has "
            f"{', '.join(fitting.optimizers)}: give attach the same optimizers."
        )


def resumed_from(found: FoundSave, fitting: Fitting, buffers: Buffers) -> Resumed:
    """The state that a learner begins with.

    Raises:
        Damaged: a file is missing or not what was written; names it.
    """
    try:
        return _dealt(found, fitting, buffers) if found.resized else _own(read_part(found.paths[0]))
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise Damaged(f"{found.paths[0]}: no part of a save ({error!r}).") from error


def _own(part: Part) -> Resumed:
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
    rank, learners = fitting.rank, fitting.learners
    metas = [read_meta(path) for path in found.paths]
    total: dict[str, Tensor] = {}
    packed, shared, holders = [], dict[str, Any](), metas[0]["holders"]
    weights = _weights(metas, holders)
    for part in _parts(found):  # one at a time in memory
        for name, vector in {**_vectors(part)["memory"], "row": part.tensors["row"]}.items():
            if weight := weights.get(part.meta["rank"], 0.0) if name == "row" else 1.0:
                total[name] = total.get(name, torch.zeros(len(vector), dtype=torch.float64)).add_(vector, alpha=weight)
        packed.append(part.tensors["buffers"])
        shared |= _shared(part)
    model = shared.get("centre", (total.pop("row") / sum(weights.values())).float())
    own = read_part(found.paths[rank % len(found.paths)])
    memory = {name: (vector / len(metas)).float() for name, vector in total.items()}
    left = {tuple(key): pieces for key, _, pieces in shared.get("passes", ())}
    shared["passes"] = [[key, following, []] for key, following, _ in shared.get("passes", ())]
    largest = {name: max(meta[name] for meta in metas) for name in ("steps", "mean_weight")}
    state = {"row": model, "memory": memory, **largest, "noise": own.meta.get("noise"), **shared}
    model_is = "the centre" if "centre" in shared else f"the mean of the models of {len(holders)}"
    return Resumed(
        state,
        buffers.mean(packed),
        from_plain(own.meta["optimizer_states"], own.tensors),
        {},
        _samplers(metas, fitting, left),
        from_plain(own.meta["also"], own.tensors),
        f"saved by learners {metas[0]['ranks']} of {metas[0]['learners']}, now {learners}: every learner begins with "
        f"{model_is}, the mean of what the strategy remembers, and the optimizer state of learner "
        f"{own.meta['rank']}; what was left of epochs is dealt out anew, and random numbers begin anew",
    )


def _weights(metas: Sequence[Mapping[str, Any]], holders: Sequence[int]) -> dict[int, float]:
    """Weights of the rows of `holders` in their mean, by rank: their masses, where the strategy weighs rows."""
    masses = {meta["rank"]: meta.get("mass") for meta in metas if meta["rank"] in holders}
    given = [0.0 if mass is None else float(mass) for mass in masses.values()]
    return dict(zip(masses, some_weight(given), strict=True))


def _samplers(
    metas: Sequence[Mapping[str, Any]], fitting: Fitting, left: Mapping[tuple[int, ...], list[int]]
) -> dict[int, DataPosition]:
    states: dict[int, dict[int, Mapping[str, Any]]] = {}
    for meta in metas:
        for state in meta["samplers"]:
            states.setdefault(state["number"], {})[meta["rank"]] = state
    found = {}
    for number, by_rank in states.items():
        returned: dict[Key, list[int]] = {key[1:]: pieces for key, pieces in left.items() if key[0] == number}  # type: ignore[misc]
        found[number] = dealt_out(by_rank, fitting.rank, fitting.learners, fitting.synchronous, returned)
    return found


def _parts(found: FoundSave) -> Iterator[Part]:
    return (read_part(path) for path in found.paths)


def _vectors(part: Part) -> dict[str, Any]:
    memory = {name: part.tensors[f"memory.{name}"] for name in part.meta["memory"]}
    return {"row": part.tensors["row"], "memory": memory}


def _shared(part: Part) -> dict[str, Any]:
    """All that learners share, if it is in this part."""
    found = {"passes": part.meta["passes"]} if part.meta["passes"] is not None else {}
    return found | {name: tensor for name, tensor in part.tensors.items() if name.split(".")[0] == "centre"}
