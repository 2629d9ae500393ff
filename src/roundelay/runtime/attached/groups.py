"""A learner of several processes: a group. They shard one model by `fully_shard` of torch (FSDP2), or each has all of
it, under DistributedDataParallel (roundelay/attached/replicas.py).

Where they shard it, each process has a row of its own: its shards of all parameters. The processes with the same place
in their groups train together, in a session of their own. What strategies do with rows is elementwise, so what becomes
of the shards is what would become of the whole. In an asynchronous strategy two shards of a model may meet another
learner's at different moments, as fragments of a row do.

What is not elementwise is agreed on in the group: a gradient that is not finite in one shard is skipped in all, the
first process says the factor on the learning rate, and which minibatch is next. That is one small reduction a step, and
one number a minibatch, outside the locks of rows: a process that waited for its group with its row locked could wait
for itself, by way of two exchanges.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from roundelay.core.errors import UserError

NO_NUMBER: Final = -1
"""Said in place of the number of a minibatch where there is none."""


class Agreed(NamedTuple):
    """Decision of the processes of a learner on a step."""

    skip: bool
    examples: float  # the mean of the numbers that they give
    ends: bool  # one of them was asked to end after it


@dataclass
class Group:
    """The processes of one learner.

    Attributes:
        place: of this process among them, from 0 on.
        size: number of processes.
        first: rank of the first in torch.distributed.
        together: their process group.
        device: of tensors that it can reduce.
        agreed: factor on the learning rate of the step under way, and whether the row then has a mark.
        found: those that this process would have.
    """

    whole: ClassVar[bool] = False
    """Does each process hold the whole module?"""

    place: int
    size: int
    first: int
    together: Any
    device: torch.device
    agreed: tuple[float, bool] = field(default=(1.0, False), init=False)
    found: tuple[float, bool] = field(default=(1.0, False), init=False)

    def agree(self, skip: bool, examples: float, ends: bool) -> Agreed:
        """Return whether any process skips the step under way or ends after it, and what its gradient weighs; take what
        the first has `found` for it."""
        found = self.found if self.place == 0 else (0.0, False)
        said = torch.tensor([float(skip), *found, examples, float(ends)], dtype=torch.float64).to(self.device)
        dist.all_reduce(said, group=self.together)
        skips, factor, steep, weight, end = said.tolist()
        self.agreed = factor, steep > 0
        return Agreed(skips > 0, weight / self.size, end > 0)

    def least(self, number: int) -> int:
        """Return the lowest of the numbers that its processes give."""
        said = torch.tensor([number], device=self.device)
        dist.all_reduce(said, dist.ReduceOp.MIN, group=self.together)
        return int(said)

    def number(self, number: int | None) -> int | None:
        """Return what the first process says: the number of a minibatch, None for none."""
        said = torch.tensor([NO_NUMBER if number is None else number], device=self.device)
        dist.broadcast(said, self.first, group=self.together)
        found = int(said)
        return None if found == NO_NUMBER else found


def check_follow_each_other(ranks: Sequence[int], rank: int) -> None:
    """Check the processes of a learner, by their ranks in torch.distributed.

    Raises:
        UserError: there are others between them.
    """
    if list(ranks) != [*range(ranks[0], ranks[0] + len(ranks))]:
        raise UserError(
            f"rank {rank}: the processes of this group are {ranks}: let the processes of a group follow each other, as "
            'init_device_mesh(device, (learners, size), mesh_dim_names=("learner", "shard"))["shard"] has them.'
        )


def is_sharded(parameter: Tensor) -> bool:
    """Return True for a DTensor: of `fully_shard`, or of tensor parallelism."""
    return type(parameter).__name__ == "DTensor" or type(parameter.data).__name__ == "DTensor"


def local(tensor: Tensor) -> Tensor:
    """Return this process's own part of a tensor, by which it is changed; a tensor that is not sharded is itself."""
    return tensor._local_tensor.detach() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def sharded_like(parameter: Tensor, part: Tensor) -> Tensor:
    """Return the DTensor whose own part is `part`, which it does not copy, sharded as `parameter` is."""
    from torch.distributed.tensor import DTensor  # noqa: PLC0415  loads what only groups need

    whole: Any = parameter
    return DTensor.from_local(
        part, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def look_at(parameter: Tensor, part: Tensor) -> None:
    """Let a sharded parameter be `part` in this process, without a copy."""
    parameter._local_tensor = part  # type: ignore[attr-defined]


def group_of(module: nn.Module, rank: int) -> Group | None:
    """Return the group whose module this is; None: its parameters are not sharded.

    Raises:
        UserError: it is sharded in a way that a session cannot train; names the parameter and what to do.
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
