"""`optimizer.step()` is the session's step: in a loop that keeps it, in closures, schedules, scalers; with several
optimizers, and with parameters in 16 bits. One learner must go where plain training goes."""

import copy
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn

import roundelay
from roundelay.attached.parameters import Parameters
from roundelay.attached.stepping import INNER, scaled_rates
from roundelay.core.errors import UserError
from roundelay.strategies import make_strategy
from support.small_loop import backward, batches, loss_of, network, network_by_sgd

Loop = Callable[[nn.Sequential, list[torch.optim.Optimizer]], list[float]]


def plainly(model: nn.Sequential, optimizers: list[torch.optim.Optimizer]) -> list[float]:
    losses = []
    for x, y in batches():
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = loss_of(model, x, y)
        torch.autograd.backward(loss)
        losses.append(loss.item())
        for optimizer in optimizers:
            optimizer.step()
    return losses


def by_closures(model: nn.Sequential, optimizers: list[torch.optim.Optimizer]) -> list[float]:
    losses = []
    for x, y in batches():

        def closure(x: Tensor = x, y: Tensor = y) -> float:
            optimizers[0].zero_grad()
            loss = loss_of(model, x, y)
            torch.autograd.backward(loss)
            return loss.item()

        loss = optimizers[0].step(closure)
        assert loss is not None
        losses.append(loss)
    return losses


def by_a_disabled_scaler(model: nn.Sequential, optimizers: list[torch.optim.Optimizer]) -> list[float]:
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for x, y in batches():
        optimizers[0].zero_grad()
        torch.autograd.backward(scaler.scale(loss_of(model, x, y)))
        scaler.step(optimizers[0])
        scaler.update()
    return []


def with_zeros_between(model: nn.Sequential, optimizers: list[torch.optim.Optimizer]) -> list[float]:
    for x, y in batches():
        backward(model, x, y)
        for optimizer in reversed(optimizers):
            optimizer.step()
            optimizer.zero_grad()
    return []


def by_turns(model: nn.Sequential, optimizers: list[torch.optim.Optimizer]) -> list[float]:
    """One after the other, with a forward between, as in alternating minimisation; the last is stepped last."""
    for x, y in batches():
        for optimizer in optimizers:
            for every in optimizers:
                every.zero_grad()
            backward(model, x, y)
            optimizer.step()
    return []


def now_and_then(model: nn.Sequential, optimizers: list[torch.optim.Optimizer]) -> list[float]:
    """The second one every other time."""
    for number, (x, y) in enumerate(batches()):
        for optimizer in optimizers:
            optimizer.zero_grad()
        backward(model, x, y)
        optimizers[0].step()
        if number % 2:
            optimizers[1].step()
    return []


def layer_by_layer(model: nn.Sequential, optimizers: list[torch.optim.Optimizer]) -> list[float]:
    """As forward-forward trains: each layer by itself, some epochs long, and by its `forward`."""
    losses = []
    for x, _ in batches(2):
        inputs = x
        for number, optimizer in zip((0, 2), optimizers, strict=True):
            for _ in range(3):
                loss = (model[number].forward(inputs).pow(2).mean() - 1).pow(2)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                losses.append(loss.item())
            inputs = torch.tanh(model[number].forward(inputs)).detach()
    return losses


def by_functions(model: nn.Sequential, optimizers: list[torch.optim.Optimizer]) -> list[float]:
    """By turns, and no module is called; what is computed with parameters is used two steps later."""
    losses = []
    weights: dict[str, Tensor] = dict(model.named_parameters())
    for number, (x, y) in enumerate(batches(8)):
        for optimizer in optimizers:
            for every in optimizers:
                every.zero_grad()
            hidden = nn.functional.linear(x, weights["0.weight"], weights["0.bias"]).tanh()
            scores = nn.functional.linear(hidden, weights["2.weight"], weights["2.bias"])
            if number % 2:
                scores = torch.func.functional_call(model, weights, (x,))
            loss = nn.functional.cross_entropy(scores, y) + 0.01 * sum(p.pow(2).sum() for p in model.parameters())
            torch.autograd.backward(loss)
            optimizer.step()
            losses += [loss.item(), *(p.detach().norm().item() for p in model.parameters())]
    return losses


