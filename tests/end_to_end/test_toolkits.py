"""Toolkits whose loops are not ours, for two learners, where they are installed."""

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roundelay.core.errors import UserError
from support.launched import LAUNCH, TESTS, reports, run_learners

TRAINER = str(TESTS / "support" / "trainer_script.py")
needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="needs transformers (pip install 'roundelay[transformers]')"
)


def trained(out: Path, *options: str) -> dict[int, dict[str, Any]]:
    """Reports by rank, of two learners."""
    return reports(run_learners(2, TRAINER, str(out), *options, by=LAUNCH).stdout)["trainer"]


def check_evaluated(*learners: dict[str, Any]) -> None:
    """All have evaluated the same model at the same steps of all; one whose data have ended passes over all but the
    last."""
    by_step = [dict(map(tuple, one["evaluated"])) for one in learners]
    together = {step: loss for losses in by_step for step, loss in losses.items()}
    assert sorted(together) == [10, 20, 30, 32]
    for one, losses in zip(learners, by_step, strict=True):
        assert losses == {step: together[step] for step in losses}
        assert losses[32] == pytest.approx(one["loss"], rel=1e-5)
    assert together[32] < together[10] < 3.2


@needs_transformers
@pytest.mark.parametrize("strategy", ["ssgd", "adpsgd"])
def test_trainer_trains_evaluates_and_saves_the_common_model(strategy: str, tmp_path: Path) -> None:
    """Of 32 steps of both together, evaluated and saved after 10, 20, 30 and at the end, by Trainer's own rules."""
    from transformers import WhisperForConditionalGeneration  # noqa: PLC0415

    first, second = trained(tmp_path, "--strategy", strategy).values()
    assert first["bits"] == second["bits"]
    assert sum(first["steps"]) == 32
    check_evaluated(first, second)
    assert all(2 < loss < 4 for loss in first["losses"])  # each the mean of a learner's own steps
    assert len(first["losses"]) >= 4
    saved, last = (
        WhisperForConditionalGeneration.from_pretrained(tmp_path / name).state_dict()
        for name in ("final", "checkpoint-32")
    )
    assert all(bool((saved[name] == last[name]).all()) for name in saved)


@needs_transformers
def test_trainer_resumes_within_an_epoch_to_the_same_bits(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole")
    run_learners(2, TRAINER, str(tmp_path / "cut"), "--end-at", "20", by=LAUNCH, expect=3)
    assert trained(tmp_path / "cut", "--resume")[1]["bits"] == whole[0]["bits"]


@needs_transformers
def test_trainer_may_not_wrap_the_model_in_ddp() -> None:
    """As it would where torchrun has started it: two processes that accelerate has made a group of."""
    from roundelay.integrations.transformers import RoundelayCallback  # noqa: PLC0415

    arguments = SimpleNamespace(distributed_state=SimpleNamespace(num_processes=2))
    with pytest.raises(UserError, match="would wrap the model in DDP: start the script by `roundelay launch"):
        RoundelayCallback().on_init_end(arguments, SimpleNamespace())
