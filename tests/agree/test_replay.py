"""A recorded run on real processes, repeated in one process: the same weights, bit for bit, or the first event that is
not."""

import json
import os
import signal
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from roundelay.algorithms.torch_optimizer import TorchOptimizer
from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.core.flat import CHUNK
from roundelay.core.progress import Silent
from roundelay.core.rates import LearnersRate, Warmup
from roundelay.core.state import Minibatch, Statistics
from roundelay.learner.base import Learner, Task
from roundelay.learner.quadratic import Quadratic, QuadraticLearner
from roundelay.runtime.base import Cluster, ClusterState, Glance, SegmentPlan, Straggler
from roundelay.runtime.gathering import LEARNT
from roundelay.runtime.hosts.control.coordinator import MultiHostRuntime
from roundelay.runtime.hosts.exchange.repeated import RepeatedExchanges
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.procs.processes import Deaths
from roundelay.runtime.replay.stage import HostExchanges
from roundelay.runtime.replay.whole import Replayed, replay
from roundelay.runtime.rows import Row
from roundelay.runtime.trace import ROWS_ON, Kind, Recorder, TraceEvent, read_entries, read_events
from support.agreeing import assert_equal, on_hosts, on_processes
from support.clusters import ASYNCHRONOUS, ENDLESS, MINIBATCH, OnDevice, cluster, one_of_each, plan
from support.coarse import Coarse
from support.coded import Pairs, Together
from support.elsewhere import Elsewhere
from support.hosts import Hosts
from support.kept_hosts import keeping_hosts
from support.overwriting import Overwriting
from support.ports import free_port
from support.processes import stat
from support.until import until

pytestmark = pytest.mark.usefixtures("one_thread")


def again(cluster_: Cluster, folder: Path) -> Replayed:
    return replay(folder, cluster_, Silent())


def assert_repeated(cluster_: Cluster, folder: Path, recorded: ClusterState) -> Replayed:
    found = again(cluster_, folder)
    assert found.difference == ""
    assert_equal(found.state, recorded)
    return found


QUADRATIC = Coarse(parameters=CHUNK + 7)
CODED_ROW = Coarse(parameters=CHUNK + 1027)
CODED = (Pairs("int8"), Pairs("int4"), Pairs("bf16", remembers=False), Together("int4"))
CASES = {  # what is trained, and rounds of each of two epochs
    **{name: (cluster(name, 4, QUADRATIC, 0.9), 40) for name in ASYNCHRONOUS},
    **{f"{name}, on a device": (cluster(name, 4, OnDevice(QUADRATIC), 0.9), 40) for name in one_of_each(ASYNCHRONOUS)},
    **{
        f"{strategy}{where}": (replace(cluster("adpsgd", 3, task, 0.9), strategy=strategy), 12)
        for strategy in CODED
        for where, task in (("", CODED_ROW), (", on a device", OnDevice(CODED_ROW)))
    },
    "nothing but a rule": (replace(cluster("adpsgd", 3, QUADRATIC), strategy=Overwriting()), 20),
}
"""Synchronous strategies: tests/laws/test_local_optimizers.py."""


@pytest.mark.parametrize(("made", "rounds"), CASES.values(), ids=[*CASES])
def test_a_run_comes_out_the_same_bit_for_bit(made: Cluster, rounds: int, tmp_path: Path) -> None:
    """Two epochs; of asynchronous strategies with four learners, rows of more than one chunk and some thousand events:
    of each minibatch that it is drawn, its gradient and its step, and exchanges."""
    frames = rounds * MINIBATCH
    epochs = [plan(0, made.learners, examples=frames, rate=rate, epoch=n) for n, rate in enumerate((0.02, 0.01))]
    recorded = on_processes(made, epochs, tmp_path).state
    found = assert_repeated(made, tmp_path, recorded)
    assert found.minibatches == sum(epoch.epoch.pieces for epoch in epochs)
    assert found.events >= 3 * found.minibatches
    if isinstance(made.strategy, Overwriting):
        assert kinds(tmp_path).count(Kind.REACH) > 10
    if made.strategy in CODED:
        assert recorded.vectors[made.strategy.memory[0]].any() == getattr(made.strategy, "remembers", True)


