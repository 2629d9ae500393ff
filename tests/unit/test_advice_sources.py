"""Facts of an advice: from a probe of this machine, from a run's records, from what the user gives."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import roundelay
from roundelay.advice.from_run import read_facts
from roundelay.advice.machines import Machines, bytes_per_second, cluster_of, link_of, probed_layers
from roundelay.advice.sources import advise_on
from roundelay.advice.wanted import Wanted
from roundelay.cli import main
from roundelay.core.errors import UserError
from roundelay.core.files import write_text
from roundelay.core.records import Evaluation, Links, Record, Segment, read_events, to_line
from roundelay.runtime.sim.cluster import VirtualLink
from support.fake_runs import EPOCH_FRAMES, Fake, write_run

RECIPE = (
    "training: {{strategy: 'adpsgd:random-ring'}}\noptimizer: {{momentum: 0.9}}\nschedule: {{learning_rate: 0.04}}\n"
)


def recorded(folder: Path, link_seconds: float = 2.0) -> Path:
    """A run of a learner on each of two hosts, the second twice as slow, whose loss falls as 2 / epochs ** 0.2."""
    run = write_run(folder, Fake(recipe=RECIPE, epochs=4, learners=2))
    records: list[Record] = []
    for one in read_events(run / "events.jsonl"):
        if isinstance(one, Segment):
            steps = [100, 50]
            records.append(replace(one, learner_steps=steps, learner_gradient_s=[9.0] * 2, learner_update_s=[1.0] * 2))
            links = [  # each byte is seen from both ends; only the first host made requests
                {"host": here, "peer": 1 - here, "sent_bytes": 1e7, "received_bytes": 1e7, "waited_s": seconds}
                for here, seconds in ((0, link_seconds), (1, 0.0))
            ]
            records.append(Links(wall_s=one.wall_s, epoch=one.epoch, links=links))
        elif isinstance(one, Evaluation) and one.split == "dev" and one.epoch >= 0:
            records.append(replace(one, cross_entropy=2 / (one.frames / EPOCH_FRAMES) ** 0.2))
        else:
            records.append(one)
    write_text(run / "events.jsonl", "".join(to_line(record) + "\n" for record in records))
    return run


def test_a_run_says_speeds_links_and_examples(tmp_path: Path) -> None:
    facts = read_facts(recorded(tmp_path), target_loss=2 / 3**0.2)
    assert (facts.cluster.learners, len(facts.cluster.machines())) == (2, 2)
    assert facts.cluster.compute.seconds == pytest.approx(0.1)
    (slow,) = facts.cluster.stragglers
    assert slow.rank == 1
    assert slow.factor == pytest.approx(2.0, rel=0.1)
    assert facts.cluster.links.between.bandwidth == pytest.approx(1e7)
    assert facts.link_known
    task = facts.task
    assert (task.parameters, task.frames, task.momentum, task.rate) == (1_830_000, 512, 0.9, 0.04)
    assert task.examples == pytest.approx(3 * EPOCH_FRAMES, rel=0.05)  # adpsgd needs about as many as one learner


def test_a_run_without_requests_between_hosts_does_not_know_its_links(tmp_path: Path) -> None:
    run = recorded(tmp_path, link_seconds=0.0)
    assert not read_facts(run).link_known
    link = VirtualLink(1e-4, 5e6)
    given = read_facts(run, link=link)
    assert (given.link_known, given.cluster.links.between) == (True, link)


def test_a_loss_that_was_never_reached_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"events.jsonl: its held-out loss never fell to 0.5"):
        read_facts(recorded(tmp_path), target_loss=0.5)


def test_a_simulated_run_says_no_costs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"events.jsonl: no seconds of gradients"):
        read_facts(write_run(tmp_path, Fake(runtime="sim", recipe=RECIPE)))


def test_the_command_reads_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--run", str(recorded(tmp_path)), "--format", "json", "--examples", "1e5"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["learners"] == 2
    assert read["task"]["examples"] == 1e5
    assert "ssgd" not in read["first"]["flags"]  # one learner is twice as slow, and the link carries 10 MB/s


def test_a_probe_measures_a_step_of_as_many_parameters() -> None:
    cluster = probed_layers(20_000, 8, Machines(1, count=2, link=VirtualLink(1e-3, 1e6)))
    assert 0 < (cluster.compute.seconds or 0) < 30
    assert cluster.links.between == VirtualLink(1e-3, 1e6)
    assert cluster.links.inside.bandwidth > 1e6
    assert cluster_of(0.5, Machines(3)).learners == 3


def test_rates_are_written_as_tc_writes_them() -> None:
    assert bytes_per_second("100mbit") == pytest.approx(1.196e7, rel=1e-3)
    assert bytes_per_second("1gbit") == pytest.approx(10 * bytes_per_second("100mbit"))
    with pytest.raises(UserError, match="'fast'"):
        bytes_per_second("fast")
    with pytest.raises(UserError, match="--link 0mbit"):
        link_of("0mbit", 0.0)


@pytest.mark.parametrize(
    "wanted", [Wanted(), Wanted(cluster=Path("c.yaml"), run=Path("exp")), Wanted(probe="1e6", run=Path("exp"))]
)
def test_an_advice_has_one_source_of_facts(wanted: Wanted) -> None:
    with pytest.raises(UserError, match="or --run DIR"):
        advise_on(wanted)


def test_from_python_the_same_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "one.yaml"
    file.write_text("compute: {seconds: 0.1}\nmodel_bytes: 4.0e+6\n")
    advice = roundelay.advise(file, examples=1e5)
    assert main(["advise", str(file), "--examples", "1e5", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["first"]["seconds"] == pytest.approx(advice.first.seconds)
    assert advice.task.parameters == 1e6
