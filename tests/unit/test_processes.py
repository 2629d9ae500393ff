"""Worker processes: order, bounds, deaths."""

import os
from collections.abc import Iterator

import pytest

from roundelay.core.errors import UserError
from roundelay_speech.data.processes import start_workers
from support.toy_work import begin, die, fail, refuse, work


def test_results_are_in_order_and_batches_are_taken_as_needed() -> None:
    taken: list[int] = []

    def batches() -> Iterator[int]:
        for number in range(40):
            taken.append(number)
            yield number

    before = dict(os.environ)
    with start_workers(2, begin, "hello") as workers:
        results = workers.in_order(work, batches())
        assert next(results) == (0, "hello", "1")
        assert len(taken) == 5
        assert [number for number, *_ in results] == list(range(1, 40))
    assert dict(os.environ) == before


def test_an_error_of_the_work_is_the_callers() -> None:
    with start_workers(2, begin, "") as workers, pytest.raises(UserError, match="u7: broken"):
        list(workers.in_order(fail, range(20)))


def test_a_killed_worker_is_a_message() -> None:
    with start_workers(2, begin, "") as workers, pytest.raises(UserError, match="worker process was killed"):
        list(workers.in_order(die, range(20)))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_workers_that_cannot_begin_are_a_message(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="do not start"), start_workers(1, refuse):
        pass
    assert "cannot begin" in capfd.readouterr().err
