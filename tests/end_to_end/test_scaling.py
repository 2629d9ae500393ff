"""`roundelay scaling`: exact ratios on a virtual clock, rates that widen, going on, and what a reader must be told."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roundelay.cli import main
from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay.core.progress import Silent
from roundelay.grids.scaled import summarise
from roundelay.grids.scaling import WantedWays, scale
from roundelay.job import Interrupt
from roundelay.reports import load_run
from roundelay_speech.grids import running
from roundelay_speech.recognition import epochs
from roundelay_speech.recognition.recognise import recognise_split
from support.runs import StopAt

TINY = ["schedule.max_epochs=1", "model.dropout=0.0", "model.context=0", "training.minibatch=256", "cost.allreduce=0.0"]
SIMULATED = ["--runtime", "sim", "--strategies", "ssgd", "--seeds", "1", *TINY]


def scaling(exp: str, *options: str) -> int:
    return main(["scaling", "recipe.yaml", "--exp", exp, *SIMULATED, *options])


def ways(exp: str) -> dict[tuple[int, bool], dict[str, Any]]:
    """Ways of scaling.json by number of learners, and whether one is slow."""
    found = read_json(Path(exp, "scaling.json"))["ways"]
    return {(way["learners"], bool(way["stragglers"])): way for way in found}


def test_equal_gradients_that_talk_for_nothing_are_sooner_by_as_many(
    inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under `ssgd` learners share the minibatch of one: four are there in a quarter of the seconds, and in three
    quarters with one that is three times slower. A second call trains nothing and says the same."""
    options = ["--learners", "4", "--rates", "0.02,0.05", "--slower", "3", "--wider", "0"]
    assert scaling("exact", *options) == 0
    printed, found = capsys.readouterr().out, ways("exact")
    assert found[1, False]["times_sooner"] == 1.0
    for way, ratio in {(4, False): 4.0, (4, True): 4 / 3}.items():
        assert found[way]["times_sooner"] == pytest.approx(ratio, rel=1e-3), way
    assert {way["rate"] for way in found.values()} == {found[1, False]["rate"]}
    assert "4.00" in next(line for line in printed.splitlines() if line.split()[:3] == ["ssgd,", "simulated", "4"])
    page = Path("exact/scaling.html").read_text()
    assert page.count('class="reference"') == 2  # the ideal, wide and narrow
    monkeypatch.setattr(running, "train", None)
    assert scaling("exact", *options) == 0
    assert ways("exact") == found