def kinds(folder: Path) -> list[int]:
    """Of all events of three learners."""
    return [event.kind for rank in range(3) for event in read_events(folder, rank)]


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("adpsgd", "gain"),
        ("adpsgd", "linear"),
        ("adpsgd weights=progress", "gain"),
        ("adpsgd weights=progress", "fastest"),
    ],
)
def test_factors_on_the_learning_rate_come_out_the_same_bit_for_bit(
    name: str, rate: LearnersRate, tmp_path: Path
) -> None:
    """With numbers of an optimizer before, and masses of rows after those of the noise."""
    adam = TorchOptimizer("AdamW")
    slow = (Straggler(2, seconds=0.02),)  # so that the factor of the fastest is not 1
    made = replace(cluster(name, 3, Coarse(parameters=CHUNK + 7), optimizer=adam, stragglers=slow), rate=rate)
    recorded = on_processes(made, [plan(20, 3, rate=0.02), plan(20, 3, rate=0.01, epoch=1)], tmp_path).state
    assert_repeated(made, tmp_path, recorded)
    assert again(replace(made, rate="as-is"), tmp_path).difference


def test_gatherings_come_out_the_same_bit_for_bit(tmp_path: Path) -> None:
    """One of three learners is slow, so it is late; whose contributions counted is in the trace."""
    name = "bmuf period=2 quorum=2 grace=0 guard=3 nesterov=true"
    made = cluster(name, 3, Coarse(parameters=CHUNK + 7), momentum=0.9, stragglers=(Straggler(1, seconds=0.01),))
    recorded = on_processes(made, [plan(12, 3, rate=0.02), plan(12, 3, rate=0.01, epoch=1)], tmp_path).state
    assert recorded.vectors.pop(LEARNT).any(), "spans in seconds, which a replay has not"
    assert_repeated(made, tmp_path, recorded)
    assert kinds(tmp_path).count(Kind.MET) == kinds(tmp_path).count(Kind.COME) > 12


def test_an_effect_on_another_row_than_was_recorded_is_named(tmp_path: Path) -> None:
    made = replace(cluster("adpsgd", 3), strategy=Overwriting())
    on_processes(made, [plan(6, 3)], tmp_path)
    rank = next(rank for rank in range(3) if any(event.kind == Kind.REACH for event in read_events(tmp_path, rank)))
    path, peer, other = tmp_path / f"rank-{rank}.bin", (rank + 1) % 3, (rank + 2) % 3
    events = [[*event] for event in struct.iter_unpack("<iiqqd", path.read_bytes())]
    first = next(event for event in events if event[0] == Kind.REACH)
    assert first[1] == peer
    first[1] = other
    path.write_bytes(b"".join(struct.pack("<iiqqd", *event) for event in events))
    difference = again(made, tmp_path).difference
    assert f"recorded: effect on row {other} at version" in difference
    assert f"now: overwrite of row {peer}" in difference
    first[4] = 99.0  # an access that there is not
    path.write_bytes(b"".join(struct.pack("<iiqqd", *event) for event in events))
    with pytest.raises(UserError, match=rf"rank-{rank}\.bin: event \d+ is of unknown kind 11"):
        again(made, tmp_path)


def test_a_run_with_rows_on_another_device_is_not_repeated_here(tmp_path: Path) -> None:
    """That device rounds in its own way."""
    made = cluster("adpsgd", 2)
    facts = {"learners": 2, "parameters": 37, "threads": 1, ROWS_ON: "cuda"}
    Recorder(tmp_path, facts, ClusterState({"row": torch.zeros(2, 37)}, {"steps": [0, 0], "versions": [0, 0]}))
    with pytest.raises(UserError, match="recorded with rows on cuda, and learners compute on cpu"):
        again(made, tmp_path)


@pytest.mark.parametrize("name", ["adpsgd", "asgd", "hadpsgd", "ssgd"])
@pytest.mark.parametrize("optimizer", ["adamw", "rprop"])
def test_whatever_the_optimizer_remembers_and_while_rates_warm_up(name: str, optimizer: str, tmp_path: Path) -> None:
    made = cluster(name, 3, optimizer=TorchOptimizer(optimizer))
    warm = [replace(plan(12, 3, epoch=epoch), warmup=Warmup(0.1, 17.5, 12 * epoch)) for epoch in range(2)]
    with ProcsRuntime(made, threads=1, trace=tmp_path) as runtime:
        for segment in warm:
            runtime.segment(segment)
        state = runtime.state()
        state.vectors["scalars"][:, 1] += 1  # from elsewhere, so that it is kept with the trace
        runtime.load(state)
        runtime.segment(replace(warm[1], first=9))
        recorded = runtime.state()
    assert_repeated(made, tmp_path, recorded)


