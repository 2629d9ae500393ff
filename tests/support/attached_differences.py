"""Run as two learners by tests/laws/test_attach_differences.py: rank 1 attaches, draws or trains otherwise than rank 0,
one case after another. What each learner is told, by an error or a warning, is reported."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

import roundelay
from roundelay.attached import Session
from roundelay.attached.alarms import say_unclosed
from roundelay.core.errors import UserError
from roundelay.runtime.base import LearnerDied
from support.launched import report
from support.until import until

PATIENCE = 60.0
RANK = roundelay.rank()
OTHER = RANK == 1
"""Is this the one that differs?"""
WARNINGS: list[str] = []
TOLD: list[Path] = []
"""The file that says, on hosts, that a learner has been told that it has no data."""


class _Kept(logging.Handler):
    """Keeps what is said, but for the learning rate of several learners, which is no difference, and for a learner that
    waits in close() or is slow, which depend on who is faster."""

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if not any(part in said for part in ("rate gain", "came to close() after", " is slow: ")):
            WARNINGS.append(said)
        if "without a step of its own" in said and TOLD:
            TOLD[0].touch()


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def sgd(model: nn.Module, lr: float = 0.1, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, **options)


def step(session: Session, number: int = 0, factor: float = 1.0) -> None:
    """Take one step of a user's loop, on minibatch `number`, with its loss times `factor`."""
    generator = torch.Generator().manual_seed(1000 * RANK + number)
    session.optimizer.zero_grad()
    loss = session.module(torch.randn(4, 5, generator=generator)).square().mean() * factor
    torch.autograd.backward(loss)
    session.optimizer.step()


def values(model: nn.Module) -> list[float]:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()


@contextmanager
def session_of(law: str, strategy: str, lr: float = 0.1) -> Iterator[tuple[Session, dict[str, Any]]]:
    """Yield a session for the case `law`, and a dictionary; facts put there are reported, and the model at the end."""
    with case(f"{law} {strategy}") as facts:
        model = mlp()
        with roundelay.attach(model, sgd(model, lr), strategy, patience=PATIENCE) as session:
            yield session, facts
        facts["values"] = values(model)


@contextmanager
def case(law: str, **facts: Any) -> Iterator[dict[str, Any]]:
    """Report, for the case `law`, what was said in the body, and the facts put into the dictionary yielded."""
    WARNINGS.clear()
    try:
        yield facts
    except (UserError, LearnerDied, TimeoutError) as error:
        facts["error"] = str(error)
    report(law=law, rank=RANK, said=[*WARNINGS], **facts)


# What learners attach with --------------------------------------------------------------------------------------------

MODULES: dict[str, Callable[[nn.Sequential], object]] = {
    "shape": lambda model: model.__setitem__(2, nn.Linear(8, 4)),
    "name": lambda model: vars(model).update(_modules={"first": model[0], "1": model[1], "2": model[2]}),
    "dtype": lambda model: model[2].bfloat16(),
    "more": lambda model: model.append(nn.Linear(3, 3)),
    "frozen": lambda model: model[0].bias.requires_grad_(False),
    "buffer": lambda model: model.register_buffer("extra", torch.zeros(3)),
}
"""Changes of rank 1 to its module, by name."""


def halves(model: nn.Sequential) -> list[dict[str, Any]]:
    """Return two groups of parameters, each half of the model's."""
    return [{"params": part.parameters()} for part in (model[0], model[2])]


OPTIMIZERS: dict[str, Callable[[nn.Sequential], torch.optim.Optimizer]] = {
    "rate": lambda model: sgd(model, 0.05 if OTHER else 0.1),
    "option": lambda model: sgd(model, nesterov=OTHER),
    "kind": lambda model: (torch.optim.AdamW if OTHER else torch.optim.SGD)(model.parameters(), lr=0.1),
    "groups": lambda model: torch.optim.SGD(halves(model), lr=0.1, momentum=0.9) if OTHER else sgd(model),
    "members": lambda model: torch.optim.SGD(halves(model)[:: -1 if OTHER else 1], lr=0.1),
    "same": lambda model: torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), betas=(0.8, 0.95)),
}


def attached_with(what: str, strategy: str) -> None:
    with case(f"{what} {strategy}") as facts:
        model = mlp()
        if OTHER and what in MODULES:
            MODULES[what](model)
        with roundelay.attach(model, OPTIMIZERS.get(what, sgd)(model), strategy, patience=PATIENCE) as session:
            for number in range(3):
                step(session, number)
        facts["values"] = values(model)


# Learning rates that change -------------------------------------------------------------------------------------------


