"""A learner of several processes: a group. They shard one model by `fully_shard` of torch (FSDP2), or each has all of
it, under DistributedDataParallel (roundelay/attached/replicas.py).

Where they shard it, each process has a row of its own: its shards of all parameters. The processes with the same place
in their groups train together, in a session of their own. Strategies treat rows element by element, so the shards
become the same as the parts of a whole row would. In an asynchronous strategy two shards of a model may meet another
learner's at different moments, as fragments of a row do.

Decisions for the whole model are taken in the group: a gradient that is not finite in one shard is skipped in all, the
first process says the factor on the learning rate, and the next minibatch. That is one small reduction a step, and one
number a minibatch, outside the locks of rows: a process that waited for its group with its row locked could wait for
itself, by way of two exchanges.

A process, the first as a rule, speaks by messages: a header, and a vector, bytes or an error behind it. The others wait
for it wherever the first may fail, and fail with it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from roundelay.core.errors import UserError
from roundelay.runtime.base import LearnerDied

NO_NUMBER: Final = -1
"""Message in the place of a minibatch's number where no minibatch is left."""
AS_BEFORE, MOVED, WORDS_FOLLOW, ERROR_FOLLOWS = range(4)
"""Kinds of messages."""
RAISED_AS_SUCH: Mapping[str, type[Exception]] = {"UserError": UserError, "TimeoutError": TimeoutError}
"""Errors of the first process that the others raise as errors of the same class."""
FAILING_SECONDS = 10
"""Seconds that the first process waits for the others to hear that it has failed."""


class Agreed(NamedTuple):
    """Decision that the processes of a learner take together on a step."""

    skip: bool
    examples: float  # the mean of the numbers that they give
    ends: bool  # one of them was asked to end after it


@dataclass
class Group:
    """The processes of one learner."""

    whole: ClassVar[bool] = False
    """True if each process holds the whole module."""

    place: int  # of this process among them, from 0 on
    size: int  # number of processes
    first: int  # rank of the first in torch.distributed
    together: Any  # their process group
    device: torch.device  # of tensors that it can reduce
    # factor on the learning rate of the step under way, and whether the row then has a mark.
    agreed: tuple[float, bool] = field(default=(1.0, False), init=False)
    found: tuple[float, bool] = field(default=(1.0, False), init=False)  # those that this process would have
    _said_error: BaseException | None = field(default=None, init=False)

    @property
    def follows(self) -> bool:
        """True in all processes of the learner but the first."""
        return self.place > 0

    def agree(self, skip: bool, examples: float, ends: bool) -> Agreed:
        """Return the processes' decision on the step under way: skipped or the last if any of them says so, and the
        weight of its gradient. Take the first process's `found` as `agreed`."""
        found = self.found if self.place == 0 else (0.0, False)
        said = torch.tensor([float(skip), *found, examples, float(ends)], dtype=torch.float64).to(self.device)
        dist.all_reduce(said, group=self.together)
        skips, factor, steep, weight, end = said.tolist()
        self.agreed = factor, steep > 0
        return Agreed(skips > 0, weight / self.size, end > 0)

    def least(self, number: int) -> int:
        """Return the lowest of the numbers that the processes give."""
        said = torch.tensor([number], device=self.device)
        dist.all_reduce(said, dist.ReduceOp.MIN, group=self.together)
        return int(said)

    def number(self, number: int | None) -> int | None:
        """Return the number of a minibatch that the first process gives; None if there is no minibatch."""
        said = torch.tensor([NO_NUMBER if number is None else number], device=self.device)
        dist.broadcast(said, self.first, group=self.together)
        found = int(said)
        return None if found == NO_NUMBER else found

    def said(self, data: bytes, place: int = 0) -> bytes:
        """Return the `data` of the process at `place`; the other processes' `data` is ignored.

        Raises:
            LearnerDied, TimeoutError, UserError, RuntimeError: the first has failed, and with what.
        """
        _, size = self.header(WORDS_FOLLOW, len(data), place)
        return self._bytes(size, place, data)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Tell the other processes of an error that the first raises in the `with`, for they wait for the first."""
        try:
            yield
        except Exception as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Tell the other processes that the first fails with this error; only once."""
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

    def header(self, kind: int, size: int = 0, place: int = 0) -> tuple[int, int]:
        """Return the kind and the size of the next message from the process at `place`.

        Raises:
            LearnerDied, TimeoutError, UserError, RuntimeError: the first has failed, and with what.
        """
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


