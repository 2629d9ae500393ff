"""The device that tests in tests/gpu compute on: a GPU; or, as `make test-gpu DEVICE=cpu` says, a processor in its
place, which shows that they run."""

import os

import pytest
import torch

DEVICE = os.environ.get("ROUNDELAY_TEST_DEVICE", "cuda")
ON_GPU = DEVICE == "cuda"
NEEDED = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() if ON_GPU else "ROUNDELAY_TEST_DEVICE" not in os.environ,
        reason="torch sees no GPU here",
    ),
    # cuDNN would have the weights of a recurrent layer in an order of its own: rows have them in the module's.
    pytest.mark.filterwarnings("ignore:RNN module weights"),
]
"""Marks of a module of tests."""


def device() -> torch.device:
    """Return the device of these tests, without a number, as learners are given it."""
    return torch.device(DEVICE)


def exact() -> None:
    """Have no matrix of this process rounded to TF32 before it is multiplied, as cuDNN otherwise does in LSTMs and
    convolutions."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the length of the difference over the length of `expected`; NaN if an element is NaN."""
    found, expected = found.detach().cpu().double(), expected.detach().cpu().double()
    return float((found - expected).norm() / expected.norm())
