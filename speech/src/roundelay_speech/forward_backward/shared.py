"""Forward-backward through one graph that all sequences of a minibatch share: the denominator of lattice-free MMI.

    a_t = b_t * (W a_{t-1}) + c_t * a_{t-1},    b_t(k) = exp(y_t(enter k)),  c_t(k) = exp(y_t(stay k))

W (K, K) has the weight of the arc from j to k in row k: a frame is one sparse product for all sequences (Povey et al.
2016, section 2.4, with sparse matrices of torch in the place of a kernel). Vectors are probabilities in double
precision, divided by their sum in every frame, whose logarithm is kept; the largest score of a frame is taken off
before. So a state counts as impossible if it is less probable than the others by a factor of 1e-300, and no leaky
transitions are needed to keep sums above zero.

Legend: N sequences, T frames of the longest, S columns, K states.
"""

import warnings
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from roundelay.core.state_graph import StateGraph


@dataclass(frozen=True)
class Sums:
    """Sums over paths, for each sequence."""

    log_z: Tensor  # (N,) logarithms of the sums over all paths
    # (N, T, S) share of the paths that emit a column in a frame; zero beyond a length. None: not asked for.
    occupied: Tensor | None


@final
class SharedGraph:
    """The graph on one device."""

    def __init__(self, graph: StateGraph, device: torch.device) -> None:
        source, target = torch.from_numpy(graph.source), torch.from_numpy(graph.target)
        weight = torch.from_numpy(graph.weight).exp()
        self._into = _sparse(target, source, weight, graph.states).to(device)
        self._out_of = _sparse(source, target, weight, graph.states).to(device)
        self._enter, self._stay = torch.from_numpy(graph.enter).to(device), torch.from_numpy(graph.stay).to(device)
        lasts = torch.ones(graph.states, 1, dtype=torch.float64)
        lasts[0] = 0.0  # paths leave state 0 at once
        self._lasts = lasts.to(device)
        self._final = torch.from_numpy(graph.final).exp()[:, None].to(device)

    def sums(self, scores: Tensor, lengths: Tensor, *, occupied: bool) -> Sums:
        """Return sums over all paths of `lengths` (N,) frames, of scores (N, T, S) in double precision."""
        highest = scores.amax(2, keepdim=True)
        emitted = (scores - highest).exp().permute(1, 2, 0).contiguous()  # (T, S, N)
        frames, sequences = emitted.shape[0], emitted.shape[2]
        state = emitted.new_zeros(len(self._final), sequences)
        state[0] = 1.0
        states, entered, totals = [state], [], []
        for t in range(frames):
            entering = (self._into @ state).mul_(emitted[t].index_select(0, self._enter))
            state = state * self._lasts
            state.mul_(emitted[t].index_select(0, self._stay)).add_(entering)
            total = state.sum(0)
            state.div_(total)
            states.append(state)
            entered.append(entering)
            totals.append(total)
        logs = torch.stack(totals).log() + highest[:, :, 0].T  # (T, N)
        inside = torch.arange(frames, device=scores.device)[:, None] < lengths
        every = torch.stack(states)  # (T + 1, K, N)
        last = every[lengths, :, torch.arange(sequences, device=scores.device)].T  # (K, N)
        ending = (last * self._final).sum(0)
        log_z = torch.where(inside, logs, 0.0).sum(0) + ending.log()
        if not occupied:
            return Sums(log_z, None)
        after = self._final / ending  # (K, N): the state it says is followed by an end
        future, shares = torch.zeros_like(state), torch.zeros_like(emitted)
        for t in reversed(range(frames)):
            future = torch.where(lengths == t + 1, after, future)
            scaled = future / totals[t]
            shares[t].index_add_(0, self._enter, entered[t] * scaled)
            staying = scaled * emitted[t].index_select(0, self._stay)
            staying.mul_(self._lasts)
            shares[t].index_add_(0, self._stay, states[t] * staying)
            scaled.mul_(emitted[t].index_select(0, self._enter))
            future = (self._out_of @ scaled).add_(staying)
        shares = torch.where(inside[:, None], shares, 0.0)
        return Sums(log_z, shares.permute(2, 0, 1))


def _sparse(row: Tensor, column: Tensor, value: Tensor, size: int) -> Tensor:
    """Return a matrix (size, size) of these elements, rows compressed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls such matrices a beta
        return torch.sparse_coo_tensor(torch.stack([row, column]), value, (size, size)).coalesce().to_sparse_csr()
