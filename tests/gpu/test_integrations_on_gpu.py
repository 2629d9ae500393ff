"""Other people's toolkits on a GPU that two learners share, where they are installed."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.launched import LAUNCH, TESTS, TORCHRUN, reports, run_learners
from support.on_gpu import DEVICE, NEEDED, ON_GPU

pytestmark = NEEDED
ROWS = {"adpsgd": "shared on devices", "ssgd": "on a device of its own"}
"""The place of rows under a strategy."""


def trained(toolkit: str, out: Path, *options: str, by: tuple[str, ...] = LAUNCH) -> list[dict[str, Any]]:
    """Reports of two learners, by rank."""
    script = str(TESTS / "support" / f"{toolkit}_script.py")
    done = run_learners(2, script, str(out), "--device", DEVICE, *options, by=by)
    return [report for _, report in sorted(reports(done.stdout)[toolkit].items())]


@pytest.mark.skipif(find_spec("lightning") is None, reason="needs lightning (pip install 'roundelay[lightning]')")
@pytest.mark.parametrize(
    ("strategy", "precision", "by"),
    [
        ("adpsgd", "32", LAUNCH),
        ("adpsgd", "bf16-mixed", TORCHRUN),
        ("ssgd", "bf16-mixed", LAUNCH),
        ("adpsgd", "16-mixed", LAUNCH),
    ],
)
def test_lightning_trains_on_a_gpu(strategy: str, precision: str, by: tuple[str, ...], tmp_path: Path) -> None:
    clip = ["--clip", "0"] if precision == "16-mixed" and ON_GPU else []
    given = ["--strategy", strategy, "--precision", precision, "--accumulate", "2", *clip]
    first, second = trained("lightning", tmp_path, *given, by=by)
    assert first["bits"] == second["bits"]
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-3)
    assert first["loss"] < first["evaluated"][0][1] < 1.5
    assert len(first["evaluated"]) == len(second["evaluated"]) == 3 + 1  # and once more, after the end
    for epoch in ("0", "1", "2"):
        assert sorted(first["seen"].get(epoch, []) + second["seen"].get(epoch, [])) == list(range(203))
    if ON_GPU:
        assert first["rows"] == ROWS[strategy]
        assert min(first["memory"], second["memory"]) > 0


@pytest.mark.skipif(find_spec("lightning") is None, reason="needs lightning (pip install 'roundelay[lightning]')")
def test_lightning_goes_on_from_a_checkpoint_on_a_gpu(tmp_path: Path) -> None:
    _, whole = trained("lightning", tmp_path / "whole", "--every", "8")
    _, rest = trained("lightning", tmp_path / "rest", "--every", "8", "--resume", str(tmp_path / "whole" / "16.ckpt"))
    assert rest["seen"]["2"] == whole["seen"]["2"]
    assert rest["evaluated"][-1] == pytest.approx(whole["evaluated"][-1], rel=1e-4)


@pytest.mark.skipif(
    find_spec("transformers") is None, reason="needs transformers (pip install 'roundelay[transformers]')"
)
@pytest.mark.parametrize("strategy", ["adpsgd", "ssgd"])
def test_trainer_trains_on_a_gpu(strategy: str, tmp_path: Path) -> None:
    first, second = trained("trainer", tmp_path, "--strategy", strategy)
    assert first["bits"] == second["bits"]
    assert sum(first["steps"]) == 32
    first_losses, second_losses = (dict(map(tuple, one["evaluated"])) for one in (first, second))
    assert {*first_losses, *second_losses} == {10, 20, 30, 32}  # one whose data have ended passes over all but the last
    assert first_losses[32] == pytest.approx(second_losses[32], rel=1e-3)
    assert first_losses[32] == pytest.approx(first["loss"], rel=1e-3)
    assert first_losses[32] < first_losses[10] < 3.2
    if ON_GPU:
        assert first["rows"] == ROWS[strategy]
