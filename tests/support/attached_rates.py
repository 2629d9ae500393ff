"""Run as two learners by tests/laws/test_learners_rate.py: the learning rate of attached learners."""

from operator import ge
from typing import Any

import torch
from torch import nn

import roundelay
from roundelay.algorithms.gain import EARLY, PERIOD
from roundelay.attached import Session
from roundelay.core.errors import UserError
from support.attached_resuming import alone, directory
from support.launched import report
from support.until import until

STRATEGIES = ("ssgd", "dpsgd")
"""Of gradients that are averaged, and of rows of which each has its own."""
RATE = 0.02


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, 2))


def attached(model: nn.Module, strategy: str, lr: float = RATE, **options: Any) -> Session:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.5)
    return roundelay.attach(model, optimizer, strategy, patience=60.0, **options)


def train(session: Session, first: int, last: int, apart: int = 1000) -> None:
    """Targets that have little to do with the inputs: gradients are mostly noise."""
    for number in range(first, last):
        drawn = torch.Generator().manual_seed(apart * session.rank + number)
        x, y = torch.randn(16, 48, generator=drawn), torch.randint(2, (16,), generator=drawn)
        session.optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(session.module(x), y))
        session.optimizer.step()


def values(model: nn.Module) -> list[float]:
    return nn.utils.parameters_to_vector(model.parameters()).tolist()


def whole(law: str, strategy: str, steps: int, lr: float = RATE, **options: Any) -> None:
    model = network()
    with attached(model, strategy, lr, **options) as session:
        train(session, 0, steps)
        session.meet()
        summary = session.summary()
        rates = [group["lr"] for group in session.optimizer.param_groups]
    report(law=f"{law} {strategy}", rank=session.rank, values=values(model), rates=rates, work=summary["work"])


def equal(strategy: str) -> None:
    """Equal minibatches, before a meeting and after it."""
    model, steps = network(), 12 * PERIOD
    with attached(model, strategy, rate="gain") as session:
        train(session, 0, steps, apart=0)
        session.meet()
        before = float(session._learner.counts.rate_factors[session.rank])
        train(session, steps, 2 * steps, apart=0)
        factor = (float(session._learner.counts.rate_factors[session.rank]) - before) / steps
    report(law=f"equal {strategy}", rank=session.rank, factors=[before / steps, factor])


def resumed(strategy: str) -> None:
    """Saved between two pairs, and gone on with."""
    before, steps = EARLY - 3, EARLY + PERIOD
    with directory(f"rate {strategy}") as path:
        model = network()
        with attached(model, strategy, rate="gain") as session:
            train(session, 0, before)
            session.save(path)
            train(session, before, steps)
            signal = session._learner._rate.noise.signal  # type: ignore[union-attr]
        again = network()
        with attached(again, strategy, rate="gain", resume=path) as other:
            train(other, before, steps)
    report(law=f"resumed {strategy}", rank=session.rank, straight=values(model), values=values(again), signal=signal)


def other_rate() -> None:
    model, rank, error = network(), roundelay.rank(), ""
    try:
        attached(model, "adpsgd", rate=("linear", "gain")[rank]).abandon()
    except UserError as refused:
        error = str(refused)
    report(law="other rate", rank=rank, error=error)


def unequal() -> None:
    """Learner 0 takes 30 steps, then learner 1 ten, then learner 0 one more."""
    model, turns = network(), ((0, 30), (1, 10), (0, 1))
    with attached(model, "adpsgd", rate="fastest") as session:
        before, factors = [0, 0], list[float]()
        for rank, steps in turns:
            counted = float(session._learner.counts.rate_factors[session.rank])
            if session.rank == rank:
                train(session, before[rank], before[rank] + steps)
            before[rank] += steps
            until(lambda: all(map(ge, session.summary()["steps"], before)))  # the other may be in its next turn already
            factors.append((float(session._learner.counts.rate_factors[session.rank]) - counted) / steps)
        session.meet()
        summary, rates = session.summary(), [group["lr"] for group in session.optimizer.param_groups]
    known = {"rate": summary["rate"], "rates": rates, "factors": factors, "strategy": repr(session.strategy)}
    report(law="unequal", rank=session.rank, **known)


def by_default() -> None:
    """Rate and strategy where nothing is said, and where equal weights are."""
    found = {}
    for strategy in ("adpsgd", "adpsgd,weights=equal", "ssgd"):
        with attached(network(), strategy) as session:
            found[strategy] = session.summary()["rate"], repr(session.strategy)
    report(law="by default", rank=session.rank, **found)


def alone_at_last() -> None:
    """Learner 1 leaves before anybody has trained."""
    model, plain = network(), network()
    session = attached(model, "adpsgd", rate="linear")
    session.meet()
    if session.rank:
        session.abandon()
    else:
        until(lambda: session.living == (0,))
        with session:
            train(session, 0, 5)
    with alone():
        other = attached(plain, "adpsgd")
        with other:
            train(other, 0, 5)
    report(law="alone at last", rank=session.rank, values=values(model), plain=values(plain))


def main() -> None:
    for strategy in STRATEGIES:
        whole("linear", strategy, 6, rate="linear")
        whole("twice", strategy, 6, lr=2 * RATE)
        whole("gain", strategy, 12 * PERIOD, rate="gain")
        equal(strategy)
        resumed(strategy)
    unequal()
    by_default()
    other_rate()
    alone_at_last()


if __name__ == "__main__":
    main()
