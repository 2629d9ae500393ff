"""`roundelay scaling SCRIPT.py`: what a script is told and says, exact ratios from its reports, going on, refusals."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import roundelay
from roundelay.attached.reporting import HELD_OUT_LOSS, LossLog
from roundelay.cli import main
from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay.core.progress import Silent
from roundelay.core.records import EVENTS, Evaluation, RunStarted, of_kind, read_events
from roundelay.grids.grid import Contenders
from roundelay.grids.scripts import SAID, Script, ScriptConfiguration, ScriptTrials, ScriptWork
from roundelay.job import Interrupt
from roundelay.reports.runs import load_run
from roundelay.run_directory import append
from roundelay.runtime.attached import learner
from support.small_loop import backward, batches, network

ARGUMENTS = ("--strategy", "{strategy}", "--lr={rate}", "--seed", "{seed}")
SCRIPT = """
import sys
import torch
import roundelay
from support.small_loop import backward, batches, network

model = network()
with roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), sys.argv[2]) as session:
    for epoch in range(3):
        for x, y in batches(4):
            backward(model, x, y)
            session.step()
        with session.consensus():
            session.report(3.0 - epoch)
print(sys.argv[1:], flush=True)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    Path("train.py").write_text(SCRIPT)


def scaling(*options: str, behind: tuple[str, ...] = ARGUMENTS) -> int:
    return main(["scaling", "train.py", "--exp", "all", "--seeds", "2", "--wider", "0", *options, "--", *behind])


def work(strategy: str = "adpsgd", learners: int = 2, slow: tuple[str, ...] = ()) -> ScriptWork:
    """Return the work of the last way, at the first rate."""
    wanted = Contenders([strategy], (learners,), 1, slow)
    trials = ScriptTrials.of(Script(Path("train.py"), ARGUMENTS), wanted, (0.1, 0.2), Path("all"))
    return ScriptWork(trials.tunings(trials.rates)[-1].trials[0], False, Silent(), Interrupt())


