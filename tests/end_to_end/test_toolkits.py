"""Toolkits whose loops are not ours, for two learners, where they are installed."""

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roundelay.core.errors import UserError
from support.launched import LAUNCH, TESTS, TORCHRUN, reports, run_learners

TRAINER = str(TESTS / "support" / "trainer_script.py")
ACCELERATE = str(TESTS / "support" / "accelerate_script.py")
needs_accelerate = pytest.mark.skipif(
    find_spec("accelerate") is None, reason="needs accelerate (pip install 'roundelay[transformers]')"
)
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
@pytest.mark.parametrize("strategy", ["ssgd", "adpsgd"])
def test_trainer_trains_wav2vec2_by_ctc(strategy: str, tmp_path: Path) -> None:
    """Waveforms, convolutions of normalised weights, and a loss over all alignments."""
    first, second = trained(tmp_path, "--strategy", strategy, "--ctc").values()
    assert first["bits"] == second["bits"]
    assert sum(first["steps"]) == 32
    losses = dict(map(tuple, first["evaluated"]))
    assert losses[32] == pytest.approx(second["loss"], rel=1e-5)
    assert losses[32] < 0.7 * losses[10]


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


@needs_accelerate
@pytest.mark.parametrize("order", [(), ("--after",)])
@pytest.mark.parametrize("strategy", ["ssgd", "adpsgd"])
def test_accelerate_trains_the_common_model(strategy: str, order: tuple[str, ...]) -> None:
    """Attached before `prepare`, or after it: to the optimizer that Accelerate has wrapped."""
    done = run_learners(2, ACCELERATE, "--strategy", strategy, *order, by=LAUNCH)
    first, second = reports(done.stdout)["accelerate"].values()
    assert first["bits"] == second["bits"]
    assert first["losses"] == second["losses"]
    assert first["losses"][-1] < first["losses"][0] < 1.3
    assert first["seen"] + second["seen"] == 3 * 203
    assert sum(first["steps"]) >= 3 * 26 // 2  # two minibatches a step, and what is left at the end of an epoch
    assert first["rate"] == second["rate"] == 0.03


@needs_accelerate
def test_accelerate_may_not_wrap_the_model_in_ddp() -> None:
    done = run_learners(2, ACCELERATE, by=TORCHRUN, expect=1)
    assert "the attached module is run by a DistributedDataParallel around it" in done.stderr
    assert "switch its distributed training off" in done.stderr
