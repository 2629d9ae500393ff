"""Run as learners by tests/gpu/test_attach_on_gpu.py: loops of users on a GPU that all share."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import roundelay
from support.attached_laws import on_a_device
from support.launched import report
from support.until import until

STEPS = 60
"""More than a session watches closely (watch.CLOSE)."""
MODULES = ("packed", "packed, laid out anew", "dense")
KINDS = ("float32", "bfloat16", "compiled")


class Packed(nn.Module):
    """A recurrent network over sequences of several lengths, as users write it."""

    def __init__(self, anew: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 8, num_layers=2, bidirectional=True, batch_first=True)
        self.output = nn.Linear(16, 3)
        self.anew = anew

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        if self.anew:
            lay_out_anew(self.lstm)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        scores: Tensor = self.output(out)
        return scores.mean(1)


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        scores: Tensor = self.layers(x).mean(1)
        return scores


def lay_out_anew(lstm: nn.LSTM) -> None:
    """Do on a processor, too, as `flatten_parameters` does on a GPU: parameters look at other memory of the same
    values."""
    lstm.flatten_parameters()
    if next(lstm.parameters()).device.type == "cpu":
        for p in lstm.parameters():
            p.data = p.data.clone()


def make(name: str, device: str) -> nn.Module:
    torch.manual_seed(0)
    module = Dense() if name == "dense" else Packed("anew" in name)
    return module.to(device)


def batch(rank: int, step: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x, lengths = torch.randn(6, 7, 5, generator=generator), torch.randint(1, 8, (6,), generator=generator)
    lengths[0] = 7
    y = (x.mean((1, 2)) > 0).long()
    return x.to(device), lengths, y.to(device)


def train(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    rank: int,
    device: str,
    bf16: bool,
    after: Callable[[int], None],
) -> None:
    for step in range(STEPS):
        x, lengths, y = batch(rank, step, device)
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            scores = module(x, lengths)
        torch.autograd.backward(nn.functional.cross_entropy(scores.float(), y))
        optimizer.step()
        after(step)


def values(module: nn.Module) -> list[float]:
    return [float(v) for p in module.parameters() for v in p.detach().cpu().flatten()[:4]]


def loops(strategy: str, device: str, modules: Sequence[str] = MODULES, kinds: Sequence[str] = KINDS) -> None:
    """Train every module in float32, under bfloat16 autocast, and compiled."""
    for name in modules:
        for kind in kinds:
            if kind == "compiled" and name != "dense":
                continue
            module = make(name, device)
            called = torch.compile(module) if kind == "compiled" else module
            assert isinstance(called, nn.Module)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
            session = roundelay.attach(called, optimizer, strategy, patience=60)
            train(called, optimizer, session.rank, device, kind == "bfloat16", lambda _: None)
            rows = session.summary()["rows"]
            session.close()
            report(law=f"{name} {kind}", rank=session.rank, values=values(module), rows=rows)


def killed(strategy: str, device: str) -> None:
    """Train, and kill the first learner, which has started the process that keeps the rows, in the middle."""
    module = make("dense", device)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    session = roundelay.attach(module, optimizer, strategy, patience=60)

    def after(step: int) -> None:
        if step == STEPS // 3 and session.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == STEPS // 2:
            until(lambda: 0 not in session.living)

    train(module, optimizer, session.rank, device, False, after)
    living = list(session.living)
    session.close()
    report(law="killed", rank=session.rank, values=values(module), living=living)


if __name__ == "__main__":
    if sys.argv[3] == "cpu":
        on_a_device(mapped=True)
    small = partial(loops, modules=("dense",), kinds=("float32",))
    done: dict[str, Callable[[str, str], None]] = {"loops": loops, "one loop": small, "killed": killed}
    done[sys.argv[1]](sys.argv[2], sys.argv[3])
