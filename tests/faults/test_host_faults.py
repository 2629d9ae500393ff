"""Two hosts in network namespaces train while things go wrong: no hang, every frame trained, and what was is recorded.

Nothing here waits for a time to pass: what one learner is left alone with, while a host comes back, takes it minutes.
"""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from roundelay.core.records import (
    HostJoined,
    HostLost,
    LearnersChanged,
    Links,
    Record,
    Segment,
    of_kind,
)
from roundelay_lab.namespaces.hosts import Hosts, NoNamespaces, why_not
from support.beeps import prepare_beeps
from support.host_training import LEARNING_RATE, PORT, TOO_LONG, HostTraining, bound, results, undisturbed
from support.processes import learners_among
from support.until import until

if why_not():
    pytest.skip(why_not(), allow_module_level=True)

pytestmark = pytest.mark.timeout(600)  # they take some ten seconds each, but machines are busy at times
EPOCHS, PATIENCE = 3, 30.0
ASYNCHRONOUS = ("--strategy", "adpsgd", "--on-death", "go-on")
SLOW = ("--straggler", "0:+0.03", "--straggler", "1:+0.03")
"""So that an epoch takes seconds."""
LEANING = ("--straggler", "0:+1.0", "--straggler", "1:+0.03")
"""The same, but minutes without the second host."""
on = partial(HostTraining, preloaded=True)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small corpus, aligned, with its recipe."""
    schedule = {"learning_rate": LEARNING_RATE, "max_epochs": EPOCHS}
    return prepare_beeps(tmp_path_factory.mktemp("hosts"), schedule=schedule, training={"host_patience": PATIENCE})


@pytest.fixture(scope="module")
def good(prepared: Path) -> float:
    """The held-out loss that two learners can be held to, whatever happens to them."""
    return bound(undisturbed(prepared, "adpsgd", 2))


@contextmanager
def stopped(process: int) -> Iterator[None]:
    """It stands still meanwhile."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def check(training: HostTraining, good: float) -> list[Record]:
    """It has come to its end, every frame of every epoch was trained, and the model is as good as others'."""
    assert training.end(0) == 0, training.words()
    events = training.events()
    segments = of_kind(events, Segment)
    frames = {epoch: sum(sum(s.learner_frames) for s in segments if s.epoch == epoch) for epoch in range(EPOCHS)}
    found = results(training.folder / training.exp)
    assert set(frames.values()) == {found.frames_seen // EPOCHS}
    assert all(len(s.learner_frames) == 2 for s in segments)
    assert found.frame_cross_entropy["dev"] < good
    return events


def test_a_link_that_is_cut_for_a_moment_and_then_for_longer(prepared: Path, good: float) -> None:
    patience = ["training.host_patience=8"]
    with Hosts(2) as hosts:
        training = on(hosts, prepared, "cut", options=[*ASYNCHRONOUS, *LEANING, *patience])
        training.start()
        training.begun()
        hosts.cut(1)
        time.sleep(1.0)  # less than anybody's patience: nothing comes of it
        hosts.heal(1)
        assert training.begun().living == [0, 1]
        hosts.cut(1)
        training.living(0)
        hosts.heal(1)
        training.living(0, 1)
        events = check(training, good)
        assert training.end(1) == 0
    (lost,), (joined,) = of_kind(events, HostLost), of_kind(events, HostJoined)
    assert "no heartbeat for 8 s" in lost.reason
    assert joined.ranks == [1]


NOISE = """
import os, socket, sys
from roundelay.runtime.hosts.transport.wire import Link, LinkError
address = (sys.argv[1], int(sys.argv[2]))
for size in (1, 100, 10_000):
    link = socket.create_connection(address)
    link.sendall(os.urandom(size))
    link.close()
try:
    Link.connect(address, b"another secret altogether", {"what": "control"}, 10)
except LinkError as error:
    print(error)
"""


@pytest.mark.skipif(bool(why_not(delayed=True)), reason=why_not(delayed=True))
def test_a_slow_link_and_strangers_at_the_door(prepared: Path, good: float) -> None:
    with Hosts(3, delays={1: 0.01}) as hosts:
        hosts.rate("8mbit", 0, 1)
        training = on(hosts, prepared, "slow", options=[*ASYNCHRONOUS, *SLOW])
        training.start()
        training.begun()
        environment = {**os.environ, **training.environment(0)}
        stranger = [sys.executable, "-c", NOISE, hosts.address(0), str(PORT)]
        with stopped(learners_among(hosts.processes(0))[0]):
            said = subprocess.run(
                hosts.command(2, stranger), env=environment, capture_output=True, text=True, check=True
            )
        events = check(training, good)
        assert training.end(1) == 0
    assert "stranger" in said.stdout
    assert not of_kind(events, HostLost)
    assert of_kind(events, Links)[-1].refused >= 2
    frames = [one.learner_frames for one in of_kind(events, Segment)]
    assert all(map(any, zip(*frames, strict=True))), "both train"


def test_a_full_disk_is_waited_for_and_room_lets_the_run_go_on(prepared: Path) -> None:
    """The epoch just trained is kept, the other host waits too, and nobody has to start anything again."""
    exp = prepared / "full"
    with Hosts(2) as hosts:
        try:
            hosts.small_disk(0, exp, "1500k")  # the first checkpoint has room there, the next has not
            hosts.small_disk(1, prepared / "nothing", "4k")
        except NoNamespaces as error:
            pytest.skip(str(error))
        training = on(hosts, prepared, "full", options=ASYNCHRONOUS)
        training.start(0)
        training.start(1, environment={"TMPDIR": str(prepared / "nothing")})
        until(lambda: "the disk is full" in training.said(0).read_text(), TOO_LONG)
        hosts.enlarge_disk(0, exp, "50m")
        assert training.end(0) == training.end(1) == 0, training.words()
        inside = hosts.inside(0, exp)
        found = dataclasses.replace(training, folder=inside, exp=".")
        frames = [(s.epoch, sum(s.learner_frames)) for s in of_kind(found.events(), Segment)]
        assert [epoch for epoch, _ in frames] == list(range(EPOCHS)), "no epoch is trained twice"
        assert {count for _, count in frames} == {results(inside).frames_seen // EPOCHS}
        assert not of_kind(found.events(), HostLost)


def test_a_synchronous_run_names_who_is_missing_and_goes_on_with_fewer(prepared: Path) -> None:
    with Hosts(2) as hosts:
        training = on(hosts, prepared, "synchronous", options=["--strategy", "ssgd", *SLOW])
        training.start()
        training.begun()
        hosts.crash(1)
        assert training.end(0) == 2, training.words()
        said = training.said(0).read_text()
        assert "learner 1 died: its host 1 is lost" in said
        assert "The same command resumes from" in said
        fewer = dataclasses.replace(training, options=["--strategy", "ssgd", "--learners", "1"]).command()
        unset = {name: value for name, value in training.environment(0).items() if name in ("PYTHONPATH",)}
        with open(training.said(0), "a") as file:
            alone = hosts.start(0, fewer, cwd=prepared, stdout=file, stderr=file, env=unset)
        assert alone.wait(TOO_LONG) == 0, training.words()
        events = training.events()
    assert [(changed.before, changed.after) for changed in of_kind(events, LearnersChanged)] == [(2, 1)]
    assert results(prepared / "synchronous").epochs == EPOCHS


def test_when_the_first_host_is_killed_the_next_leads_from_the_last_checkpoint(prepared: Path) -> None:
    """And the third follows it, a straggler that has another rank then; nothing but what came after the checkpoint is
    trained again."""
    with Hosts(3) as hosts:
        options = ["--strategy", "bsp", *SLOW, "--straggler", "2:+0.02", "schedule.max_epochs=2"]
        options.append("training.host_patience=6")
        training = HostTraining(hosts, prepared, "led", options=options, number=3)
        training.start(environment={"ROUNDELAY_PEERS": ",".join(map(hosts.address, range(3)))})
        until((prepared / "led" / "checkpoints" / "epoch-0001.json").exists, TOO_LONG)
        hosts.crash(0)
        assert [training.end(host) for host in (1, 2)] == [0, 0], training.words()
        events = training.events()
    assert [(changed.before, changed.after) for changed in of_kind(events, LearnersChanged)] == [(3, 2)]
    segments = of_kind(events, Segment)
    assert [(one.epoch, len(one.learner_frames)) for one in segments] == [(0, 3), (1, 2)]
    assert len({sum(one.learner_frames) for one in segments}) == 1, "all frames, in each epoch"
    assert results(prepared / "led").epochs == 2
