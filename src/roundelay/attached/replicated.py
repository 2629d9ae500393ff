"""The session of a learner whose processes each have the whole module (runtime/attached/replicas.py), in each of them.

That of the first is the learner's. That of another process has no other learners, and its steps leave its row alone;
the first process tells it its own facts, so a loop finds the same in all. It holds nothing beside the module and its
gradient: the module looks at the point that it is shown.

Legend: P trainable parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundelay.attached.data_position import position_of
from roundelay.attached.save_files import from_plain, to_plain
from roundelay.attached.saves import random_states, set_random_states
from roundelay.attached.session import Session
from roundelay.attached.sharing import Followed, Shared
from roundelay.checkpoint import pack_part, unpack_part
from roundelay.runtime.attached.entering import AttachTerms
from roundelay.runtime.attached.replicas import Replicas
from roundelay.runtime.launch.world import World
from roundelay.strategies.ssgd import Ssgd


@final
class ReplicatedSession(Session):
    """The `Session` in one process of a learner whose processes each have the whole module. In all but the first, facts
    about all learners are those of the last meeting."""

    def __init__(
        self,
        module: nn.Module,
        optimizers: Sequence[Optimizer],
        world: World,
        terms: AttachTerms,
        resume: Path | None,
        group: Replicas,
    ) -> None:
        self._replicas, self._heard = group, dict[str, Any]()
        if group.follows:
            alone = AttachTerms(Ssgd(), terms.seed, terms.patience_seconds, rate="as-is")
            super().__init__(module, optimizers, World(), alone, None, group)
            self._learner.straggler, self._steps.rank = None, world.rank
            self.rank, self.learners, self.strategy = world.rank, world.learners, terms.strategy
            self._sharing = followed = Followed(self._learner, world.rank, world.learners, terms.strategy)
            self._followed = followed
        else:
            with group.failing():
                super().__init__(module, optimizers, world, terms, resume, group)
        group.begun = True
        self._steps.met()
        self._begin_as_first()

    def _begin_as_first(self) -> None:
        """Begin with the first process's buffers, and its part of a save."""
        replicas, buffers = self._replicas, self._buffers.pack()
        replicas.shown(buffers)
        self._buffers.unpack(buffers)
        random = dict(self._saves.random)
        resumed = None if self.resumed is None else dict(self.resumed)
        said = self._said({"back": self.came_back, "resumed": resumed, "random": random})
        self.came_back, self.resumed = said["back"], said["resumed"]
        split = [(*name.split("."), state) for name, state in said["random"].items()]
        set_random_states({of: state for of, place, state in split if place == str(replicas.place)}, self._device)
        self._hear()

    def _hear(self) -> None:
        """Take over the facts about all learners from the first process."""
        together = [] if self._replicas.follows else list(self._learner.together)
        self._heard = self._said({"living": self.living, "together": together, "summary": self.summary()})
        if self._replicas.follows:
            self._followed.together = self._heard["together"]

    def _said(self, value: Any, place: int = 0) -> Any:
        """Return the `value`, of plain values and tensors, that the process at `place` in the group gives."""
        tensors: dict[str, Tensor] = {}
        mine = place == self._replicas.place
        data = pack_part({"value": to_plain(value, "value", tensors)}, tensors) if mine else b""
        heard = self._replicas.said(data, place)
        if mine:
            return value
        part = unpack_part(heard)
        return from_plain(part.meta["value"], part.tensors)

    # The work of a session --------------------------------------------------------------------------------------------

    @property
    def living(self) -> tuple[int, ...]:
        if not self._replicas.follows:
            return super().living
        return tuple(self._heard.get("living", ())) if self.open else ()

    def summary(self) -> dict[str, Any]:
        return self._heard["summary"] if self._heard and self._replicas.follows else super().summary()

    def state_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = self._said(super().state_dict())
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._replicas.follows:
            self._meet("load_state_dict()", lambda: None)
            self._buffers.unpack(state["buffers"])
            return
        with self._replicas.failing():
            super().load_state_dict(state)

    def save(self, directory: str | Path, also: Mapping[str, Any] | None = None, keep: int = 2) -> Path:
        """Save as `Session.save` does. The first process alone writes: its own `also`, and the states of random numbers
        of all processes."""
        self._steps.check_open("save")
        replicas = self._replicas
        of_all = [self._said(random_states(self._device), place) for place in range(replicas.size)]
        if replicas.follows:
            self._meet("save()", lambda: None)
            return Path(self._said(None))
        others = [(place, states) for place, states in enumerate(of_all) if place]
        self._saves.random = {f"{name}.{place}": state for place, states in others for name, state in states.items()}
        with replicas.failing():
            folder = super().save(directory, also, keep)
        self._said(str(folder))
        return folder

    def _begin_shared(self, shared: Shared, number: int) -> None:
        super()._begin_shared(shared, number)
        position = self._said(shared.state())
        if self._replicas.follows:
            shared.resume(position_of(position))

    def _meet(self, kind: str, read: Callable[[], None]) -> None:
        super()._meet(kind, read)
        if self._replicas.begun:
            self._hear()

    def _consensus(self, kind: str, also: Callable[[], None] | None = None) -> tuple[Tensor, Tensor]:
        if self._replicas.follows:
            found = torch.empty(self._steps.parameters.count), self._buffers.pack()
            self._meet(kind, also or (lambda: None))
        else:
            found = super()._consensus(kind, also)
        for vector in found:
            self._replicas.shown(vector)
        return found
