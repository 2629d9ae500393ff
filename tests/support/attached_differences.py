"""Run as two learners by tests/laws/test_attach_differences.py: rank 1 attaches, draws or trains otherwise than rank 0,
one case after another. What each learner is told, by an error or a warning, is reported."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

import roundelay
from roundelay.attached import Session
from roundelay.attached.alarms import say_unclosed
from roundelay.core.errors import UserError
from roundelay.runtime.base import LearnerDied
from support.launched import report

PATIENCE = 60.0
RANK = roundelay.rank()
OTHER = RANK == 1
"""Is this the one that differs?"""
WARNINGS: list[str] = []


class _Kept(logging.Handler):
    """Keeps what is said, but for the learning rate of several learners, which is no difference, and for a learner that
    waits in close(), which depends on who is faster."""

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if "rate gain" not in said and "came to close() after" not in said:
            WARNINGS.append(said)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def sgd(model: nn.Module, lr: float = 0.1, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, **options)


def step(session: Session, number: int = 0, factor: float = 1.0) -> None:
    """One step of somebody's loop."""
    generator = torch.Generator().manual_seed(1000 * RANK + number)
    session.optimizer.zero_grad()
    loss = session.module(torch.randn(4, 5, generator=generator)).square().mean() * factor
    torch.autograd.backward(loss)
    session.optimizer.step()


def values(model: nn.Module) -> list[float]:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()


@contextmanager
def case(law: str, **facts: Any) -> Iterator[dict[str, Any]]:
    """Reports what was said in the body, and `facts` that it adds."""
    WARNINGS.clear()
    try:
        yield facts
    except (UserError, LearnerDied, TimeoutError) as error:
        facts["error"] = str(error)
    report(law=law, rank=RANK, said=[*WARNINGS], **facts)


# What learners attach with --------------------------------------------------------------------------------------------

Made = tuple[nn.Module, torch.optim.Optimizer]


def shape() -> Made:
    model = mlp()
    if OTHER:
        model[2] = nn.Linear(8, 4)
    return model, sgd(model)


def name() -> Made:
    model = nn.ModuleDict({"second" if OTHER else "first": nn.Linear(5, 3)})
    return model, sgd(model)


def dtype() -> Made:
    model = mlp()
    if OTHER:
        model[2].bfloat16()
    return model, sgd(model)


def more() -> Made:
    model = mlp()
    if OTHER:
        model.append(nn.Linear(3, 3))
    return model, sgd(model)


def frozen() -> Made:
    model = mlp()
    if OTHER:
        model[0].bias.requires_grad_(False)
    return model, sgd(model)


def buffer() -> Made:
    model = mlp()
    if OTHER:
        model.register_buffer("extra", torch.zeros(3))
    return model, sgd(model)


def rate() -> Made:
    model = mlp()
    return model, sgd(model, 0.05 if OTHER else 0.1)


def option() -> Made:
    model = mlp()
    return model, sgd(model, nesterov=OTHER)


def kind() -> Made:
    model = mlp()
    return model, torch.optim.AdamW(model.parameters(), lr=0.1) if OTHER else torch.optim.SGD(
        model.parameters(), lr=0.1
    )


def groups() -> Made:
    model = mlp()
    parts: list[dict[str, Any]] = [{"params": part.parameters()} for part in (model[0], model[2])]
    return model, torch.optim.SGD(parts, lr=0.1, momentum=0.9) if OTHER else sgd(model)


def members() -> Made:
    """The same groups, of other parameters."""
    model = mlp()
    parts: list[dict[str, Any]] = [{"params": part.parameters()} for part in (model[0], model[2])]
    return model, torch.optim.SGD(parts[::-1] if OTHER else parts, lr=0.1)


def same() -> Made:
    model = mlp()
    return model, torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), betas=(0.8, 0.95))


def attached_with(make: Callable[[], Made], strategy: str) -> None:
    with case(f"{make.__name__} {strategy}") as facts:
        model, optimizer = make()
        with roundelay.attach(model, optimizer, strategy, patience=PATIENCE) as session:
            for number in range(3):
                step(session, number)
        facts["values"] = values(model)


# Learning rates that change -------------------------------------------------------------------------------------------


def changed_rates(strategy: str, how: str) -> None:
    """By a schedule: the same everywhere; after different numbers of minibatches; or by hand on one learner."""
    with case(f"{how} rates {strategy}") as facts:
        model = mlp()
        optimizer = sgd(model, 0.5)
        with roundelay.attach(model, optimizer, strategy, patience=PATIENCE) as session:
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
            for _ in range(2):
                for number in range(3 if OTHER and how == "uneven" else 5):
                    step(session, number)
                    schedule.step()
                    if how == "plateau" and OTHER and number == 2:
                        optimizer.param_groups[0]["lr"] *= 0.1
                session.meet()
            facts["own"] = values(model)
            facts["rate"] = optimizer.param_groups[0]["lr"]
        facts["values"] = values(model)


# Samplers -------------------------------------------------------------------------------------------------------------

SAMPLERS: dict[str, dict[str, Any]] = {
    "seed": {"seed": RANK},
    "batch_size": {"batch_size": 5 if OTHER else 4},
    "dataset": {"dataset": 20 if OTHER else 40},
    "shuffle": {"shuffle": not OTHER},
    "drop_last": {"drop_last": OTHER},
    "nothing": {},
}