def test_a_best_rate_at_the_edge_widens_the_rates_or_is_said(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scaling("edge", "--rates", "0.0001,0.0002", "--wider", "1") == 0
    for way in ways("edge").values():
        assert [one["rate"] for one in way["tried"]] == [0.0001, 0.0002, 0.0004]
        assert (way["rate"], way["at_the_edge"]) == (0.0004, True)
    said = capsys.readouterr()
    assert (
        "ssgd, 2 learners, simulated: the best schedule.learning_rate, 0.0004, is the largest tried"
        in said.err.replace("\n", " ")
    )
    assert "0.0004, at the edge" in said.out


def test_a_loss_that_is_not_reached_is_said(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the same frames in four times the minibatch, at a rate that is right for one learner."""
    slow = ["training.minibatch=null", "training.minibatch_per_learner=64", "--rates", "0.01,0.02", "--wider", "0"]
    assert scaling("missed", "--learners", "4", *slow) == 0
    way = ways("missed")[4, False]
    assert (way["times_sooner"], way["seconds"]) == (None, None)
    assert "the loss was not reached under 1 of 1 seeds" in capsys.readouterr().err.replace("\n", " ")
    # It is, where a loss is named that both came to.
    easy = way["judged"][0]["held_out_loss"] + 0.01
    assert scaling("missed", "--learners", "4", *slow, "--target-loss", str(easy)) == 0
    assert ways("missed")[4, False]["times_sooner"] > 0


def test_predicted_seconds_are_those_of_the_same_way_simulated(inside: Path) -> None:
    """Learners that count as measured ones here, and the same simulated at gradients half as long."""
    wanted, clocks = WantedWays(["ssgd"], (1, 2, 4), rates=(0.02, 0.05), wider=0, seeds=1), []
    for name, learners, seconds in (("measured", (1, 2, 4), 0.1), ("simulated", (1, 2), 0.05)):
        overrides = ["training.runtime=sim", f"cost.gradient={seconds}", *TINY]
        one = replace(wanted, learners=learners)
        clocks += scale("recipe.yaml", overrides, one, Path("both", name), Silent(), lambda _: None, Interrupt())
    clocks[0] = replace(clocks[0], trials=replace(clocks[0].trials, virtual=False))
    found = summarise(clocks, Path("both"), 200)
    by_learners = {way["learners"]: way for way in read_json(found.files[0])["ways"] if not way["virtual"]}
    for way in (by_learners[1], by_learners[2]):
        assert way["predicted_seconds"]["mean"] == pytest.approx(way["seconds"]["mean"] / 2, rel=1e-3)
    assert by_learners[4]["predicted_seconds"] is None
    assert "predicted" in found.table.splitlines()[0]
    assert "predicted" not in summarise(clocks[:1], Path("both"), 200).table


@pytest.mark.parametrize("stopped", ["3/", "6/"])
def test_the_same_call_goes_on(inside: Path, stopped: str) -> None:
    """In the rates of several learners, and while the best are judged."""
    wanted = WantedWays(["ssgd"], (1, 2), rates=(0.02, 0.05), wider=0, seeds=1)
    overrides, folder = ["training.runtime=sim", *TINY], Path(f"stopped-{stopped[0]}")
    interrupt = Interrupt()
    (half,) = scale("recipe.yaml", overrides, wanted, folder, StopAt(interrupt, stopped), lambda _: None, interrupt)
    assert not all(way.judged and all(one.trained for one in way.judged) for way in half.ways)
    (whole,) = scale("recipe.yaml", overrides, wanted, folder, Silent(), lambda _: None, Interrupt())
    assert all(len(way.judged) == 1 and way.judged[0].trained for way in whole.ways)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["schedule.learning_rate=0.1"], "--rates"),
        (["schedule.factor=0.5,0.7"], "give one value"),
        (["--simulated", "4"], "no trainings by processes"),
        (["--simulated", "4", "--learners", "1", "--runtime", "procs"], "no trainings by processes"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    inside: Path, options: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scaling("refused", *options) == 2
    assert named in capsys.readouterr().err


def words(exp: str, *options: str) -> int:
    with_rates = ["--rates", "0.02,0.05", "--wider", "0", "--learners", "2"]
    return scaling(exp, *with_rates, "schedule.max_epochs=3", "--wer", *options)


def test_seconds_are_counted_to_a_word_error_rate(
    inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both learners of `ssgd` have the words of one in half its seconds. The model of each epoch is decoded once, also
    where the decoding was stopped, and counts at the second of its evaluation."""
    decoded: list[int] = []

    def stopped(*_: Any) -> bool:
        raise UserError("no room for the graph")

    with monkeypatch.context() as patch:
        patch.setattr(running, "decode_epochs", stopped)
        assert words("words") == 1
    assert "ssgd, 2 learners, schedule.learning_rate" in (said := capsys.readouterr().err.replace("\n", " "))
    assert "not decoded: no room for the graph" in said
    assert [way["times_sooner"] for way in ways("words").values()] == pytest.approx([1.0, 2.0], rel=1e-3)
    assert {way["words"]["times_sooner"] for way in ways("words").values()} == {None}

    def counted(graph: Any, source: Any, utterances: Any, split: str, *rest: Any) -> Any:
        decoded.append(len(utterances))
        return recognise_split(graph, source, utterances, split, *rest)

    monkeypatch.setattr(epochs, "recognise_split", counted)
    monkeypatch.setattr(running, "train", None)
    assert words("words") == 0
    assert len(decoded) == 2 * 2  # two runs, two epochs each; of the third is the model that was left
    for (learners, _), way in ways("words").items():
        (run,) = way["judged"]
        loaded = load_run(Path("words", run["directory"]))
        seconds = [loaded.clock(e) for e in loaded.evaluations[1:]]
        assert [at for at, _ in run["seconds_and_wer"]] == [*seconds, seconds[-1]]
        assert run["seconds_and_wer"][-1][1] == loaded.results.wer["test"].wer
        assert way["words"]["times_sooner"] == pytest.approx(learners, rel=1e-3)
    printed = capsys.readouterr().out
    assert "seconds to WER" in printed
    assert "decoding not" in printed
    assert Path("words/scaling.html").read_text().count('class="reference"') == 4
    found = ways("words")
    assert words("words") == 0
    assert (len(decoded), ways("words")) == (4, found)
    # A word error rate that is named is taken.
    assert words("words", "--target-wer", "100") == 0
    assert ways("words")[1, False]["words"]["wer"] == 100
    assert ways("words")[1, False]["judged"][0]["seconds_to_wer"] <= found[1, False]["judged"][0]["seconds_to_wer"]


def test_runs_that_kept_no_models_are_named(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--rates", "0.02,0.05", "--wider", "0", "--learners", "1", "schedule.max_epochs=2"]
    assert scaling("kept", *options) == 0
    capsys.readouterr()
    assert scaling("kept", *options, "--wer") == 1
    assert "trained without --wer, which keeps the models of epochs" in capsys.readouterr().err.replace("\n", " ")
