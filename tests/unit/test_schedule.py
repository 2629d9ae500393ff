"""Newbob and annealing, epoch by epoch, by hand; linear scaling and warm-up as laws."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.runtime.base import SegmentPlan
from roundelay.schedule import Anneal, Newbob, Schedule, SchedulePosition, advance, start


def run(schedule: Schedule, losses: list[float]) -> list[tuple[SchedulePosition, bool]]:
    now, seen = start(schedule, 256), []
    for loss in losses:
        now, accepted = advance(schedule, now, loss)
        seen.append((now, accepted))
    return seen


def test_the_rate_is_held_then_halved_every_epoch_then_training_stops() -> None:
    schedule = Newbob(learning_rate=0.8)
    #         falls by   -    50 %  0.5 %  50 %  0.05 %
    seen = run(schedule, [2.0, 1.0, 0.995, 0.5, 0.49975])
    assert [now.learning_rate for now, _ in seen] == [0.8, 0.8, 0.4, 0.2, 0.1]
    assert [bool(now.stopped) for now, _ in seen] == [False, False, False, False, True]
    assert "0.05 %" in seen[-1][0].stopped


def test_a_worse_epoch_is_taken_back_and_the_best_loss_stays() -> None:
    seen = run(Newbob(), [1.0, 1.2, 0.9])
    assert [accepted for _, accepted in seen] == [True, False, True]
    assert [now.best for now, _ in seen] == [1.0, 1.0, 0.9]
    assert seen[1][0].learning_rate == 0.01


@pytest.mark.parametrize("loss", ["nan", "inf"])
def test_a_loss_that_is_not_a_number_is_taken_back(loss: str) -> None:
    ((now, accepted),) = run(Newbob(), [float(loss)])
    assert not accepted
    assert now.halving
    assert now.best is None


def test_without_stop_below_all_runs_see_the_same_epochs() -> None:
    seen = run(Newbob(stop_below=None, max_epochs=4), [1.0, 1.0, 1.0, 1.0])
    assert [bool(now.stopped) for now, _ in seen] == [False, False, False, True]


@pytest.mark.parametrize("wrong", [{"learning_rate": -1.0}, {"max_epochs": 0}, {"factor": 0.0}])
def test_nonsense_is_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        Newbob(**wrong)  # type: ignore[arg-type]


# Linear scaling and warm-up -------------------------------------------------------------------------------------------


def rates(schedule: Schedule, minibatch: int, epoch: int, rounds: int, rate: float) -> list[float]:
    """Of all rounds of an epoch whose warm rate is `rate`."""
    plan = EpochPlan(epoch, rounds * minibatch, minibatch, 1, 0)
    segment = SegmentPlan(plan, rate, warmup=schedule.warmup(minibatch, epoch, rounds))
    return [segment.rate(round_) for round_ in range(rounds)]


@given(st.floats(0, 10), st.integers(1, 4096), st.integers(1, 64), st.sampled_from([Newbob, Anneal]))
def test_the_rate_grows_with_the_minibatch(
    rate: float, base: int, times: int, rule: type[Newbob] | type[Anneal]
) -> None:
    schedule = rule(rate, base_minibatch=base)
    assert start(schedule, base).learning_rate == pytest.approx(rate)
    assert start(schedule, base * times).learning_rate == pytest.approx(rate * times)
    assert start(rule(rate), base * times).learning_rate == rate, "without a base it is the same for all"


@given(
    base_rate=st.floats(0.01, 1),
    begin=st.none() | st.floats(0, 2),
    times=st.integers(1, 20),
    epochs=st.floats(0.05, 4),
    rounds=st.integers(1, 30),
)
def test_the_warm_up_is_one_straight_line_through_the_epochs(
    base_rate: float, begin: float | None, times: int, epochs: float, rounds: int
) -> None:
    schedule = Anneal(base_rate, base_minibatch=64, warmup_epochs=epochs, warmup_from=begin)
    full, low = base_rate * times, base_rate if begin is None else begin
    seen = [rate for epoch in range(6) for rate in rates(schedule, 64 * times, epoch, rounds, full)]
    assert seen == pytest.approx([low + (full - low) * min(1.0, r / (epochs * rounds)) for r in range(6 * rounds)])
    assert all(rate == full for r, rate in enumerate(seen) if r >= epochs * rounds), "exactly, once it is over"
    assert schedule.warmup(64 * times, math.ceil(epochs), rounds) is None


def test_a_long_warm_up_then_annealing_by_hand() -> None:
    schedule = Anneal(0.1, base_minibatch=256, warmup_epochs=4, anneal_from=4, max_epochs=7)
    now, first, warm = start(schedule, 2560), [], []
    while not now.stopped:
        first.append(rates(schedule, 2560, now.epoch, 100, now.learning_rate)[0])
        warm.append(now.learning_rate)
        now, accepted = advance(schedule, now, 1.0 + now.epoch)  # always worse
        assert accepted
    assert first == pytest.approx([0.1, 0.325, 0.55, 0.775, 0.5**0.5, 0.5, 0.5**1.5])
    assert warm == pytest.approx([1, 1, 1, 1, 0.5**0.5, 0.5, 0.5**1.5])
    assert now.stopped == "all 7 epochs done"


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=20), st.integers(1, 12), st.floats(0.1, 1))
def test_annealing_does_not_look_at_the_loss(losses: list[float], anneal_from: int, factor: float) -> None:
    schedule = Anneal(0.3, anneal_from=anneal_from, factor=factor, max_epochs=len(losses))
    seen = run(schedule, losses)
    assert all(accepted for _, accepted in seen)
    assert [now.learning_rate for now, _ in seen] == pytest.approx(
        [0.3 * factor ** max(0, epoch - anneal_from + 1) for epoch in range(1, len(losses) + 1)]
    )
    assert [bool(now.stopped) for now, _ in seen] == [False] * (len(losses) - 1) + [True]


def test_annealing_takes_epochs_back_when_asked() -> None:
    seen = run(Anneal(reject_worse=True), [1.0, 1.2, 0.9])
    assert [accepted for _, accepted in seen] == [True, False, True]


def test_newbob_waits_for_the_warm_up_but_not_with_a_loss_that_got_worse() -> None:
    schedule = Newbob(0.8, warmup_epochs=1.5, warmup_from=0.1)
    assert [now.learning_rate for now, _ in run(schedule, [2.0, 1.999, 1.998])] == [0.8, 0.8, 0.4]
    seen = run(schedule, [2.0, 2.1, 1.0])
    assert [now.learning_rate for now, _ in seen] == [0.8, 0.4, 0.2]
    assert [accepted for _, accepted in seen] == [True, False, True]
    assert rates(schedule, 256, 1, 4, 0.4)[-1] == 0.4, "what is warmed up is the rate after halving"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"base_minibatch": 0}, "base_minibatch"),
        ({"warmup_epochs": -1.0}, "warmup_epochs"),
        ({"warmup_epochs": 2.0}, "warmup_from, or a schedule.base_minibatch"),
        ({"warmup_from": 0.1}, "warmup_from needs schedule.warmup_epochs"),
        ({"warmup_from": -0.1, "warmup_epochs": 1.0}, "warmup_from is -0.1"),
        ({"anneal_from": 0}, "anneal_from"),
    ],
)
def test_nonsense_in_a_warm_up_is_refused_by_name(wrong: dict[str, float], named: str) -> None:
    with pytest.raises(UserError, match=named):
        Anneal(**wrong)  # type: ignore[arg-type]