def by_own_gradients(model: nn.Sequential, optimizers: list[torch.optim.Optimizer]) -> list[float]:
    """Gradients that torch.autograd.grad returns, given to one optimizer after the other."""
    losses = []
    for x, y in batches():
        for optimizer in optimizers:
            mine = [p for group in optimizer.param_groups for p in group["params"]]
            hidden = torch.utils.checkpoint.checkpoint(model[0].forward, x, use_reentrant=False)
            loss = nn.functional.cross_entropy(model[2].forward(hidden.tanh()), y)
            for p, gradient in zip(mine, torch.autograd.grad(loss, mine), strict=True):
                p.grad = gradient
            optimizer.step()
            losses.append(loss.item())
    return losses


def with_graphs(model: nn.Sequential, optimizers: list[torch.optim.Optimizer]) -> list[float]:
    """Gradients that can be differentiated."""
    for x, y in batches():
        gradients = torch.autograd.grad(loss_of(model, x, y), tuple(model.parameters()), create_graph=True)
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            p.grad = gradient
        for optimizer in optimizers:
            optimizer.step()
    return []


class ByCurvature(torch.optim.SGD):
    """Divides gradients by the row sums of the Hessian."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        mine = [p for group in self.param_groups for p in group["params"]]
        gradients = [p.grad for p in mine]
        sums = torch.autograd.grad(gradients, mine, list(map(torch.ones_like, mine)), retain_graph=True)
        with torch.no_grad():
            for p, gradient, curvature in zip(mine, gradients, sums, strict=True):
                p.sub_(0.1 * gradient / (curvature.abs() + 1))


def curved(model: nn.Sequential) -> list[torch.optim.Optimizer]:
    return [ByCurvature(model[0].parameters(), lr=0.1), ByCurvature(model[2].parameters(), lr=0.1)]


def one(model: nn.Sequential) -> list[torch.optim.Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=0.01)]


def two(model: nn.Sequential) -> list[torch.optim.Optimizer]:
    return [
        torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
        torch.optim.AdamW(model[2].parameters(), lr=0.01),
    ]


def muon(model: nn.Sequential) -> list[torch.optim.Optimizer]:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    return [
        torch.optim.Muon(matrices, lr=0.01),
        torch.optim.AdamW([p for p in model.parameters() if p.ndim < 2], lr=0.01),
    ]


LOOPS: list[tuple[Loop, Callable[[nn.Sequential], list[torch.optim.Optimizer]]]] = [
    (plainly, one),
    (by_closures, one),
    (by_a_disabled_scaler, one),
    (plainly, two),
    (plainly, muon),
    (with_zeros_between, two),
    (by_turns, two),
    (now_and_then, two),
    (layer_by_layer, two),
    (by_functions, two),
    (by_functions, one),
    (by_own_gradients, two),
    (by_own_gradients, one),
    (with_graphs, one),
    (with_graphs, two),
    (with_graphs, curved),
]


@pytest.mark.parametrize("strategy", ["adpsgd", "ssgd", "bsp"])
@pytest.mark.parametrize(("loop", "make"), LOOPS)
def test_the_loop_stays_as_it_is(
    loop: Loop, make: Callable[[nn.Sequential], list[torch.optim.Optimizer]], strategy: str
) -> None:
    """Bit for bit the plain loop, loss by loss, with no line changed but `attach`."""
    plain, model = network(), network()
    losses = loop(plain, make(plain))
    optimizers = make(model)
    with roundelay.attach(model, optimizers, strategy) as session:
        assert loop(model, optimizers) == losses
        assert session.steps >= 6
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


def test_a_step_that_cannot_differentiate_its_gradients_is_told_why() -> None:
    model = network()
    step = ByCurvature(model.parameters(), lr=0.1).step
    gradients = torch.autograd.grad(loss_of(model, *next(batches())), tuple(model.parameters()), create_graph=True)
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        p.grad = gradient
    parameters = Parameters(model, 3)
    mean = list(parameters.gradients(range(4)).values())
    with pytest.raises(RuntimeError, match="does not require grad") as raised, parameters.updated(None, mean):
        step()
    assert raised.value.__notes__[0].startswith("rank 3: the gradients of this loop have a graph")


@pytest.mark.parametrize("how", ["made before", "made after"])
@pytest.mark.parametrize("strategy", ["adpsgd", "delayed-gradient"])
def test_schedules_count_the_optimizer_s_steps(how: str, strategy: str) -> None:
    """Torch warns of a schedule that is stepped before its optimizer: not here, not even where a strategy's first
    update is nothing; and it goes on when the session is closed."""
    model, optimizer = network_by_sgd()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2) if how == "made before" else None
    session = roundelay.attach(model, optimizer, strategy)
    schedule = schedule or torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for by in (optimizer.step, session.step):
        backward(model, *next(batches()))
        by()
        schedule.step()
    assert schedule.get_last_lr() == [pytest.approx(0.01)]
    session.close()
    before = [p.detach().clone() for p in model.parameters()]
    backward(model, *next(batches()))
    optimizer.step()
    schedule.step()
    assert not torch.equal(before[0], next(model.parameters()))


def test_what_a_parameter_is_may_be_asked_between_two_optimizers() -> None:
    """Its shape, its gradient: the step stays one. Reading its values completes it."""
    model = network()
    first, second = optimizers = two(model)
    x, y = next(batches())
    with roundelay.attach(model, optimizers) as session:
        for read, steps in ((False, 1), (True, 2)):
            before = session.steps
            backward(model, x, y)
            first.step()
            assert isinstance(model[0].weight, nn.Parameter)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            assert model[0].weight.numel() == model[0].weight.shape.numel() > model[0].weight.dim()
            if read:
                copied = copy.deepcopy(model)
                assert {type(p) for p in copied.parameters()} == {nn.Parameter}
                assert torch.equal(copied.get_parameter("0.weight"), model.get_parameter("0.weight"))
            second.step()
            session.meet()
            assert session.steps - before == steps
            assert {type(p) for p in model.parameters()} == {nn.Parameter}
            model.zero_grad()


def test_a_step_taken_twice_is_refused() -> None:
    """The loop has kept `optimizer.step()` and got a `session.step()` as well."""
    model, optimizer = network_by_sgd()
    for first, second in ((0, 1), (1, 0)):
        with roundelay.attach(model, optimizer) as session:
            steps = (optimizer.step, session.step)
            backward(model, *next(batches()))
            steps[first]()
            with pytest.raises(UserError, match=r"has taken this step, and now .* would take it again"):
                steps[second]()
            backward(model, *next(batches()))
            steps[second]()  # by turns it is another step
            assert session.steps == 2


def test_a_step_around_the_session_is_refused() -> None:
    """It would update a copy that nobody keeps."""
    model, optimizer = network_by_sgd()
    step = optimizer.step
    with roundelay.attach(model, optimizer):
        backward(model, *next(batches()))
        with pytest.raises(UserError, match=r"step of SGD was called around the session.*Attach before"):
            step()


@pytest.mark.parametrize("name", INNER)
def test_a_wrapped_optimizer_is_unwrapped(name: str) -> None:
    """As Accelerate, SAM and Opacus wrap it; the last has no groups of its own."""

    class Wrapped(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            setattr(self, name, optimizer)
            self.held = optimizer

        def step(self, closure: Any = None) -> Any:
            return self.held.step(closure)

    model, plain = network(), network()
    plainly(plain, one(plain))
    wrapped = Wrapped(one(model)[0])
    with roundelay.attach(model, wrapped):
        for x, y in batches():
            wrapped.held.zero_grad()
            backward(model, x, y)
            wrapped.step()
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


def scaled(model: nn.Module, optimizer: torch.optim.Optimizer, unscale: bool) -> list[float]:
    """With a scale that overflows float16, and falls."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=2)
    scales = []
    for number, (x, y) in enumerate(batches(12)):
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        if number % 5 == 3:
            loss = loss * float("inf")
        torch.autograd.backward(scaler.scale(loss))
        if unscale:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("strategy", ["ssgd", "adpsgd", "bmuf"])
