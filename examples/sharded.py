"""A model that is sharded over the processes of each learner, by fully_shard of torch (FSDP2):

    roundelay launch -n 2 --group 2 examples/sharded.py              # two learners of two processes each
    torchrun --nproc-per-node 4 examples/sharded.py --group 2        # the same by another launcher
    roundelay launch -n 2 --group 2 examples/sharded.py --whole      # all of the model in each process

Each process of a learner holds a part of the parameters, of the optimizer's state and of the row. With `--whole` each
holds the model, by DistributedDataParallel, and the first of a learner the optimizer's state and the row. Learners
train together as ever: here by adpsgd, so neither group waits for the other.
"""

import argparse
import os
import resource

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import roundelay


def build(width: int, layers: int, group: int, whole: bool) -> nn.Module:
    """Return a classifier of points of the plane, sharded over the processes of this learner, or whole in each."""
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)]
    model = nn.Sequential(nn.Linear(2, width), nn.ReLU(), *hidden, nn.Linear(width, 3))
    shape = (dist.get_world_size() // group, group)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("learner", "shard"))["shard"]
    if whole:
        return nn.parallel.DistributedDataParallel(model, process_group=mesh.get_group())
    for layer in hidden:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def draw(generator: torch.Generator, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points of the plane, and the ring that each lies in."""
    points = torch.randn(count, 2, generator=generator)
    return points, (points.norm(dim=1) * 1.5).long().clamp(max=2)


def main() -> None:
    """Train, and print this process's part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", type=int, default=int(os.environ.get("ROUNDELAY_GROUP", "1")))
    parser.add_argument("--strategy", default="adpsgd")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--whole", action="store_true", help="each process of a learner has all of the model")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    model = build(options.width, options.layers, options.group, options.whole)
    local = torch.numel if options.whole else lambda p: p.to_local().numel()
    whole, here = (sum(map(count, model.parameters())) for count in (torch.numel, local))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    session = roundelay.attach(model, optimizer, options.strategy)
    drawn = torch.Generator().manual_seed(100 * session.rank + dist.get_rank() % options.group)
    with session:
        for _ in range(options.steps):
            points, rings = draw(drawn, 64)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(points), rings).backward()
            optimizer.step()
    points, rings = draw(torch.Generator().manual_seed(1), 2000)
    with torch.no_grad():
        right = (model(points).argmax(1) == rings).float().mean()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"learner {session.rank}: {here:,} of {whole:,} parameters here, {100 * right:.1f} % right, {peak:.0f} MiB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
