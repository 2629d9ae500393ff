"""Synchronous learners that go on without one that has died: a mean is one of those who gave to it, and after the loss
the rest train as if the dead had never been there. Bit for bit, in the simulator and on processes."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from roundelay.algorithms.averaging import weighted_mean
from roundelay.core.epochs import EpochPlan, Share
from roundelay.core.errors import UserError
from roundelay.core.flat import CHUNK
from roundelay.core.topology import connected, without
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import Cluster, Joined, Outcome, Runtime
from roundelay.runtime.hosts.control.coordinator import MultiHostRuntime
from roundelay.runtime.hosts.control.host_links import PeerLinks
from roundelay.runtime.hosts.mean_transports.agreement import CommunicatorAgreement
from roundelay.runtime.hosts.mean_transports.messages import (
    CommunicatorMade,
    CommunicatorTerms,
    MeanPiece,
    MeansDone,
    MeanWeights,
)
from roundelay.runtime.hosts.means import MeanLinks
from roundelay.runtime.hosts.terms import ROLES, identity
from roundelay.runtime.hosts.transport.heartbeat import Router
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.wire import Link, LinkError
from roundelay.runtime.messages import Message
from roundelay.runtime.procs.coordination.means import Means, MemberLost
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.views import HostMeanSequences
from roundelay.runtime.procs.processes import Deaths
from roundelay.runtime.sim.cluster import Allreduce, Compute, Moment, Node, VirtualCluster
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from support.clusters import MINIBATCH, SYNCHRONOUS, cluster, make_strategy, plan
from support.fatal import Fatal
from support.hosts import SECRET, Hosts
from support.mean_hosts import MeanHost, end, mean_host
from support.until import together, until

GOES_ON = tuple(
    name for name in SYNCHRONOUS if name not in ("sgd", "easgd-sync period=2") and make_strategy(name).traits.goes_on
)
GO_ON = Deaths("go-on")
VICTIM, ROUND, ROUNDS = 1, 4, 8
"""The learner that dies while it computes its gradient of a round, of so many."""


def fatal(name: str, learners: int = 3, noise: float = 1.0, once: str = "") -> Cluster:
    task = Fatal(Quadratic(parameters=37, noise=noise), ROUND * learners + VICTIM, spared=os.getpid(), once=once)
    return replace(cluster(name, learners, task, momentum=0.5), shared_minibatch=True)


def dying(learners: int = 3, last: bool = False) -> CostModel:
    """Gradients take a second, and nothing else takes any time: the victim dies in the middle of its gradient, and
    another is there when a third epoch begins. Or means take half a second, and it dies in the `last` one."""
    told = VirtualCluster(
        nodes=(Node(learners),),
        compute=Compute(seconds=1.0),
        exchange=0.0,
        mix=0.0,
        allreduce=Allreduce(seconds={str(learners): 0.5 * last}),
        deaths=(Moment(VICTIM, 1.5 * ROUNDS - 0.2 if last else ROUND + 0.5),),
        joins=() if last else (Moment(VICTIM, ROUNDS + 0.5),),
    )
    return CostModel(cluster=told)


def trained(runtime: Runtime) -> tuple[Outcome, Outcome]:
    with runtime:
        return runtime.segment(plan(ROUNDS, 3)), runtime.segment(plan(ROUNDS, 3, epoch=1))


# Runs ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ssgd", "diloco period=6 fragments=2 delay=1 mix=0.5", "dpsgd:random-ring"])
def test_processes_go_on_without_one_until_another_is_there_bit_for_bit_as_in_the_simulator(
    name: str, tmp_path: Path
) -> None:
    """An epoch in which it dies, one without it, since the other is not built yet, and two with that."""
    learners = 5  # of which a ring leaves out some pairs
    sim = SimRuntime(fatal(name, learners), dying(learners), goes_on=True)
    with ProcsRuntime(fatal(name, learners, once=str(tmp_path)), threads=1, deaths=GO_ON) as procs:

        def built() -> bool:
            procs.processes.collect_replacements()
            return procs.processes.ready() == [VICTIM]

        (tmp_path / "wait").touch()
        for epoch in range(4):
            if epoch == 2:
                (tmp_path / "wait").unlink()
                until(built)
            here, there = (runtime.segment(plan(ROUNDS, learners, epoch=epoch)) for runtime in (procs, sim))
            assert (here.finished, there.finished) == (True, True)
            assert here.counts.frames.tolist() == there.counts.frames.tolist()
            assert here.counts.frames.sum() == ROUNDS * MINIBATCH or epoch == 0
            assert [lost.rank for lost in here.lost] == [lost.rank for lost in there.lost] == [VICTIM][epoch:]
            assert here.joined == (Joined(VICTIM, VICTIM - 1),) * (epoch == 2)
            assert torch.equal(procs.rows(), sim.rows())
        assert procs.state().integers == sim.state().integers


@pytest.mark.parametrize("last", [False, True])
def test_hosts_go_on_without_the_one_between_them_bit_for_bit_as_in_the_simulator(last: bool) -> None:
    """In the middle of a round, and of the chain. Or with the last mean of the epoch, which the host after it has,
    whose learner ends, and the host before it not: it is given it."""
    when = {"fatal_mean": (VICTIM, ROUNDS)} if last else {"fatal": ROUND * 3 + VICTIM}
    hosts = Hosts("ssgd", (1, 1, 1), terms={"on_death": "go-on"}, **when)
    sim = SimRuntime(cluster("ssgd", 3), dying(last=last), goes_on=True)
    virtual = trained(sim)
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
        real = [runtime.segment(plan(ROUNDS, 3, epoch=epoch)) for epoch in range(2)]
        assert torch.equal(runtime.rows(), sim.rows())
        assert len(runtime.state().vectors["row"]) == 3
    assert [gone.ranks for gone in real[0].hosts_lost] == [(VICTIM,)]
    rounds = ROUNDS - 1 if last else ROUND  # trained by it
    rest = sum(plan(ROUNDS, 3).epoch.piece(3 * k + VICTIM).frames for k in range(rounds, ROUNDS))
    assert rest <= real[0].missing[VICTIM] <= rest + rounds * MINIBATCH  # what it had not reported is not known
    assert sum(real[0].missing) == real[0].missing[VICTIM]
    assert virtual[0].missing[VICTIM] == rest
    assert real[1].missing == virtual[1].missing == (0, 0, 0)
    assert real[1].counts.frames.tolist() == virtual[1].counts.frames.tolist()


@pytest.mark.parametrize("name", GOES_ON)
def test_the_rest_train_on_as_if_the_dead_had_never_been_there(name: str) -> None:
    three = SimRuntime(fatal(name, noise=0.0), dying(), goes_on=True)
    first = three.segment(plan(ROUNDS, 3))
    living = [rank for rank in range(3) if rank != VICTIM]
    assert first.counts.frames[VICTIM] == sum(plan(ROUNDS, 3).epoch.piece(3 * k + VICTIM).frames for k in range(ROUND))
    assert all(first.counts.steps[rank] == ROUNDS for rank in living)
    state, begun = three.state(), three.rows().clone()
    two = SimRuntime(replace(fatal(name, noise=0.0), learners=2))
    two.load(
        replace(
            state,
            vectors={name: value[living] for name, value in state.vectors.items()},
            integers={name: [value[rank] for rank in living] for name, value in state.integers.items()},
        )
    )
    assert torch.equal(two.rows(), begun)
    after, alone = three.segment(plan(ROUNDS, 3, epoch=1)), two.segment(plan(ROUNDS, 2, epoch=1))
    assert torch.equal(three.rows(), two.rows())
    assert after.counts.frames[living].tolist() == alone.counts.frames.tolist()
    assert not torch.equal(three.rows(), begun)


@pytest.mark.parametrize("name", GOES_ON)
def test_learners_without_vectors_go_on_at_the_same_times(name: str) -> None:
    times = []
    for parameters in (37, 0):
        work = replace(fatal(name), task=Quadratic(parameters=parameters))
        with SimRuntime(work, dying(), model_bytes=4 * 37, goes_on=True) as runtime:
            outcome = runtime.segment(plan(ROUNDS, 3))
            times.append((outcome.virtual_seconds, outcome.counts.frames.tolist(), outcome.counts.steps.tolist()))
    assert times[0] == times[1]


def test_where_learner_0_keeps_the_model_of_all_nobody_goes_on() -> None:
    with pytest.raises(UserError, match=r"training\.on_death is 'go-on': under easgd-sync"):
        ProcsRuntime(cluster("easgd-sync period=2", 2), threads=1, deaths=GO_ON)


def test_where_each_knows_its_neighbours_by_what_they_have_sent_nobody_goes_on() -> None:
    with pytest.raises(UserError, match=r"on_death is 'go-on': under choco-sgd .* by all that they have sent"):
        ProcsRuntime(cluster("choco-sgd", 2), threads=1, deaths=GO_ON)


# Cuts and graphs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [(), (Share(1, 30, (0,)), Share(3, 70, (1,)))])
def test_the_living_train_every_example_once(shares: tuple[Share, ...]) -> None:
    whole = EpochPlan(0, 100, 16, 4, 1, shares)
    cut = EpochPlan.from_json(whole.for_living((0, 2, 3)).to_json())
    pieces = [cut.piece(index) for index in range(cut.pieces)]
    seen = sorted(place for piece in pieces for place in range(piece.start, piece.stop))
    assert seen == list(range(100))
    assert not any(piece.frames for piece in pieces if piece.index % 4 == 1)
    assert cut.for_living(range(4)) == whole
    if not shares:
        fewer = EpochPlan(0, 100, 16, 3, 1)
        ranges = [[(p.start, p.stop) for p in map(of.piece, range(of.pieces)) if p.frames] for of in (cut, fewer)]
        assert ranges[0] == ranges[1]


@pytest.mark.parametrize("gone", [[1], [1, 2], [0, 3], [2, 4]])
def test_a_connected_graph_stays_connected_without_some(gone: list[int]) -> None:
    edges = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    left = [rank for rank in range(6) if rank not in gone]
    found = without(gone, edges)
    assert {rank for edge in found for rank in edge} == {*left}
    assert connected(len(left), [(left.index(a), left.index(b)) for a, b in found])
    assert without([], edges) == edges


# Means in shared memory ---------------------------------------------------------------------------------------------

SIZE = 3 * CHUNK + 5
EVERYBODY = (0, 1, 2)


class Three:
    """Three learners on one arena, of which the second dies."""

    def __init__(self, goes_on: bool = True) -> None:
        layout = Layout(3, SIZE)
        descriptor = create_file(layout)
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self.arenas = [Arena(os.open(path, os.O_RDWR), layout, Patience(rank, 60)) for rank in EVERYBODY]
        os.close(descriptor)
        self.arenas[0].liveness.mark(EVERYBODY, True)
        self.means = [Means(a, rank, Patience(rank, 60), goes_on=goes_on) for rank, a in enumerate(self.arenas)]
        self.vectors = [torch.arange(SIZE) * 0.1 + rank for rank in EVERYBODY]
        self.found: dict[int, torch.Tensor] = {}

    def give(self, rank: int, weight: float) -> None:
        self.means[rank].publish(self.vectors[rank], weight, EVERYBODY)

    def die(self) -> None:
        self.arenas[0].liveness.mark([1], False)

    def collect(self, *ranks: int) -> None:
        def take(rank: int) -> None:
            self.found[rank] = self.means[rank].collect(EVERYBODY).clone()

        together(*(partial(take, rank) for rank in ranks))

    def close(self) -> None:
        for arena in self.arenas:
            arena.close()


@pytest.mark.parametrize(
    ("gave", "weights"), [(True, (1.0, 2.0, 4.0)), (False, (1.0, 2.0, 4.0)), (False, (0.0, 2.0, 0.0))]
)
def test_a_mean_is_one_of_those_who_gave_to_it(gave: bool, weights: tuple[float, ...]) -> None:
    """Its share of the sums is done by somebody else, who gets the same bits."""
    three = Three()
    there = [rank for rank in EVERYBODY if rank != 1 or gave]
    for rank in there:
        three.give(rank, weights[rank])
    three.die()
    three.collect(0, 2)
    mine = [weights[rank] for rank in there]
    expected = weighted_mean([three.vectors[rank] for rank in there], mine if any(mine) else [1.0] * len(mine))
    assert torch.equal(three.found[0], expected)
    assert torch.equal(three.found[2], expected)
    three.give(0, 1.0)
    three.give(2, 3.0)
    three.collect(0, 2)  # the next one, which the dead cannot have given to
    assert torch.equal(three.found[2], weighted_mean([three.vectors[0], three.vectors[2]], [1.0, 3.0]))
    three.close()


def test_neighbours_are_mixed_without_the_dead() -> None:
    three = Three()
    for rank in (0, 2):
        others = tuple(other for other in EVERYBODY if other != rank)
        three.means[rank].publish(three.vectors[rank], 1.0, readers=others)
    three.die()
    for rank in (0, 2):
        found = three.means[rank].collect_neighbours([(other, 1 / 3) for other in EVERYBODY])
        assert torch.equal(found, weighted_mean([three.vectors[0], three.vectors[2]], [1 / 3, 1 / 3]))
    three.close()


def test_unless_they_go_on_the_dead_end_a_mean() -> None:
    three = Three(goes_on=False)
    three.give(0, 1.0)
    three.die()
    with pytest.raises(MemberLost, match="learner 1 died"):
        three.means[0].collect(EVERYBODY)
    three.close()


# Hosts that take means along a chain ----------------------------------------------------------------------------------

HOSTS = ((0, 1), (2,), (3,))
EVERY_RANK = (0, 1, 2, 3)
WEIGHTS = (3.0, 1.0, 2.0, 0.5)
VECTORS = [torch.randn(SIZE, generator=torch.Generator().manual_seed(rank)) for rank in EVERY_RANK]


def give(one: MeanHost, factor: float = 1.0) -> None:
    for rank, means in one.means.items():
        means.publish(factor * VECTORS[rank], WEIGHTS[rank], EVERY_RANK)


@contextmanager
def three_hosts(leaders: Sequence[int] = (0, 0, 0)) -> Iterator[list[MeanHost]]:
    """Three hosts, and which leads as each has heard."""
    routers, links = [], []
    for host, ranks in enumerate(HOSTS):
        routers.append(Router(Listener(("127.0.0.1", 0), SECRET, identity(ranks[0])), ROLES, 60))
        links.append(PeerLinks(routers[-1], HOSTS, host, 60, 4 * SIZE))
    addresses = [router.listener.address for router in routers]
    together(*(partial(one.dial, addresses, SECRET, 60) for one in links))
    given = [
        MeanLinks(HOSTS, host, one.chain, one.mix_links, one.open_chain, partial(leaders.__getitem__, host))
        for host, one in enumerate(links)
    ]
    sides = [mean_host(SIZE, one, goes_on=True) for one in given]
    try:
        yield sides
    finally:
        end(sides)
        for one, router in zip(links, routers, strict=True):
            one.close()
            router.close()


def have(sides: Sequence[MeanHost], number: int, ranks: Sequence[int], factor: float = 1.0) -> None:
    """All `sides` come to have mean `number`, of what `ranks` have given times `factor`: the bits of one host."""
    expected = weighted_mean([factor * VECTORS[rank] for rank in ranks], [WEIGHTS[rank] for rank in ranks])
    for one in sides:
        until(lambda one=one: one.complete == number or bool(one.failures))  # type: ignore[misc]
        assert not one.failures
        assert torch.equal(one.mean, expected)


def lose(sides: Sequence[MeanHost], ranks: Sequence[int]) -> None:
    """The run says that these learners are dead."""
    for one in sides:
        one.arena.liveness.mark(ranks, False)


@pytest.mark.parametrize("host", [1, 2])
def test_hosts_that_are_left_repeat_the_mean_under_way_with_the_bits_of_one_host(host: int) -> None:
    """The lost one's links stay open, as those of a machine without power do; the run says that it is lost."""
    with three_hosts() as sides:
        left = [one for one in sides if one is not sides[host]]
        for one in sides:
            give(one)
        have(sides, 1, EVERY_RANK)
        ranks = [rank for rank in EVERY_RANK if rank not in HOSTS[host]]
        for one in left:
            give(one, 2.0)
        lose(left, HOSTS[host])
        have(left, 2, ranks, 2.0)
        for one in left:
            give(one, 3.0)
        have(left, 3, ranks, 3.0)
        assert sides[host].complete == 1
        sides[host].failures.clear()  # nobody tells a host that is lost