def changed_rates(strategy: str, how: str) -> None:
    """Change rates by a schedule, the same on both or after different numbers of minibatches, or by hand on one."""
    with session_of(f"{how} rates", strategy, 0.5) as (session, facts):
        schedule = torch.optim.lr_scheduler.ExponentialLR(session.optimizer, 0.7)
        for _ in range(2):
            for number in range(3 if OTHER and how == "uneven" else 5):
                step(session, number)
                schedule.step()
                if how == "plateau" and OTHER and number == 2:
                    session.optimizer.param_groups[0]["lr"] *= 0.1
            session.meet()
        facts["own"] = values(session.module)
        facts["rate"] = session.optimizer.param_groups[0]["lr"]


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
    """Make samplers that differ, which is refused on both learners, also where one is made, or drawn from, first."""
    with session_of(f"sampler {what}", strategy) as (session, facts):
        terms: dict[str, Any] = {"dataset": 40, "batch_size": 4, **SAMPLERS[what]}
        facts["drawn"] = []
        sampler = session.sampler(**terms)
        for number, batch in enumerate(sampler):
            facts["drawn"] += batch
            step(session, number)


def orders_of_samplers(strategy: str, how: str) -> None:
    """Make two samplers, rank 1 in another order, or only one of them, or none."""
    with session_of(f"samplers {how}", strategy) as (session, _):
        sizes = [40, 8]
        if OTHER:
            sizes = {"swapped": sizes[::-1], "fewer": sizes[:1], "none": []}[how]
        for size in sizes:
            session.sampler(size, 4)
        step(session)


# Steps that train nothing, or too much --------------------------------------------------------------------------------


def not_finite(strategy: str) -> None:
    """Train with a loss that is NaN on rank 1 in step 4, and one element of one gradient that is in step 7."""
    with session_of("nan", strategy) as (session, _):
        for number in range(10):
            weight: Any = session.module.get_parameter("2.weight")
            spoiled = weight.register_hook(_spoil) if OTHER and number == 6 else None
            step(session, number, float("nan") if OTHER and number == 3 else 1.0)
            if spoiled is not None:
                spoiled.remove()


def _spoil(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(float("nan")))


def frozen_later(strategy: str) -> None:
    """Train while rank 1 freezes a parameter in the middle."""
    with session_of("frozen later", strategy) as (session, _):
        for number in range(6):
            if OTHER and number == 3:
                session.module.get_parameter("2.weight").requires_grad_(False)
            step(session, number)
        session.meet()


def idle(strategy: str) -> None:
    """Rank 1 has no data. On hosts rank 0 stays until rank 1 has been told: what it has done takes a while to get
    there."""
    with session_of("idle", strategy) as (session, _):
        for number in range(0 if OTHER else 40):
            step(session, number)
        if TOLD and not OTHER:
            until(TOLD[0].exists, PATIENCE / 2)


def unclosed() -> None:
    """Leave sessions unclosed when the process ends: a usual one, one that fails, and one that is left in silence."""
    for how in ("fails", "open", "exits"):
        with case(f"unclosed {how}"), suppress(SystemExit):
            model = mlp()
            session = roundelay.attach(model, sgd(model), "adpsgd", patience=PATIENCE)
            step(session)
            if how == "fails":
                session.abandon()
            if how == "exits":
                with session:
                    sys.exit()
            say_unclosed()


def on_two_hosts(refused: str, folder: Path) -> None:
    """Run the cases of two hosts; the one that is `refused` comes last, since no session can follow it."""
    match refused:
        case "sampler":
            for how in ("same", "uneven"):
                changed_rates("ssgd", how)
            attached_with("rate", "adpsgd")
            attached_with("same", "adpsgd")
            changed_rates("bsp", "plateau")
            not_finite("adpsgd")
            frozen_later("adpsgd")
            for strategy in ("adpsgd", "ssgd"):
                TOLD[:] = [folder / strategy]
                idle(strategy)
            samplers("adpsgd", "batch_size")
        case "rate":
            attached_with("rate", "ssgd")
        case "shape":
            attached_with("shape", "adpsgd")


def main(where: str = "", refused: str = "", folder: str = "") -> None:
    logging.getLogger("roundelay").addHandler(_Kept(logging.WARNING))
    if where == "hosts":
        on_two_hosts(refused, Path(folder))
    else:
        on_one_host()


def on_one_host() -> None:
    """Run all cases of one host."""
    for what in MODULES:
        attached_with(what, "adpsgd")
    for what in OPTIMIZERS:
        for strategy in ("ssgd", "bsp", "adpsgd"):
            attached_with(what, strategy)
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
    idle("adpsgd,weights=equal")

    unclosed()


if __name__ == "__main__":
    main(*sys.argv[1:])
