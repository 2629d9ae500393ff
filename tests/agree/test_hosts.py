"""Learners on several hosts against the same learners on one."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from roundelay.algorithms.averaging import MEAN_PIECE
from roundelay.algorithms.codecs import CODECS
from roundelay.algorithms.codecs.sparse import Sparse
from roundelay.algorithms.gain import EARLY
from roundelay.core.flat import CHUNK
from roundelay.runtime.base import Glance, SegmentPlan
from roundelay.runtime.hosts.control.coordinator import MultiHostRuntime
from roundelay.runtime.hosts.mean_transports.base import MeansPart, P
from roundelay.runtime.hosts.mean_transports.messages import Contribution
from roundelay.runtime.hosts.transport.wire import Link
from roundelay.runtime.procs.driver import LOOK_SECONDS, ProcsRuntime
from support.agreeing import assert_equal, on_hosts, on_processes
from support.clusters import ENDLESS, MINIBATCH, keeps_sum, plan
from support.elsewhere import lie_elsewhere
from support.hosts import Hosts
from support.kept_hosts import keeping_hosts

LONG, SHORT = 17 * CHUNK + 11, 5 * CHUNK + 11
"""Parameters of which a mean along a chain goes in nine messages, of two chunks, and in six, of one."""
PLANS = [plan(0, 3, examples=9 * MINIBATCH + 2, epoch=epoch) for epoch in range(2)]


@pytest.fixture(scope="module", autouse=True)
def kept_hosts() -> Iterator[None]:
    """Hosts take part in one run after the other."""
    with keeping_hosts():
        yield


@pytest.mark.parametrize("name", ["ssgd", "adpsgd", "asgd"])
def test_what_is_evaluated_and_kept_before_the_first_segment_is_where_all_begin(name: str) -> None:
    """A run that ends in its first epoch goes on from there."""
    hosts = Hosts(name, (1, 2), wide=True, momentum=0.9)
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
        state, consensus = runtime.state(), runtime.consensus()
    with ProcsRuntime(hosts.cluster, threads=1) as one:
        expected = one.state()
        assert torch.equal(consensus, one.consensus())
    assert expected.vectors["row"][2].any()
    assert_equal(state, expected)


ROUND = {"momentum": 0.9, "parameters": SHORT}
CASES: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("ssgd", (2, 1), {**ROUND, "parameters": LONG}),
    ("delay-by-one", (1, 2), ROUND),
    ("dpsgd", (1, 1, 1), {**ROUND, "parameters": LONG}),
    ("gossip-pga period=3", (1, 2), ROUND),
    ("dpsgd:exponential order=cta", (2, 1), ROUND),
    ("bmuf period=3 nesterov=true", (1, 1, 1), {**ROUND, "parameters": LONG}),
    ("easgd-sync period=2", (1, 2), ROUND),
    ("diloco period=3 fragments=2 mix=0.25", (1, 1, 1), ROUND),
    ("sparta fragments=4", (1, 2), ROUND),
    ("gasloc:ring period=3", (1, 1, 1), ROUND),
    ("choco-sgd mixing=0.8", (1, 2), ROUND),
    # Factors on the learning rate
    ("ssgd", (2, 1), {"parameters": CHUNK + 1027, "rate": "gain"}),
    # Each vector goes to every host as its learner coded it, and is not coded again on the way
    ("diloco period=3 fragments=2 codec=int4", (1, 2), ROUND),
    ("sparseloco period=3 density=0.1", (1, 2), ROUND),
    ("ssgd", (1, 2), {**ROUND, "parameters": LONG, "codec": "int8"}),
    # Of gradients, and of changes that neighbours alone read, few bytes are sent
    ("choco-sgd density=0.05 mixing=0.2", (1, 2), ROUND),
    ("ssgd codec=1bit", (1, 2), ROUND),
    # A module of several pieces, of which the last is on its way before backward comes to the first; from a device by
    # way of the arena
    ("ssgd", (2, 1), {"momentum": 0.9, "wide": True}),
    ("ssgd", (2, 1), {"momentum": 0.9, "wide": True, "on_device": True}),
]
BLOCKS = 4
"""In an epoch, of three rounds each; fragment by fragment, or whole."""
SENT = {
    "diloco period=3 fragments=2 codec=int4": BLOCKS * CODECS["int4"].bytes_of(SHORT),
    "sparseloco period=3 density=0.1": BLOCKS * Sparse(density=0.1).bytes_of(SHORT),
}
"""Bytes of an epoch, from the first host to the second."""
FEW = {"choco-sgd density=0.05 mixing=0.2", "ssgd codec=1bit"}
"""By which less than a tenth of each vector is sent."""


@pytest.mark.parametrize(("name", "sizes", "more"), CASES)
def test_synchronous_strategies_agree_bit_for_bit(name: str, sizes: tuple[int, ...], more: dict[str, Any]) -> None:
    hosts = Hosts(name, sizes, **more)
    plans = PLANS if hosts.rate != "gain" else [plan(0, 3, examples=EARLY * MINIBATCH + 2)]
    several, one = on_hosts(hosts, plans), on_processes(hosts.cluster, plans)
    assert_equal(several.state, one.state)
    for outcome, want in zip(several.outcomes, one.outcomes, strict=True):
        for count in ("frames", "loss", "rate_factors"):
            assert getattr(outcome.counts, count).tolist() == getattr(want.counts, count).tolist()
        assert outcome.next == want.next
    last = one.outcomes[-1].counts
    assert hosts.rate != "gain" or last.rate_factors[0] > last.steps[0]
    assert not hosts.wide or one.state.vectors["row"].shape[1] > 3 * MEAN_PIECE
    sent = sum(traffic.sent_bytes for traffic in several.outcomes[-1].traffic if traffic.host == 0)
    if name in SENT:
        assert sent == pytest.approx(SENT[name], rel=0.02)
    if name in FEW:
        assert sent < 0.1 * 4 * hosts.parameters * last.steps[0]


@pytest.mark.parametrize(("name", "sizes"), [("ssgd", (2, 1)), ("diloco period=3 fragments=2 mix=0.25", (1, 1, 1))])
def test_means_by_a_process_group_lead_to_the_same_model_to_rounding(name: str, sizes: tuple[int, ...]) -> None:
    """All else is that of one host. Each of the two segments has a communicator of its own."""
    hosts = Hosts(name, sizes, momentum=0.9, terms={"means": "gloo", "trusted_network": True})
    (state, outcomes), (expected, wanted) = on_hosts(hosts, PLANS), on_processes(hosts.cluster, PLANS)
    for vector, value in expected.vectors.items():
        torch.testing.assert_close(state.vectors[vector], value, rtol=1e-4, atol=1e-6)
    if name == "ssgd":
        assert all(torch.equal(row, state.vectors["row"][0]) for row in state.vectors["row"])
    assert state.integers == expected.integers
    for outcome, want in zip(outcomes, wanted, strict=True):
        assert outcome.counts.frames.tolist() == want.counts.frames.tolist()


@pytest.mark.parametrize(("name", "wire"), [("ssgd", "bf16"), ("ssgd", "int8"), ("bsp period=2", "int8")])
def test_coded_gradients_lead_to_nearly_the_same_model_and_models_are_exact(name: str, wire: str) -> None:
    hosts = Hosts(name, (1, 1, 1), momentum=0.9, wide=True, terms={"wire": wire})
    state, expected = on_hosts(hosts, PLANS).state, on_processes(hosts.cluster, PLANS).state
    rows, one = state.vectors["row"], expected.vectors["row"]
    if name != "ssgd":
        assert torch.equal(rows, one)
        return
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])
    start = hosts.cluster.task.build().initial()
    off, way = torch.linalg.vector_norm(rows[0] - one[0]), torch.linalg.vector_norm(one[0] - start)
    assert 0 < off < {"bf16": 0.01, "int8": 0.05}[wire] * way


def test_a_mix_waits_for_contributions_whatever_a_host_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host says several times a second what its learners have published; on a slow link the rows come later."""
    take = MeansPart.receive

    def slowly(self: MeansPart, link: Link, kind: type[P], into: torch.Tensor | None = None) -> P:
        if kind is Contribution:
            time.sleep(2 * LOOK_SECONDS)
        return take(self, link, kind, into)

    monkeypatch.setattr(MeansPart, "receive", slowly)
    hosts = Hosts("dpsgd", (1, 1, 1), momentum=0.9)
    state, expected = on_hosts(hosts, PLANS).state, on_processes(hosts.cluster, PLANS).state
    assert torch.equal(state.vectors["row"], expected.vectors["row"])


