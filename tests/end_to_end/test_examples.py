"""The examples, for two learners: the loss falls, and both see the same model."""

import math
import re
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest

from support import in_turn
from support.launched import LAUNCH, TORCHRUN, run_learners

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


@pytest.mark.skipif(find_spec("lightning") is None, reason="needs lightning (pip install 'roundelay[lightning]')")
def test_lightning() -> None:
    command = in_turn_on("lightning_strategy", "adpsgd", "lightning_strategy", "ssgd")
    check(run_learners(2, str(in_turn.__file__), *command, by=LAUNCH).stdout, [DIGITS, DIGITS])
