"""Saves of attached sessions: what they may hold, and what is said where they cannot be resumed."""

import copy
import errno
import logging
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import roundelay
from roundelay import checkpoint
from roundelay.attached.data_position import from_runs, runs
from roundelay.attached.save_files import from_plain, saves, to_plain
from roundelay.core.checksums import read_sums, write_checked_with
from roundelay.core.errors import UserError


def test_nested_values_come_back_as_they_were() -> None:
    value = {
        "state": {0: {"step": torch.tensor(3.0), "moment": torch.arange(4.0)}, 1: {}},
        "betas": (0.9, 0.999),
        "rates": [1, 2.5, None, True, float("inf"), "text"],
        "milestones": Counter({10: 1}),
    }
    tensors: dict[str, Tensor] = {}
    back = from_plain(to_plain(value, "optimizer", tensors), tensors)
    assert repr(back) == repr(value)
    assert back["state"][0]["moment"] is not value["state"][0]["moment"]  # type: ignore[index]


def test_values_that_run_code_of_theirs_are_refused_by_place() -> None:
    with pytest.raises(UserError, match=r"also.schedule.1 is a function, which a save cannot hold"):
        to_plain({"schedule": [1, print_nothing]}, "also", {})


def print_nothing() -> None: ...


@pytest.mark.parametrize("pieces", [[], [7], [1, 3, 5], [9, 2, 4, 6, 7, 8, 3], range(5, 90, 4), range(3, 3)])
def test_runs_say_which_pieces_there_are(pieces: list[int]) -> None:
    assert list(from_runs(runs(pieces))) == list(pieces)


def trained(directory: Path, steps: int, resume: bool = False, **change: Any) -> list[float]:
    """A training of one learner that is saved after each step."""
    torch.manual_seed(0)
    model = nn.Linear(2, change.get("width", 1))
    optimizer = change.get("optimizer", torch.optim.Adam)(model.parameters(), lr=0.1)
    strategy, resumed = change.get("strategy", "ssgd"), directory if resume else None
    with roundelay.attach(model, optimizer, strategy, resume=resumed) as session:
        for _ in range(steps):
            torch.autograd.backward(model(torch.ones(1, 2)).sum())
            session.step()
            optimizer.zero_grad()
            session.save(directory, keep=change.get("keep", 2))
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()


def test_a_directory_keeps_the_last_two_saves_and_a_command_goes_on_by_itself(tmp_path: Path) -> None:
    straight = trained(tmp_path / "straight", 5)
    assert trained(tmp_path / "saved", 3, resume=True) != straight, "there was none yet"
    assert saves(tmp_path / "saved") == [3, 2]
    assert trained(tmp_path / "saved", 2, resume=True) == straight
    assert saves(tmp_path / "saved") == [5, 4]
    with pytest.raises(UserError, match="holds saves of another training: attach with resume="):
        trained(tmp_path / "saved", 1)


def test_the_mass_of_a_row_goes_on_where_it_was(tmp_path: Path) -> None:
    for before, steps in ((0, 3), (3, 2)):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with roundelay.attach(model, optimizer, "adpsgd,weights=progress", resume=tmp_path) as session:
            row = session._learner.me.row
            assert row.weight == before
            for _ in range(steps):
                torch.autograd.backward(model(torch.ones(1, 2)).sum())
                session.step()
            session.save(tmp_path)
            assert row.weight == before + steps


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"width": 3}, r"another model: weight \[1, 2\] torch.float32 there is weight \[3, 2\] torch.float32 here"),
        ({"optimizer": torch.optim.SGD}, r"was saved with Adam, and this session has SGD"),
    ],
)
def test_a_save_of_something_else_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    trained(tmp_path, 2)
    with pytest.raises(UserError, match=says):
        trained(tmp_path, 1, resume=True, **change)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


