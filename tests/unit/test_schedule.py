"""Newbob, epoch by epoch, by hand."""

import pytest

from roundelay.core.errors import UserError
from roundelay.schedule import Newbob, Progress, advance, start


def run(schedule: Newbob, losses: list[float]) -> list[tuple[Progress, bool]]:
    now, seen = start(schedule), []
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
