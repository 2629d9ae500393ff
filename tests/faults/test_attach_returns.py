"""Learners of somebody else's training loop that are started again when they have failed."""

import json
import secrets
import signal
from pathlib import Path
from typing import Any

import pytest

from roundelay.reports.status import Life, headline, host_rows, learner_rows, read_status
from roundelay.runtime.clocks import unix_clock
from roundelay.runtime.launch.start import Endings, launch
from support import attached_returning
from support.attached_hosts import HostsOfLearners
from support.attached_returning import BATCH, EPOCHS, EXAMPLES
from support.launched import LAUNCH, reports, run_learners
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
    assert "rank 0 has come back, and begins where another learner is." in done.stderr


@pytest.mark.parametrize("by", ["sampler", "share"])
def test_on_several_hosts_learners_and_a_host_lost_whole_come_back_and_a_new_one_joins(by: str, tmp_path: Path) -> None:
    """A learner of the first host, whose process others of that host keep alive, and the only one of the second, with
    its host's process. The third host is a new one: its place was empty."""
    victims = {0: "learner", 2: "host"}
    command = str(attached_returning.__file__), str(tmp_path), json.dumps({**victims, 3: "joins"}), by
    variables = {"ROUNDELAY_JOB": secrets.token_hex(32), "ROUNDELAY_LIVE": str(tmp_path / "live")}
    with HostsOfLearners((2, 1, 1), command, variables, later=1) as hosts:
        for rank in victims:
            assert hosts.running[rank].wait(110) == -signal.SIGKILL, hosts.said(rank)
        until(lambda: [one.rank for one in read_status(tmp_path / "live", unix_clock()).lost] == [0, 2, 3])
        lost = read_status(tmp_path / "live", unix_clock())
        assert [row[2] for row in host_rows(lost)[1]] == ["lives", "lost"]
        assert [row[2] for row in learner_rows(lost)[1]] == ["lost", "lives", "lost", "lost"]
        assert lost.lost[2].reason == "nobody has taken its place yet"
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


def test_the_launcher_starts_learners_again_as_often_as_it_may(tmp_path: Path) -> None:
    said: list[str] = []
    script = f"echo >> {tmp_path}/starts; [ $(wc -l < {tmp_path}/starts) = 4 ] || exit 3"
    assert launch(1, ["sh", "-c", script], said.append, endings=Endings(restarts=2)) == 3
    assert said[0] == "learner 0 ended with status 3, and is started again (1 of 2)."
    assert said[2] == "learner 0 ended with status 3."
    assert launch(1, ["sh", "-c", script], said.append, endings=Endings(restarts=2)) == 0