class Played:
    """A script that is not run: its loss falls by the rate, and by the square root of the learners, every second."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, int, list[str]]] = []

    def run(self, work: ScriptWork) -> int:
        what, exp = work.configuration, work.cell.exp
        assert isinstance(what, ScriptConfiguration)
        assert what.script.arguments == ARGUMENTS
        self.runs.append((what.text, what.learners, [what.rate, str(work.cell.seed)]))
        facts: dict[str, Any] = {"commit": "", "machine": "", "parameters": 5, "minibatch_frames": 1, "train_frames": 0}
        label, count = what.strategy.label, what.learners
        names: dict[str, Any] = {"strategy": what.strategy.name, "label": label, "runtime": "procs", "learners": count}
        append(exp, RunStarted(wall_s=0.0, seed=0, examples="minibatches", measured=HELD_OUT_LOSS, **facts, **names))
        slow = 2 if what.stragglers else 1
        for second in range(11):
            loss = 10.0 - second * float(what.rate) * count**0.5 / slow
            done: dict[str, Any] = {"frames": second, "accuracy": 0.0, "consensus_distance": 0.0, "accepted": True}
            append(exp, Evaluation(wall_s=float(second), epoch=second - 1, split="dev", cross_entropy=loss, **done))
        return 0


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    one = Played()

    def run(work: ScriptWork) -> int:
        return one.run(work)

    monkeypatch.setattr(ScriptWork, "_run", run)
    return one


def test_ratios_are_those_of_what_the_script_has_reported(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    """Four learners are there in half the seconds, and as late as one alone where one of them halves the speed. The
    same call again runs nothing; one with more learners runs these."""
    options = ["--strategies", "adpsgd", "--rates", "0.1,0.4,0.2", "--slower", "3"]
    assert scaling("--learners", "1,4", *options) == 0
    ways = read_json(Path("all/scaling.json"))["ways"]
    assert [(way["learners"], bool(way["stragglers"]), way["rate"]) for way in ways] == [
        (1, False, 0.4),
        (4, False, 0.4),
        (4, True, 0.4),
    ]
    assert [way["times_sooner"] for way in ways] == pytest.approx([1.0, 2.0, 1.0])
    assert played.runs[:3] == [("sgd", 1, [rate, "1"]) for rate in ("0.1", "0.4", "0.2")]
    assert [run[2] for run in played.runs if run[:2] == ("adpsgd", 4)][-2:] == [["0.4", "3"]] * 2
    assert 'class="reference"' in Path("all/scaling.html").read_text()
    count = len(played.runs)
    assert scaling("--learners", "1,4", *options) == 0
    assert len(played.runs) == count
    assert scaling("--learners", "1,4,9", *options) == 0
    assert {run[1] for run in played.runs[count:]} == {9}
    assert "train: how much sooner" in Path("all/scaling.html").read_text()


def test_python_measures_what_the_command_measures(played: Played) -> None:
    """A call goes on where the command left off, and says the same."""
    options = ["--learners", "1,4", "--strategies", "adpsgd", "--rates", "0.1,0.4"]
    assert scaling(*options) == 0
    count, ways = len(played.runs), read_json(Path("all/scaling.json"))["ways"]
    found = roundelay.scaling(
        "train.py", ["adpsgd"], ARGUMENTS, "all", learners=(1, 4), rates=(0.1, 0.4), seeds=2, wider=0
    )
    assert len(played.runs) == count
    assert read_json(found.files[0])["ways"] == ways
    assert "2.00" in found.table
    assert not found.failed


def test_a_script_that_has_changed_is_not_taken_for_the_old_one(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scaling("--rates", "0.1,0.2") == 0
    Path("train.py").write_text(SCRIPT + "\n# better\n")
    assert scaling("--rates", "0.1,0.2") == 1
    assert "belongs to another configuration: script.sha256" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(
    ("options", "behind", "named"),
    [
        (["--rates", "0.1,0.2"], ("--strategy", "{strategy}", "--lr", "{rate}"), r"where \{seed\} goes"),
        ([], ARGUMENTS, "--rates 0.01,0.02,0.04"),
        (["--rates", "0.1,0.2", "--simulated", "4"], ARGUMENTS, "is a script"),
        (["--rates", "0.1,0.2", "--runtime", "sim"], ARGUMENTS, "is for recipes"),
        (["--rates", "0.1,0.2", "schedule.max_epochs=1"], ARGUMENTS, "stand behind --"),
        (["--rates", "0.1,0.2", "--strategies", "adpgsd"], ARGUMENTS, "adpsgd"),
    ],
)
def test_what_cannot_be_is_refused(
    options: list[str], behind: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scaling(*options, behind=behind) == 2
    assert re.search(named, capsys.readouterr().err.replace("\n", " "))


def test_words_behind_hyphens_are_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scaling", "an4", "--", "--lr", "{rate}"]) == 2
    assert "arguments of a script" in capsys.readouterr().err
    with pytest.raises(UserError, match="no such file"):
        Script(Path("nothing.py"), ARGUMENTS)


def test_learners_of_a_real_script_report_once(tmp_path: Path) -> None:
    one = work()
    assert one.go()
    exp = one.cell.exp
    records = read_events(exp / EVENTS)
    (started,) = of_kind(records, RunStarted)
    assert (started.strategy, started.learners, started.parameters) == ("adpsgd", 2, 44)
    evaluations = of_kind(records, Evaluation)
    assert [each.cross_entropy for each in evaluations] == [3.0, 2.0, 1.0]
    assert evaluations[-1].frames == 24
    for by_time in ([each.frames for each in evaluations], [each.wall_s for each in evaluations]):
        assert by_time == sorted(by_time)
    run = load_run(exp)
    assert (run.results.seed, run.cross_entropy, run.results.corpus) == (1, 1.0, "train.py")
    assert "'adpsgd', '--lr=0.1', '--seed', '1']" in (exp / SAID).read_text()
    kept = yaml.safe_load((exp / "recipe.yaml").read_text())
    assert kept["training"]["learners"] == 2


@pytest.mark.parametrize(
    ("text", "said"), [("raise SystemExit('no data')", "status 1.*no data"), ("print('hello')", "no held-out loss")]
)
def test_a_script_that_says_nothing_or_fails_is_told_of(text: str, said: str) -> None:
    Path("train.py").write_text(text)
    one = work("bsp")
    with pytest.raises(UserError, match=said):
        one.go()
    assert not one.trained


def test_a_training_that_is_stopped_begins_anew() -> None:
    Path("train.py").write_text("import time\ntime.sleep(100)")
    one = work()
    one.interrupt.asked = True
    assert not one.go()
    assert not one.trained
    Path("train.py").write_text("print('hello')")
    with pytest.raises(UserError, match="no held-out loss"):
        work().go()


# Reports and slow learners, in a session -----------------------------------------------------------------------------


def session(**options: Any) -> roundelay.Session:
    model = network()
    return roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "sgd", **options)


def test_reports_go_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with session() as silent:
        silent.report(1.0)
    monkeypatch.setenv("ROUNDELAY_REPORT", str(tmp_path / "said"))
    with session() as one:
        one.report(5.0)
        for x, y in batches(2):
            backward(one.module, x, y)
            one.step()
        one.report(torch.tensor(4.0))  # type: ignore[arg-type]
        with pytest.raises(UserError, match="give a number"):
            one.report("much")  # type: ignore[arg-type]
    evaluations = of_kind(read_events(tmp_path / "said" / EVENTS), Evaluation)
    assert [(each.epoch, each.frames, each.cross_entropy) for each in evaluations] == [(-1, 0, 5.0), (1, 2, 4.0)]
    with pytest.raises(UserError, match=r"session.report\(\) after session.close"):
        one.report(1.0)
    with session() as second, pytest.raises(UserError, match="another session has reported"):
        second.report(1.0)


def test_a_learner_goes_on_with_the_reports_of_one_that_died(tmp_path: Path) -> None:
    with session() as one:
        first, second = (LossLog(str(tmp_path / "said"), one._started(0)) for _ in range(2))
        first.write(3.0, 10)
        second.write(2.0, 20)
    records = read_events(tmp_path / "said" / EVENTS)
    assert len(of_kind(records, RunStarted)) == 1
    assert [each.cross_entropy for each in of_kind(records, Evaluation)] == [3.0, 2.0]


def test_a_straggler_takes_so_many_times_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the beginning of a step and its gradient the clock goes on by 2 s; three times slower is 4 s more."""
    monkeypatch.setenv("ROUNDELAY_STRAGGLERS", "0:3x")
    pauses: list[float] = []
    seconds = iter(range(0, 1000, 2))
    with session() as one:
        monkeypatch.setattr(learner, "pause", pauses.append)
        monkeypatch.setattr(learner, "wall_clock", lambda: float(next(seconds)))
        for x, y in batches(3):
            backward(one.module, x, y)
            one.step()
    assert pauses[:3] == [4.0] * 3