def test_epochs_taken_back_and_runs_gone_on_with_are_part_of_it(tmp_path: Path) -> None:
    made = cluster("adpsgd", 3, momentum=0.9)
    with ProcsRuntime(made, threads=1, trace=tmp_path) as runtime:
        runtime.segment(plan(10, 3))
        good = runtime.state()
        runtime.segment(plan(10, 3, rate=0.5, epoch=1))
        runtime.load(good)  # as a schedule does that does not like what it sees
        runtime.segment(plan(10, 3, epoch=1))
        middle = runtime.state()
    with ProcsRuntime(made, threads=1, trace=tmp_path) as runtime:
        runtime.load(middle)
        runtime.segment(plan(10, 3, epoch=2))
        recorded = runtime.state()
    assert assert_repeated(made, tmp_path, recorded).commands == 4


def test_a_state_from_elsewhere_is_kept_with_the_trace(tmp_path: Path) -> None:
    made = cluster("easgd", 2)
    with ProcsRuntime(made, threads=1, trace=tmp_path) as runtime:
        state = runtime.state()
        state.vectors["row"].normal_()
        runtime.load(state)
        runtime.segment(plan(10, 2))
        recorded = runtime.state()
    assert_repeated(made, tmp_path, recorded)


def kill_with_no_row_in_hand(runtime: ProcsRuntime, rank: int) -> bool:
    """Kill a learner unless it is at a row, which would be left half written, as no replay could repeat it. Return
    whether it was killed."""
    process = runtime.process_ids()[rank]
    os.kill(process, signal.SIGSTOP)
    until(lambda: stat(process)[0] == "T")
    locks, held = [row.lock for row in runtime.cluster_rows._rows], []
    for lock in locks:
        if lock.try_acquire():
            held.append(lock)
    for lock in held:
        lock.release()
    os.kill(process, signal.SIGKILL if len(held) == len(locks) else signal.SIGCONT)
    return len(held) == len(locks)


@pytest.mark.parametrize("name", ["adpsgd", "asgd", "hadpsgd"])
def test_so_is_a_death(name: str, tmp_path: Path) -> None:
    """The dead learner's events end in the middle; the others' go on."""
    slow = tuple(Straggler(rank, seconds=0.02) for rank in range(4))
    made = cluster(name, 4, stragglers=slow)
    killed = False
    with ProcsRuntime(made, threads=1, trace=tmp_path, deaths=Deaths("go-on")) as runtime:

        def kill(glance: Glance) -> bool:
            nonlocal killed
            killed = killed or kill_with_no_row_in_hand(runtime, 2)
            return bool(glance.lost)

        outcome = runtime.segment(plan(ENDLESS, 4), kill)
        rows = runtime.rows().clone()
    assert [lost.rank for lost in outcome.lost] == [2]
    found = again(made, tmp_path)
    assert found.difference == ""
    living = made.strategy.holders((0, 1, 3))
    assert torch.equal(found.state.vectors["row"][list(living)], rows)


@pytest.mark.parametrize("name", ["adpsgd", "asgd", "easgd period=2", "hadpsgd"])
def test_so_is_a_replacement(name: str, tmp_path: Path) -> None:
    """The new learner's events follow the dead one's in the same file; it begins with another's row and momentum."""
    slow = tuple(Straggler(rank, seconds=0.02) for rank in range(4))
    made = cluster(name, 4, momentum=0.9, stragglers=slow)
    killed = False
    with ProcsRuntime(made, threads=1, trace=tmp_path) as runtime:
        first_process = runtime.process_ids()[2]

        def replaced(glance: Glance) -> bool:
            nonlocal killed
            if not killed:
                killed = kill_with_no_row_in_hand(runtime, 2)
                return False
            noticed = runtime.process_ids()[2] != first_process  # before, the dead one counts as alive
            return (noticed and glance.learners_alive == 4) or 2 in runtime.processes.ready()

        first = runtime.segment(plan(ENDLESS, 4, rate=0.01), replaced)
        second = runtime.segment(plan(10, 4, rate=0.01, epoch=1))
        assert [joined.rank for joined in (*first.joined, *second.joined)] == [2]
        recorded = runtime.state()
    assert_repeated(made, tmp_path, recorded)


@dataclass(frozen=True)
class Other(Quadratic):
    """Computes minibatch 17 in another way than it was recorded."""

    def build(self) -> Learner:
        return _Other(self)


class _Other(QuadraticLearner):
    def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor, **how: Any) -> Statistics:
        found = super().gradient(x, batch, plan, out, **how)
        return replace(found, loss=found.loss + 1e-12) if batch.index == 17 else found


