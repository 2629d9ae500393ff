"""`roundelay advise`: its order agrees with what was measured, and its fit is that of the committed runs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from roundelay.advice import learning
from roundelay.advice.advise import Advice, AdviceTask, advise, beside_alone, changed, choice, form_of_rows, rank
from roundelay.advice.learning import COLUMNS, Trained, columns, efficiency, fitted
from roundelay.advice.throughput import Candidate, StepWork, candidates, never_talking, speed
from roundelay.cli import main
from roundelay.core.errors import UserError
from roundelay.runtime.sim.cluster import Compute, Handicap, Node, VirtualCluster, VirtualLink, VirtualLinks
from roundelay.strategies import STRATEGIES, make_strategy
from roundelay_lab.advice.fit import (
    MeasuredTable,
    ThroughputCompared,
    candidate_of,
    fit_all,
    load_measured,
    predicted,
    read_measured,
    throughput_error,
)

FITTED = Path(__file__).parents[2] / "src" / "roundelay" / "advice" / "fitted.json"
SLOW = VirtualCluster(
    name="two hosts",
    nodes=(Node(count=2),),
    compute=Compute(seconds=0.2),
    links=VirtualLinks(between=VirtualLink(1e-4, 12e6)),
)
TASK = AdviceTask(parameters=12.5e6)


@pytest.fixture(scope="module")
def compared() -> list[ThroughputCompared]:
    return predicted(load_measured())


@pytest.fixture(scope="module")
def advice() -> Advice:
    return advise(SLOW, TASK)


# Against what was measured --------------------------------------------------------------------------------------------


def rank_correlation(first: list[float], second: list[float]) -> float:
    """Spearman's, of lists without ties."""
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


def test_the_order_of_throughput_is_the_measured_one(compared: list[ThroughputCompared]) -> None:
    assert rank_correlation([one.row.ratio for one in compared], [one.ratio for one in compared]) >= 0.8


def test_no_prediction_of_throughput_is_off_by_more_than_a_tenth(compared: list[ThroughputCompared]) -> None:
    assert [one for one in compared if not 1 / 1.1 < one.ratio / one.row.ratio < 1.1] == []
    assert throughput_error(compared) == pytest.approx(fitted().throughput_error, rel=1e-3)


def test_the_order_of_seconds_to_a_loss_is_the_measured_one() -> None:
    known, found = read_measured()["trainings"], []
    task = AdviceTask(known["parameters"], known["examples"], known["frames"], epoch=known["epoch"])
    for row in known["rows"]:
        cluster = MeasuredTable("", known["seconds"], known["parameters"], ()).cluster(row["rate"])
        found += [one.seconds for one in rank(cluster, task, [candidate_of(row["mode"])])]
    assert rank_correlation([row["seconds"] for row in known["rows"]], found) >= 0.8


# The fit --------------------------------------------------------------------------------------------------------------


def test_the_fit_is_the_least_squares_one_of_the_committed_runs() -> None:
    """And what `python -m roundelay_lab.advice.fit` writes today, its terms included, as the simulator has them."""
    fit, rows = fit_all()
    kept = json.loads(FITTED.read_text())["rows"]
    assert [(row.source, row.strategy) for row in rows] == [(one["source"], one["strategy"]) for one in kept]
    for row, one in zip(rows, kept, strict=True):
        assert {**row.terms, "measured": row.measured} == pytest.approx({**one["terms"], "measured": one["measured"]})
    assert fit.coefficients == pytest.approx(fitted().coefficients, abs=2e-5)
    for name in ("exponent", "exponent_error", "without", "leave_source_out"):
        assert getattr(fit, name) == pytest.approx(getattr(fitted(), name), abs=2e-5)
    y = np.array([row.measured for row in rows])
    x = np.array([[row.terms[name] for name in COLUMNS] for row in rows])
    solved = np.linalg.lstsq(x, y, rcond=None)[0]
    assert solved == pytest.approx([fitted().coefficients[name] for name in COLUMNS], abs=2e-4)
    one_out = [x[k] @ np.linalg.lstsq(np.delete(x, k, 0), np.delete(y, k), rcond=None)[0] for k in range(len(y))]
    assert np.sqrt(np.mean((one_out - y) ** 2)) == pytest.approx(fitted().leave_one_out, rel=0.01)


