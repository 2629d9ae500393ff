"""Laws of `session.share` for several learners: each batch of an epoch once, whatever happens. Run by
support/attached_sharing.py."""

import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from support import attached_sharing
from support.attached_hosts import run_hosts
from support.attached_sharing import BATCHES, CUTS, KINDS, MANY, SPEAKERS, STEPS_MEANWHILE
from support.launched import reports, run_learners

SCRIPT = str(attached_sharing.__file__)
NAMES = Counter(str(number) for number in range(BATCHES))
Found = tuple[Mapping[str, Mapping[int, Mapping[str, Any]]], str]


@pytest.fixture(scope="module", params=["here", "hosts"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Two learners of one host, or one of each of two; and what they complained of."""
    pytest.importorskip("lhotse")
    folder = str(tmp_path_factory.mktemp("sharing"))
    if request.param == "hosts":
        said, complained = run_hosts((1, 1), SCRIPT, "laws", folder, behind=[1])  # by a relay
    else:
        done = run_learners(2, SCRIPT, "laws", folder)
        said, complained = done.stdout, done.stderr
    return reports(said), complained


@pytest.mark.parametrize("strategy", ["adpsgd", "ssgd"])
@pytest.mark.parametrize("kind", [f"{kind} {workers}" for kind, workers in KINDS])
def test_each_batch_is_one_learners_and_the_slow_one_has_fewer(found: Found, strategy: str, kind: str) -> None:
    """With a loader's workers, too."""
    law = found[0][f"once {strategy} {kind}"]
    orders = []
    for epoch in range(2):
        mine = [law[rank]["epochs"][epoch] for rank in range(2)]
        names = [name for batches in mine for batch in batches for name in batch]
        assert len(names) == len({*names}) == (CUTS if "lhotse" in kind else BATCHES)
        orders.append(mine)
        fast, slow = map(len, mine)
        if strategy == "ssgd":
            assert 0 <= fast - slow <= 1
        elif epoch == 0:
            assert fast >= MANY > slow
    assert orders[0] != orders[1]
    assert law[0]["next"] == law[1]["next"] == 2


def test_learners_that_go_through_other_batches_are_told(found: Found) -> None:
    said = [found[0]["other order"][rank]["said"] for rank in range(2)]
    assert any("begins with another batch than what rank" in one for one in said)


def test_a_later_pass_that_is_another_is_named_once_a_learner(found: Found) -> None:
    told = [line for line in found[1].splitlines() if "than on rank" in line]
    assert 1 <= len(told) <= 2
    assert "(sampler 1 of this session), epoch 1 has another batch 0 than on rank" in told[0]


def test_a_learner_that_waits_for_want_of_batches_is_told_why(found: Found) -> None:
    told = [line for line in found[1].splitlines() if "never waits" in line]
    assert len(told) == 1
    assert f"rank 0 came to its 1st meet() after {STEPS_MEANWHILE} steps and waits for rank 1" in told[0]
    assert "sampler=session.share(sampler)" in told[0]


def test_a_wait_at_a_meeting_is_as_long_as_all_that_the_others_do_meanwhile(found: Found) -> None:
    """Learner 1 takes all of its steps while learner 0 waits."""
    waits, trains = (found[0]["dealt"][rank]["spent"][rank] for rank in range(2))
    assert [waits["steps"], trains["steps"]] == [STEPS_MEANWHILE] * 2
    assert waits["meetings"] > trains["computing"] + trains["between"] + trains["exchanges"] > trains["computing"] > 0


def test_learners_with_speakers_of_their_own_train_these_and_no_others(found: Found) -> None:
    """Under ssgd by the weighted mean of those that have a batch; under adpsgd as many steps as there are together."""
    own = {rank: [n for n, speaker in enumerate(SPEAKERS) if (speaker == "b") == rank] for rank in range(2)}
    law = found[0]["apart ssgd"]
    assert {rank: law[rank]["trained"] for rank in range(2)} == own
    weight = bias = torch.tensor(0.0)
    weight = weight + 1
    for first in range(0, len(own[0]), 2):
        x = torch.tensor([float(n) for rank in range(2) for n in own[rank][first : first + 2]])
        error = weight * x + bias - 1
        weight, bias = weight - 0.01 * (2 * error * x).mean(), bias - 0.01 * (2 * error).mean()
    assert law[0]["weight"] == law[1]["weight"] == pytest.approx(float(weight), rel=1e-5)
    law = found[0]["apart adpsgd"]
    assert sum(len(law[rank]["trained"]) for rank in range(2)) == 2 * 20
    assert all({*law[rank]["trained"]} <= {*own[rank]} for rank in range(2))


@pytest.mark.parametrize(("strategy", "workers"), [("adpsgd", "2"), ("ssgd", "0")])
def test_saved_by_two_in_the_middle_of_an_epoch_any_number_goes_on_with_the_rest(
    strategy: str, workers: str, tmp_path: Path
) -> None:
    """Under another strategy, too."""
    saved = reports(run_learners(2, SCRIPT, "save", str(tmp_path), strategy, workers).stdout)["saved"]
    before = [name for rank in range(2) for name in saved[rank]["trained"]]
    assert 0 < len(before) < BATCHES
    other = "bmuf" if strategy == "adpsgd" else "adpsgd"
    for learners, by in ((1, strategy), (3, strategy), (2, other)):
        done = run_learners(learners, SCRIPT, "resume", str(tmp_path), by, workers)
        resumed = reports(done.stdout)["resumed"]
        assert len(resumed) == learners
        assert Counter([*before, *(name for one in resumed.values() for name in one["trained"])]) == NAMES
        assert Counter(name for one in resumed.values() for name in one["next"]) == NAMES


@pytest.mark.parametrize(("learners", "how"), [(3, ["0"]), (3, ["2"]), (2, ["2", "late"])])
def test_what_a_killed_learner_had_drawn_ahead_is_trained_by_others(
    learners: int, how: list[str], tmp_path: Path
) -> None:
    """Also where the one other has drawn its last, and has only batches still to come that it drew ahead."""
    done = run_learners(learners, SCRIPT, "die", str(tmp_path), *how, expect=128 + signal.SIGKILL)
    law = reports(done.stdout)["death"]
    assert sorted(law) == list(range(learners - 1))
    dead = (tmp_path / "trained").read_text().split()
    assert len(dead) == 3
    assert Counter([*dead, *(name for one in law.values() for name in one["trained"])]) == NAMES
