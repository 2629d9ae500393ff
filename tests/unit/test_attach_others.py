"""Optimizers beside those that are attached, or within them: each trains as without us, or is named."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import roundelay
from roundelay.attached.hyperparameters import UsersOptimizers
from roundelay.core.errors import UserError
from support.sharpness import Lookahead, SharpnessAware, sharpness_by_hand
from support.small_loop import backward, batches, loss_of, network


def values(model: nn.Module) -> list[float]:
    return [float(value) for p in model.parameters() for value in p.detach().reshape(-1)]


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def sharp(model: nn.Module) -> Optimizer:
    return SharpnessAware(model, lr=0.1, momentum=0.9)


def in_two_steps(model: nn.Module, optimizer: Any, count: int) -> None:
    for x, y in batches(count):
        backward(model, x, y)
        optimizer.first_step()
        backward(model, x, y)
        optimizer.second_step()
        optimizer.zero_grad()


def by_a_closure(model: nn.Module, optimizer: Any, count: int) -> None:
    for x, y in batches(count):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            torch.autograd.backward(loss)
            return loss

        closure()
        optimizer.step(closure)


def by_hand(way: str) -> Callable[[nn.Module, Any, int], None]:
    def loop(model: nn.Module, optimizer: Any, count: int) -> None:
        for x, y in batches(count):
            sharpness_by_hand(model, optimizer, loss_of, x, y, way)

    return loop


def plainly(model: nn.Module, optimizer: Any, count: int) -> None:
    for x, y in batches(count):
        optimizer.zero_grad()
        backward(model, x, y)
        optimizer.step()


def ahead(model: nn.Module) -> Optimizer:
    return Lookahead(sgd(model))


LOOPS: dict[str, tuple[Callable[[nn.Module, Any, int], None], Callable[[nn.Module], Optimizer]]] = {
    "two steps": (in_two_steps, sharp),
    "closure": (by_a_closure, sharp),
    "by hand": (by_hand("named"), sgd),
    "by hand, through data": (by_hand("data"), sgd),
    "by hand, kept": (by_hand("kept"), sgd),
    "lookahead": (plainly, ahead),
}


@pytest.mark.parametrize("strategy", ["adpsgd", "ssgd"])
@pytest.mark.parametrize("name", LOOPS)
def test_an_optimizer_in_another_goes_where_it_goes_alone(
    name: str, strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Bit for bit, beyond the steps in which every value is compared, and without a word of changes by hand."""
    loop, make = LOOPS[name]
    plain, model = network(), network()
    loop(plain, make(plain), 45)
    optimizer = make(model)
    with roundelay.attach(model, optimizer, strategy) as session, caplog.at_level(logging.WARNING):
        loop(model, optimizer, 45)
        assert session.steps == 45
    assert values(model) == values(plain)
    assert not caplog.records


def test_momentum_is_reset_in_what_an_optimizer_holds() -> None:
    model = network()
    held = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = Lookahead(held)
    plainly(model, optimizer, 1)
    moments = [state["momentum_buffer"] for state in held.state.values()]
    assert all(moment.any() for moment in moments)
    UsersOptimizers([optimizer]).reset_momentum({})
    assert len(moments) == 4
    assert not any(moment.any() for moment in moments)


def test_what_does_not_come_back_is_a_change_by_hand(caplog: pytest.LogCaptureFixture) -> None:
    """Values moved for a gradient, and left there."""
    model = network()
    optimizer = sgd(model)
    with roundelay.attach(model, optimizer), caplog.at_level(logging.WARNING):
        for x, y in batches(2):
            backward(model, x, y)
            model.get_parameter("0.weight").data.add_(0.1)
            backward(model, x, y)
            optimizer.step()
    assert "parameters 0.weight were changed by hand" in caplog.text


def test_an_optimizer_that_is_not_attached_is_named() -> None:
    """Before it has changed anything; one whose parameters have no gradient changes nothing."""
    model = network()
    optimizer, other = sgd(model), torch.optim.Adagrad([model.get_parameter("2.weight"), nn.Parameter(torch.zeros(2))])
    with roundelay.attach(model, optimizer) as session:
        other.step()
        backward(model, *next(batches(1)))
        before = values(model)
        with pytest.raises(UserError, match=r"Adagrad, which is not attached, steps 1 parameters .* as well"):
            other.step()
        assert values(model) == before
        optimizer.step()
        with session.consensus():
            pass
    other.step()  # it is free afterwards


def test_an_optimizer_that_another_holds_is_named_with_its_place() -> None:
    model = network()
    for loop, said in (
        (in_two_steps, r"SGD, which is not .*: SharpnessAware holds it as `inner`.*attach\(module, optimizer.inner\)"),
        (by_a_closure, r"SharpnessAware.step\(\) fails without its closure \(it needs a closure\).* attach that one"),
    ):
        optimizer = SharpnessAware(model, held_as="inner", lr=0.1)
        session = roundelay.attach(model, optimizer)
        with pytest.raises(UserError, match=said):
            loop(model, optimizer, 1)
        session.abandon()


class Stranger:
    """An optimizer of Keras: variables and apply(), no param_groups."""

    learning_rate = 0.1

    def apply(self, gradients: list[Tensor]) -> None: ...


class Insisting(torch.optim.SGD):
    """One that cannot do without its closure."""

    def step(self, closure: Callable[[], float]) -> float:  # type: ignore[override]
        return closure()


def test_what_attach_cannot_step_is_named() -> None:
    model = network()
    with pytest.raises(UserError, match=r"test_attach_others.Stranger is no optimizer that attach can step.*Keras"):
        roundelay.attach(model, Stranger())  # type: ignore[arg-type]
    for optimizer in (torch.optim.LBFGS(model.parameters()), Insisting(model.parameters(), lr=0.1)):
        with pytest.raises(UserError, match=rf"{type(optimizer).__name__} evaluates the model inside its step"):
            roundelay.attach(model, optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(plain := sgd(model), 2)  # wraps step, and its arguments
    roundelay.attach(model, plain).close()
    assert schedule.get_last_lr() == [0.1]
