"""The part of k2 that icefall's CTC branch takes, by torch: two activations and lists of labels.

k2 has no wheel for every torch. `install()` puts this in the place of k2, for one process. Other names of k2 in
annotations are an empty class.
"""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import softplus


class RaggedTensor:
    """Label sequences, one behind the other, int32."""

    num_axes = 2

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self.dim0 = len(rows)
        self.values = torch.tensor([label for row in rows for label in row], dtype=torch.int32)
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int32)
        self._splits = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)

    @property
    def shape(self) -> Self:
        return self

    def row_splits(self, axis: int) -> Tensor:
        """Return where rows begin and the last one ends, [dim0 + 1]."""
        assert axis == 1
        return self._splits


def swoosh_l(x: Tensor) -> Tensor:
    """log(1 + exp(x - 4)) - 0.08 x - 0.035 (Yao et al. 2024, Zipformer)."""
    return softplus(x - 4.0) - 0.08 * x - 0.035


def swoosh_r(x: Tensor) -> Tensor:
    """log(1 + exp(x - 1)) - 0.08 x - 0.313261687."""
    return softplus(x - 1.0) - 0.08 * x - 0.313261687


def swoosh_l_forward_and_deriv(x: Tensor) -> tuple[Tensor, Tensor]:
    """Value and derivative."""
    return swoosh_l(x), torch.sigmoid(x - 4.0) - 0.08


def swoosh_r_forward_and_deriv(x: Tensor) -> tuple[Tensor, Tensor]:
    """Value and derivative."""
    return swoosh_r(x), torch.sigmoid(x - 1.0) - 0.08


class _OnlyNamed(ModuleType):
    """A module in which every name that it has not is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in VERSION:
            raise AttributeError(name)
        return "none" if name in VERSION else type(name, (), {})


VERSION = ("__version__", "__build_type__", "__with_cuda__", "__git_sha1__", "__git_date__")


def install() -> None:
    """Be `k2` from now on, unless there is one."""
    if find_spec("k2") is not None:
        return
    k2, version = _OnlyNamed("k2"), _OnlyNamed("k2.version")
    k2.__file__ = __file__
    given = (RaggedTensor, swoosh_l, swoosh_r, swoosh_l_forward_and_deriv, swoosh_r_forward_and_deriv)
    vars(k2).update({one.__name__: one for one in given})
    vars(k2).update(swoosh_l_forward=swoosh_l, swoosh_r_forward=swoosh_r, version=version, with_cuda=False)
    sys.modules.update({"k2": k2, "k2.version": version})
