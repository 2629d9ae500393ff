"""A model that is sharded over the processes of each learner, by torch's fully_shard (FSDP2):

    roundelay launch -n 2 --group 2 examples/sharded.py              # two learners of two processes each
    torchrun --nproc-per-node 4 examples/sharded.py                  # the same by another launcher

The processes of a learner hold a part of the parameters, of the optimizer's state and of the row each. Learners train
together as ever: here by adpsgd, so that neither group waits for the other.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import roundelay


def build(width: int, group: int) -> nn.Module:
    """Return a classifier of points of the plane, sharded over the processes of this learner."""
    torch.manual_seed(0)
    sizes = (2, width, width, 3)
    layers = [nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    shape = (dist.get_world_size() // group, group)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("learner", "shard"))["shard"]
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", type=int, default=int(os.environ.get("ROUNDELAY_GROUP", 2)))
    parser.add_argument("--strategy", default="adpsgd")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=256)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    model = build(options.width, options.group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    session = roundelay.attach(model, optimizer, options.strategy)
    draws = torch.Generator().manual_seed(100 * session.rank + dist.get_rank() % options.group)
    with session:
        for _ in range(options.steps):
            points = torch.randn(64, 2, generator=draws)
            classes = (points.norm(dim=1) * 1.5).long().clamp(max=2)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(points), classes).backward()
            optimizer.step()
    points = torch.randn(2000, 2, generator=torch.Generator().manual_seed(1))
    classes = (points.norm(dim=1) * 1.5).long().clamp(max=2)
    with torch.no_grad():
        right = (model(points).argmax(1) == classes).float().mean()
    held = sum(p.to_local().numel() for p in model.parameters())
    whole = sum(p.numel() for p in model.parameters())
    print(f"learner {session.rank}: {held:,} of {whole:,} parameters here, {100 * right:.1f} % right")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