@pytest.mark.parametrize("told", [(), (1,), (2,), (1, 2)])
def test_who_leads_next_repeats_the_mean_whatever_the_lost_leader_had_told_whom(told: tuple[int, ...]) -> None:
    """A communicator that some have heard of and others not, and weights for a mean over it: its number is not used
    again. One host follows the next leader before that leads."""
    leaders = [0, 0, 0]
    with three_hosts(leaders) as sides:
        left = sides[1:]
        for one in sides:
            give(one)
        have(sides, 1, EVERY_RANK)
        for host in told:
            told_to = sides[host].host._transport._agreement  # type: ignore[attr-defined]
            done = MeansDone(1, sum(WEIGHTS), SIZE)
            told_to.heard(0, CommunicatorMade(0, CommunicatorTerms(2, (0, 1, 2), (done, done, done))))
            told_to.heard(0, MeanWeights(0, 3, 2, (1.0, 1.0)))
        lose(left, HOSTS[0])
        for one in left:
            give(one, 2.0)
        leaders[2] = 1
        leaders[1] = 1
        have(left, 2, [2, 3], 2.0)
        for one in left:
            give(one, 3.0)
        have(left, 3, [2, 3], 3.0)
        sides[0].failures.clear()  # it was cut off, and has not heard that it leads no more


