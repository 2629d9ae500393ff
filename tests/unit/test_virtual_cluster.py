"""Virtual clusters: what is read, what is refused by name, and what things cost on paper."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.algorithms.averaging import LEAST_MEAN_PIECE, MEAN_PIECE
from roundelay.core.configure import build
from roundelay.core.errors import UserError
from roundelay.core.minibatch import MinibatchSize
from roundelay.runtime.base import Straggler
from roundelay.runtime.sim.cluster import (
    Allreduce,
    Compute,
    Handicap,
    Moment,
    Node,
    VirtualCluster,
    VirtualLink,
    VirtualLinks,
    load_cluster,
    measured,
)
from roundelay.runtime.sim.cost import CostModel, Prices
from roundelay.simulation.scenario import time_strategy
from roundelay.strategies import make_strategy

FAST, SLOW = VirtualLink(1e-6, 10e9), VirtualLink(1e-4, 1e9)
SIZE = 40e6


def nodes(count: int, each: int, **other: object) -> VirtualCluster:
    return VirtualCluster(nodes=(Node(each, count=count),), links=VirtualLinks(FAST, SLOW), **other)  # type: ignore[arg-type]


def prices(cluster: VirtualCluster, stragglers: tuple[Straggler, ...] = (), seed: int = 0) -> Prices:
    return Prices(cluster, cluster.learners, SIZE, seed, stragglers)


def mean_seconds(cluster: VirtualCluster) -> float:
    return prices(cluster).mean_ns(tuple(range(cluster.learners))) / 1e9


def gradient_seconds(cluster: VirtualCluster, rank: int = 0, frames: int = 1, step: int = 0, now: float = 0.0) -> float:
    return prices(cluster).gradient_ns(rank, frames, step, round(now * 1e9)) / 1e9


# Reading ----------------------------------------------------------------------------------------------------------


def test_learners_are_numbered_node_by_node() -> None:
    cluster = VirtualCluster(nodes=(Node(2), Node(1, count=3), Node(2)))
    assert cluster.learners == 7
    assert cluster.placement() == [0, 0, 1, 2, 3, 4, 4]


def test_the_first_learners_keep_their_places_and_what_happens_to_them() -> None:
    cluster = VirtualCluster(
        nodes=(Node(2), Node(2, count=3, speed=2.0), Node(2)),
        centre_node=4,
        stragglers=(Handicap(1, factor=3.0), Handicap(6, factor=3.0)),
        deaths=(Moment(0, 5.0), Moment(9, 5.0)),
    )
    for learners in range(1, 11):
        part = cluster.first(learners)
        assert part.placement() == cluster.placement()[:learners]
        speeds = [gradient_seconds(part, rank) for rank in range(learners)]
        assert speeds == [gradient_seconds(cluster, rank) for rank in range(learners)]
        assert {moment.rank for moment in part.deaths} == {rank for rank in (0, 9) if rank < learners}
    assert cluster.first(10) == cluster
    with pytest.raises(UserError, match="has 10 learners on its nodes, but 11"):
        cluster.first(11)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("nodes: []", "nodes"),
        ("nodes: [{learners: 0}]", r"nodes\[0\].learners"),
        ("nodes: [{learners: 2}, {speed: 0}]", r"nodes\[1\].speed"),
        ("nodes: [{cores: -1}]", r"nodes\[0\].cores"),
        ("nodes: [{lerners: 2}]", r"nodes\[0\].lerners; did you mean learners"),
        ("nodes: [{learners: 4, slowdown: {4: 0.5}}]\ncompute: {seconds_per_frame: 1}", r"nodes\[0\].slowdown.4"),
        ("nodes: [{learners: 4, slowdown: {four: 2}}]\ncompute: {seconds_per_frame: 1}", r"nodes\[0\].slowdown"),
        ("nodes: [{learners: 4, slowdown: {4: 2}}]", "compute.seconds_per_frame"),
        ("compute: {seconds: -1}", "compute.seconds"),
        ("compute: {seconds: fast}", "compute.seconds"),
        ("compute: {sigma: .nan}", "compute.sigma"),
        ("compute: {seconds: 1, trace: [1, 2]}", "compute.trace"),
        ("compute: {trace: [1, -2]}", r"compute.trace\[1\]"),
        ("compute: {order: backwards}", "compute.order"),
        ("links: {inside: {bandwidth: 0}}", "links.inside.bandwidth"),
        ("links: {between: {latency: -1}}", "links.between.latency"),
        ("exchange: -1", "exchange"),
        ("mix: -1", "mix"),
        ("allreduce: {algorithm: star}", "allreduce.algorithm"),
        ("allreduce: {seconds: {1: 0.1}}", "allreduce.seconds.1"),
        ("allreduce: {seconds: {2: -0.1}}", "allreduce.seconds.2"),
        ("centre_node: 1", "centre_node"),
        ("model_bytes: 0", "model_bytes"),
        ("stragglers: [{rank: 1, factor: 2}]", r"stragglers\[0\].rank"),
        ("stragglers: [{rank: 0, factor: 0.5}]", r"stragglers\[0\]"),
        ("stragglers: [{rank: 0, factor: 2, window: [3, 2]}]", r"stragglers\[0\].window"),
        ("deaths: [{rank: 0, at: -1}]", r"deaths\[0\].at"),
        ("joins: [{rank: 7, at: 1}]", r"joins\[0\].rank"),
        ("joins: [{rank: 0, at: 1}]", "no learner is there"),
        ("nodes: [{learners: 2}]\ndeaths: [{rank: 0, at: 1}, {rank: 0, at: 2}]", "learner 0 has deaths"),
        ("nodes: [{learners: 2}]\ndeaths: [{rank: 0, at: 1}]\njoins: [{rank: 0, at: 1}]", "learner 0"),
    ],
)
def test_what_cannot_be_is_refused_by_file_and_key(tmp_path: Path, text: str, key: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=rf"cluster\.yaml: .*{key}"):
        load_cluster(path)


def test_another_number_of_learners_is_refused() -> None:
    with pytest.raises(UserError, match="has 8 learners on its nodes, but 4"):
        Prices(nodes(2, 4), 4, SIZE)


def test_who_joins_without_having_died_is_not_there_at_first() -> None:
    cluster = VirtualCluster(
        nodes=(Node(4),),
        deaths=(Moment(1, 5.0), Moment(2, 9.0)),
        joins=(Moment(1, 7.0), Moment(2, 3.0), Moment(3, 1.0)),
    )
    assert [cluster.alive_at(rank, 0) for rank in range(4)] == [True, True, False, False]


# Gradients --------------------------------------------------------------------------------------------------------


def test_the_four_numbers_of_a_recipe_mean_what_they_meant() -> None:
    """cost.allreduce is for two learners; L of them pay 2 (L - 1) / L of it, as on a ring."""
    for learners in (1, 2, 5):
        cost = prices(CostModel(gradient=0.2, exchange=0.01, allreduce=0.04).virtual(learners))
        assert cost.gradient_ns(0, 32, 0) == 200_000_000
        assert cost.reach_ns(0, 1) == 10_000_000
        assert cost.mean_ns(tuple(range(learners))) == round(0.04 * 2 * (learners - 1) / learners * 1e9)
    nodes_of_two = prices(CostModel(allreduce=0.04, inside=0.01).virtual(5, node=2))
    assert [nodes_of_two.mean_ns(group) for group in ((0, 1), (4,), (1, 2))] == [10_000_000, 0, 40_000_000]
    assert nodes_of_two.mean_ns(tuple(range(5))) == round(0.04 * 8 / 5 * 1e9)
    per_frame = prices(CostModel(gradient=0.2, frames_per_gradient=64).virtual(2))
    assert per_frame.gradient_ns(0, 32, 0) == 100_000_000
    per_sequence = prices(CostModel(gradient=0.2, sequences_per_gradient=4).virtual(2, sequence=16.0))
    assert per_sequence.gradient_ns(0, 32, 0) == 100_000_000
    with pytest.raises(UserError, match=r"cost\.sequences_per_gradient is 4, but what is trained is drawn as single"):
        CostModel(sequences_per_gradient=4).virtual(2)
    with pytest.raises(UserError, match="exclude each other"):
        CostModel(sequences_per_gradient=4, frames_per_gradient=4)


def test_a_gradient_is_priced_for_one_learner_s_minibatch_in_its_unit_unless_the_recipe_says_for_what() -> None:
    assert CostModel().per_minibatch(MinibatchSize(64)).frames_per_gradient == 64
    assert CostModel().per_minibatch(MinibatchSize(64, "sequences", True)).sequences_per_gradient == 64
    given = CostModel(frames_per_gradient=8)
    assert given.per_minibatch(MinibatchSize(64, "sequences")) is given


def test_a_gradient_is_affine_in_its_frames() -> None:
    cluster = nodes(1, 2, compute=Compute(seconds=0.5, seconds_per_frame=0.01, update=0.25))
    assert [gradient_seconds(cluster, frames=frames) for frames in (0, 10, 100)] == [0.75, 0.85, 1.75]


def test_learners_beyond_the_cores_share_them() -> None:
    compute = Compute(seconds=1.0)
    for learners, factor in ((1, 1.0), (2, 1.0), (3, 1.5), (4, 2.0)):
        cluster = VirtualCluster(nodes=(Node(learners, cores=2),), compute=compute)
        assert gradient_seconds(cluster) == factor
    cost = prices(VirtualCluster(nodes=(Node(4, cores=2),), compute=compute))
    cost.set_alive([True, False, False, True])
    assert cost.gradient_ns(0, 1, 0) == 1_000_000_000


@given(st.lists(st.integers(0, 6), max_size=9))
def test_who_dies_or_comes_changes_what_all_on_its_machine_pay(changed: list[int]) -> None:
    """As if all were told anew who is there."""
    machines = (Node(3, cores=1, slowdown={"3": 2.0}), Node(2, count=2, cores=1))
    cluster = VirtualCluster(nodes=machines, compute=Compute(seconds=1.0, seconds_per_frame=0.1))
    cost, alive = prices(cluster), [True] * 7
    for rank in changed:
        alive[rank] = not alive[rank]
        cost.change_alive(rank, alive[rank])
    anew = prices(cluster)
    anew.set_alive(alive)
    found, expected = ([one.gradient_ns(rank, 10, 0) for rank in range(7)] for one in (cost, anew))
    assert found == expected


def test_speed_divides_and_slowdown_follows_the_given_numbers() -> None:
    node = Node(4, speed=2.0, slowdown={"4": 1.6, "8": 2.0})
    assert [node.slowed(n) for n in (1, 4, 6, 8, 12)] == pytest.approx([1.0, 1.6, 1.8, 2.0, 2.4])
    assert node.slowed(2) == pytest.approx(1.2)
    cluster = VirtualCluster(nodes=(node,), compute=Compute(seconds=1.0, seconds_per_frame=0.1))
    assert gradient_seconds(cluster, frames=10) == pytest.approx((1.0 + 1.0 * 1.6) / 2)


def test_jitter_has_mean_one_and_the_given_spread() -> None:
    cost = prices(nodes(1, 4, compute=Compute(seconds=1.0, sigma=0.3)))
    drawn = np.array([cost.gradient_ns(rank, 1, step) / 1e9 for rank in range(4) for step in range(5000)])
    assert drawn.mean() == pytest.approx(1.0, abs=0.01)
    assert np.log(drawn).std() == pytest.approx(0.3, abs=0.01)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2000)), min_size=2, max_size=20), st.booleans())
def test_what_is_drawn_does_not_depend_on_the_order_of_asking(asked: list[tuple[int, int]], traced: bool) -> None:
    compute = Compute(sigma=0.3, trace=(0.1, 0.2, 0.7) if traced else (), order="random")
    there, back = (prices(nodes(1, 3, compute=compute), seed=5) for _ in range(2))
    forward = {key: there.gradient_ns(key[0], 8, key[1]) for key in asked}
    assert forward == {key: back.gradient_ns(key[0], 8, key[1]) for key in reversed(asked)}


def test_a_trace_is_gone_through_from_each_learners_own_beginning() -> None:
    trace = (1.0, 2.0, 3.0, 4.0, 5.0)
    cost = prices(nodes(1, 3, compute=Compute(trace=trace)))
    for rank in range(3):
        seconds = [cost.gradient_ns(rank, 1, step) / 1e9 for step in range(600)]
        assert seconds == [trace[(rank + step) % 5] for step in range(600)]


def test_a_trace_at_random_draws_all_entries_and_no_others() -> None:
    cost = prices(nodes(1, 2, compute=Compute(trace=(1.0, 2.0, 3.0), order="random")))
    drawn = [[cost.gradient_ns(rank, 1, step) / 1e9 for step in range(300)] for rank in range(2)]
    assert set(drawn[0]) == {1.0, 2.0, 3.0}
    assert drawn[0] != drawn[1]


def test_a_straggler_is_slow_in_its_window_only() -> None:
    slow = Handicap(1, factor=3.0, seconds=0.5, window=(10.0, 20.0))
    cluster = nodes(1, 2, compute=Compute(seconds=1.0), stragglers=(slow,))
    assert [gradient_seconds(cluster, 1, now=now) for now in (0, 9.999, 10, 19.999, 20)] == [1, 1, 3.5, 3.5, 1]
    assert gradient_seconds(cluster, 0, now=15) == 1


def test_stragglers_of_the_run_are_slow_all_the_time() -> None:
    cost = prices(nodes(1, 2, compute=Compute(seconds=1.0)), (Straggler(0, 2.0, 0.25),))
    assert cost.gradient_ns(0, 1, 0, 10**15) == 2_250_000_000
    assert cost.gradient_ns(1, 1, 0, 10**15) == 1_000_000_000


# Exchanges and means ----------------------------------------------------------------------------------------------


def test_an_exchange_is_one_row_there_and_one_back() -> None:
    cost = prices(nodes(2, 2))
    assert cost.reach_ns(0, 1) == cost.reach_ns(1, 0) == round(2 * (1e-6 + SIZE / 10e9) * 1e9)
    assert cost.reach_ns(1, 2) == round(2 * (1e-4 + SIZE / 1e9) * 1e9)


def test_the_centre_is_near_those_on_its_node() -> None:
    cost = prices(nodes(2, 2, centre_node=1))
    assert cost.reach_ns(3, cost.centre) == cost.reach_ns(0, 1)
    assert cost.reach_ns(0, cost.centre) == cost.reach_ns(0, 3)


def test_exchanges_keep_rows_busy_and_links_where_they_are_shared() -> None:
    alone = prices(nodes(2, 2))
    assert alone.held(0, 1) == (0, 1)
    assert alone.held(0, 3) == (0, 3)
    bus = VirtualLink(1e-6, 1e9, shared=True)
    shared = prices(VirtualCluster(nodes=(Node(2, count=2),), links=VirtualLinks(bus, bus)))
    inside, other, across = (set(shared.held(*pair)) for pair in ((0, 1), (2, 3), (0, 3)))
    assert inside & other == set()
    assert inside & across == {0}
    assert max(inside | other | across) < shared.resources


@pytest.mark.parametrize("learners", [2, 3, 4, 7, 64])
def test_means_on_one_node_cost_what_the_formulas_say(learners: int) -> None:
    message, part = FAST.seconds(SIZE), FAST.seconds(SIZE / learners)
    cost = {name: mean_seconds(nodes(1, learners, allreduce=Allreduce(name))) for name in ALGORITHMS}  # type: ignore[arg-type]
    ring = 2 * (learners - 1) / learners * SIZE / FAST.bandwidth + 2 * (learners - 1) * FAST.latency
    assert cost["ring"] == pytest.approx(ring)
    assert cost["hierarchical"] == pytest.approx(2 * (learners - 1) * part)
    assert cost["tree"] == pytest.approx(2 * math.ceil(math.log2(learners)) * message)
    piece = min(SIZE, 4 * MEAN_PIECE)
    assert cost["chain"] == pytest.approx(2 * (learners - 1) * FAST.seconds(piece) + (SIZE - piece) / FAST.bandwidth)
    assert cost["server"] == pytest.approx(2 * (learners - 1) * message)


ALGORITHMS = ("ring", "tree", "chain", "server", "hierarchical")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_learner_a_node_pays_the_links_between(algorithm: str) -> None:
    """And the same as on one node whose inside links are as slow."""
    apart = nodes(4, 1, allreduce=Allreduce(algorithm))  # type: ignore[arg-type]
    together = VirtualCluster(nodes=(Node(4),), links=VirtualLinks(SLOW, SLOW), allreduce=Allreduce(algorithm))  # type: ignore[arg-type]
    assert mean_seconds(apart) == pytest.approx(mean_seconds(together))
    assert mean_seconds(apart) > mean_seconds(nodes(1, 4, allreduce=Allreduce(algorithm)))  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_mean_of_one_is_free(algorithm: str) -> None:
    assert mean_seconds(nodes(1, 1, allreduce=Allreduce(algorithm))) == 0  # type: ignore[arg-type]


def test_a_long_chain_is_filled_with_smaller_pieces() -> None:
    """So it takes less than a ring, whose links carry each part twice, though the chain is as long."""
    slow, ways = VirtualLink(latency=1e-4, bandwidth=125e6), (Allreduce("ring"), Allreduce("chain"))
    links, hosts = VirtualLinks(FAST, slow), (Node(1, count=128),)
    ring, chain = (mean_seconds(VirtualCluster(nodes=hosts, links=links, allreduce=way)) for way in ways)
    piece = 4 * LEAST_MEAN_PIECE
    assert chain == pytest.approx(2 * 127 * slow.seconds(piece) + (SIZE - piece) / slow.bandwidth)
    assert chain < 0.8 * ring


def test_a_hierarchical_mean_spares_the_slow_links() -> None:
    """8 nodes of 8: a ring sends 126 parts of 1/64 over them, the hierarchy 14 of 1/8; latency decides."""
    slow = VirtualLink(latency=1e-2, bandwidth=1e9)
    ring, two_level = (
        VirtualCluster(nodes=(Node(8, count=8),), links=VirtualLinks(FAST, slow), allreduce=Allreduce(name))
        for name in ("ring", "hierarchical")
    )
    assert mean_seconds(two_level) < 0.3 * mean_seconds(ring)


def test_on_a_bus_messages_of_a_mean_go_one_after_another() -> None:
    bus = VirtualLink(0.0, FAST.bandwidth, shared=True)
    cluster = VirtualCluster(nodes=(Node(4),), links=VirtualLinks(bus, SLOW))
    assert mean_seconds(cluster) == pytest.approx(2 * 3 * SIZE / FAST.bandwidth)


def test_measured_means_are_met_and_joined_by_lines() -> None:
    allreduce = Allreduce(seconds={"2": 0.1, "4": 0.3})
    assert [measured(allreduce.seconds, n) for n in (1, 2, 3, 4)] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert measured(allreduce.seconds, 8) == pytest.approx(0.3 * (7 / 8) / (3 / 4))


def test_the_cost_section_may_hold_a_whole_cluster() -> None:
    cost = build(CostModel, {"cluster": {"nodes": [{"learners": 3}], "exchange": 0.5}})
    assert prices(cost.virtual(3)).reach_ns(0, 2) == 500_000_000


def trained_seconds(strategy: str, cluster: VirtualCluster) -> float:
    """Of 20 rounds."""
    return time_strategy(make_strategy(strategy), cluster, 1, 20).seconds


@pytest.mark.parametrize(("idle", "slow"), [(0.2, 2), (0.6, 1)])
def test_a_mean_of_models_takes_longer_after_a_pause_as_the_link_says(idle: float, slow: int) -> None:
    """Blocks of four steps of 0.1 s: links rest for 0.4 s. On paper."""
    between = VirtualLink(bandwidth=100.0, restart=1.5, idle=idle)
    two = VirtualCluster(
        nodes=(Node(count=2),), compute=Compute(seconds=0.1), links=VirtualLinks(between=between), model_bytes=10
    )
    means = 0.1 * (5 * 1.5 if slow == 2 else 1.5 + 4)  # the first one finds connections that have carried nothing
    assert trained_seconds("bsp,period=4", two) == pytest.approx(20 * 0.1 + means)
    assert trained_seconds("ssgd", two) == pytest.approx(20 * 0.2)  # means of gradients go while these are computed
    one = replace(two, nodes=(Node(2),))
    links = VirtualLinks()
    assert trained_seconds("bsp,period=4", one) == trained_seconds("bsp,period=4", replace(one, links=links))