def test_a_scaler_skips_what_overflows(strategy: str, fused: bool, unscale: bool) -> None:
    """Bit for bit the plain loop, with the scale it finds, also with an optimizer that unscales by itself."""
    plain, model = network(), network()
    expected = scaled(plain, torch.optim.AdamW(plain.parameters(), lr=0.01, fused=fused), unscale)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    options: dict[str, Any] = {"period": 3} if strategy == "bmuf" else {}
    with roundelay.attach(model, optimizer, strategy, **options):
        assert scaled(model, optimizer, unscale) == expected
    assert len(set(expected)) > 2
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
        assert strategy == "bmuf" or torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("strategy", ["adpsgd", "ssgd"])
def test_parameters_in_16_bits_have_masters(dtype: torch.dtype, strategy: str) -> None:
    """By hand: the gradient at the rounded model, the update of a model in float32."""
    rounded, masters, model = network(dtype), network(dtype).float(), network(dtype)
    theirs = torch.optim.AdamW(masters.parameters(), lr=1e-4)
    for x, y in batches(dtype=dtype):
        rounded.zero_grad()
        torch.autograd.backward(loss_of(rounded, x, y))
        for p, master in zip(rounded.parameters(), masters.parameters(), strict=True):
            assert p.grad is not None
            master.grad = p.grad.float()
        theirs.step()
        with torch.no_grad():
            for p, master in zip(rounded.parameters(), masters.parameters(), strict=True):
                p.copy_(master)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with roundelay.attach(model, optimizer, strategy) as session:
        for number, (x, y) in enumerate(batches(dtype=dtype)):
            optimizer.zero_grad()
            backward(model, x, y)
            optimizer.step()
            if number == 2:  # a checkpoint loaded in the middle is one, though torch loads state in 16 bits
                optimizer.load_state_dict(optimizer.state_dict())
        row = session.state_dict()["row"]
    assert row.dtype == torch.float32
    torch.testing.assert_close(
        row, torch.cat([p.detach().reshape(-1) for p in masters.parameters()]), rtol=0, atol=2e-6
    )
    assert all(p.dtype == dtype for p in model.parameters())


