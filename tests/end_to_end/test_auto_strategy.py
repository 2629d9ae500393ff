"""`train --strategy auto`: a strategy is chosen before the run begins, and the run keeps it."""

import json
from pathlib import Path

import pytest
import yaml

from roundelay.cli import main
from roundelay.core.errors import UserError
from roundelay.strategies import make_strategy
from roundelay_speech import advice
from roundelay_speech.advice import refuse_several_hosts

TRAIN = ("train", "recipe.yaml", "--runtime", "sim", "--learners", "2", "--strategy", "auto", "schedule.max_epochs=1")


def kept(exp: Path) -> str:
    return str(yaml.safe_load((exp / "recipe.yaml").read_text())["training"]["strategy"])


def test_auto_is_settled_before_the_run_and_kept_by_it(
    inside: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exp = tmp_path / "run"
    assert main([*TRAIN, "--exp", str(exp), "--straggler", "1:10x"]) == 0
    said, chosen = capsys.readouterr().out, kept(exp)
    assert f"strategy {chosen}: of " in said
    assert not make_strategy(chosen).traits.synchronous  # nobody waits for a learner that is ten times slower
    events = (exp / "events.jsonl").read_bytes()
    assert main([*TRAIN, "--exp", str(exp), "--straggler", "1:10x"]) == 0
    assert f"strategy {chosen}: the run in {exp} goes on by it" in capsys.readouterr().out
    assert (exp / "events.jsonl").read_bytes() == events


def test_a_probe_times_the_model_of_a_recipe(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--probe", "recipe.yaml", "--learners", "1", "--format", "json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["first"]["candidate"]["strategy"] == "sgd"  # of one learner there is no other
    assert (read["task"]["frames"], read["task"]["rate"]) == (64, 0.05)
    assert read["task"]["examples"] > 3 * 1000  # three epochs of the corpus
    assert read["first"]["throughput"] > 0


@pytest.mark.parametrize(("fixed", "filled"), [(1.0, 1.64 / 2.64), (0.01, 0.65 / 0.66)])
def test_a_share_that_keeps_no_learner_busy_is_said(
    inside: Path, fixed: float, filled: float, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gradient that takes `fixed` seconds, and 0.01 s for each frame: 64 a round, 32 for each of two learners. One
    learner alone is as fast as its 64 frames are."""
    monkeypatch.setattr(
        advice, "_seconds", lambda learner, plan, machines: fixed + 0.01 * plan.minibatch / plan.learners
    )
    command = ["advise", "--probe", "recipe.yaml", "--learners", "2"]
    assert main([*command, "--format", "json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["task"]["share"]["filled"] == pytest.approx(filled)
    (alone,) = (one for one in read["ranked"] if one["candidate"]["strategy"] == "sgd")
    assert alone["throughput"] == pytest.approx(64 / (fixed + 0.64), rel=0.01)
    assert main(command) == 0
    said = capsys.readouterr().out.replace("\n", " ")
    assert ("training.minibatch_per_learner=64 training.rate=gain" in said) == (filled < 0.8)


def test_several_hosts_are_given_one_strategy() -> None:
    with pytest.raises(UserError, match="roundelay advise --probe RECIPE --hosts"):
        refuse_several_hosts()
