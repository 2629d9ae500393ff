"""The examples, for two learners: the loss falls, and both see the same model."""

import math
import os
import re
import secrets
import subprocess
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest

from support import in_turn
from support.launched import LAUNCH, TESTS, TORCHRUN, run_learners
from support.ports import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"


def losses(text: str) -> dict[int, list[list[float]]]:
    """Of each learner, for each run, epoch by epoch."""
    found: dict[int, list[list[float]]] = defaultdict(list)
    for rank, epoch, loss in re.findall(r"learner (\d) epoch (\d+) loss ([\d.]+)", text):
        if epoch == "0":
            found[int(rank)].append([])
        found[int(rank)][-1].append(float(loss))
    return found


DIGITS, SENTENCES = math.log(10), math.log(2)
"""Losses of somebody who knows nothing."""


def check(text: str, ignorance: list[float]) -> None:
    found = losses(text)
    assert found[0] == found[1]
    for run, nothing in zip(found[0], ignorance, strict=True):
        assert run[-1] < run[0] < nothing
        assert run[-1] < nothing / 2


def in_turn_on(*names_and_strategies: str) -> list[str]:
    return [str(EXAMPLES / f"{one}.py") if number % 2 == 0 else one for number, one in enumerate(names_and_strategies)]


def test_plain_and_hugging_face_style() -> None:
    command = in_turn_on("classifier", "adpsgd", "classifier", "bsp", "hf_style", "bmuf", "hf_style", "easgd")
    check(run_learners(2, str(in_turn.__file__), *command, by=LAUNCH).stdout, [DIGITS, DIGITS, SENTENCES, SENTENCES])


def test_plain_under_torchrun() -> None:
    check(run_learners(2, str(EXAMPLES / "classifier.py"), "--strategy", "ssgd", by=TORCHRUN).stdout, [DIGITS])


@pytest.mark.parametrize("whole", [False, True], ids=["sharded, by torchrun", "whole, by roundelay launch"])
def test_a_learner_of_several_processes(whole: bool) -> None:
    script = (str(EXAMPLES / "sharded.py"), "--steps", "60")
    if whole:
        said = run_learners(2, "--group", "2", *script, "--whole").stdout
    else:
        said = run_learners(4, *script, "--group", "2", by=TORCHRUN).stdout
    found = re.findall(r"learner (\d): ([\d,]+) of ([\d,]+) parameters here, ([\d.]+) % right", said)
    assert sorted(rank for rank, *_ in found) == ["0", "0", "1", "1"]
    assert all(float(right) > 70 for *_, right in found)
    assert len({right for *_, right in found}) == 1, "one model"
    held = {int(here.replace(",", "")) for _, here, _, _ in found}
    assert sum(held) == int(found[0][2].replace(",", "")), "each process a part, or all of it"


def test_plain_on_two_hosts(tmp_path: Path) -> None:
    """By hand, with the variables of `roundelay train` on several hosts; they meet on the loopback."""
    (tmp_path / "secret").write_text(secrets.token_hex(32))
    command = in_turn_on("classifier", "adpsgd", "classifier", "ssgd")
    everywhere = {**os.environ, "HOSTS": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    everywhere |= {"ROUNDELAY": " ".join(LAUNCH[:3]), "ROUNDELAY_SECRET_FILE": str(tmp_path / "secret")}
    script = ["sh", str(EXAMPLES / "launch" / "by_hand.sh"), "launch", "-n", "1", str(in_turn.__file__), *command]
    paths = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    everywhere |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    files = [tmp_path / f"{host}.txt" for host in range(2)]
    processes = []
    for host, file in enumerate(files):
        with file.open("w") as out:
            processes.append(
                subprocess.Popen(script, env={**everywhere, "HOST": str(host)}, stdout=out, stderr=subprocess.STDOUT)
            )
    statuses = [process.wait(220) for process in processes]
    said = "".join(file.read_text() for file in files)
    assert statuses == [0, 0], said
    check(said, [DIGITS, DIGITS])


@pytest.mark.skipif(find_spec("lightning") is None, reason="needs lightning (pip install 'roundelay[lightning]')")
def test_lightning() -> None:
    command = in_turn_on("lightning_strategy", "adpsgd", "lightning_strategy", "ssgd")
    check(run_learners(2, str(in_turn.__file__), *command, by=LAUNCH).stdout, [DIGITS, DIGITS])


@pytest.mark.parametrize("options", [("--workers", "2"), ("--lhotse", "--strategy", "ssgd")])
def test_batches_that_come_as_a_stream_are_each_trained_once(options: tuple[str, ...], tmp_path: Path) -> None:
    """Saved after each epoch; the same command again has nothing left to do."""
    if "--lhotse" in options:
        pytest.importorskip("lhotse")
    command = [str(EXAMPLES / "shared_stream.py"), *options, "--save", str(tmp_path)]
    said = run_learners(2, *command).stdout
    check(said, [SENTENCES])
    trained = re.findall(r"epoch (\d) .* trained (\d+) sounds", said)
    assert [sum(int(sounds) for epoch, sounds in trained if epoch == f"{number}") for number in range(3)] == [400] * 3
    assert "epoch" not in run_learners(2, *command).stdout
