"""Ray Train, whose workers attach: `python ray_train_script.py WORKERS STRATEGY OUT [fail]`."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import ray
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import roundelay
from roundelay.integrations.ray import RoundelayConfig


def train(config: dict[str, Any]) -> None:
    """Three epochs of a small regression; the second learner may fail in the second, once."""
    out = Path(config["out"])
    torch.manual_seed(0)
    x = torch.randn(192, 4)
    data = TensorDataset(x, x @ torch.tensor([[1.0], [2.0], [-1.0], [0.5]]))
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session = roundelay.attach(model, optimizer, config["strategy"], resume=out / "saves")
    sampler = session.sampler(data, batch_size=8)
    failed, losses = out / "failed", []
    first = sampler.epoch
    for epoch in range(first, 3):
        for inputs, targets in DataLoader(data, batch_sampler=sampler):
            optimizer.zero_grad()
            loss: Any = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if config["fail"] and epoch == 1 and session.rank == 1 and not failed.exists():
                failed.touch()
                os._exit(1)
        with session.consensus():
            losses.append(nn.functional.mse_loss(model(data.tensors[0]), data.tensors[1]).item())
        session.save(out / "saves")
    place = {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    session.close()
    told = {"first": first, "losses": losses, "learners": session.learners, "place": place}
    (out / f"{session.rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    workers, strategy, out = sys.argv[1:4]
    ray.init(address=os.environ.get("RAY_ADDRESS"), logging_level="WARNING")
    TorchTrainer(
        train,
        train_loop_config={"strategy": strategy, "out": out, "fail": "fail" in sys.argv},
        torch_config=RoundelayConfig(),
        scaling_config=ScalingConfig(num_workers=int(workers)),
        run_config=RunConfig(storage_path=f"{out}/ray", failure_config=FailureConfig(max_failures=1)),
    ).fit()