def test_terms_are_what_equations_say() -> None:
    shared = Trained(learners=4, rounds=1000, momentum=0.0)
    assert not any(columns(make_strategy("ssgd"), shared).values())
    assert not any(columns(make_strategy("adpsgd"), Trained(1, 1000)).values())
    late = columns(make_strategy("delay-by-one"), shared)
    assert (late["late"], late["apart"]) == pytest.approx((1.0, 2.0))  # it bears 1 where ssgd bears 2
    each = Trained(learners=4, rounds=1000, momentum=0.0, minibatches_a_round=4)
    behind = (20 / (1 - 0.75) - 1) / 1000  # block momentum 1 - 1/L
    assert columns(make_strategy("bmuf,period=20"), each)["lag"] == pytest.approx(behind / (1 + behind))


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_has_terms(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "bears", lambda *_: 1.0)
    found = columns(make_strategy(name), Trained(learners=4, rounds=1000))
    assert set(found) == set(COLUMNS)
    assert all(value >= 0 for value in found.values())


def test_whatever_is_outside_the_fit_says_so() -> None:
    few = Trained(learners=2, rounds=100)
    assert "lag" in efficiency(make_strategy("diloco,period=500"), few, fitted()).outside[-1]
    assert "no run of gossip-diloco" in efficiency(make_strategy("gossip-diloco"), few, fitted()).outside[-1]
    many = Trained(learners=64, rounds=1000, momentum=0.0)
    assert "apart" in efficiency(make_strategy("delay-by-one"), many, fitted()).outside[0]
    assert efficiency(make_strategy("ssgd"), many, fitted()).outside == ()
    assert "quorum" in efficiency(make_strategy("bsp,quorum=1"), Trained(4, 1000), fitted()).outside[-1]
    assert set(fitted().strategies) <= set(STRATEGIES)


# Advice ---------------------------------------------------------------------------------------------------------------


def test_advice_ranks_by_seconds_and_takes_the_first_of_which_the_fit_knows(advice: Advice) -> None:
    seconds = [one.seconds for one in advice.ranked]
    assert seconds == sorted(seconds)
    assert not advice.first.outside
    known = [one for one in advice.ranked if not one.outside]
    forms = [one for one in known if one.candidate.strategy == known[0].candidate.strategy]
    equal = [one.candidate for one in forms if one.seconds <= 1.01 * known[0].seconds]
    assert advice.first.candidate in equal
    assert advice.first.candidate.codec.exact or not any(one.codec.exact for one in equal)
    assert {one.candidate for one in advice.ranked} == set(candidates(SLOW))
    for one in advice.ranked:
        assert one.seconds == pytest.approx(TASK.examples * one.factor / one.throughput)
        assert one.range[0] < one.seconds < one.range[1]


def test_a_slow_exchange_under_way_is_waited_for_at_the_end_of_an_epoch_and_never_else() -> None:
    slow = replace(SLOW, links=VirtualLinks(between=VirtualLink(1e-4, 12e5)))  # 42 s one way
    found = speed(Candidate("adpsgd"), slow, StepWork(12.5e6))
    assert found.examples_per_second == pytest.approx(2 * 256 / 0.2, rel=0.01)
    assert 0 < found.end < 2 * 2 * 5e7 / 12e5
    (whole,) = rank(slow, TASK, [Candidate("adpsgd")])
    (cut,) = rank(slow, replace(TASK, epoch=TASK.examples / 4), [Candidate("adpsgd")])
    assert cut.seconds == pytest.approx(whole.seconds + 4 * whole.factor * found.end)