@pytest.mark.parametrize(
    ("ending", "harm", "says"),
    [
        ("safetensors", Path.unlink, r"learner-0-of-1.safetensors: cannot be read \(No such file"),
        ("safetensors", cut_short, r"learner-0-of-1.safetensors: damaged"),
        ("json", cut_short, r"learner-0-of-1.json.*not valid JSON"),
    ],
)
def test_what_is_damaged_is_named_and_passed_over(
    tmp_path: Path, ending: str, harm: Callable[[Path], None], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    straight = trained(tmp_path / "straight", 3)
    path = tmp_path / "saved"
    trained(path, 2)
    harm(path / "save-000000002" / f"learner-0-of-1.{ending}")
    assert trained(path, 2, resume=True) == straight, "from the one before"
    assert re.search(says, caplog.text)
    assert saves(path) == [4, 3], "no number is used twice"
    for number in (4, 3):
        harm(path / f"save-00000000{number}" / f"learner-0-of-1.{ending}")
    with pytest.raises(UserError, match=rf"no save is whole.*{says}"):
        trained(path, 1, resume=True)


def test_a_save_of_the_first_version_is_read(tmp_path: Path) -> None:
    """It named neither its file of tensors nor all that is said of a strategy now."""
    straight = trained(tmp_path / "straight", 3)
    trained(tmp_path / "saved", 2)
    path = tmp_path / "saved" / "save-000000002" / "learner-0-of-1.json"
    meta, sums = read_sums(path, "")
    for name in ("tensors", "weighed", "centre"):
        del meta[name]
    write_checked_with(path, {**meta, "version": 1}, sums)
    assert trained(tmp_path / "saved", 1, resume=True) == straight


def test_a_save_of_a_later_version_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    trained(tmp_path, 2)
    path = tmp_path / "save-000000002" / "learner-0-of-1.json"
    meta, sums = read_sums(path, "")
    write_checked_with(path, {**meta, "version": 9}, sums)
    with pytest.raises(UserError, match=r"learner-0-of-1\.json: a save of version 9, this program reads 2"):
        trained(tmp_path, 1, resume=True)


def test_so_many_saves_stay(tmp_path: Path) -> None:
    trained(tmp_path, 5, keep=4)
    assert saves(tmp_path) == [5, 4, 3, 2]
    with pytest.raises(UserError, match=r"keep=1\): 2 is the least"):
        trained(tmp_path, 1, resume=True, keep=1)


def test_a_full_disk_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoint, "RETRY_SECONDS", 0.0)
    calls, real = [0], os.fsync

    def fsync(descriptor: int) -> None:
        calls[0] += 1
        if calls[0] in (3, 4, 5):  # in the second save
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    trained(tmp_path, 2)
    assert saves(tmp_path) == [2, 1]
    assert caplog.text.count("the disk is full: about 0.0 MB are needed") == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [("bsp", "bmuf"), ("bmuf", "asgd"), ("easgd", "ssgd"), ("adpsgd,weights=progress", "diloco")],
)
def test_under_another_strategy_a_session_is_one_that_begins_with_the_model_and_the_optimizer(
    tmp_path: Path, before: str, after: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def train(strategy: str, resume: bool) -> dict[str, Tensor]:
        with roundelay.attach(model, optimizer, strategy, resume=tmp_path if resume else None) as session:
            for _ in range(3):
                torch.autograd.backward(model(torch.ones(1, 2)).square().sum())
                session.step()
                optimizer.zero_grad()
            if not resume and strategy == before:
                session.save(tmp_path)
        return copy.deepcopy(model.state_dict())

    train(before, resume=False)
    begun = train(after, resume=False)
    with caplog.at_level(logging.INFO, "roundelay"):
        assert str(train(after, resume=True)) == str(begun)
    assert re.search(rf"{before.partition(',')[0]}.* goes on as {after}.*, which begins anew", caplog.text)


def test_half_a_save_is_none_and_the_one_before_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The writer was killed between its two files, or before another learner had written any."""
    trained(tmp_path, 2)
    (tmp_path / "save-000000002" / "learner-0-of-1.json").unlink()
    other = tmp_path / "save-000000003"
    other.mkdir()
    (other / "learner-1-of-2.json").write_bytes((tmp_path / "save-000000001" / "learner-0-of-1.json").read_bytes())
    with caplog.at_level(logging.INFO, "roundelay"):
        trained(tmp_path, 1, resume=True)
    assert "goes on from" in caplog.text
    assert "save-000000001: 1 learners go on where they were, after 1 steps" in caplog.text
    assert saves(tmp_path) == [4, 3, 2, 1], "no number is used twice, and what was gone on from stays until the next"


def test_a_state_has_what_gatherings_have_learnt_and_goes_on_with_it() -> None:
    """A guard does not begin to judge anew."""
    states = list[dict[str, Tensor]]()
    for _ in range(2):
        model = nn.Linear(3, 2)
        with roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "bsp,period=1,guard=3") as session:
            if states:
                session.load_state_dict(states[0])
            else:
                for number in range(12):
                    model(torch.full((4, 3), 1.0 + number)).square().mean().backward()
                    session.step()
            states.append(session.state_dict())
    before, after = (state["centre.gatherings"] for state in states)
    assert before[0, :2].tolist() == [12, 12]
    assert torch.equal(before, after)


def test_caches_that_an_earlier_version_has_saved_are_left_out(tmp_path: Path) -> None:
    """It saved buffers of `persistent=False` too, between the others."""

    class Counting(nn.Module):
        def __init__(self, persistent: bool) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)
            self.first: Tensor
            self.last: Tensor
            self.register_buffer("first", torch.zeros(3))
            self.register_buffer("cache", torch.ones(2, 2), persistent=persistent)
            self.register_buffer("last", torch.zeros((), dtype=torch.int64))

    def attached(persistent: bool, resume: Path | None) -> tuple[Counting, roundelay.Session]:
        model = Counting(persistent)
        return model, roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "ssgd", resume=resume)

    model, session = attached(True, None)
    with session:
        model.first.add_(5)
        model.last.add_(7)
        session.save(tmp_path)
    weights = model.layer.weight.tolist()
    model, session = attached(False, tmp_path)
    with session:
        assert (model.first.tolist(), int(model.last)) == ([5.0] * 3, 7)
    assert model.layer.weight.tolist() == weights