def check_follow_each_other(ranks: Sequence[int], rank: int) -> None:
    """Check that the processes of a learner have consecutive ranks in torch.distributed.

    Raises:
        UserError: other processes are between them.
    """
    if list(ranks) != [*range(ranks[0], ranks[0] + len(ranks))]:
        raise UserError(
            f"rank {rank}: the processes of this group are {ranks}: let the processes of a group follow each other, as "
            'init_device_mesh(device, (learners, size), mesh_dim_names=("learner", "shard"))["shard"] has them.'
        )


def is_sharded(parameter: Tensor) -> bool:
    """Return True if the parameter is a DTensor: of `fully_shard`, or of tensor parallelism."""
    return type(parameter).__name__ == "DTensor" or type(parameter.data).__name__ == "DTensor"


def local(tensor: Tensor) -> Tensor:
    """Return this process's own part of a tensor, which shares its memory; the tensor itself if it is not sharded."""
    return tensor._local_tensor.detach() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def sharded_like(parameter: Tensor, part: Tensor) -> Tensor:
    """Return the DTensor, sharded as `parameter` is, with `part` as its own part, which is not copied."""
    from torch.distributed.tensor import DTensor  # noqa: PLC0415  loads modules that only groups need

    whole: Any = parameter
    return DTensor.from_local(
        part, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def look_at(parameter: Tensor, part: Tensor) -> None:
    """Make `part` this process's part of a sharded parameter, without a copy."""
    parameter._local_tensor = part  # type: ignore[attr-defined]


def group_of(module: nn.Module, rank: int) -> Group | None:
    """Return the group of processes that share the module's parameters out; None if these are not sharded.

    Raises:
        UserError: the module is sharded in a way that a session cannot train; names the parameter and what to do.
    """
    named = [*module.named_parameters()]
    sharded = [(name, p) for name, p in named if is_sharded(p)]
    if not sharded:
        return None
    whole = next((name for name, p in named if not is_sharded(p)), None)
    if whole is not None:
        raise UserError(
            f"rank {rank}: parameter {sharded[0][0]} is sharded and {whole} is not: shard the whole module, by "
            "fully_shard(module) after its parts."
        )
    first: Any = sharded[0][1]
    mesh = first.device_mesh
    for name, p in sharded:
        one: Any = p
        places = [*one.placements]
        if len(places) != 1 or not places[0].is_shard() or one.device_mesh != mesh:
            raise UserError(
                f"rank {rank}: parameter {name} is placed {tuple(places)} on {one.device_mesh}: a group is sharded by "
                "fully_shard alone, over one mesh of one dimension. (Replicas are learners of the session; tensor "
                "parallelism is not attached.)"
            )
        if p.dtype != torch.float32:
            raise UserError(
                f"rank {rank}: parameter {name} is sharded in {p.dtype}: leave parameters in float32, and compute in "
                "others by fully_shard(..., mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))."
            )
    together = mesh.get_group()
    ranks = dist.get_process_group_ranks(together)
    check_follow_each_other(ranks, rank)
    device = torch.device(mesh.device_type)
    if device.type == "cuda":
        device = first.device
    return Group(mesh.get_local_rank(), len(ranks), ranks[0], together, device)


def _said_of(error: Exception) -> dict[str, Any]:
    """Return an error as plain values."""
    if isinstance(error, LearnerDied):
        return {"rank": error.rank, "reason": error.reason}
    kind = next((name for name, one in RAISED_AS_SUCH.items() if isinstance(error, one)), "")
    return {"kind": kind, "text": str(error) if kind else f"{type(error).__name__}: {error}"}


def _error_of(said: Mapping[str, Any]) -> Exception:
    """Return the error that `_said_of` has made these plain values of."""
    if "reason" in said:
        return LearnerDied(said["rank"], said["reason"])
    return RAISED_AS_SUCH.get(said["kind"], RuntimeError)(said["text"])