def test_the_first_difference_is_named(tmp_path: Path) -> None:
    on_processes(cluster("adpsgd", 3), [plan(20, 3)], tmp_path)
    found = again(cluster("adpsgd", 3, Other(parameters=37)), tmp_path)
    assert "command 1, learner" in found.difference
    assert "gradient of minibatch 17" in found.difference
    assert found.minibatches < 60


def test_weights_that_differ_only_at_the_end_are_named(tmp_path: Path) -> None:
    """With a rate of 0 every loss is as recorded; so only the row whose hash was tampered with is left to differ."""
    on_processes(cluster("adpsgd", 2), [plan(5, 2, rate=0.0)], tmp_path)
    path = tmp_path / "trace.jsonl"
    *head, last = path.read_text().splitlines()
    end = json.loads(last)
    end["digests"]["row of learner 1"] = "0" * 16
    path.write_text("\n".join([*head, json.dumps(end), ""]))
    assert again(cluster("adpsgd", 2), tmp_path).difference == "the end of command 1: row of learner 1"


def test_a_lost_event_is_noticed(tmp_path: Path) -> None:
    on_processes(cluster("adpsgd", 2), [plan(20, 2)], tmp_path)
    size = 32
    exchanges = [  # a learner that started late may have begun none
        (path, at)
        for path in sorted(tmp_path.glob("rank-*.bin"))
        for at in range(0, path.stat().st_size, size)
        if path.read_bytes()[at] == Kind.EXCHANGE
    ]
    path, at = exchanges[0]  # without it the row is a version behind for ever
    data = path.read_bytes()
    path.write_bytes(data[:at] + data[at + size :])
    assert again(cluster("adpsgd", 2), tmp_path).difference


@dataclass(frozen=True)
class _Elsewhere(Task):
    def build(self) -> Learner:
        return Quadratic(parameters=38).build()


@pytest.mark.parametrize("text", [b"\xff\xfe\n", b'{"what": "st\xe9rt"}\n', b"[]\n", b"{\n", b"7\n"])
def test_a_trace_that_cannot_be_read_is_named(tmp_path: Path, text: bytes) -> None:
    (tmp_path / Recorder.FILE).write_bytes(text)
    with pytest.raises(UserError, match=str(tmp_path / Recorder.FILE)):
        list(read_entries(tmp_path))


def test_what_is_not_this_runs_trace_is_refused(tmp_path: Path) -> None:
    on_processes(cluster("adpsgd", 2), [plan(5, 2)], tmp_path / "trace")
    with pytest.raises(UserError, match=r"2 learners of 37 parameters.* 2 of 38"):
        again(cluster("adpsgd", 2, _Elsewhere()), tmp_path / "trace")
    with pytest.raises(UserError, match=r"trace\.jsonl: cannot be read .*--record"):
        again(cluster("adpsgd", 2), tmp_path)
    (tmp_path / "trace" / "rank-0.bin").write_bytes(b"\x63" * 64)
    with pytest.raises(UserError, match=r"rank-0\.bin: event 0 is of unknown kind"):
        again(cluster("adpsgd", 2), tmp_path / "trace")


# Several hosts --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept_hosts() -> Iterator[None]:
    """Hosts take part in one run after the other."""
    with keeping_hosts():
        yield


class OnRowsElsewhere(HostExchanges):
    """Exchanges of rows on a device, for which a processor stands in."""

    def __init__(self, *given: Any) -> None:
        self._here = RepeatedExchanges(*given)

    def begin(self) -> None:
        self._here.begin()

    def may(self, row: int, event: TraceEvent) -> bool:
        return self._here.may(row, event)

    def do(self, row: Row, event: TraceEvent) -> None:
        self._here.do(row.at(row.vector.as_subclass(Elsewhere)), event)


def again_of_hosts(hosts: Hosts, folder: Path, exchanges: Callable[..., HostExchanges] = RepeatedExchanges) -> Replayed:
    return replay(folder, hosts.cluster, Silent(), partial(exchanges, folder, sum(hosts.sizes)))


ON_HOSTS: list[tuple[str, dict[str, Any]]] = [
    ("ssgd", {}),
    ("dpsgd", {}),
    ("diloco period=2 codec=int4", {}),
    ("adpsgd weights=progress", {"rate": "gain"}),
    ("adpsgd:fixed-ring", {"terms": {"wire": "int8", "fragments": 2}}),
    ("divshare fragments=2", {}),
    ("hadpsgd node_size=2", {}),
    ("asgd period=2 staleness_aware=true", {}),
    ("easgd period=2", {}),
    ("easgd-sync period=2", {}),
    ("async-diloco period=2", {}),
    ("rennala", {}),
]