def test_means_inside_a_node_take_their_time_from_busy_cores() -> None:
    """Two learners on one core: a gradient takes twice as long, and so does the mean that both work on."""
    own, shared = (VirtualCluster(nodes=(Node(2, cores=cores),), compute=Compute(seconds=0.1)) for cores in (2.0, 1.0))
    step = [2 / speed(Candidate("ssgd"), one, StepWork(1e6, frames=1)).examples_per_second for one in (own, shared)]
    assert step == pytest.approx([0.1 + 2.6e-3 + 4e6 / 2.7e9, 0.2 + 2.6e-3 + 8e6 / 2.7e9], rel=1e-3)


def test_a_slow_link_is_no_place_for_what_waits_in_every_step(advice: Advice) -> None:
    place = {one.candidate: number for number, one in enumerate(advice.ranked)}
    assert place[Candidate("sgd")] < place[Candidate("ssgd")]
    assert advice.first.of_never_talking > 0.9


def test_a_machine_more_and_a_faster_link_are_no_loss(advice: Advice) -> None:
    assert [one.change for one in advice.what_if] == ["a machine more", "links 10 times as fast"]
    assert all(one.gain > 0.98 for one in advice.what_if)
    (_, machine), (_, links) = changed(SLOW)
    assert machine.learners == 3
    assert links.links.between.bandwidth == 10 * SLOW.links.between.bandwidth


def test_one_learner_has_no_choice() -> None:
    found = advise(replace(SLOW, nodes=(Node(),)), TASK)
    assert [one.candidate.strategy for one in found.ranked] == ["sgd"]
    assert found.first.factor == 1
    assert found.what_if[0].change == "a second machine"


def test_several_learners_are_set_beside_one_alone() -> None:
    """Two equal learners for whom talking costs nothing are twice as soon if all gradients count, and as soon as one at
    its own rate; with one three times slower 4/3, and at the rate of one as soon where rows are weighed, and 2/3 where
    their mean goes half as far as each."""
    free = VirtualCluster(nodes=(Node(2),), compute=Compute(seconds=0.1))
    slow = replace(free, stragglers=(Handicap(1, 3.0),))
    for cluster, strategy, all_count, as_one in (
        (free, "adpsgd", 2, 1),
        (free, "adpsgd,weights=equal", 2, 1),
        (slow, "adpsgd", 4 / 3, 1),
        (slow, "adpsgd,weights=equal", 4 / 3, 2 / 3),
    ):
        found = beside_alone(rank(cluster, TASK, [Candidate("sgd"), Candidate(strategy)]), 2)
        assert found is not None
        factor = found.together.factor
        assert found.sooner * factor == pytest.approx(all_count, rel=0.02)
        assert found.at_the_rate_of_one * factor == pytest.approx(as_one, rel=0.02)
        assert not found.one_is_best
        assert f"{found.sooner:.2f} times sooner if" in found.said()
    assert advise(replace(SLOW, nodes=(Node(),)), TASK).beside_alone is None


def test_a_choice_for_several_says_where_one_alone_would_be_first() -> None:
    """Under `ssgd` a link of 100 Mbit/s takes far longer than a gradient; `sgd` is for one learner, and is not given to
    two."""
    ranked = rank(SLOW, TASK, [Candidate("sgd"), Candidate("ssgd")])
    assert ranked[0].candidate.strategy == "sgd"
    chosen, why = choice(ranked, 2, "two hosts", "")
    assert chosen.candidate.strategy == "ssgd"
    assert "first of those for several learners" in why
    assert "One learner alone, on the fastest machine, is predicted to be at the loss first" in why
    assert why.endswith("Train with one learner")
    alone, why = choice(ranked[:1], 1, "one host", "")
    assert alone.candidate.strategy == "sgd"
    assert "alone" not in why


def test_never_talking_is_what_each_does_alone() -> None:
    unequal = replace(SLOW, nodes=(Node(), Node(speed=0.5)))
    assert never_talking(unequal, StepWork(1e6, frames=10)) == pytest.approx(10 / 0.2 + 10 / 0.4, rel=0.01)
    assert speed(Candidate("sgd"), unequal, StepWork(1e6, frames=10)).examples_per_second == pytest.approx(10 / 0.2)