def test_a_mean_that_some_hosts_have_is_given_to_those_who_have_not() -> None:
    """As where a host was lost while the mean came down the chain: the host behind it has it, those before it not."""
    with three_hosts() as sides:
        given, last = torch.arange(SIZE) * 0.5, sides[2]
        last.arena.vector("mean", 3).copy_(given)
        last.arena.view(HostMeanSequences).global_seq[0] = 1
        last.host._transport._progress = MeansDone(1, 4.5, SIZE)  # type: ignore[attr-defined]
        for one in sides:
            give(one)
        give(last, 2.0)
        for one in sides[:2]:
            until(lambda one=one: one.complete == 1 or bool(one.failures))  # type: ignore[misc]
            assert torch.equal(one.mean, given)
            assert one.arena.view(HostMeanSequences).total[1] == 4.5
            give(one, 2.0)
        have(sides, 2, EVERY_RANK, 2.0)


def test_learners_that_come_to_life_while_their_host_says_who_is_in_means_are_in_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those of a session that has just begun. Their host leads, and has begun to wait for the others."""
    come = CommunicatorAgreement.come

    def slow(self: CommunicatorAgreement, *given: Any) -> CommunicatorTerms | None:
        if self is not leading or sides[0].arena.liveness.alive[0]:
            return come(self, *given)
        for one in sides[1:]:
            give(one)
        until(lambda: self._come.keys() == {1, 2})
        sides[0].arena.liveness.mark(HOSTS[0], True)
        return come(self, *given)

    monkeypatch.setattr(CommunicatorAgreement, "come", slow)
    with three_hosts() as sides:
        leading = sides[0].host._transport._agreement  # type: ignore[attr-defined]
        lose(sides[:1], HOSTS[0])
        until(lambda: bool(sides[0].arena.liveness.alive[0]))
        give(sides[0])
        have(sides, 1, EVERY_RANK)


@pytest.mark.parametrize("lost", [False, True])
def test_the_last_mean_of_all_is_given_to_those_who_have_it_not(lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain breaks while it comes down, with a host or without; learners of who has it come to no other."""
    with three_hosts() as sides:
        for one in sides:
            give(one)
        have(sides, 1, EVERY_RANK)
        say, broken = Link.say, sides[1].host._transport._communicator.before  # type: ignore[attr-defined]

        def cut(self: Link, message: Message, payload: Sequence[Any] = ()) -> None:
            if self is broken and isinstance(message, MeanPiece):
                until(lambda: sides[2].complete == 2)
                raise LinkError("it is cut")
            say(self, message, payload)

        monkeypatch.setattr(Link, "say", cut)
        if lost:
            monkeypatch.setattr(sides[1].host._transport._agreement, "heard", lambda *_: True)  # type: ignore[attr-defined]
        for one in sides:
            give(one, 2.0)
        until(lambda: sides[2].complete == 2)
        left = sides[::2] if lost else sides
        lose(sides[::2], HOSTS[1] if lost else ())
        have(left, 2, EVERY_RANK, 2.0)
        sides[1].failures.clear()


def test_a_gradient_that_is_never_complete_is_left_out_of_its_mean() -> None:
    """A learner dies in the middle of its gradient; the other of its host, and other hosts, go on."""
    with three_hosts() as sides:
        lays = {}
        for one in sides:
            for rank, means in one.means.items():
                lays[rank] = means.announce_gradient(WEIGHTS[rank], EVERY_RANK, torch.empty(SIZE))
                one.arena.vector("gradient", rank)[:] = VECTORS[rank]
        for rank, lay in lays.items():
            assert lay is not None
            lay(CHUNK if rank == 1 else 0)
        lose(sides, [1])
        have(sides, 1, [0, 2, 3])
