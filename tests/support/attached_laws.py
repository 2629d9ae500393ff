"""Run as two learners by tests/laws/test_attach.py: what it needs to know, in one start of two processes."""

import io
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import roundelay
import roundelay.attached.session as session_room
from roundelay.attached import Session
from roundelay.core.errors import UserError
from roundelay.runtime.attached import entering
from roundelay.strategies import STRATEGIES
from support import attached_resuming
from support.forked_row_hosts import fork_row_hosts, row_hosts_end
from support.launched import report

PATIENCE = 60.0
DEVICE = "cuda" if sys.argv[1:] == ["cuda"] else "cpu"
LEARNERS = 2
STEPS = (7, 4)
"""Of learner 0 and 1: they need not be equally many."""
SIZES = (6, 3)
"""Examples in a minibatch of learner 0 and 1."""
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1},
    "SGD momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "AdamW": {"lr": 0.01},
    "SGD clipped": {"lr": 0.1},
}

QUORATE = "bsp,period=2,quorum=2"
"""Model averaging that goes on with those who came; one host."""


def mlp(seed: int = 0, norm: bool = False) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8) if norm else nn.Identity(), nn.Tanh(), nn.Linear(8, 3))
    return model.to(DEVICE)


def make_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    kind: Any = getattr(torch.optim, name.split(maxsplit=1)[0])
    optimizer: torch.optim.Optimizer = kind(model.parameters(), **OPTIMIZERS[name])
    if "clipped" in name:  # whatever it is that the optimizer steps by

        def clip(*_: object) -> None:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)

        optimizer.register_step_pre_hook(clip)
    return optimizer


