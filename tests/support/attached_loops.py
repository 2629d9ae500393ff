"""Run as two learners by tests/laws/test_attach_loops.py: loops that nobody wrote for a session, and what they do to
their modules. In one start of two processes."""

import itertools
from collections.abc import Iterable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import roundelay
from roundelay.core.errors import UserError
from roundelay.runtime.attached.membership import Membership
from roundelay.strategies import STRATEGIES
from support.attached_laws import (
    DEVICE,
    PATIENCE,
    STEPS,
    attached,
    minibatches,
    mlp,
    place_modules,
    train,
    values,
)
from support.launched import report
from support.sharpness import sharpness_by_hand
from support.until import until


def overflow(law: str = "overflow", names: Iterable[str] = STRATEGIES) -> None:
    """A gradient of rank 1 is infinite in its second minibatch: with a scaler, and the loop as it is without us. Or it
    is spoilt after it was unscaled."""
    for name in names:
        if name == "sgd":
            continue
        model = mlp()
        with attached(model, "SGD", name) as session:
            scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10)
            for number, (x, y) in enumerate(minibatches(session.rank)):
                session.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                spoils = session.rank == 1 and number == 1
                if spoils and law == "overflow":
                    loss = loss * float("inf")
                torch.autograd.backward(scaler.scale(loss))
                if law == "spoilt":
                    scaler.unscale_(session.optimizer)
                    for p in model.parameters() if spoils else ():
                        p.grad = torch.full_like(p, float("nan"))
                session.examples = len(x)
                scaler.step(session.optimizer)
                scaler.update()
            session.meet()
            steps = session.summary()["steps"]
        report(law=f"{law} {name}", rank=session.rank, values=values(model), scale=scaler.get_scale(), steps=steps)


class Heads(nn.Module):
    """A network of three heads: rank 1 alone uses the second, in its minibatches; no learner uses the third."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = nn.ModuleList(nn.Linear(5, 3) for _ in range(3))

    def forward(self, x: Tensor, second: Tensor) -> Tensor:
        out: Tensor = self.heads[0](x)
        if second.any():
            out = out + self.heads[1](x) * second
        return out


def unused(strategy: str, **options: Any) -> None:
    model = Heads().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
    with roundelay.attach(model, optimizer, strategy, patience=PATIENCE, **options) as session:
        for x, y in minibatches(session.rank):
            optimizer.zero_grad()
            second = torch.full((len(x), 1), float(session.rank), device=DEVICE)
            torch.autograd.backward(nn.functional.cross_entropy(model(x, second), y))
            session.examples = len(x)
            optimizer.step()
    heads = [values(head) for head in model.heads]
    report(law=f"unused {strategy}", rank=session.rank, values=sum(heads, []), third=heads[2])  # noqa: RUF017


def by_hand() -> None:
    """All learners clamp after every step, in a way that version counters do not see; then rank 1 alone does it."""
    for name in STRATEGIES:
        if name == "sgd":
            continue
        model = mlp()
        whole = ",density=1,two_bits=false" * (name == "sparseloco")  # else the largest changes alone are sent at once
        with attached(model, "SGD", name + whole) as session:
            for x, y in minibatches(0):  # of both: so that both clamp as often
                session.optimizer.zero_grad()
                torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
                session.optimizer.step()
                for p in model.parameters():
                    p.data.clamp_(-0.1, 0.1)
        report(law=f"by hand {name}", rank=session.rank, values=values(model))
    session = attached(mlp(), "SGD", "ssgd")
    error = ""
    try:
        for _ in range(2):
            train(session, minibatches(session.rank))
            if session.rank == 1:
                next(session.module.parameters()).data.zero_()
    except UserError as found:
        error = str(found)
    session.close()
    report(law="by hand alone", rank=session.rank, error=error)


def other_meetings() -> None:
    """Rank 0 evaluates, rank 1 does not and closes."""
    for name in STRATEGIES:
        if name == "sgd":
            continue
        session = attached(mlp(), "SGD", name)
        error = ""
        try:
            train(session, minibatches(session.rank))
            with session.consensus():
                pass
            if session.rank == 0:
                with session.consensus():
                    pass
            session.close()
        except UserError as found:
            error = str(found)
        session.close()
        report(law=f"meetings {name}", rank=session.rank, error=error)


def trained_at_once() -> None:
    """Rank 0 trains, and mixes into rank 1's row, before rank 1 has gone on from the place where all have come."""
    gather = Membership.gather

    def slowly(self: Membership, *arguments: Any) -> None:
        gather(self, *arguments)
        if self.rank == 1:
            until(lambda: self._arena.row_versions.versions[1] > 2)

    with patch.object(Membership, "gather", slowly):
        session = attached(mlp(), "SGD", "adpsgd")
    if session.rank == 0:
        while session.summary()["exchanges"][0][1] == 0:
            train(session, minibatches(0))
    report(law="at once", rank=session.rank, agreed=session._learner.agreed)
    session.close()


def rounded() -> None:
    """Parameters in bfloat16, of which the first module is, trained by ssgd."""
    model = mlp().to(torch.bfloat16)
    with attached(model, "SGD momentum", "ssgd") as session:
        for x, y in minibatches(session.rank):
            session.optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(x.bfloat16()).float(), y))
            session.step(len(x))
        row = session.state_dict()["row"].tolist()
    report(law="rounded", rank=session.rank, row=row, values=values(model))


def sharpness() -> None:
    """Moved for a second gradient and moved back, written by hand, under one model for all: back by a difference that
    rounds, or by a copy that does not; from the beginning, and long after it."""
    for way in ("named", "data", "kept"):
        for first in (0, 45):
            model = mlp()
            with attached(model, "SGD", "ssgd") as session:
                for _ in range(first):
                    train(session, itertools.islice(minibatches(session.rank), 1))
                for x, y in itertools.islice(minibatches(session.rank), min(STEPS)):
                    sharpness_by_hand(model, session.optimizer, cross_entropy, x, y, way)
            report(law=f"sharpness {way} {first}", rank=session.rank, values=values(model))


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y)


def by_other_calls() -> None:
    """A step that begins with an exchange, and forwards that no module reports: of a compiled function, and by
    `forward`, with begin_step() before them and without."""
    for way in ("called", "compiled", "forward begun", "forward"):
        model = mlp()
        compiled = torch.compile(lambda x, model=model: model(x), backend="eager")
        with attached(model, "SGD", "dpsgd", order="cta") as session:
            for x, y in minibatches(session.rank):
                session.optimizer.zero_grad()
                if way == "forward begun":
                    session.begin_step()
                scores = compiled(x) if way == "compiled" else model(x) if way == "called" else x
                if way.startswith("forward"):
                    for part in model.children():
                        scores = part.forward(scores)
                torch.autograd.backward(nn.functional.cross_entropy(scores, y))
                session.optimizer.step()
        report(law=f"calls {way}", rank=session.rank, values=values(model))


def main() -> None:
    place_modules()
    overflow()
    overflow("spoilt", ("ssgd", "adpsgd"))
    unused("ssgd")
    unused("bsp", period=2)
    unused("delayed-gradient")
    by_hand()
    other_meetings()
    trained_at_once()
    rounded()
    sharpness()
    by_other_calls()


if __name__ == "__main__":
    main()
