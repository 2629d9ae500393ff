"""Learners of somebody else's training loop that are started again when they have failed."""

import json
import signal
from pathlib import Path

from roundelay.runtime.launch.start import launch
from support import attached_returning
from support.attached_returning import BATCH, EPOCHS, EXAMPLES
from support.launched import LAUNCH, reports, run_learners

KILLED = 128 + signal.SIGKILL


def test_a_learner_that_died_comes_back_to_the_session_and_each_example_is_trained_once(tmp_path: Path) -> None:
    """The first, at whom the others met when they started: somebody else lets it in."""
    again = (*LAUNCH[:-1], "--restarts", "1", LAUNCH[-1])
    done = run_learners(2, str(attached_returning.__file__), str(tmp_path), by=again)
    found = reports(done.stdout)["returned"]
    assert [found[rank]["living"] for rank in range(2)] == [[0, 1], [0, 1]]
    assert [found[rank]["came_back"] for rank in range(2)] == [True, False]
    assert found[0]["values"] == found[1]["values"]
    dead = json.loads((tmp_path / "died").read_text())
    trained = sorted([*found[0]["trained"], *found[1]["trained"], *dead])
    assert trained == [[epoch, number] for epoch in range(EPOCHS) for number in range(EXAMPLES)]
    assert {epoch for epoch, _ in found[0]["trained"]} == {1}, "it goes on in the epoch in which the others are"
    assert sum(found[0]["steps"]) == EPOCHS * EXAMPLES // BATCH, "steps go on where they were"
    assert found[0]["momentum"], "its optimizer has the state that it had saved"
    assert f"learner 0 ended with status {KILLED}, and is started again (1 of 1)." in done.stderr
    assert "rank 0 has come back, and begins where another learner is." in done.stderr


def test_the_launcher_starts_learners_again_as_often_as_it_may(tmp_path: Path) -> None:
    said: list[str] = []
    script = f"echo >> {tmp_path}/starts; [ $(wc -l < {tmp_path}/starts) = 4 ] || exit 3"
    assert launch(1, ["sh", "-c", script], said.append, restarts=2) == 3
    assert said[0] == "learner 0 ended with status 3, and is started again (1 of 2)."
    assert said[2] == "learner 0 ended with status 3."
    assert launch(1, ["sh", "-c", script], said.append, restarts=2) == 0