@pytest.mark.parametrize(
    ("name", "terms", "on_device"),
    [
        ("adpsgd", {}, False),
        ("adpsgd", {}, True),
        ("adpsgd:random", {"wire": "bf16", "fragments": 2}, False),
        ("easgd period=2", {"wire": "int8"}, False),
        ("async-diloco period=2", {}, False),
        ("bmuf period=3 quorum=2", {}, False),
        ("hadpsgd node_size=2", {}, True),
    ],
)
def test_asynchronous_strategies_exchange_across_hosts_and_keep_the_sum(
    name: str, terms: dict[str, Any], on_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie_elsewhere(monkeypatch)  # as far as rows lie on devices
    hosts = Hosts(name, (2, 1), parameters=CHUNK + 5, slow=0.002, terms=terms, on_device=on_device)
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
        state = runtime.state()
        state.vectors["row"].normal_(generator=torch.Generator().manual_seed(0))
        runtime.load(state)
        assert_equal(runtime.state(), state)
        start = runtime.rows().clone()
        sum_ = start.sum(0) + runtime.centre() if runtime.cluster.centre else start.sum(0)
        exchanges, centre = runtime.local_runtime.arena.counts.exchanges, runtime.cluster.centre

        def mixed(glance: Glance) -> bool:
            """The second host has asked the first, and the first the second, and some time has passed."""
            asked = exchanges[2].any() and (centre or exchanges[:2, 2].any())
            return bool(asked) and glance.frames >= 60 * MINIBATCH

        outcome = runtime.segment(plan(ENDLESS, 3, rate=0.0), mixed)
        rows = runtime.rows()
        after = rows.sum(0) + runtime.centre() if runtime.cluster.centre else rows.sum(0)
    assert outcome.counts.frames.sum() == outcome.next // 3 * MINIBATCH
    if keeps_sum(runtime.cluster.strategy):
        torch.testing.assert_close(after, sum_, rtol=1e-4, atol=1e-4)
    assert float((rows - rows.mean(0)).square().sum()) < float((start - start.mean(0)).square().sum())
    sent = {(traffic.host, traffic.peer): traffic.sent_bytes for traffic in outcome.traffic}
    assert sent[0, 1] > 0
    assert sent[1, 0] > outcome.counts.exchanges[2].sum() * CHUNK, "at least half a row in 16 bits for each"


@pytest.mark.parametrize("name", ["bsp period=3", "dpsgd:exponential order=cta", "adpsgd"])
def test_asking_to_stop_ends_the_segment_at_a_round_and_the_rest_completes_it(name: str) -> None:
    hosts = Hosts(name, (1, 2), parameters=CHUNK, slow=0.002)
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
        first = runtime.segment(plan(ENDLESS, 3), lambda glance: glance.frames > 0)
        assert not first.finished
        assert 0 < first.next < ENDLESS * 3
        assert first.next % (3 * runtime.cluster.strategy.block) == 0
        assert first.counts.frames.sum() == first.next // 3 * MINIBATCH
        rest = SegmentPlan(plan(first.next // 3 + 5, 3).epoch, 0.1, first=first.next)
        second = runtime.segment(rest)
        assert second.finished
        assert second.counts.frames.sum() == 5 * MINIBATCH
