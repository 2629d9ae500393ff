"""The largest stable rate x curvature: the strategies' own code in the simulator against what is known on paper."""

import math

import pytest

from roundelay.cli import main
from roundelay.core.errors import UserError
from roundelay.stability import (
    Edge,
    Precision,
    StabilitySetting,
    largest_stable,
    late_gradients,
    stability,
    table,
    theory,
)
from roundelay.strategies import make_strategy
from roundelay.strategies.dpsgd import DPsgd

CLOSED = {  # of learners 4 and 8, worked out by hand; docs/stability.md has the lines
    "ssgd": (2, 2),
    "dpsgd:ring": (2, 2),
    "dpsgd:ring,order=cta": (2, 2),
    "dpsgd:ring,order=consensus": (2 / 3, 2 / 3),  # 1 + the smallest eigenvalue of T
    "dpsgd:complete,order=consensus": (1, 1),
    "dpsgd:ring,order=consensus,mixing=0.5": (4 / 3, 4 / 3),
    "delay-by-one": (1, 1),
    "delayed-gradient": (1, 1),
    "gossip-pga": (2, 2),
    "bsp": (2, 2),
    "bmuf": (2, 2),  # an even period: no block gradient exceeds the model
    "bmuf,period=1,momentum=0.75,rate=1": (2 * (1 + 3 / 4),) * 2,  # the heavy ball
    "bmuf,period=1,momentum=0.75,rate=1,nesterov=true": (1 + 1 / (1 + 2 * 3 / 4),) * 2,
    "bmuf-fairseq,period=1,momentum=0.75,rate=1": (2, 2),  # the heavy ball with 1 + zeta times the rate
    "slowmo,period=1,momentum=0.5,rate=1": (3, 3),
    "diloco,period=1,rate=0.7": ((1 + 1 / 2.8) / 0.7,) * 2,
    "easgd-sync,period=1": (2 - 2 * 0.9 / 4 / 1.1, 2 - 2 * 0.9 / 8 / 1.1),
    "asgd": (2 * math.sin(math.pi / 14), 2 * math.sin(math.pi / 30)),
    "asgd,staleness_aware=true": (6 * math.sin(math.pi / 14), 14 * math.sin(math.pi / 30)),
    "asgd,period=4": tuple(1 - (1 - 2 * math.sin(math.pi / n)) ** 0.25 for n in (14, 30)),
}


DILOCO = (
    "diloco,period=3,rate=0.7",
    "diloco,period=4,fragments=2,delay=1,rate=0.7",
    "diloco,period=3,mix=0.3,rate=0.7",
)


@pytest.mark.parametrize("name", CLOSED)
def test_the_recursions_have_the_edges_worked_out_by_hand(name: str) -> None:
    for learners, edge in zip((4, 8), CLOSED[name], strict=True):
        assert theory(make_strategy(name), learners) == pytest.approx(edge, rel=1e-4)


def measured(name: str, learners: int, about: float) -> float:
    """Precise to 2 %, where something between 0.75 and 1.3 times `about` is expected."""
    return largest_stable(
        make_strategy(name), StabilitySetting(learners), span=(0.75 * about, 1.3 * about), precision=Precision(360, 512)
    )


RUN = [*CLOSED, "dpsgd:exponential,order=consensus", "easgd", "easgd,period=1", "easgd-sync", *DILOCO]


@pytest.mark.parametrize(
    ("name", "learners"),
    [(name, learners) for name in RUN for learners in (4, 8) if learners == 4 or len({*CLOSED.get(name, (0, 1))}) > 1],
)
def test_strategies_bear_the_rate_that_theory_says(name: str, learners: int) -> None:
    edge = theory(make_strategy(name), learners)
    assert edge is not None
    assert measured(name, learners, edge) == pytest.approx(edge, rel=0.03)


@pytest.mark.parametrize(
    "name",
    ["ssgd", "bsp", "bmuf,period=5", "bmuf,period=5,nesterov=true", "bmuf,period=5,local_momentum=keep,momentum=0.75"],
)
def test_with_local_momentum_too(name: str) -> None:
    edge = theory(make_strategy(name), 4, 0.9)
    assert edge is not None
    span = (0.75 * edge, 1.3 * edge)
    found = largest_stable(make_strategy(name), StabilitySetting(4, 0.9), span=span, precision=Precision(720, 512))
    assert found == pytest.approx(edge, rel=0.04)


