"""Learners of somebody else's training loop that are started again when they have failed."""

import json
import secrets
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from roundelay.algorithms.averaging import weighted_mean
from roundelay.core.epochs import EpochPlan
from roundelay.reports.status import Life, headline, host_rows, learner_rows, read_status
from roundelay.runtime.attached.hosts.starting import ATTACHED_VIEWS
from roundelay.runtime.attached.membership import Attendance, Membership, let_in
from roundelay.runtime.clocks import unix_clock
from roundelay.runtime.launch.start import Endings, launch
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.publish import prepare_publishing
from support import attached_back, attached_returning
from support.attached_hosts import HostsOfLearners
from support.attached_returning import BATCH, EPOCHS, EXAMPLES
from support.launched import LAUNCH, reports, run_learners
from support.ports import free_port
from support.until import until

KILLED = 128 + signal.SIGKILL


@pytest.mark.parametrize("by", ["sampler", "share"])
def test_a_learner_that_died_comes_back_to_the_session_and_each_example_is_trained_once(
    by: str, tmp_path: Path
) -> None:
    """The first, at whom the others met when they started: somebody else lets it in. Batches without a length, too."""
    live = tmp_path / "live"
    again = (*LAUNCH[:-1], "--live", str(live), "--restarts", "1", LAUNCH[-1])
    done = run_learners(2, str(attached_returning.__file__), str(tmp_path), '{"0": "learner"}', by, by=again)
    check(reports(done.stdout)["returned"], 2, [0], tmp_path)
    status = read_status(live, unix_clock())
    assert (status.life, status.lost) == (Life.FINISHED, ())
    assert status.live is not None
    assert (status.live.steps, status.live.living) == (EPOCHS * EXAMPLES // BATCH, [0, 1])
    assert headline(status)[1] == "adpsgd random-ring weighed by progress, 2 learners, 24 steps of all"
    assert f"learner 0 ended with status {KILLED}, and is started again (1 of 1)." in done.stderr
    assert "rank 0 comes to learners that train already, and begins where another is." in done.stderr


@pytest.mark.parametrize("by", ["sampler", "share"])
def test_on_several_hosts_learners_and_a_host_lost_whole_come_back_and_a_new_one_joins(by: str, tmp_path: Path) -> None:
    """A learner of the first host, whose process others of that host keep alive, and the only one of the second, with
    its host's process. The third host is a new one: its place was empty."""
    victims = {0: "learner", 2: "host"}
    command = str(attached_returning.__file__), str(tmp_path), json.dumps({**victims, 3: "joins"}), by
    variables = {"ROUNDELAY_JOB": secrets.token_hex(32), "ROUNDELAY_LIVE": str(tmp_path / "live")}
    with HostsOfLearners((2, 1, 1), command, variables, later=1) as hosts:
        for rank in victims:
            assert hosts.running[rank].wait(220) == -signal.SIGKILL, hosts.said(rank)
        until(lambda: [one.rank for one in read_status(tmp_path / "live", unix_clock()).lost] == [0, 2, 3])
        lost = read_status(tmp_path / "live", unix_clock())
        assert [row[2] for row in host_rows(lost)[1]] == ["lives", "lost"]
        assert [row[2] for row in learner_rows(lost)[1]] == ["lost", "lives", "lost", "lost"]
        assert lost.lost[2].reason == "no process has taken its place yet"
        for rank in (*victims, 3):
            hosts.start(rank)
        said, _ = hosts.end()
    check(reports(said)["returned"], 4, [*victims], tmp_path, unheard=1, joined=(3,))
    status = read_status(tmp_path / "live", unix_clock())
    assert (status.life, status.lost) == (Life.FINISHED, ())
    assert [row[2] for row in host_rows(status)[1]] == ["lives"] * 3


def check(
    found: dict[int, dict[str, Any]],
    learners: int,
    victims: list[int],
    folder: Path,
    unheard: int = 0,
    joined: tuple[int, ...] = (),
) -> None:
    """Each example was trained once, by learners that all live, among them the `victims`, who came back, and who has
    `joined`. The last steps of a lost host may be `unheard` of."""
    everybody, late = range(learners), [*victims, *joined]
    assert [found[rank]["living"] for rank in everybody] == [[*everybody]] * learners
    assert [found[rank]["came_back"] for rank in everybody] == [rank in late for rank in everybody]
    assert all(one["values"] == found[0]["values"] for one in found.values())
    dead = [one for rank in victims for one in json.loads((folder / f"died{rank}").read_text())]
    trained = sorted([*(one for mine in found.values() for one in mine["trained"]), *dead])
    assert trained == [[epoch, number] for epoch in range(EPOCHS) for number in range(EXAMPLES)]
    assert 0 <= EPOCHS * EXAMPLES // BATCH - sum(found[0]["steps"]) <= unheard, "steps go on where they were"
    for rank in late:
        assert {epoch for epoch, _ in found[rank]["trained"]} == {1}, "it goes on in the epoch in which the others are"
    for rank in victims:
        assert found[rank]["momentum"], "its optimizer has the state that it had saved"


HOW = {"comes": attached_back.MET, "again": attached_back.EXAMPLES, "later": attached_back.EXAMPLES}
"""Round of the first epoch from which on the victim takes part again; it dies once more as it comes, or comes in the
middle of the second epoch. If it never comes, others go on without it."""


def sharing(how: str, epoch: int, victim: int) -> tuple[int, ...]:
    """Ranks that an epoch is cut for."""
    without = (how == "later" and epoch == 1) or (how == "never" and epoch)
    return tuple(rank for rank in range(3) if not without or rank != victim)


def absent(how: str, epoch: int, round_: int) -> bool:
    """Return whether the victim, for whom the epoch is cut, takes no part in that round."""
    return epoch == 0 and attached_back.FATAL <= round_ < HOW.get(how, attached_back.EXAMPLES)


def as_one_process_would(how: str, victim: int = attached_back.VICTIM) -> list[list[float]]:
    """Parameters after each epoch of a plain loop that steps by the mean of the gradients of those who were there."""
    model, optimizer = attached_back.made()
    found = []
    for epoch in range(attached_back.EPOCHS):
        cut = sharing(how, epoch, victim)
        plan = EpochPlan(epoch, attached_back.EXAMPLES, attached_back.BATCH * len(cut), len(cut), 0)
        order = torch.from_numpy(plan.order())
        for round_ in range(plan.rounds):
            there = [at for at, rank in enumerate(cut) if rank != victim or not absent(how, epoch, round_)]
            gradients, pieces = [], [plan.piece(round_ * len(cut) + at) for at in there]
            for piece in pieces:
                optimizer.zero_grad()
                inputs = attached_back.DATA.tensors[1][order[piece.start : piece.stop]]
                attached_back.loss(model, inputs).backward()  # type: ignore[no-untyped-call]
                gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
            mean = weighted_mean(gradients, [float(piece.frames) for piece in pieces])
            sizes = [p.numel() for p in model.parameters()]
            for p, part in zip(model.parameters(), torch.split(mean, sizes), strict=True):
                p.grad = part.view_as(p)
            optimizer.step()
        found.append(attached_back.values(model))
    return found


@pytest.mark.parametrize(
    ("hosts", "victim"), [(1, 1), (3, 1), (3, 0), (2, 0)], ids=["one host", "three hosts", "who leads three", "of two"]
)
def test_learners_that_wait_for_each_other_go_on_without_one(hosts: int, victim: int, tmp_path: Path) -> None:
    """Bit for bit as those who are left would by themselves; and the next epochs are theirs, each example once. On
    several hosts one is lost whole, or the one that leads: another leads then, also where of three the process that led
    outlives its learner. Of two hosts it leads alone."""
    command, variables = (str(attached_back.__file__), "ssgd", str(tmp_path), "never"), {"VICTIM": str(victim)}
    variables |= {"ALONE": "1"} if (hosts, victim) == (3, 0) else {}
    left = [rank for rank in range(3) if rank != victim]
    if hosts > 1:
        with HostsOfLearners((1, 1, 1) if hosts == 3 else (1, 2), command, variables) as running:
            said, errors = running.end(victim)
        assert ("is lost; that of learners 1" in errors) == (victim == 0)
    else:
        said = run_learners(3, *command, expect=KILLED).stdout
    found, rows = reports(said)["back"], as_one_process_would("never", victim)
    assert sorted(found) == left
    for mine in found.values():
        assert (mine["living"], mine["row"]) == (left, rows[-1])
        assert mine["rounds"] == -(-attached_back.EXAMPLES // (2 * attached_back.BATCH))
    first, *rest = ([one for mine in found.values() for one in mine["trained"][e]] for e in range(attached_back.EPOCHS))
    assert len(set(first)) == len(first) < attached_back.EXAMPLES
    assert [sorted(numbers) for numbers in rest] == [list(range(attached_back.EXAMPLES))] * 2


@pytest.mark.parametrize("how", HOW)
def test_a_learner_comes_back_to_others_that_wait_for_each_other_as_if_it_had_been_away_for_those_rounds(
    how: str, tmp_path: Path
) -> None:
    """Bit for bit as one process, whose optimizer has averages, would by the mean of those who were there: in the
    middle of an epoch, with its own part of the rest; or, where it dies once more as it comes, or the epoch was begun
    without it, from the next on."""
    again = (*LAUNCH[:-1], "--restarts", "2", LAUNCH[-1])
    done = run_learners(3, str(attached_back.__file__), "ssgd", str(tmp_path), how, by=again)
    found = reports(done.stdout)["back"]
    check_rows_are_equal(found)
    assert found[0]["row"] == as_one_process_would(how)[-1]
    trained = [number for one in found.values() for epoch in one["trained"] for number in epoch]
    died = json.loads((tmp_path / "died").read_text())
    missed = [number for round_, number in parts_of_the_victim() if absent(how, 0, round_)]
    assert sorted([*trained, *died, *missed]) == sorted([*range(attached_back.EXAMPLES)] * attached_back.EPOCHS)
    assert "rank 1 has come back, and waits for the next meeting of the others to be let in." in done.stderr


def parts_of_the_victim() -> list[tuple[int, int]]:
    """Rounds of the first epoch, with the examples that are the victim's in each."""
    plan = EpochPlan(0, attached_back.EXAMPLES, attached_back.BATCH * 3, 3, 0)
    order, found = plan.order(), list[tuple[int, int]]()
    for round_ in range(plan.rounds):
        piece = plan.piece(round_ * 3 + attached_back.VICTIM)
        found += [(round_, int(number)) for number in order[piece.start : piece.stop]]
    return found


@pytest.mark.parametrize("strategy", ["bmuf,period=2", "delayed-gradient"])
def test_it_comes_back_with_what_the_strategy_remembers(strategy: str, tmp_path: Path) -> None:
    """All have one model after each block, so also after the last: block momentum and what is still to be applied are
    those of the others."""
    again = (*LAUNCH[:-1], "--restarts", "1", LAUNCH[-1])
    done = run_learners(3, str(attached_back.__file__), strategy, str(tmp_path), "comes", by=again)
    check_rows_are_equal(reports(done.stdout)["back"])


@pytest.mark.parametrize(
    ("sizes", "victim", "strategy"),
    [
        ((2, 1), 1, "ssgd"),
        ((1, 2), 1, "ssgd"),
        ((1, 1, 1), 1, "ssgd"),
        ((1, 1, 1), 1, "diloco,period=2"),
        ((1, 1, 1), 0, "ssgd"),
    ],
    ids=["of the first host", "of the second", "a host", "a host under diloco", "the first host"],
)
def test_on_several_hosts_it_is_let_in_by_the_host_that_leads(
    sizes: tuple[int, ...], victim: int, strategy: str, tmp_path: Path
) -> None:
    """A learner of a host on which another lives; or a host that was lost whole, whose learner is given its state by
    one of the host that leads: the first, which comes back to another that leads by then, too."""
    ports = [free_port() for _ in sizes]
    peers = ",".join(f"127.0.0.1:{port}" for port in ports) if victim == 0 else ""
    variables = {"ROUNDELAY_JOB": secrets.token_hex(32), "VICTIM": str(victim), "ROUNDELAY_PEERS": peers}
    command = str(attached_back.__file__), strategy, str(tmp_path), "comes"
    with HostsOfLearners(sizes, command, variables, port=ports[0]) as hosts:
        assert hosts.running[victim].wait(220) == -signal.SIGKILL, hosts.said(victim)
        hosts.start(victim)
        said, _ = hosts.end()
    found = reports(said)["back"]
    check_rows_are_equal(found, victim)
    if strategy == "ssgd":
        assert found[0]["row"] == as_one_process_would("comes", victim)[-1]


def test_where_all_learners_of_the_host_that_leads_die_who_waits_there_is_told_and_all_come_back(
    tmp_path: Path,
) -> None:
    """One is dead and waits to be let in again when the other dies: nobody there could give it its state. Another host
    leads then, and both come back to that."""
    ports = [free_port(), free_port()]
    peers = [f"127.0.0.1:{ports[host]}" for host in (0, 0, 1)]
    variables = {"ROUNDELAY_JOB": secrets.token_hex(32), "VICTIM": "0", "ROUNDELAY_PEERS": ",".join(peers)}
    command = str(attached_back.__file__), "ssgd", str(tmp_path), "alone"
    with HostsOfLearners((2, 1), command, variables, port=ports[0]) as hosts:
        assert hosts.running[0].wait(220) == -signal.SIGKILL, hosts.said(0)
        hosts.start(0)
        assert hosts.running[1].wait(220) == -signal.SIGKILL, hosts.said(1)
        assert hosts.running[0].wait(220) == 1, hosts.said(0)
        assert "Start all learners of this one again, as roundelay launch --restarts does" in hosts.said(0)[1]
        hosts.start(0)
        hosts.start(1)
        said, _ = hosts.end()
    found = reports(said)["back"]
    assert [found[rank]["came_back"] for rank in range(3)] == [True, True, False]
    for one in found.values():
        assert (one["living"], one["row"], one["steps"]) == ([0, 1, 2], found[2]["row"], found[2]["steps"])


def test_who_comes_back_has_come_to_as_many_meetings_as_those_who_step() -> None:
    """Of the others one has begun the segment, and one is still about to, having come to a meeting fewer; where no step
    was taken, nobody waits for it at the next meeting."""
    prepare_publishing()
    layout = Layout(3, 1, views=ATTACHED_VIEWS, tensors=1)
    arena = Arena(create_file(layout), layout, Patience(2, 60))
    member, attendance = Membership(arena, 2, Patience(2, 60), lambda _: None), arena.view(Attendance)
    attendance.met[:2] = 2, 3
    arena.liveness.mark([0, 1], True)
    let_in(arena, [2])
    attendance.ending[:2] = 7
    assert (member.meeting, member.entering) == ((0, 1), (2,))
    assert member.to_come([0, 1, 2], 7, needed=False) == []
    arena.queue.rounds[1] = 1
    assert member.to_come([0, 1, 2], 7, needed=False) == [2]
    member.begin()
    assert (int(attendance.met[2]), member.meeting, member.entering) == (3, (0, 1, 2), ())
    arena.close()


def check_rows_are_equal(found: dict[int, dict[str, Any]], victim: int = attached_back.VICTIM) -> None:
    """All three live, have trained to the end with equal rows and as many steps, and the victim came back."""
    assert sorted(found) == [0, 1, 2]
    assert [found[rank]["came_back"] for rank in range(3)] == [rank == victim for rank in range(3)]
    for one in found.values():
        assert (one["living"], one["row"], one["steps"]) == ([0, 1, 2], found[0]["row"], found[0]["steps"])
        assert one["values"][-1] == found[0]["values"][-1]


def test_the_launcher_starts_learners_again_as_often_as_it_may(tmp_path: Path) -> None:
    said: list[str] = []
    script = f"echo >> {tmp_path}/starts; [ $(wc -l < {tmp_path}/starts) = 4 ] || exit 3"
    assert launch(1, ["sh", "-c", script], said.append, endings=Endings(restarts=2)) == 3
    assert said[0] == "learner 0 ended with status 3, and is started again (1 of 2)."
    assert said[2] == "learner 0 ended with status 3."
    assert launch(1, ["sh", "-c", script], said.append, endings=Endings(restarts=2)) == 0