def minibatches(rank: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the minibatches of learner `rank`."""
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(STEPS[rank]):
        x, y = torch.randn(SIZES[rank], 5, generator=generator), torch.randint(3, (SIZES[rank],), generator=generator)
        yield x.to(DEVICE), y.to(DEVICE)


def train(
    session: Session, batches: Iterator[tuple[Tensor, Tensor]], micro: bool = False, unchanged: bool = False
) -> None:
    """Somebody's loop; with `micro`, each minibatch in pieces of one example; `unchanged`, with the optimizer's own
    step left in."""
    for x, y in batches:
        session.optimizer.zero_grad()
        if micro:
            for one in range(len(x)):
                loss = nn.functional.cross_entropy(session.module(x[one : one + 1]), y[one : one + 1])
                torch.autograd.backward(loss / len(x))
        else:
            torch.autograd.backward(nn.functional.cross_entropy(session.module(x), y))
        if unchanged:
            session.examples = len(x)
            session.optimizer.step()
        else:
            session.step(examples=len(x))


def values(model: nn.Module) -> list[float]:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()


def alone(optimizer_name: str, skip: int | None = None) -> list[float]:
    """One process on the minibatches of both learners, round by round; when one has no more, on the other's. It leaves
    out the round `skip`."""
    model = mlp()
    optimizer = make_optimizer(optimizer_name, model)
    for round_, batches in sorted(
        {
            round_: [list(minibatches(rank))[round_] for rank in range(LEARNERS) if round_ < STEPS[rank]]
            for round_ in range(max(STEPS))
        }.items()
    ):
        if round_ == skip:
            continue
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
    return values(model)


def close(a: list[float], b: list[float]) -> None:
    torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=2e-5, atol=2e-6)


def attached(model: nn.Module, optimizer: str, strategy: str, **options: Any) -> Session:
    return roundelay.attach(model, make_optimizer(optimizer, model), strategy, patience=PATIENCE, **options)


def same_as_one(strategy: str, optimizer: str, micro: bool = False, **options: Any) -> None:
    model = mlp()
    with attached(model, optimizer, strategy, **options) as session:
        train(session, minibatches(session.rank), micro)
    report(law=f"{strategy} {optimizer}{' micro' * micro}", rank=session.rank, values=values(model))


def every_strategy(unchanged: bool) -> None:
    """Uneven data, two segments, a consensus between and another at the end; by a loop that was written for a session,
    or one that is left `unchanged`."""
    for name in (*STRATEGIES, QUORATE):
        one_host = name != QUORATE and STRATEGIES[name].traits.one_host
        if name == "sgd" or (one_host and sys.argv[1:] == ["hosts"]):
            continue
        model = mlp(norm=True)
        with attached(model, "SGD momentum", name) as session:
            train(session, minibatches(session.rank), unchanged=unchanged)
            with session.consensus():
                between = values(model)
            train(session, minibatches(session.rank), unchanged=unchanged)
            session.meet()
            summary, vectors = session.summary(), written(session)
        statistics = [float(number) for buffer in model.buffers() for number in buffer.reshape(-1)]
        report(
            law=f"every {name}",
            rank=session.rank,
            between=between,
            values=values(model),
            statistics=statistics,
            steps=summary["steps"],
            rows=summary["rows"],
            vectors=vectors,
        )


def written(session: Session) -> dict[str, list[int]]:
    """Numbers of the vectors in the memory that learners share which hold something: by name, those of learners."""
    arena = session._steps.learner.arena
    learners = range(arena.layout.learners)
    return {name: [rank for rank in learners if arena.vector(name, rank).any()] for name in arena.layout.vectors}


def buffers() -> None:
    """Batch normalisation: each its own in training; the mean, and rank 0's counter, in the model to evaluate. A cache
    grows within that, and is of another size on each learner."""
    model = mlp(norm=True)
    norm = model[1]  # type: ignore[index]
    norm.register_buffer("positions", torch.arange(8, device=DEVICE), persistent=False)
    with attached(model, "SGD", "adpsgd") as session:
        train(session, minibatches(session.rank))
        own = norm.running_mean.tolist()
        norm.positions = torch.arange(16 + session.rank, device=DEVICE)
        with session.consensus():
            mean, counted = norm.running_mean.tolist(), int(norm.num_batches_tracked)
            norm.positions = torch.arange(32 + session.rank, device=DEVICE)
        report(
            law="buffers",
            rank=session.rank,
            own=own,
            mean=mean,
            counted=counted,
            after=norm.running_mean.tolist(),
            own_counted=int(norm.num_batches_tracked),
            cached=len(norm.positions),
        )


def other_weights() -> None:
    model = mlp(seed=session_rank())
    with attached(model, "SGD", "bsp") as session:
        report(law="other weights", rank=session.rank, values=values(model))


def session_rank() -> int:
    with attached(mlp(), "SGD", "adpsgd") as session:
        return session.rank


def samplers() -> None:
    """25 examples in minibatches of 3: by the queue everybody's together, else by rounds; two epochs, and workers."""
    data = TensorDataset(torch.arange(25))
    for strategy, workers in (("adpsgd", 0), ("ssgd", 0), ("adpsgd", 1)):
        with attached(mlp(), "SGD", strategy) as session:
            sampler = session.sampler(data, batch_size=3, seed=5)
            loader: DataLoader[Any] = DataLoader(
                data, batch_sampler=sampler, num_workers=workers, multiprocessing_context="fork" if workers else None
            )
            drawn = []
            for epoch in range(2):
                sampler.set_epoch(epoch)
                drawn.append([batch.tolist() for (batch,) in loader])
                session.meet()
        report(law=f"sampler {strategy} {workers}", rank=session.rank, drawn=drawn, length=len(sampler))


def going_on() -> None:
    """A state saved and loaded in the middle changes nothing."""
    for strategy, options in (("bmuf", {"period": 2}), ("dpsgd", {}), ("easgd-sync", {"period": 2})):
        model = mlp(norm=True)
        with attached(model, "SGD momentum", strategy, **options) as session:
            train(session, minibatches(session.rank))
            file = io.BytesIO()
            torch.save([session.state_dict(), session.optimizer.state_dict()], file)
            train(session, minibatches(session.rank))
        straight = values(model)

        model = mlp(seed=1, norm=True)
        with attached(model, "SGD momentum", strategy, **options) as session:
            file.seek(0)
            mine, optimizer = torch.load(file)
            session.load_state_dict(mine)
            session.optimizer.load_state_dict(optimizer)
            train(session, minibatches(session.rank))
        report(law=f"going on {strategy}", rank=session.rank, straight=straight, values=values(model))


def block_momentum() -> None:
    """A gradient that is always the same: how far learners with a minibatch each go, once momentum is there."""
    for name in ("bmuf", "bmuf-fairseq", "slowmo", "diloco", "bsp"):
        model = nn.Linear(1, 1, bias=False).to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        gone, one = [], torch.ones(1, 1, device=DEVICE)
        options: dict[str, Any] = (
            {"local_momentum": "keep"} if name == "diloco" else {}
        )  # else its rate is cut at the paper's
        with roundelay.attach(model, optimizer, name, patience=PATIENCE, period=4, **options) as session:
            for steps in (160, 40):
                for _ in range(steps):
                    optimizer.zero_grad()
                    torch.autograd.backward(model(one).sum())
                    session.step()
                with session.consensus():
                    gone.append(values(model)[0])
        report(law=f"block momentum {name}", rank=session.rank, steps=(gone[0] - gone[1]) / (0.01 / (1 - 0.9)))
    try:
        attached(mlp(), "SGD", "bmuf", local_momentum="average")
    except UserError as error:
        report(law="average", rank=session.rank, error=str(error))


def forward_without_step() -> None:
    """Somebody looks at a training loss just before a meeting: no step is taken for it."""
    model = mlp()
    with attached(model, "SGD momentum", "ssgd") as session:
        train(session, minibatches(session.rank))
        if session.rank == 1:
            session.module(torch.zeros(1, 5, device=DEVICE))
    report(law="forward without step", rank=session.rank, values=values(model))


def on_a_device(mapped: bool) -> None:
    """Have modules count as being on a device from now on, which all learners can map, or none can."""
    vars(session_room)["device_of"] = lambda module, rank: torch.device("cpu")
    if not mapped:
        vars(entering)["reach_each_other"] = lambda devices: False


def place_modules() -> None:
    """Place modules as the command line says."""
    if sys.argv[1:] in (["mapped"], ["elsewhere"]):
        on_a_device(mapped=sys.argv[1] == "mapped")


def main() -> None:
    place_modules()
    fork_row_hosts()
    for optimizer in OPTIMIZERS:
        same_as_one("ssgd", optimizer)
    same_as_one("ssgd", "SGD momentum", micro=True)
    same_as_one("bsp", "SGD", period=1)
    same_as_one("gossip-pga", "SGD", period=1)
    every_strategy(unchanged=sys.argv[1] in ("hosts", "mapped"))
    row_hosts_end()
    buffers()
    other_weights()
    samplers()
    going_on()
    if sys.argv[1] == "here":
        block_momentum()
    forward_without_step()
    attached_resuming.main(DEVICE, sys.argv[1])


if __name__ == "__main__":
    main()