@pytest.mark.usefixtures("kept_hosts")
@pytest.mark.parametrize(("name", "more"), ON_HOSTS)
def test_a_run_on_two_hosts_comes_out_the_same_on_one(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    """Exchanges between hosts, whole, coded and in fragments, and means and mixes along the chain. Two epochs, or as
    many as it takes until the second host has exchanged something with the first."""
    hosts = Hosts(name, (2, 1), parameters=2 * CHUNK + 7, momentum=0.9, trace=str(tmp_path), **more)
    traits = hosts.cluster.strategy.traits
    wanted = {Kind.SENT, Kind.TAKEN} if not traits.synchronous else set[Kind]()
    if traits.model == "centre":
        wanted = {Kind.FETCH if traits.synchronous else Kind.VISITED}

    def carried() -> list[int]:
        return [event.kind for event in read_events(tmp_path, 2, carried=traits.model == "mean")]

    def epochs() -> Iterator[SegmentPlan]:
        for epoch in count():
            if epoch > 1 and wanted <= {*carried()}:
                return
            yield plan(12, 3, epoch=epoch)

    ran = on_hosts(hosts, epochs())
    found = again_of_hosts(hosts, tmp_path)
    assert found.difference == ""
    assert_equal(found.state, ran.state)
    assert found.commands == len(ran.outcomes)
    assert carried().count(Kind.SENT) >= carried().count(Kind.TAKEN)


@pytest.mark.usefixtures("kept_hosts")
def test_so_does_one_that_goes_back_and_is_resumed(tmp_path: Path) -> None:
    """Requests and exchanges of the second life have numbers of their own."""
    hosts = Hosts("adpsgd", (1, 1), momentum=0.9, trace=str(tmp_path), terms={"wire": "int8"})
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
        runtime.segment(plan(20, 2))
        good = runtime.state()
        runtime.segment(plan(20, 2, epoch=1))
        runtime.load(good)  # as a schedule does that does not like what it sees
        runtime.segment(plan(20, 2, epoch=1))
        middle = runtime.state()
    later = replace(hosts, port=free_port(), kept={}, running={})
    with later, MultiHostRuntime(later.cluster, later.place, later.all_terms) as runtime:
        runtime.load(middle)
        runtime.segment(plan(20, 2, epoch=2))
        recorded = runtime.state()
    for exchanges in RepeatedExchanges, OnRowsElsewhere:
        found = again_of_hosts(hosts, tmp_path, exchanges)
        assert (found.difference, found.commands) == ("", 4)
        assert_equal(found.state, recorded)


@pytest.mark.usefixtures("kept_hosts")
@pytest.mark.parametrize("name", ["adpsgd", "ssgd"])
def test_a_corrupt_gradient_on_one_of_two_hosts_is_named(name: str, tmp_path: Path) -> None:
    """Of which the loss is as it should be."""
    hosts = Hosts(name, (1, 1), trace=str(tmp_path), corrupt=11)
    on_hosts(hosts, [plan(20, 2)])
    drew = next(r for r in range(2) for e in read_events(tmp_path, r) if (e.kind, e.mine) == (Kind.DRAW, 11))
    found = again_of_hosts(replace(hosts, corrupt=-1), tmp_path)
    assert found.difference.startswith(f"command 1, learner {drew}, its event ")
    assert found.difference.count("of minibatch 11 at parameters") == 2, "recorded, and now"
    points = [said.split(" at parameters ")[1][:16] for said in found.difference.split("gradient ")[1:]]
    assert points[0] == points[1]


def test_a_trace_of_several_hosts_that_lacks_one_or_a_learner_that_died_is_not_repeated(
    tmp_path: Path,
) -> None:
    cluster_ = cluster("adpsgd", 2)
    entries = [
        {"what": "start", "learners": 2, "parameters": 37, "threads": 1, "hosts": [[0], [1]]},
        {"what": "lost", "ranks": [1]},
        {"what": "done", "number": 1, "lost": []},
    ]
    (tmp_path / Recorder.FILE).write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    (tmp_path / "rank-0.bin").touch()
    with pytest.raises(UserError, match=r"of 2 learners, of which \[1\] are not in it: they were on another host"):
        again(cluster_, tmp_path)
    (tmp_path / "rank-1.bin").touch()
    with pytest.raises(UserError, match="learner 1 died, or its host was lost"):
        again(cluster_, tmp_path)