def samplers(strategy: str, what: str) -> None:
    """One that differs is refused on both, also where it is made before the other, or drawn from."""
    with case(f"sampler {what} {strategy}") as facts:
        model = mlp()
        with roundelay.attach(model, sgd(model), strategy, patience=PATIENCE) as session:
            terms: dict[str, Any] = {"dataset": 40, "batch_size": 4, **SAMPLERS[what]}
            facts["drawn"] = []
            sampler = session.sampler(**terms)
            for number, batch in enumerate(sampler):
                facts["drawn"] += batch
                step(session, number)


def orders_of_samplers(strategy: str, how: str) -> None:
    """Two samplers, made in another order; or of which rank 1 makes one, or none."""
    with case(f"samplers {how} {strategy}"):
        model = mlp()
        with roundelay.attach(model, sgd(model), strategy, patience=PATIENCE) as session:
            sizes = [40, 8]
            if OTHER:
                sizes = {"swapped": sizes[::-1], "fewer": sizes[:1], "none": []}[how]
            for size in sizes:
                session.sampler(size, 4)
            step(session)


# Steps that train nothing, or too much --------------------------------------------------------------------------------


def without_gradient(strategy: str, how: str) -> None:
    """Rank 1 calls no backward, or clears the gradients before the step."""
    with case(f"without {how} {strategy}"):
        model = mlp()
        optimizer = sgd(model)
        with roundelay.attach(model, optimizer, strategy, patience=PATIENCE):
            for _ in range(30):
                optimizer.zero_grad()
                loss = model(torch.randn(4, 5)).square().mean()
                if how != "backward" or not OTHER:
                    torch.autograd.backward(loss)
                if OTHER and how in ("gradient", "zero"):
                    optimizer.zero_grad(set_to_none=how == "gradient")
                optimizer.step()


def not_finite(strategy: str) -> None:
    """Losses of rank 1 are NaN in steps 4 and 7."""
    with case(f"nan {strategy}") as facts:
        model = mlp()
        with roundelay.attach(model, sgd(model), strategy, patience=PATIENCE) as session:
            for number in range(10):
                step(session, number, float("nan") if OTHER and number in (3, 6) else 1.0)
        facts["values"] = values(model)


def frozen_later(strategy: str) -> None:
    """Rank 1 freezes a parameter in the middle."""
    with case(f"frozen later {strategy}"):
        model = mlp()
        with roundelay.attach(model, sgd(model), strategy, patience=PATIENCE) as session:
            for number in range(6):
                if OTHER and number == 3:
                    model[2].weight.requires_grad_(False)
                step(session, number)
            session.meet()


def idle(strategy: str) -> None:
    """Rank 1 has no data."""
    with case(f"idle {strategy}"):
        model = mlp()
        with roundelay.attach(model, sgd(model), strategy, patience=PATIENCE) as session:
            for number in range(0 if OTHER else 40):
                step(session, number)


def unclosed() -> None:
    """Nobody closes it before the process ends; nor one that fails, which says so itself."""
    for how in ("fails", "open"):
        with case(f"unclosed {how}"):
            model = mlp()
            session = roundelay.attach(model, sgd(model), "adpsgd", patience=PATIENCE)
            step(session)
            if how == "fails":
                session.abandon()
            say_unclosed()


def on_two_hosts(refused: str) -> None:
    """Cases of two hosts; one that is refused comes last: no session follows it."""
    match refused:
        case "sampler":
            for how in ("same", "uneven"):
                changed_rates("ssgd", how)
            attached_with(rate, "adpsgd")
            attached_with(same, "adpsgd")
            changed_rates("bsp", "plateau")
            not_finite("adpsgd")
            frozen_later("adpsgd")
            idle("adpsgd")
            samplers("adpsgd", "batch_size")
        case "rate":
            attached_with(rate, "ssgd")
        case "shape":
            attached_with(shape, "adpsgd")


def main(where: str = "", refused: str = "") -> None:
    logging.getLogger("roundelay").addHandler(_Kept(logging.WARNING))
    if where == "hosts":
        on_two_hosts(refused)
    else:
        on_one_host()


def on_one_host() -> None:
    """All cases."""
    for make in (shape, name, dtype, more, frozen, buffer):
        attached_with(make, "adpsgd")
    for make in (rate, option, kind, groups, members, same):
        for strategy in ("ssgd", "bsp", "adpsgd"):
            attached_with(make, strategy)
    attached_with(rate, "delayed-gradient")
    for how in ("same", "uneven", "plateau"):
        for strategy in ("ssgd", "delayed-gradient", "hadpsgd", "bsp", "adpsgd"):
            changed_rates(strategy, how)
    for what in SAMPLERS:
        for strategy in ("ssgd", "adpsgd"):
            samplers(strategy, what)
    for strategy, how in (("adpsgd", "swapped"), ("ssgd", "fewer"), ("adpsgd", "none")):
        orders_of_samplers(strategy, how)
    for strategy in ("ssgd", "bsp", "adpsgd", "easgd"):
        not_finite(strategy)
        frozen_later(strategy)
        idle(strategy)
    for how in ("backward", "gradient", "zero", "nothing"):
        without_gradient("adpsgd", how)
    unclosed()


if __name__ == "__main__":
    main(*sys.argv[1:])
