"""`train --strategy auto`: a strategy is chosen before the run begins, and the run keeps it."""

import json
from pathlib import Path

import pytest
import yaml

from roundelay.advice.auto import refuse_several_hosts
from roundelay.cli import main
from roundelay.core.errors import UserError
from roundelay.strategies import make_strategy

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


def test_several_hosts_are_given_one_strategy() -> None:
    with pytest.raises(UserError, match="roundelay advise --probe RECIPE --hosts"):
        refuse_several_hosts()