def test_nodes_of_several_learners_are_offered_a_strategy_with_nodes() -> None:
    assert "hadpsgd,node_size=2" in {one.strategy for one in candidates(replace(SLOW, nodes=(Node(2, count=2),)))}
    assert not [one for one in candidates(SLOW) if one.strategy.startswith("hadpsgd")]


def test_a_quorum_is_offered_where_somebody_may_be_gone_on_without_and_nobody_waits_for_it_then() -> None:
    def offered(cluster: VirtualCluster) -> set[str]:
        return {one.strategy for one in candidates(cluster) if "quorum" in one.strategy}

    equal = VirtualCluster(nodes=(Node(4),), compute=Compute(seconds=0.1))
    slow = replace(equal, stragglers=(Handicap(3, 5.0),))
    assert offered(equal) == offered(replace(slow, nodes=(Node(3),), stragglers=(Handicap(2, 5.0),))) == set()
    assert "bsp,period=20,quorum=0.75" in offered(slow)
    work = StepWork(1000)
    alone = never_talking(slow, work)
    shares = [
        speed(Candidate(f"bsp,period=20{more}"), slow, work).examples_per_second / alone
        for more in ("", ",quorum=0.75")
    ]
    assert shares == pytest.approx([4 / 5 / 3.2, 1], rel=0.02)


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_prints_a_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "two.yaml"
    file.write_text("nodes: [{count: 2}]\ncompute: {seconds: 0.1}\nmodel_bytes: 4.0e+6\n")
    assert main(["advise", str(file), "--learning-rate", "0.04", "--top", "3"]) == 0
    said = capsys.readouterr().out
    assert "2 learners, 1,000,000 parameters" in said
    assert "roundelay train RECIPE --strategy" in said
    assert "a machine more" in said
    assert main(["advise", str(file), "--format", "json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["learners"] == 2
    assert read["ranked"][0]["seconds_low"] < read["ranked"][0]["seconds"] < read["ranked"][0]["seconds_high"]
    assert read["first"]["flags"] in said
    assert "One learner alone would take" in said
    beside = read["beside_one_learner"]
    assert f"{beside['times_sooner_if_every_gradient_counts']:.2f} times sooner if" in said


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("compute: {second: 1}", "compute.second"),
        ("nodes: [{count: 2}]", "model_bytes"),
        ("nodes: [{count: 2}]\nmodel_bytes: 4.0e+6\ndeaths: [{rank: 1, at: 3}]", "deaths"),
    ],
)
def test_errors_name_file_and_key(tmp_path: Path, text: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    assert main(["advise", str(file)]) == 2
    said = capsys.readouterr().err
    assert named in said
    assert "cluster" in said


def test_numbers_that_are_no_task_are_refused() -> None:
    with pytest.raises(UserError, match="examples"):
        AdviceTask(parameters=1e6, examples=1)
    with pytest.raises(UserError, match="parameters"):
        advise(SLOW, AdviceTask(parameters=0))


def test_the_form_of_rows_is_that_which_the_link_would_choose() -> None:
    """Whole over a fast link, in parts and in int8 over a slow one; nothing where the strategy or the run has said it,
    or where there is one machine."""
    slow = replace(SLOW, links=VirtualLinks(between=VirtualLink(1e-4, 2e6)))
    fast = replace(SLOW, links=VirtualLinks(between=VirtualLink(1e-4, 1e9)))
    for cluster, said in ((fast, "bf16, whole"), (slow, "int8, in ")):
        assert form_of_rows(Candidate("adpsgd"), cluster, TASK).startswith(said)
    assert form_of_rows(Candidate("ssgd"), slow, TASK) == ""
    assert form_of_rows(Candidate("adpsgd"), replace(SLOW, nodes=(Node(2),)), TASK) == ""
    advice = advise(slow, TASK)
    assert advice.to_json()["rows_between_machines"] == (advice.rows or None)
    assert advice.rows == form_of_rows(advice.first.candidate, slow, TASK)
