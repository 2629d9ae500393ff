"""The cost model against published speedups."""

from dataclasses import replace

import pytest

from roundelay_lab.published.speedups import (
    LARGEST_BOUND,
    MEDIAN_BOUND,
    Compared,
    Fit,
    PublishedRow,
    compare,
    errors,
    fit,
    load_tables,
    predict,
)


@pytest.fixture(scope="module")
def compared() -> list[Compared]:
    return compare()


def test_predicted_speedups_are_within_the_bounds(compared: list[Compared]) -> None:
    median, largest = errors(compared)
    assert median <= MEDIAN_BOUND
    assert largest <= LARGEST_BOUND
    assert sum(one.row.use == "predicted" for one in compared) == 16


def test_fitted_rows_are_met(compared: list[Compared]) -> None:
    """They are as many equations as there are numbers, up to rows that are printed twice."""
    fitted = [one for one in compared if one.row.use == "fitted"]
    assert len({(c.row.network, c.row.minibatch, c.row.gpus, c.row.period) for c in fitted}) == 7
    assert all(abs(one.error) < 1e-6 for one in fitted)


def test_rows_are_fitted_by_the_rule_that_is_written_down() -> None:
    for row in load_tables().rows:
        allreduce = row.strategy in ("bmuf", "bsp")
        if row.use == "fitted":
            assert allreduce
        if row.use == "aside":
            assert row.tables == "2"
        if not allreduce or row.minibatch == 1024 or row.period == 20:
            assert row.use != "fitted"


def closed_form(found: Fit, row: PublishedRow) -> float:
    """N / ((f + (1 - f) q s(N) + messages x time / period) / (f + (1 - f) q)), written out once more."""
    q = row.minibatch / found.largest
    crowded = found.fixed + (1 - found.fixed) * q * found.slowdown[row.gpus]
    mean = {4: 4, 8: 6}[row.gpus] * found.message
    return row.gpus * (found.fixed + (1 - found.fixed) * q) / (crowded + mean / row.period)


@pytest.mark.parametrize("network", ["DNN", "CLDNN"])
def test_the_simulator_finds_what_the_formula_says_where_there_is_one(network: str) -> None:
    tables = load_tables()
    found = fit(tables, network)
    rows = [row for row in tables.rows if row.network == network and row.strategy in ("bmuf", "bsp")]
    for row in rows:
        assert predict(found, row) == pytest.approx(closed_form(found, row), rel=1e-6)


def test_the_fit_finds_the_numbers_that_made_its_rows() -> None:
    """Rows made by the formula from known numbers give those numbers back."""
    truth = Fit(fixed=0.2, slowdown={4: 1.3, 8: 1.9}, message=0.1, largest=4096, model_bytes=54e6)
    tables = load_tables()
    made = tuple(
        replace(row, speedup=closed_form(truth, row)) if row.use == "fitted" and row.network == "DNN" else row
        for row in tables.rows
    )
    found = fit(replace(tables, rows=made), "DNN")
    assert found.fixed == pytest.approx(0.2)
    assert found.slowdown == pytest.approx(truth.slowdown)
    assert found.message == pytest.approx(0.1)


def test_an_unused_server_costs_a_model_there_and_back() -> None:
    """Four learners, a long period: they do not meet at the server, and an exchange is two messages."""
    found = fit(load_tables(), "DNN")
    row = PublishedRow("", "DNN", 4096, "easgd", 4, 64, 1.0, "predicted")
    period = 64 * (found.fixed + (1 - found.fixed) * found.slowdown[4]) + 2 * found.message
    assert predict(found, row) == pytest.approx(4 * 64 / period, rel=2e-3)
