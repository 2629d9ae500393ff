"""A learner of several processes that each have the whole module, under torch's DistributedDataParallel.

Torch averages their gradients. The first process is the learner: it alone has a row, steps the optimizers, meets other
learners and saves. The others take no step of their own: they show what the first shows,
when it has taken a step, when it begins one at another point, and after a meeting. So a learner has one row and one
state of its optimizers, and exchanges as much as one of a single process.

What the first has to say goes by a message: a header, and a vector, bytes or an error behind it. The others wait for
it wherever the first may fail, and fail with it.

Legend: P trainable parameters.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from roundelay.core.errors import UserError
from roundelay.runtime.attached.groups import Group, check_follow_each_other
from roundelay.runtime.base import LearnerDied
from roundelay.runtime.launch.world import launched_group

AS_BEFORE, MOVED, WORDS_FOLLOW, ERROR_FOLLOWS = range(4)
"""Kinds of messages."""
RAISED_AS_SUCH: Mapping[str, type[Exception]] = {"UserError": UserError, "TimeoutError": TimeoutError}
"""Errors that the others raise as such."""
FAILING_SECONDS = 10
"""So long the first process waits for the others to hear that it has failed."""

Change = Callable[[Tensor], None]
"""A change of a row (P,)."""


@dataclass
class Replicas(Group):
    """The processes of such a learner.

    Attributes:
        wrapper: the user's, around the module.
        begun: all have attached, and hear what the first says.
    """

    whole: ClassVar[bool] = True

    wrapper: nn.parallel.DistributedDataParallel
    begun: bool = field(default=False, init=False)
    _shared: tuple[int, int] = field(default=(0, -1), init=False)
    _said_error: BaseException | None = field(default=None, init=False)

    @property
    def follows(self) -> bool:
        """True in all but the first."""
        return self.place > 0

    def shown(self, vector: Tensor, moved: bool = True) -> bool:
        """Write into `vector`, of any shape, what it is in the first process, if that says that it has moved; return
        whether.

        Raises:
            LearnerDied, TimeoutError, UserError, RuntimeError: the first has failed, and with what.
        """
        kind, _ = self._header(MOVED if moved else AS_BEFORE)
        if kind == MOVED and vector.numel():
            there = vector.to(self.device)
            dist.broadcast(there, self.first, group=self.together)
            if there is not vector:
                vector.copy_(there)
        return kind == MOVED

    def share(self, point: Tensor, version: int, spare: Tensor, change_row: Callable[[Change], None]) -> None:
        """Show the others the `point` (P,), a copy of the row at that version, if they have another, once all have
        attached; or take it from the first into the row, by way of `spare`.

        Raises:
            LearnerDied, TimeoutError, UserError, RuntimeError: the first has failed, and with what.
        """
        if not self.begun:
            return
        if not self.follows:
            now = point.data_ptr(), version
            self.shown(point, moved=now != self._shared)
            self._shared = now
        elif self.shown(spare):

            def replace(row: Tensor) -> None:
                row.copy_(spare)

            change_row(replace)

    def said(self, data: bytes, place: int = 0) -> bytes:
        """Return what the process at that place says; of the others `data` counts for nothing.

        Raises:
            LearnerDied, TimeoutError, UserError, RuntimeError: the first has failed, and with what.
        """
        _, size = self._header(WORDS_FOLLOW, len(data), place)
        return self._bytes(size, place, data)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Let the others hear of an error in the first process, which they wait for."""
        try:
            yield
        except Exception as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Tell the others that the first process fails, with this error, once."""
        if self.follows or error is self._said_error or not isinstance(error, Exception):
            return
        self._said_error = error
        data = json.dumps(_said_of(error)).encode()
        with suppress(RuntimeError):  # of torch: they have failed before, or are not there any more
            for part in (
                torch.tensor([ERROR_FOLLOWS, len(data)]),
                torch.frombuffer(bytearray(data), dtype=torch.uint8),
            ):
                work = dist.broadcast(part.to(self.device), self.first, group=self.together, async_op=True)
                work.wait(timedelta(seconds=FAILING_SECONDS))

    def check_averaged(self, gradients: Iterable[Tensor], rank: int) -> None:
        """Check that all processes have the same gradients.

        Raises:
            UserError: they have not, for they were not averaged.
        """
        mine = torch.tensor([sum(float(one.double().sum()) for one in gradients)], dtype=torch.float64).to(self.device)
        every = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(every, mine, group=self.together)
        if any(other.view(torch.int64) != mine.view(torch.int64) for other in every):
            self._said_error = UserError(
                f"rank {rank}: the {self.size} processes of this learner have different gradients: run the forward by "
                "the DistributedDataParallel that was attached, not by its module, and the last one of a step outside "
                "of its no_sync()."
            )
            raise self._said_error  # in all of them

    def _header(self, kind: int, size: int = 0, place: int = 0) -> tuple[int, int]:
        said = torch.tensor([kind, size], device=self.device)
        dist.broadcast(said, self.first + place, group=self.together)
        kind, size = said.tolist()
        if kind == ERROR_FOLLOWS and self.follows:
            raise _error_of(json.loads(self._bytes(size)))
        return kind, size

    def _bytes(self, size: int, place: int = 0, data: bytes = b"") -> bytes:
        part = torch.frombuffer(bytearray(data if place == self.place else size), dtype=torch.uint8).to(self.device)
        dist.broadcast(part, self.first + place, group=self.together)
        return part.cpu().numpy().tobytes()


def replicas_of(module: nn.Module) -> Replicas | None:
    """Return the processes of the learner whose whole module each has wrapped in a DistributedDataParallel; None: it is
    no such wrapper, or is over one process, or over all that a launcher has started which knows nothing of groups.

    Raises:
        UserError: the processes do not follow each other.
    """
    if not isinstance(module, nn.parallel.DistributedDataParallel) or module.process_group.size() == 1:
        return None
    together, size = module.process_group, module.process_group.size()
    if size == dist.get_world_size() != launched_group():
        return None
    ranks = dist.get_process_group_ranks(together)
    check_follow_each_other(ranks, dist.get_rank())
    device = torch.device("cpu")
    if dist.get_backend(together) == "nccl":
        device = next(module.parameters()).device
    return Replicas(dist.get_rank(together), size, ranks[0], together, device, module)


def _said_of(error: Exception) -> dict[str, Any]:
    """Return an error as plain values."""
    if isinstance(error, LearnerDied):
        return {"rank": error.rank, "reason": error.reason}
    kind = next((name for name, one in RAISED_AS_SUCH.items() if isinstance(error, one)), "")
    return {"kind": kind, "text": str(error) if kind else f"{type(error).__name__}: {error}"}


def _error_of(said: Mapping[str, Any]) -> Exception:
    """Return the error of these plain values."""
    if "reason" in said:
        return LearnerDied(said["rank"], said["reason"])
    return RAISED_AS_SUCH.get(said["kind"], RuntimeError)(said["text"])
