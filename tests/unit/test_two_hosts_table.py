"""Results of benchmarks/two_hosts.py --to-loss: numbers that follow from a cell, and files that a grid goes on from."""

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from support.scripts import load_script


@pytest.fixture
def table() -> ModuleType:
    return load_script("benchmarks/two_hosts_table.py")


def cell(table: ModuleType, mode: str, curve: list[tuple[float, float]], number: int = 0, **more: Any) -> Any:
    fields = {"steps": (4.0, 4.0), "alone": [(5.0, 5.0)], **more}
    return table.Cell(mode, table.Setting("100mbit", 0.0, 1.0), number, curve=curve, **fields)


def test_a_loss_between_two_looks_is_reached_between_them(table: ModuleType) -> None:
    one = cell(table, "adpsgd", [(0.0, 3.0), (10.0, 2.0), (20.0, 1.0)])
    assert one.seconds_to(1.5) == pytest.approx(15.0)
    assert one.seconds_to(3.5) == 0.0
    assert one.seconds_to(0.5) is None
    assert cell(table, "adpsgd", [(0.0, math.inf), (10.0, 2.0)]).seconds_to(2.5) == 10.0


def test_throughput_is_relative_to_both_learners_before_and_after(table: ModuleType) -> None:
    assert cell(table, "adpsgd", [(0.0, 1.0)], alone=[(5.0, 3.0), (6.0, 6.0)]).ratio == pytest.approx(0.8)


def test_the_table_is_in_the_order_of_the_seconds(table: ModuleType, tmp_path: Path) -> None:
    results = table.Results(tmp_path, {"seconds": 20})
    results.add(cell(table, "alone", [(0.0, 3.0), (20.0, 2.0)]))
    results.add(cell(table, "ddp", [(0.0, 3.0), (20.0, 2.5)]))
    results.add(cell(table, "torchft-diloco", [], failed="package torchft is not installed"))
    results.add(cell(table, "adpsgd", [(0.0, 3.0), (20.0, 1.0)], predicted=0.84))
    rows = [line.split(" | ") for line in (tmp_path / "table.md").read_text().splitlines() if line.startswith("| ")]
    assert [row[2] for row in rows[2:]] == ["adpsgd", "alone", "ddp", "torchft-diloco"]
    first, last = rows[2], rows[-1]
    assert first[:2] == ["| 2.00", "10.0"]
    assert first[-1] == "0.840 (+5.0 %) |"
    assert rows[4][:2] == ["| ", "not in 20 s"]
    assert last[1] == "package torchft is not installed"


def test_every_way_is_shown_at_its_own_best_learning_rate(table: ModuleType, tmp_path: Path) -> None:
    """One host alone has 1.5 in the end at its best rate; that is what others are held to, at theirs."""
    results = table.Results(tmp_path, {"seconds": 20})
    for rate, end in ((0.001, 2.0), (0.002, 1.5), (0.004, 1.9)):
        results.add(cell(table, "alone", [(0.0, 3.5), (20.0, end)], learning_rate=rate))
    for rate, end in ((0.001, 2.0), (0.002, 1.0), (0.004, 0.5)):
        results.add(cell(table, "adpsgd", [(0.0, 2.5), (20.0, end)], learning_rate=rate))
    results.add(cell(table, "ddp", [(0.0, 3.5), (20.0, 2.5)], learning_rate=0.001))
    results.add(cell(table, "ddp", [(0.0, 3.5), (20.0, 2.0)], learning_rate=0.002))
    rows = [line.split(" | ") for line in (tmp_path / "table.md").read_text().splitlines() if line.startswith("| ")]
    assert [row[:4] for row in rows[2:]] == [
        ["| 2.00", "10.0", "adpsgd", "0.004, at the edge"],
        ["| ", "20.0", "alone", "0.002"],
        ["| ", "not in 20 s", "ddp", "0.002, at the edge"],
    ]
    again = table.Results(tmp_path, {"seconds": 20})
    assert again.table() == results.table()


def test_a_grid_goes_on_from_its_files(table: ModuleType, tmp_path: Path) -> None:
    kept = cell(table, "adpsgd", [(0.0, 3.0), (20.0, 1.0)])
    lost = cell(table, "ddp", [], steps=(math.nan, math.nan), alone=[], failed="a learner ended")
    before = table.Results(tmp_path, {"seconds": 20})
    before.add(kept)
    before.add(lost)
    again = table.Results(tmp_path, {"seconds": 20})
    assert again.cells[kept.key] == kept
    assert again.cells[lost.key].failed == lost.failed
    assert again.table() == before.table()
    with pytest.raises(SystemExit, match="another command"):
        table.Results(tmp_path, {"seconds": 30})


def test_speeds_are_of_whole_periods() -> None:
    """Ten steps of a tenth of a second, a talk of one second after every fifth: a block takes 1.5 s."""
    speed = load_script("benchmarks/two_hosts_grid.py").speed
    ends, at = [], 0.0
    for step in range(1, 14):
        at += 0.1 + (step % 5 == 0)
        ends.append(at)
    assert speed(np.array(ends), 5) == pytest.approx(5 / 1.5)
    assert speed(np.array(ends[:4]), 5) == pytest.approx(10.0)


@pytest.mark.parametrize(("rate", "bytes_a_second"), [("100mbit", 12.5e6), ("1gbit", 125e6), ("unshaped", math.inf)])
def test_rates_are_those_of_tc(rate: str, bytes_a_second: float) -> None:
    predicted = load_script("benchmarks/two_hosts_predicted.py")
    assert predicted.Link(rate).bandwidth == pytest.approx(bytes_a_second * predicted.PAYLOAD)


def test_a_rival_is_predicted_as_our_strategy_that_says_as_much() -> None:
    predicted = load_script("benchmarks/two_hosts_predicted.py")
    link, share = predicted.Link("100mbit"), predicted.share_of_never_talking
    assert share("alone", link, 1000, 0.05) is None
    model = 809_000
    assert share("ddp", link, model, 0.05) == pytest.approx(0.05 / (0.05 + 4 * model / link.bandwidth), rel=0.02)
    behind = share("decent-dp", link, model, 0.05)  # a step takes as long as its exchange
    assert behind == pytest.approx(0.05 / (4 * model / link.bandwidth), rel=0.02)
    assert share("decent-dp", link, model, 1.0) == pytest.approx(1.0, rel=0.02)
    often, seldom = (share(f"accelerate-localsgd,period={period}", link, model, 0.05) for period in (10, 50))
    assert often < share("hivemind,period=50", link, model, 0.05) == seldom
    quorum = share("torchft-diloco,period=50", link, model, 0.05)  # it is looked for every tenth of a second
    assert 1 / quorum == pytest.approx(1 / seldom + 0.1 / (50 * 0.05), rel=0.01)
    assert share("bsp,period=50", link, model, 0.05) < seldom  # an attached step costs a little more


def test_an_exchange_on_a_slow_link_takes_no_more_of_a_core_than_it_needs() -> None:
    """And what a run allows at most, where it could take more; nobody waits for the last one."""
    predicted = load_script("benchmarks/two_hosts_predicted.py")
    found = [
        predicted.share_of_never_talking(f"adpsgd+share={share}", predicted.Link(rate), 809_000, 0.05)
        for share, rate in ((0.02, "1mbit"), (0.02, "10gbit"), (0.04, "10gbit"))
    ]
    attached = 0.05 * (1 - predicted.SPEAKING) / (0.05 + predicted.ATTACHED[0] + 809_000 * predicted.ATTACHED[1])
    assert found == pytest.approx([attached, 0.98 * attached, 0.96 * attached], rel=0.002)
