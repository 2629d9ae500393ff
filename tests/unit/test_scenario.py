"""`roundelay simulate`: clusters from files, records like a real run's, and the command line."""

import math
from pathlib import Path

import pytest
import yaml

from roundelay.cli import main
from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.core.records import Segment, Staleness, of_kind, read_events
from roundelay.reports import load_runs
from roundelay.runtime.sim.cluster import Compute, Moment, Node, VirtualCluster
from roundelay.runtime.sim.cost import CostModel
from roundelay.simulation.scenario import Scenario, simulate
from roundelay_speech.recipes.recipe import load_recipe

HERE = Path(__file__).parents[2] / "docs" / "clusters"


def scenario(timing_only: bool = False, **other: object) -> Scenario:
    return Scenario(learners=3, rounds=20, cost=CostModel(jitter=0.3), timing_only=timing_only, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize("timing_only", [False, True])
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_run_directory_says_what_the_table_says(tmp_path: Path, timing_only: bool, epochs: int) -> None:
    strategies = ["ssgd", "adpsgd", "asgd,period=3"]
    table = simulate(scenario(timing_only, epochs=epochs), strategies)
    trained = simulate(scenario(timing_only, epochs=epochs), strategies, tmp_path)
    folders = [tmp_path / name for name in ("ssgd", "adpsgd-random-ring", "asgd-period-3")]
    for one, other, folder in zip(table, trained, folders, strict=True):
        assert one.label == other.label
        assert one.virtual_seconds == pytest.approx(other.virtual_seconds)
        assert one.speedup == pytest.approx(other.speedup)
        assert (one.loss, one.staleness_largest) == pytest.approx((other.loss, other.staleness_largest))
        records = read_events(folder / "events.jsonl")
        assert sum(sum(s.learner_steps) for s in of_kind(records, Segment)) == 3 * 20 * epochs
        assert max(s.largest for s in of_kind(records, Staleness)) == one.staleness_largest
    runs = load_runs(folders)
    assert [run.simulated for run in runs] == [True] * 3
    assert [run.seconds for run in runs] == pytest.approx([one.virtual_seconds for one in table])
    assert yaml.safe_load((folders[0] / "recipe.yaml").read_text())["cost"]["jitter"] == 0.3


def test_a_finished_run_directory_is_only_read(tmp_path: Path) -> None:
    first = simulate(scenario(), ["adpsgd"], tmp_path / "run")
    before = (tmp_path / "run" / "events.jsonl").read_bytes()
    assert simulate(scenario(), ["adpsgd"], tmp_path / "run") == first
    assert (tmp_path / "run" / "events.jsonl").read_bytes() == before


def test_a_death_a_strategy_cannot_bear_is_said_and_the_others_go_on() -> None:
    virtual = VirtualCluster(nodes=(Node(3),), exchange=0.01, deaths=(Moment(1, 0.55),), model_bytes=1e3)
    synchronous, asynchronous = simulate(
        Scenario(learners=3, rounds=20, cost=CostModel(cluster=virtual)), ["ssgd", "adpsgd"]
    )
    assert "learner 1 died" in synchronous.died
    assert synchronous.virtual_seconds == pytest.approx(0.55)
    assert math.isnan(synchronous.speedup)
    assert (asynchronous.died, asynchronous.lost) == ("", 1)


def test_speedup_is_over_one_learner_alone() -> None:
    """Two learners share one core: together they are as fast as one."""
    compute = Compute(seconds=0.1, seconds_per_frame=0.001, update=0.01)
    virtual = VirtualCluster(nodes=(Node(2, cores=1),), compute=compute, model_bytes=1)
    (found,) = simulate(Scenario(learners=2, rounds=10, cost=CostModel(cluster=virtual)), ["ssgd"])
    assert found.speedup == pytest.approx(2 * 0.142 / (2 * 0.132 + 0.01), rel=1e-3)


def test_timing_alone_must_know_how_large_a_model_is() -> None:
    cost = CostModel(cluster=VirtualCluster(nodes=(Node(2),)))
    with pytest.raises(UserError, match="--model-bytes"):
        Scenario(learners=2, cost=cost, timing_only=True)
    assert Scenario(learners=2, cost=cost, timing_only=True, model_bytes=1e6).model_bytes == 1e6
    assert Scenario(learners=2, timing_only=True)


def test_a_larger_model_takes_longer_on_the_wire() -> None:
    cost = CostModel(cluster=VirtualCluster(nodes=(Node(1, count=4),)))
    small, large = (
        simulate(Scenario(cost=cost, timing_only=True, model_bytes=size), ["ssgd"])[0] for size in (1e6, 1e8)
    )
    assert large.virtual_seconds > 1.5 * small.virtual_seconds


def test_a_recipe_takes_its_cluster_from_a_file_and_keeps_what_it_says() -> None:
    recipe = load_recipe("demo", [f"cost.cluster={HERE / 'one_host_4.yaml'}"])
    assert recipe.cost.cluster is not None
    assert recipe.cost.cluster.learners == 4
    assert plain(recipe)["cost"]["cluster"]["compute"]["seconds"] == 0.08
    with pytest.raises(UserError, match=r"nowhere\.yaml"):
        load_recipe("demo", ["cost.cluster=nowhere.yaml"])


@pytest.mark.parametrize("path", sorted(HERE.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_can_be_simulated(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--timing-only", "--model-bytes", "1e6", "--rounds", "20", "--strategy", "adpsgd", "bmuf,period=5"]
    assert main(["simulate", str(path), *options]) == 0
    out = capsys.readouterr().out
    assert "adpsgd random-ring" in out
    assert "events/s" in out


def test_the_command_names_what_it_cannot_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text("nodes: [{learners: 2}]\nlinks: {inside: {bandwith: 3}}\n")
    assert main(["simulate", str(tmp_path / "c.yaml")]) == 2
    assert "c.yaml: unknown option links.inside.bandwith; did you mean bandwidth" in capsys.readouterr().err
    (tmp_path / "c.yaml").write_text("nodes: [{learners: 2}]\n")
    assert main(["simulate", str(tmp_path / "c.yaml"), "--learners", "3"]) == 2
    assert "has 2 learners" in capsys.readouterr().err


def test_published_speedups_are_printed_row_by_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["published", "li2017"]) == 0
    out = capsys.readouterr().out
    assert out.count("predicted") == 16 + 1
    assert "median error" in out
