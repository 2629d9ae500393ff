"""The way of an attached step through this package's Python. Between two passes over large matrices that code is in no
cache, so each function costs several times what it does in a loop of its own: a small model feels it."""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import nn

import roundelay

STEADY, STEPS = 40, 15
"""Steps before the way is looked at, after which all that is looked at closely at first is not any more; and steps
looked at."""
PACKAGE = str(Path(roundelay.__file__).parent)


def passed(strategy: str) -> list[Counter[tuple[str, str]]]:
    """Return calls by file and function, of each of some steps of a learner that is alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    with roundelay.attach(model, optimizer, strategy):
        for number in range(STEADY + STEPS):
            calls = Counter[tuple[str, str]]()

            def note(frame: FrameType, event: str, _: object, calls: Counter[tuple[str, str]] = calls) -> None:
                code = frame.f_code
                if event == "call" and code.co_filename.startswith(PACKAGE):
                    calls[code.co_filename, code.co_qualname] += 1

            x, y = torch.randn(8, 4), torch.randint(2, (8,))
            if number >= STEADY:
                sys.setprofile(note)
            try:
                optimizer.zero_grad()
                torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
                optimizer.step()
            finally:
                sys.setprofile(None)
            found.append(calls)
    return found[STEADY:]


@pytest.mark.parametrize(("strategy", "most_files", "most_calls"), [("adpsgd", 20, 151), ("ssgd", 25, 169)])
def test_the_way_of_a_step_is_short(
    strategy: str, most_files: int, most_calls: int, capsys: pytest.CaptureFixture[str]
) -> None:
    # In some steps a learner looks after the rest too, and on a slow machine in all: the bounds leave room for it.
    step = min(passed(strategy), key=Counter.total)
    files, functions, calls = len({file for file, _ in step}), len(step), step.total()
    with capsys.disabled():
        print(f"\n{strategy}: a step passes {files} files, {functions} functions, {calls} calls")
    assert 0 < files <= most_files
    assert calls <= most_calls