def test_local_and_block_momentum_multiply_where_the_local_one_is_kept() -> None:
    """bmuf at period 5 with the papers' block momentum stayed at chance because it bore 1/600 of the rate of sgd."""
    kept, reset = (
        theory(make_strategy(f"bmuf,period=5,momentum=0.75,rate=1,local_momentum={kind}"), 4, 0.9)
        for kind in ("keep", "reset")
    )
    assert kept == pytest.approx(0.0052, abs=2e-4)
    assert reset == pytest.approx(2.91, abs=0.01)
    assert theory(make_strategy("sgd"), 1, 0.9) == pytest.approx(3.8)


@pytest.mark.parametrize("learners", [3, 5])
def test_the_ring_of_any_number_of_learners(learners: int) -> None:
    angles = [2 * math.pi * k / learners for k in range(1, learners)]
    edge = 1 + min((1 + 2 * math.cos(angle)) / 3 for angle in angles)
    name = "dpsgd:ring,order=consensus"  # two learners average: 1, which test_the_table_... has
    assert theory(make_strategy(name), learners) == pytest.approx(edge, rel=1e-4)
    assert measured(name, learners, edge) == pytest.approx(edge, rel=0.03)


def test_a_graph_s_edge_follows_from_its_smallest_eigenvalue() -> None:
    star = DPsgd("graph", ((0, 1), (0, 2), (0, 3)), "consensus")
    edge = theory(star, 4)
    assert edge == pytest.approx(1.0, rel=1e-4)  # eigenvalues 1, 3/4, 3/4, 0
    found = largest_stable(star, StabilitySetting(4), span=(0.7, 1.4), precision=Precision(360, 512))
    assert found == pytest.approx(edge, rel=0.03)


@pytest.mark.parametrize("learners", [4, 8])
def test_on_a_random_ring_a_run_bears_a_little_more_than_its_mean_square(learners: int) -> None:
    name = "dpsgd:random-ring,order=consensus"
    edge = theory(make_strategy(name), learners)
    assert edge is not None
    assert 0.97 * edge < measured(name, learners, edge) < 1.2 * edge


@pytest.mark.parametrize("name", ["adpsgd:fixed-ring", "adpsgd:random-ring", "adpsgd:random", "hadpsgd"])
def test_asynchronous_gossip_bears_about_1_2(name: str) -> None:
    """No theory: a range that holds for every number of learners when their speeds vary."""
    assert theory(make_strategy(name), 4) is None
    span, precision = (0.8, 1.6), Precision(450, 512)
    assert 1.1 < largest_stable(make_strategy(name), StabilitySetting(4), 0.2, span, precision) < 1.35


def test_a_late_gradient_costs_rate() -> None:
    assert [round(late_gradients(delay), 2) for delay in range(5)] == [2.0, 1.0, 0.62, 0.45, 0.35]


def test_the_table_has_a_column_for_each_number_of_learners() -> None:
    heads, rows = table(stability(["sgd", "dpsgd:ring,order=consensus"], [2, 3]))
    assert heads == ["strategy", "L = 2", "L = 3"]
    assert rows[0] == ("sgd", "2.00 (2.00)", "2.00 (2.00)")
    assert rows[1][0] == "dpsgd:ring,order=consensus"
    assert [cell[-6:] for cell in rows[1][1:]] == ["(1.00)", "(1.00)"]
    assert table([Edge("adpsgd", 2, 1.23, None)])[1] == [("adpsgd", "1.23")]


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="KEY=VALUE"):
        stability(["dpsgd,consensus"], [4])
    with pytest.raises(UserError, match="at least one"):
        stability(["ssgd"], [0])


def test_the_command_line_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["simulate", "--strategy", "sgd", "dpsgd:complete,order=consensus", "--learners", "2", "--stability"]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["strategy", "L", "=", "2"],
        ["sgd", "2.00", "(2.00)"],
        ["dpsgd:complete,order=consensus", "1.00", "(1.00)"],
    ]
    assert main(["simulate", "--stability", "two"]) == 2
    assert "--stability: 'two' is not whole numbers of 1 or more with commas" in capsys.readouterr().err