def test_mixed_types_in_one_module() -> None:
    model = network()
    model[2].to(torch.bfloat16)

    def forward(x: Tensor) -> Tensor:
        out: Tensor = model[2](model[1](model[0](x)).bfloat16())
        return out.float()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with roundelay.attach(model, optimizer, "ssgd"):
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            x, y = next(batches())
            loss = nn.functional.cross_entropy(forward(x), y)
            torch.autograd.backward(loss)
            optimizer.step()
            losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert [p.dtype for p in model.parameters()] == [torch.float32] * 2 + [torch.bfloat16] * 2


class Rateless(torch.optim.Optimizer):
    """Steps by its own count, as Adafactor does by default: the option `lr` is None."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"lr": None})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["step"] = state.get("step", 0) + 1
            p.sub_(p.grad / (10 + state["step"]))


def test_an_optimizer_may_have_no_learning_rate_unless_the_strategy_divides_by_it() -> None:
    plain, model = network(), network()
    plain_losses = plainly(plain, [Rateless(plain.parameters())])
    optimizer = Rateless(model.parameters())
    with pytest.raises(UserError, match="slowmo divides by the learning rate, and Rateless has none"):
        roundelay.attach(model, optimizer, "slowmo")
    with roundelay.attach(model, optimizer):
        assert plainly(model, [optimizer]) == plain_losses
    own = torch.optim.Rprop(model.parameters())
    with pytest.raises(UserError, match=r"Rprop has a group whose lr is .* of its first step only"):
        roundelay.attach(model, own, rate="gain")
    with roundelay.attach(model, own) as session:
        assert session.summary()["rate"] == "as-is"


def test_modules_of_torchscript_are_refused_and_values_given_by_functional_call_need_their_step_begun() -> None:
    model = network()
    with warnings.catch_warnings(action="ignore"):  # it is deprecated
        model[0] = torch.jit.trace(model[0], torch.zeros(1, 4))  # type: ignore[no-untyped-call]
    with pytest.raises(UserError, match=r"0 is of TorchScript .*attach the module that it was made from"):
        roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model, optimizer = network_by_sgd()
    x, _ = next(batches())
    with roundelay.attach(model, optimizer) as session, warnings.catch_warnings(action="ignore"):
        optimizer.step()
        with pytest.raises(UserError, match=r"Script a copy, torch.jit.script\(copy.deepcopy\(module\)\)"):
            torch.jit.script(model)
        parts = torch.jit.script(copy.deepcopy(model)), torch.jit.trace(model, x)  # type: ignore[no-untyped-call]
        assert session.wants_to_begin
        for part in parts:
            torch.testing.assert_close(part(x), model(x))

    def gradients() -> dict[str, Tensor]:
        values = {name: p.detach() for name, p in model.named_parameters()}
        found: dict[str, Tensor] = torch.func.grad(
            lambda values: torch.func.functional_call(model, values, x).square().mean()
        )(values)
        return found

    with roundelay.attach(model, optimizer) as session:
        session.begin_step()
        found = gradients()
        for name, p in model.named_parameters():
            p.grad = found[name]
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        for (name, p), was in zip(model.named_parameters(), before, strict=True):
            torch.testing.assert_close(p, was - 0.1 * found[name])
        with pytest.raises(UserError, match=r"functional_call with other values call session.begin_step\(\) before"):
            gradients()


def test_parameters_without_a_shape_are_refused_until_they_have_one() -> None:
    model = nn.Sequential(nn.LazyLinear(6), nn.Tanh(), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UserError, match=r"0\.weight has no shape yet .*call the module once"):
        roundelay.attach(model, optimizer)
    model(torch.zeros(1, 4))
    roundelay.attach(model, optimizer).close()


def test_optimizers_that_cannot_be_are_refused() -> None:
    model, optimizer = network_by_sgd()
    with pytest.raises(UserError, match="needs an optimizer"):
        roundelay.attach(model, [])
    with pytest.raises(UserError, match="given twice"):
        roundelay.attach(model, [optimizer, optimizer])
    with (
        roundelay.attach(model, optimizer),
        pytest.raises(UserError, match=r"attached already. Give all optimizers .* to one"),
    ):
        roundelay.attach(model[0], torch.optim.SGD(model[0].parameters(), lr=0.1))
    roundelay.attach(model, optimizer).close()


def test_whatever_part_is_called_first_begins_a_step_before_hooks_that_came_later() -> None:
    """Ours rests while a step is under way, and is back at the next, in its place."""
    model, optimizer = network_by_sgd()
    seen, wants = list[bool](), list[bool]()
    x, inside = torch.randn(8, 4), torch.randn(8, 6)
    with roundelay.attach(model, optimizer, "dpsgd", order="cta") as session:
        model[2].register_forward_pre_hook(lambda *_: seen.append(session.wants_to_begin))
        for part, given in ((model, x), (model[0], x), (model[2], inside), (model[0], x), (model, x)):
            wants.append(session.wants_to_begin)
            scores = part(given)
            wants.append(session.wants_to_begin)
            if not seen or part is model[2]:
                model[0].register_forward_pre_hook(lambda *_: seen.append(session.wants_to_begin))
            model(x)  # another forward of the same step
            torch.autograd.backward(scores.sum())
            session.step()
        assert session.steps == 5
    assert wants == [True, False] * 5
    assert len(seen) > 10
    assert not any(seen)


def test_learning_rates_are_larger_for_a_step_and_the_users_again_after_it() -> None:
    """Numbers, tensors that groups have in common, and what the optimizer itself sets meanwhile."""
    tensor, parts = torch.tensor(0.1), [nn.Parameter(torch.zeros(1)) for _ in range(4)]
    groups = [{"params": [p], "lr": lr} for p, lr in zip(parts, (0.2, tensor, tensor, 1), strict=True)]
    optimizer = torch.optim.SGD(groups, foreach=False)
    with suppress(RuntimeError), scaled_rates(optimizer, 3.0):
        assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.6, 0.3, 0.3, 3.0])
        optimizer.param_groups[3]["lr"] = 7.0
        raise RuntimeError("in the middle")
    assert optimizer.param_groups[0]["lr"] == 0.2
    assert optimizer.param_groups[1]["lr"] is optimizer.param_groups[2]["lr"] is tensor
    assert tensor == torch.tensor(0.1)
    assert optimizer.param_groups[3]["lr"] == 7.0


def test_a_learning_rate_that_is_none_is_refused_where_it_is_to_be_larger() -> None:
    model, optimizer = network_by_sgd()
    optimizer.param_groups[0]["lr"] = None
    with pytest.raises(UserError, match=r"rank 0: SGD has a group whose lr is no number.*rate='as-is'"):
        roundelay.attach(model, optimizer, "adpsgd", rate="gain")


def test_a_rate_that_is_a_number_is_the_strategys() -> None:
    model = network()
    session = roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "diloco", rate=0.5)
    assert session.strategy == make_strategy("diloco,rate=0.5")
    session.close()
    with pytest.raises(UserError, match=r"rate is 'faster': choose one of auto, as-is, fastest, gain, linear"):
        roundelay.attach(network(), torch.optim.SGD(model.parameters(), lr=0.1), "adpsgd", rate="faster")


@pytest.mark.parametrize("rate", ["gain", "linear"])
def test_one_learner_alone_trains_at_its_own_rate(rate: str) -> None:
    ends = []
    for options in (dict[str, Any](), {"rate": rate}):
        model = network()
        optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(model.parameters(), lr=0.1)]
        with roundelay.attach(model, optimizers, "adpsgd", **options):
            plainly(model, optimizers)
        ends.append(nn.utils.parameters_to_vector(model.parameters()))
    assert torch.equal(*ends)
