"""A learner of several processes that each have the whole module, under torch's DistributedDataParallel.

Torch averages their gradients. The first process is the learner: it alone has a row, steps the optimizers, meets other
learners and saves. The others take no step of their own: they show the first's parameters, when it has taken a step,
when it begins one at another point, and after a meeting. So a learner has one row and one state of its optimizers, and
exchanges as much as one of a single process. The others keep the point that they show and torch's gradient, and nothing
else of P elements.

Legend: P trainable parameters.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from roundelay.core.errors import UserError
from roundelay.runtime.attached.groups import AS_BEFORE, MOVED, Group, check_follow_each_other
from roundelay.runtime.launch.world import launched_group


@dataclass
class Replicas(Group):
    """The processes of a learner that each have the whole module, wrapped in a DistributedDataParallel."""

    whole: ClassVar[bool] = True

    wrapper: nn.parallel.DistributedDataParallel  # the user's, around the module
    begun: bool = field(default=False, init=False)  # all have attached, and hear what the first says
    _shared: tuple[int, int] = field(default=(0, -1), init=False)

    def shown(self, vector: Tensor, moved: bool = True) -> bool:
        """Write the first process's values over `vector`, of any shape, if the first says that they have `moved`;
        return True if so.

        Raises:
            LearnerDied, TimeoutError, UserError, RuntimeError: the first has failed, and with what.
        """
        kind, _ = self.header(MOVED if moved else AS_BEFORE)
        if kind == MOVED and vector.numel():
            there = vector.to(self.device)
            dist.broadcast(there, self.first, group=self.together)
            if there is not vector:
                vector.copy_(there)
        return kind == MOVED

    def share(self, point: Tensor, version: int) -> None:
        """Send the first process's `point` (P,), a copy of the row at `version`, to the others if it has changed, or
        receive it as one of them. Do nothing before all have attached.

        Raises:
            LearnerDied, TimeoutError, UserError, RuntimeError: the first has failed, and with what.
        """
        if not self.begun:
            return
        if not self.follows:
            now = point.data_ptr(), version
            self.shown(point, moved=now != self._shared)
            self._shared = now
        else:
            self.shown(point)

    def check_averaged(self, gradients: Iterable[Tensor], rank: int) -> None:
        """Check that all processes have the same gradients.

        Raises:
            UserError: gradients differ, for they were not averaged.
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


def replicas_of(module: nn.Module) -> Replicas | None:
    """Return the processes of a learner with its whole module in a DistributedDataParallel; None if `module` is not
    one, or is one over a single process, or over all processes of a launcher that knows nothing of groups.

    Raises:
        UserError: the processes' ranks are not consecutive.
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
