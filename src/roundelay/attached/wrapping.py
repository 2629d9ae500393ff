"""Wrappers that average a module's gradients or keep its parameters are refused, since both would do it; and modules of
TorchScript, for their calls are heard of by nobody.

Known by the names of classes, so that nothing is imported that the user does not use. A DistributedDataParallel over a
group of one process averages nothing, and is taken as it is: frameworks make it always.
"""

from collections.abc import Iterable

import torch
from torch import nn

from roundelay.core.errors import UserError
from roundelay.runtime.attached.groups import is_sharded

WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine")
SHARDED = "FSDPModule"
REMEDY = (
    "it would average or shard what the session averages. Attach the module itself (`ddp.module` of a wrapper) and "
    "train that one, without the wrapper. Of a framework that wraps by itself, switch its distributed training off: "
    "each learner is to believe that it is alone."
)


def refuse_wrapped(module: nn.Module, rank: int) -> None:
    """Refuse a module that is, or a part of which is, wrapped, sharded or compiled by TorchScript.

    Raises:
        UserError: it is; names the part and the wrapper.
    """
    sharded = any(map(is_sharded, module.parameters()))  # by fully_shard, over the processes of one learner
    for name, part in module.named_modules():
        wrapper = _among(cls.__name__ for cls in type(part).__mro__)
        if wrapper and not _alone(part) and not (sharded and wrapper == SHARDED):
            raise UserError(f"rank {rank}: {name or 'the module'} is a {wrapper}: {REMEDY}")
        if isinstance(part, torch.jit.ScriptModule):
            raise UserError(
                f"rank {rank}: {name or 'the module'} is of TorchScript (torch.jit), which reports none of its calls: "
                "attach the module that it was made from and train that one, by torch.compile if it is to be faster."
            )


def refuse_reducer(rank: int, attached: nn.Module | None = None) -> None:
    """Refuse, in a forward, a DistributedDataParallel over several processes made around the module later.

    Args:
        attached: the one that was given to attach, if one was.

    Raises:
        UserError: there is one.
    """
    around = getattr(nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
    if around is not None and around is not attached and not _alone(around):
        raise UserError(f"rank {rank}: the attached module is run by a DistributedDataParallel around it: {REMEDY}")


def _alone(part: nn.Module) -> bool:
    """Return True if it is torch's own, over a group of this process alone."""
    return isinstance(part, nn.parallel.DistributedDataParallel) and part.process_group.size() == 1


def _among(names: Iterable[str]) -> str | None:
    return next((name for name in names if name in WRAPPERS), None)
