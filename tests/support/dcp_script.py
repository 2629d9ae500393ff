"""A session saved by torch.distributed.checkpoint, and gone on from, by the lines that docs/attach.md shows."""

import argparse
import copy
import hashlib
import warnings
from typing import Any

import torch
import torch.distributed.checkpoint.state_dict_loader as dcp_loader
import torch.distributed.checkpoint.state_dict_saver as dcp_saver
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import AdamW

import roundelay
from support.launched import report


def bits(tensors: dict[str, Tensor]) -> str:
    """A checksum of values and names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def remembered(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's vectors, by the names of parameters."""
    parameters = dict(module.named_parameters())
    vectors = ("exp_avg", "exp_avg_sq", "step")
    return {f"{name}.{what}": optimizer.state[p][what].clone() for name, p in parameters.items() for what in vectors}


def groups_of(module: nn.Sequential) -> list[dict[str, Any]]:
    """The last layer with a rate of its own, and first."""
    first, norm, _, last = module
    return [{"params": last.parameters(), "lr": 0.02}, {"params": [*first.parameters(), *norm.parameters()]}]


def train(session: roundelay.Session, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    generator = torch.Generator().manual_seed(session.rank)
    for _ in range(steps):
        x = torch.randn(8, 5, generator=generator)
        optimizer.zero_grad()
        (model(x) - x[:, :1] * x[:, 1:2]).square().mean().backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--strategy", default="adpsgd")
    parser.add_argument("--load", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="torch.distributed is")  # dcp says that one process saves
    torch.manual_seed(roundelay.rank())
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = AdamW(groups_of(model), lr=0.01)
    other, rest = copy.deepcopy(model), 0.0
    if options.load:
        now: dict[str, Any] = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp_loader.load(now, checkpoint_id=f"{options.folder}/dcp")
        set_state_dict(model, optimizer, model_state_dict=now["model"], optim_state_dict=now["optimizer"])
    memory, loaded = (remembered(model, optimizer), bits(dict(model.state_dict()))) if options.load else ({}, "")
    rates = [group["lr"] for group in optimizer.param_groups]
    session = roundelay.attach(model, optimizer, options.strategy)
    if not options.load:
        train(session, model, optimizer, 20)
    with session.consensus():
        common = {name: value.clone() for name, value in model.state_dict().items()}
        if not options.load:
            memory = remembered(model, optimizer)
            now = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
            if session.rank == 0:
                dcp_saver.save(now, checkpoint_id=f"{options.folder}/dcp")
    if not options.load:
        session.save(f"{options.folder}/saves")
    train(session, model, optimizer, 5)
    session.close()
    if options.load:  # the same from the session's own save
        optimizer = AdamW(groups_of(other), lr=0.01)
        second = roundelay.attach(other, optimizer, options.strategy, resume=f"{options.folder}/saves")
        with second, second.consensus():
            rest = max(float((value - common[name]).abs().max()) for name, value in other.state_dict().items())
    report(
        law="dcp",
        rank=roundelay.rank(),
        model=loaded or bits(common),
        memory=bits(memory),
        rates=rates,
        apart=rest,
        end=bits(dict(model.state_dict())),
    )


if __name__ == "__main__":
    main()
