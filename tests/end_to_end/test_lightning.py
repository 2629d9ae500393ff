"""Lightning's Trainer with our strategy, where Lightning is installed."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from roundelay.core.errors import UserError
from support.launched import LAUNCH, TESTS, TORCHRUN, reports, run_learners

pytestmark = pytest.mark.skipif(
    find_spec("lightning") is None, reason="needs lightning (pip install 'roundelay[lightning]')"
)
SCRIPT = str(TESTS / "support" / "lightning_script.py")
EXAMPLES = 203


def trained(out: Path, *options: str, learners: int = 2, by: tuple[str, ...] = LAUNCH) -> list[dict[str, Any]]:
    """Reports, by rank."""
    done = run_learners(learners, SCRIPT, str(out), *options, by=by)
    return [report for _, report in sorted(reports(done.stdout)["lightning"].items())]


def seen(learners: list[dict[str, Any]], epoch: int) -> list[int]:
    """Examples that learners have trained in an epoch, in order of their numbers."""
    return sorted(number for one in learners for number in one["seen"].get(f"{epoch}", []))


@pytest.mark.parametrize(
    ("strategy", "by", "more"),
    [
        ("ssgd", LAUNCH, ("--validate", "0.5")),
        ("roundelay", TORCHRUN, ("--slow", "1")),  # adpsgd, by its name in Lightning's registry
        ("bmuf", LAUNCH, ("--accumulate", "3", "--precision", "bf16-mixed")),
    ],
)
def test_all_learners_train_validate_and_save_one_model(
    strategy: str, by: tuple[str, ...], more: tuple[str, ...], tmp_path: Path
) -> None:
    from support.lightning_script import Classifier, points  # noqa: PLC0415

    first, second = trained(tmp_path, "--strategy", strategy, *more, by=by)
    for epoch in range(3):
        assert seen([first, second], epoch) == list(range(EXAMPLES))
    assert first["bits"] == second["bits"] == first["bits_at_end"] == second["bits_at_end"]
    losses = [loss for _, loss in first["evaluated"]]
    assert losses == [loss for _, loss in second["evaluated"]]
    assert losses[-1] < losses[0] < 1.5
    assert first["loss"] == losses[-1]
    step = max(int(path.stem) for path in tmp_path.glob("*.ckpt"))
    module = Classifier(EXAMPLES, 0.05)
    module.load_state_dict(torch.load(tmp_path / f"{step}.ckpt", weights_only=False)["state_dict"])
    x, _, y = points(64, 2).tensors
    half = "bf16-mixed" in more
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        found = torch.nn.functional.cross_entropy(module.eval().network(x), y).detach()
    assert float(found) == pytest.approx(dict(map(tuple, first["evaluated"]))[step], rel=1e-2 if half else 1e-5)
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["version_0"]  # the first learner alone writes


def test_batches_go_to_the_learner_that_is_free_and_schedules_follow_all_steps(tmp_path: Path) -> None:
    fast, slow = trained(tmp_path, "--strategy", "adpsgd", "--slow", "1")
    assert sum(fast["steps"]) == 3 * 26
    assert fast["own"] > 2 * slow["own"]
    assert fast["rates"][-1] == pytest.approx(slow["rates"][-1], abs=2e-3)  # of 0.05 in the middle
    assert fast["rates"][-1] < 2e-3


def test_one_learner_is_the_plain_trainer(tmp_path: Path) -> None:
    """Bit for bit, where the data have one order."""
    (plain,) = trained(tmp_path / "plain", "--strategy", "auto", "--in-order", learners=1)
    (alone,) = trained(tmp_path / "alone", "--strategy", "ssgd", "--in-order", learners=1)
    assert (alone["bits"], alone["evaluated"]) == (plain["bits"], plain["evaluated"])


def test_goes_on_within_an_epoch_to_the_same_bits(tmp_path: Path) -> None:
    """And what is left of a save that was cut short is not in the way."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    expected = trained(whole, "--every", "8")
    run_learners(2, SCRIPT, str(cut), "--every", "8", "--end-at", str(cut / "16.ckpt"), by=LAUNCH, expect=3)
    left = cut / "24.ckpt.learners" / "step-24" / "save-000000003"
    left.mkdir(parents=True)
    (left / "learner-0-of-2.json").write_text("{")
    found = trained(cut, "--every", "8", "--resume", str(cut / "16.ckpt"))
    for before, now in zip(expected, found, strict=True):
        assert now["bits"] == before["bits"]
        assert now["evaluated"] == before["evaluated"][1:]
        assert now["rates"] == before["rates"][16:]
    assert json.loads(next(left.glob("learner-1-*.json")).read_text())["learners"] == 2


@pytest.mark.parametrize("learners", [3, 1])
def test_other_numbers_of_learners_go_on(learners: int, tmp_path: Path) -> None:
    saved = trained(tmp_path, "--strategy", "adpsgd")
    first, *_, last = sorted(tmp_path.glob("*.ckpt"), key=lambda path: int(path.stem))
    resume = first if learners > 1 else last
    found = trained(tmp_path / "on", "--strategy", "adpsgd", "--resume", str(resume), learners=learners)
    assert len({one["bits"] for one in found}) == 1
    if learners > 1:
        assert [seen(found, epoch) for epoch in range(3)] == [[], list(range(EXAMPLES)), list(range(EXAMPLES))]
        assert found[0]["evaluated"][0][1] < saved[0]["evaluated"][0][1]
    else:  # nothing is left to be trained: the model is as it was saved
        assert found[0]["loss"] == pytest.approx(saved[0]["loss"], rel=1e-5)


@pytest.mark.parametrize("strategy", ["ssgd", "adpsgd"])
def test_all_stop_when_one_wants_to(strategy: str, tmp_path: Path) -> None:
    """The second learner, after the second look at its own loss."""
    first, second = trained(tmp_path, "--strategy", strategy, "--stop", "--epochs", "8")
    assert first["epochs"] == second["epochs"] == 2
    assert first["bits"] == second["bits"]


def test_a_learner_without_a_batch_validates_with_the_others(tmp_path: Path) -> None:
    first, second = trained(tmp_path, "--strategy", "adpsgd", "--examples", "8")
    assert [seen([first, second], epoch) for epoch in range(3)] == [list(range(8))] * 3
    assert [loss for _, loss in first["evaluated"]] == [loss for _, loss in second["evaluated"]]
    assert len(first["evaluated"]) == 4


def test_places_that_learners_do_not_have_in_common_are_refused(tmp_path: Path) -> None:
    done = run_learners(2, SCRIPT, str(tmp_path), "--strategy", "adpsgd", "--every", "5", by=LAUNCH, expect=1)
    assert "ModelCheckpoint(every_n_train_steps=...): learners of adpsgd take unequal numbers of steps" in done.stderr


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_clipped_is_refused(tmp_path: Path) -> None:
    import lightning  # noqa: PLC0415
    from lightning.pytorch.plugins.precision import MixedPrecision  # noqa: PLC0415

    from roundelay.integrations.lightning import RoundelayStrategy  # noqa: PLC0415
    from support.lightning_script import Classifier  # noqa: PLC0415

    half = MixedPrecision("16-mixed", "cpu")
    plain = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(strategy=RoundelayStrategy(), plugins=[half], gradient_clip_val=1.0, **plain)
    with pytest.raises(UserError, match="gradient_clip_val does not go with precision='16-mixed'"):
        trainer.fit(Classifier(EXAMPLES, 0.05))
    with pytest.raises(UserError, match=r"give trainer.fit\(ckpt_path=...\) instead"):
        RoundelayStrategy(resume=str(tmp_path))
