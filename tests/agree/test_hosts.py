"""Learners on several hosts against the same learners on one."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from roundelay.algorithms.averaging import MEAN_PIECE
from roundelay.algorithms.codecs import CODECS
from roundelay.algorithms.codecs.sparse import Sparse
from roundelay.core.flat import CHUNK
from roundelay.runtime.base import ClusterState, Outcome, SegmentPlan
from roundelay.runtime.hosts.control.coordinator import MultiHostRuntime
from roundelay.runtime.hosts.mean_transports.messages import Contribution
from roundelay.runtime.hosts.mean_transports.part import MeansPart, P
from roundelay.runtime.hosts.transport.wire import Link
from roundelay.runtime.procs.driver import LOOK_SECONDS, ProcsRuntime
from support.clusters import MINIBATCH, keeps_sum, plan
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


def on_hosts(hosts: Hosts) -> tuple[ClusterState, list[Outcome]]:
    with hosts:
        with MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
            outcomes = [runtime.segment(one) for one in PLANS]
            state = runtime.state()
        for host in range(1, len(hosts.sizes)):
            status, text = hosts.end(host)
            assert status == 0, text
    return state, outcomes


def on_one(hosts: Hosts) -> tuple[ClusterState, list[Outcome]]:
    with ProcsRuntime(hosts.cluster, threads=1) as runtime:
        outcomes = [runtime.segment(one) for one in PLANS]
        return runtime.state(), outcomes


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
    for vector, value in expected.vectors.items():
        assert torch.equal(state.vectors[vector], value), vector
    assert state.integers == expected.integers


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("ssgd", (2, 1)),
        ("delay-by-one", (1, 2)),
        ("dpsgd", (1, 1, 1)),
        ("gossip-pga period=3", (1, 2)),
        ("dpsgd:exponential order=cta", (2, 1)),
        ("bmuf period=3 nesterov=true", (1, 1, 1)),
        ("easgd-sync period=2", (1, 2)),
        ("diloco period=3 fragments=2 mix=0.25", (1, 1, 1)),
        ("sparta fragments=4", (1, 2)),
        ("gasloc:ring period=3", (1, 1, 1)),
        ("choco-sgd mixing=0.8", (1, 2)),
    ],
)
def test_synchronous_strategies_agree_bit_for_bit(name: str, sizes: tuple[int, ...]) -> None:
    long = name in ("ssgd", "dpsgd", "bmuf period=3 nesterov=true")
    hosts = Hosts(name, sizes, parameters=LONG if long else SHORT, momentum=0.9)
    state, outcomes = on_hosts(hosts)
    expected, wanted = on_one(hosts)
    for vector in expected.vectors:
        assert torch.equal(state.vectors[vector], expected.vectors[vector]), vector
    assert state.integers == expected.integers
    for outcome, want in zip(outcomes, wanted, strict=True):
        assert outcome.counts.frames.tolist() == want.counts.frames.tolist()
        assert outcome.counts.loss.tolist() == want.counts.loss.tolist()
        assert (outcome.next, outcome.finished) == (want.next, want.finished)


def test_factors_on_the_learning_rate_agree_bit_for_bit() -> None:
    hosts = Hosts("ssgd", (2, 1), parameters=CHUNK + 1027, rate="gain")
    (state, outcomes), (expected, wanted) = on_hosts(hosts), on_one(hosts)
    for vector in expected.vectors:
        assert torch.equal(state.vectors[vector], expected.vectors[vector]), vector
    for outcome, want in zip(outcomes, wanted, strict=True):
        assert outcome.counts.rate_factors.tolist() == want.counts.rate_factors.tolist()
    assert wanted[-1].counts.rate_factors[0] > wanted[-1].counts.steps[0]


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("diloco period=3 fragments=2 codec=int4", ""),
        ("sparseloco period=3 density=0.1", ""),
        ("ssgd", "int8"),
    ],
)
def test_coded_messages_agree_bit_for_bit(name: str, codec: str) -> None:
    """Each vector goes to every host as its learner coded it, and is not coded again on the way."""
    hosts = Hosts(name, (1, 2), parameters=LONG if codec else SHORT, momentum=0.9, codec=codec)
    state, outcomes = on_hosts(hosts)
    expected, _ = on_one(hosts)
    for vector in expected.vectors:
        assert torch.equal(state.vectors[vector], expected.vectors[vector]), vector
    if not codec:  # four blocks of three rounds, fragment by fragment or whole
        (traffic,) = (one for one in outcomes[1].traffic if one.host == 0)
        form = Sparse(density=0.1) if "sparse" in name else CODECS["int4"]
        assert traffic.sent_bytes == pytest.approx(4 * form.bytes_of(hosts.parameters), rel=0.02)


@pytest.mark.parametrize("name", ["choco-sgd density=0.05 mixing=0.2", "ssgd codec=1bit"])
def test_steps_of_few_bytes_agree_bit_for_bit(name: str) -> None:
    """Of gradients, and of changes that neighbours alone read. Less than a tenth of each vector is sent."""
    hosts = Hosts(name, (1, 2), parameters=SHORT, momentum=0.9)
    state, outcomes = on_hosts(hosts)
    expected, _ = on_one(hosts)
    for vector in expected.vectors:
        assert torch.equal(state.vectors[vector], expected.vectors[vector]), vector
    (traffic,) = (one for one in outcomes[1].traffic if one.host == 0)
    assert traffic.sent_bytes < 0.1 * 4 * hosts.parameters * outcomes[1].counts.steps[0]


@pytest.mark.parametrize("on_device", [False, True], ids=["", "on a device"])
def test_a_gradient_that_is_sent_while_it_is_computed_agrees_bit_for_bit(on_device: bool) -> None:
    """A module of several pieces, of which the last is on its way before backward comes to the first. From a device it
    comes by way of the arena."""
    hosts = Hosts("ssgd", (2, 1), momentum=0.9, wide=True, on_device=on_device)
    state, outcomes = on_hosts(hosts)
    expected, wanted = on_one(hosts)
    assert expected.vectors["row"].shape[1] > 3 * MEAN_PIECE
    for vector in expected.vectors:
        assert torch.equal(state.vectors[vector], expected.vectors[vector]), vector
    for outcome, want in zip(outcomes, wanted, strict=True):
        assert outcome.counts.loss.tolist() == want.counts.loss.tolist()


@pytest.mark.parametrize(("name", "sizes"), [("ssgd", (2, 1)), ("diloco period=3 fragments=2 mix=0.25", (1, 1, 1))])
def test_means_by_a_process_group_lead_to_the_same_model_to_rounding(name: str, sizes: tuple[int, ...]) -> None:
    """All else is that of one host. Each of the two segments has a communicator of its own."""
    hosts = Hosts(name, sizes, momentum=0.9, terms={"means": "gloo", "trusted_network": True})
    state, outcomes = on_hosts(hosts)
    expected, wanted = on_one(hosts)
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
    state, _ = on_hosts(hosts)
    expected, _ = on_one(hosts)
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
    state, _ = on_hosts(hosts)
    expected, _ = on_one(hosts)
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
    name: str, terms: dict[str, Any], on_device: bool
) -> None:
    hosts = Hosts(name, (2, 1), parameters=CHUNK + 5, slow=0.002, terms=terms, on_device=on_device)
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
        state = runtime.state()
        state.vectors["row"].normal_(generator=torch.Generator().manual_seed(0))
        runtime.load(state)
        loaded = runtime.state()
        for vector, value in state.vectors.items():
            assert torch.equal(loaded.vectors[vector], value), vector
        assert loaded.integers == state.integers
        start = runtime.rows().clone()
        sum_ = start.sum(0) + runtime.centre() if runtime.cluster.centre else start.sum(0)
        outcome = runtime.segment(plan(60, 3, rate=0.0))
        rows = runtime.rows()
        after = rows.sum(0) + runtime.centre() if runtime.cluster.centre else rows.sum(0)
    assert outcome.finished
    assert outcome.counts.frames.sum() == 60 * MINIBATCH
    exchanges = outcome.counts.exchanges
    assert exchanges[2].sum() > 0, "the second host has asked the first"
    assert runtime.cluster.centre or exchanges[:2, 2].sum() > 0, "and the first the second"
    if keeps_sum(runtime.cluster.strategy):
        torch.testing.assert_close(after, sum_, rtol=1e-4, atol=1e-4)
    assert float((rows - rows.mean(0)).square().sum()) < float((start - start.mean(0)).square().sum())
    sent = {(traffic.host, traffic.peer): traffic.sent_bytes for traffic in outcome.traffic}
    assert sent[0, 1] > 0
    assert sent[1, 0] > exchanges[2].sum() * CHUNK, "at least half a row in 16 bits for each"


@pytest.mark.parametrize("name", ["bsp period=3", "dpsgd:exponential order=cta", "adpsgd"])
def test_asking_to_stop_ends_the_segment_at_a_round_and_the_rest_completes_it(name: str) -> None:
    hosts = Hosts(name, (1, 2), parameters=CHUNK, slow=0.002)
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
        first = runtime.segment(plan(5000, 3), lambda glance: glance.frames > 0)
        assert not first.finished
        assert 0 < first.next < 5000 * 3
        assert first.next % (3 * runtime.cluster.strategy.block) == 0
        assert first.counts.frames.sum() == first.next // 3 * MINIBATCH
        rest = SegmentPlan(plan(first.next // 3 + 5, 3).epoch, 0.1, first=first.next)
        second = runtime.segment(rest)
        assert second.finished
        assert second.counts.frames.sum() == 5 * MINIBATCH
