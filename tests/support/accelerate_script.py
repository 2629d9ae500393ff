"""A loop as users of Accelerate write it, attached before or after `prepare`; in both cases ten lines of docs."""

import argparse
import hashlib

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import roundelay
from support.launched import report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="ssgd")
    parser.add_argument("--after", action="store_true", help="attach what `prepare` returns")
    options = parser.parse_args()
    torch.manual_seed(0)
    data = TensorDataset(x := torch.randn(203, 6), x[:, :4].argmax(1))
    held_out = TensorDataset(x := torch.randn(64, 6), x[:, :4].argmax(1))
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    if options.after:
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    session = roundelay.attach(model, optimizer, options.strategy)
    loader = DataLoader(data, batch_sampler=session.sampler(data, batch_size=8))
    validation = DataLoader(held_out, batch_size=32)
    if options.after:
        loader, validation = accelerator.prepare(loader, validation)
    else:
        model, optimizer, scheduler, loader, validation = accelerator.prepare(
            model, optimizer, scheduler, loader, validation
        )
    losses, seen = [], 0
    for _ in range(3):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            seen += len(y)
        with session.consensus(), torch.no_grad():
            each = [nn.functional.cross_entropy(model(x), y) for x, y in validation]
            losses.append(float(torch.stack(each).mean()))
    session.close()
    bits = b"".join(p.detach().numpy().tobytes() for p in accelerator.unwrap_model(model).parameters())
    report(
        law="accelerate",
        rank=roundelay.rank(),
        bits=hashlib.sha256(bits).hexdigest(),
        losses=losses,
        seen=seen,
        steps=session.summary()["steps"],
        rate=scheduler.get_last_lr()[0],
    )


if __name__ == "__main__":
    main()
