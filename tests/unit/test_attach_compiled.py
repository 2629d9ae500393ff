"""torch.compile and attach, in any order: the graphs of plain torch, the numbers of a loop that is not compiled."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo import eval_frame
from torch._dynamo.utils import counters

import roundelay

pytestmark = pytest.mark.filterwarnings("ignore")  # Dynamo and inductor have their own
Graphs = tuple[int, int]
"""Numbers of graphs, and of breaks."""


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    yield
    torch._dynamo.reset()


class Own(nn.Module):
    """A class of the user's, with a container, a part of its own and a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = nn.Linear(4, 6), nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 2))
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.rest(torch.tanh(self.first(x))) * self.scale
        return out


def container() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


Call = Callable[[Tensor, Tensor], Tensor]
"""The loss of a minibatch."""


def of(call: Callable[[Tensor], Tensor]) -> Call:
    return lambda x, y: nn.functional.cross_entropy(call(x), y)


def whole(model: nn.Module, options: dict[str, Any]) -> Call:
    return of(torch.compile(model, **options))


def in_place(model: nn.Module, options: dict[str, Any]) -> Call:
    model.compile(**options)
    return of(model)


def its_forward(model: nn.Module, options: dict[str, Any]) -> Call:
    model.forward = torch.compile(model.forward, **options)
    return of(model)


def in_a_function(model: nn.Module, options: dict[str, Any]) -> Call:
    found: Call = torch.compile(of(model), **options)
    return found


def plain(model: nn.Module, _: dict[str, Any]) -> Call:
    return of(model)


WAYS = [whole, in_place, its_forward, in_a_function]


def trained(
    make: Callable[[], nn.Module],
    way: Callable[[nn.Module, dict[str, Any]], Call],
    attached: str | None,
    **options: Any,
) -> tuple[Graphs, list[float], list[bool]]:
    """Graphs, losses, and for each step whether its forward left it to begin. `attached` "first", or when the model is
    "compiled" or has "run" compiled; None: not."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    session = roundelay.attach(model, optimizer, "ssgd") if attached == "first" else None
    loss_of = way(model, {"backend": "eager", **options})
    session = roundelay.attach(model, optimizer, "ssgd") if attached == "compiled" else session
    generator = torch.Generator().manual_seed(3)
    losses, late = [], []
    for number in range(6):
        if number == 2 and attached == "run":
            session = roundelay.attach(model, optimizer, "ssgd")
        size = 8 + number % 2 if options.get("dynamic") else 8
        optimizer.zero_grad()
        loss = loss_of(torch.randn(size, 4, generator=generator), torch.randint(2, (size,), generator=generator))
        late.append(session is not None and session.wants_to_begin)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    if session is not None:
        session.close()
    return (counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())), losses, late


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [Own, container])
def test_graphs_are_those_of_plain_torch(
    make: Callable[[], nn.Module], way: Callable[[nn.Module, dict[str, Any]], Call]
) -> None:
    """Hold every way to compile it, before it is attached and after; every forward begins its step."""
    graphs, losses, _ = trained(make, way, None)
    assert graphs[1] == 0
    _, uncompiled, _ = trained(make, plain, "first")
    for attached in ("first", "compiled", "run"):
        assert trained(make, way, attached) == (graphs, losses, [False] * 6), attached
        assert losses == uncompiled
    assert eval_frame._callback_from_stance == CALLED, "what hears of compiled calls is gone with the last session"


CALLED = eval_frame._callback_from_stance


@pytest.mark.parametrize("options", [{"fullgraph": True}, {"dynamic": True}, {"backend": "aot_eager"}])
def test_so_they_are_with_other_options(options: dict[str, Any]) -> None:
    for way in (whole, in_a_function):
        assert trained(Own, way, "first", **options) == trained(Own, way, None, **options)


def test_inductor_compiles_one_graph() -> None:
    found = trained(Own, whole, "first", backend="inductor", fullgraph=True)
    assert found == trained(Own, whole, None, backend="inductor", fullgraph=True)
    assert found[0] == (1, 0)


@pytest.mark.parametrize("attached", ["first", "compiled"])
def test_a_compiled_step_is_the_loop_s(attached: str) -> None:
    """A function with the whole step in it is cut in two at optimizer.step(), which is not compiled."""

    def in_it(model: nn.Module, optimizer: torch.optim.Optimizer) -> Call:
        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            torch.autograd.backward(loss)
            optimizer.step()
            return loss.detach()

        return step

    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = Own()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = in_it(model, optimizer)
        session = roundelay.attach(model, optimizer, "ssgd") if attached == "first" else None
        step = torch.compile(step, backend="eager") if compiled else step
        session = session or roundelay.attach(model, optimizer, "ssgd")
        x, y = torch.ones(8, 4), torch.arange(8) % 2
        with session:
            found.append([step(x, y).item() for _ in range(4)])
            assert session.steps == 4
    assert found[0] == found[1]


def test_a_step_that_is_to_be_one_graph_is_refused_with_our_reason() -> None:
    model = Own()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with roundelay.attach(model, optimizer, "ssgd") as session:
        torch.autograd.backward(model(torch.ones(8, 4)).sum())
        for step in (optimizer.step, session._steps.step):
            compiled = torch.compile(lambda step=step: step(), backend="eager", fullgraph=True)
            with pytest.raises(Exception, match=r"a step of roundelay.attach talks .* cannot be compiled"):
                compiled()


def test_two_optimizers_and_a_compiled_model() -> None:
    """By turns: a compiled forward completes the step, and sees ordinary parameters."""
    found = []
    for compiled in (False, True):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model = container()
        optimizers = [torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.9) for part in (model[0], model[2])]  # type: ignore[index]
        with roundelay.attach(model, optimizers, "ssgd"):
            loss_of = (in_a_function if compiled else plain)(model, {"backend": "eager"})
            for number in range(6):
                loss = loss_of(torch.full((8, 4), 0.1 * number), torch.arange(8) % 2)
                torch.autograd.backward(loss)
                optimizers[number % 2].step()
                optimizers[number % 2].zero_grad()
                found.append(loss.item())
    assert found[:6] == found[6:]
    assert counters["stats"]["unique_graphs"] == 1
