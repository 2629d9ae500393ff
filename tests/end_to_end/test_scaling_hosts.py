"""`roundelay scaling` on several hosts, which this machine plays: a script and a recipe, and what is refused."""

import os
from pathlib import Path
from typing import Any

import pytest

import roundelay
import roundelay_speech
from roundelay.cli import main
from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay.core.records import EVENTS, Links, of_kind, read_events
from roundelay.grids.hosts import check_folder, read_hosts
from roundelay.reports import load_run
from roundelay.runtime.launch.world import HostPlace

SCRIPT = """
import sys
import torch
import roundelay
from support.small_loop import backward, batches, network

model = network()
with roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), sys.argv[1]) as session:
    for x, y in batches(4):
        backward(model, x, y)
        session.step()
    with session.consensus():
        session.report(2.0 + float(sys.argv[2]))
print(session.rank, *sys.argv[1:], flush=True)
"""
BEHIND = ["--", "{strategy}", "{rate}", "{seed}"]
PLACE = HostPlace((0,), 2, 0, "127.0.0.1", 4000, listen=("127.0.0.1", 4000), secret=b"of tests, long enough")


@pytest.fixture(autouse=True)
def _processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes find what this one does."""
    packages = [str(Path(str(one.__file__)).parents[1]) for one in (roundelay, roundelay_speech)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), *packages]))
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def ways(exp: str) -> dict[int, dict[str, Any]]:
    return {way["learners"]: way for way in read_json(Path(exp, "scaling.json"))["ways"]}


def test_a_script_is_trained_on_two_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One learner on the first alone, two on both; the first host alone has results."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    options = ["--exp", "all", "--strategies", "adpsgd", "--rates", "0.1,0.2", "--wider", "0", "--seeds", "1"]
    assert main(["scaling", "train.py", "--hosts", "2", *options, *BEHIND]) == 0
    found = ways("all")
    assert [way["judged"][0]["held_out_loss"] for way in found.values()] == [2.1, 2.1]
    (both,), (alone,) = (way["judged"] for way in (found[2], found[1]))
    said = [Path("all", both["directory"], name).read_text() for name in ("said.txt", "said-1.txt")]
    assert ["0 adpsgd 0.1 2" in said[0], "1 adpsgd 0.1 2" in said[1]] == [True, True]
    assert not Path("all", alone["directory"], "said-1.txt").exists()
    assert "WORLD_SIZE" not in os.environ
    assert "ROUNDELAY_WORLD_SIZE" not in os.environ
    # On one host it is not taken for that host's.
    assert main(["scaling", "train.py", *options, *BEHIND]) == 2


def test_a_recipe_is_trained_on_two_hosts_and_decoded(inside: Path) -> None:
    options = ["--exp", "hosts", "--strategies", "adpsgd", "--rates", "0.02,0.05", "--wider", "0", "--seeds", "1"]
    small = ["schedule.max_epochs=2", "model.dropout=0.0", "model.context=0", "training.minibatch=256"]
    assert main(["scaling", "recipe.yaml", "--hosts", "2", "--wer", *options, *small]) == 0
    (run,) = ways("hosts")[2]["judged"]
    assert len(run["seconds_and_wer"]) == 3
    exp = Path("hosts", run["directory"])
    links = of_kind(read_events(exp / EVENTS), Links)
    assert {record.rows["1"].split(",")[0] for record in links} <= {"bf16", "int8"}
    steps = [segment.learner_steps for segment in load_run(exp).segments]
    assert all(map(any, zip(*steps, strict=True))), "both train"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--learners", "3"], "--learners 3: on these hosts give 2"),
        (["--runtime", "sim"], "--runtime sim is for one host"),
        (["--simulated", "4"], "--simulated: costs are those of learners on one host"),
    ],
)
def test_what_hosts_cannot_do_is_refused(
    inside: Path, options: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scaling", "recipe.yaml", "--hosts", "2", "--exp", "refused", *options]) == 2
    assert named in capsys.readouterr().err


def test_places_and_folders_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one" / "sgd-1-seed0").mkdir(parents=True)
    with pytest.raises(UserError, match=r"has trainings on one host, and this is 2 learners, 1 a host.* another --exp"):
        check_folder(tmp_path / "one", PLACE)
    check_folder(tmp_path / "two", PLACE)
    check_folder(tmp_path / "two", PLACE)
    with pytest.raises(UserError, match="has trainings on 2 learners, 1 a host, and this is one host"):
        check_folder(tmp_path / "two", None)
    variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4000", "ROUNDELAY_SECRET": "of tests, long enough"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert read_hosts(None) == read_hosts(2)
    with pytest.raises(UserError, match="--hosts is 3, and the environment says 2 learners"):
        read_hosts(3)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(UserError, match="not for torchrun"):
        read_hosts(None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert read_hosts(None) is None
