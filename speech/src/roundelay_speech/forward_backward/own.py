"""Forward-backward through graphs of which every sequence has its own: numerators of lattice-free MMI.

    a_t(k) = log( exp(y_t(enter k) + log sum_j exp(w_jk + a_{t-1}(j))) + exp(y_t(stay k) + a_{t-1}(k)) )

in logarithms, without any scaling: a graph goes from left to right, and a state hopelessly improbable in one frame may
be the only one in the last. The states of all graphs stand one behind the other, each with the states before it (at
most M) in a table.

Legend: N sequences, T frames of the longest, S columns, K states of all graphs together, M arcs into a state.

Forward-backward through one graph that all sequences of a minibatch share: the denominator of lattice-free MMI.

    a_t = b_t * (W a_{t-1}) + c_t * a_{t-1},    b_t(k) = exp(y_t(enter k)),  c_t(k) = exp(y_t(stay k))

W (K, K) has the weight of the arc from j to k in row k: a frame is one sparse product for all sequences (Povey et al.
2016, section 2.4, with sparse matrices of torch in the place of a kernel). Vectors are probabilities in double
precision, divided by their sum in every frame, whose logarithm is kept; the largest score of a frame is taken off
before. So a state counts as impossible if it is less probable than the others by a factor of 1e-300, and no leaky
transitions are needed to keep sums above zero.

Legend: N sequences, T frames of the longest, S columns, K states.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from roundelay.core.state_graph import Floats, Integers, StateGraph


@dataclass(frozen=True)
class Sums:
    """The sums over paths, for each sequence."""

    log_z: Tensor  # (N,) logarithms of the sums over all paths
    # (N, T, S) share of the paths that emit a column in a frame; zero beyond a length. None: not asked for.
    occupied: Tensor | None


@final
class SharedGraph:
    """A graph shared by all sequences, on one device."""

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
    """Return a sparse matrix (size, size) of these elements, in compressed rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls such matrices a beta
        return torch.sparse_coo_tensor(torch.stack([row, column]), value, (size, size)).coalesce().to_sparse_csr()


@dataclass(frozen=True, eq=False)
class ArcTables:
    """A graph with the arcs of each state in rows, which are padded with arcs of no weight.

    Attributes:
        before, after: (K, M) states that arcs come from, and lead to.
        into, out_of: (K, M) their weights, natural logarithms.
    """

    graph: StateGraph
    before: Integers
    into: Floats
    after: Integers
    out_of: Floats

    @classmethod
    def of(cls, graph: StateGraph) -> "ArcTables":
        before, into = _rows(graph.target, graph.source, graph)
        after, out_of = _rows(graph.source, graph.target, graph)
        return cls(graph, before, into, after, out_of)


def _rows(of: Integers, other: Integers, graph: StateGraph) -> tuple[Integers, Floats]:
    order = np.argsort(of, kind="stable")
    number = np.bincount(of, minlength=graph.states)
    place = np.arange(len(of)) - np.repeat(np.cumsum(number) - number, number)
    states = np.zeros((graph.states, int(number.max())), np.int64)
    weights = np.full(states.shape, -np.inf)
    states[of[order], place], weights[of[order], place] = other[order], graph.weight[order]
    return states, weights


@final
class OwnGraphs:
    """The graphs of a minibatch, on one device."""

    def __init__(self, tables: Sequence[ArcTables], device: torch.device) -> None:
        sizes = [one.graph.states for one in tables]
        begins = np.cumsum([0, *sizes[:-1]])

        def all_of(parts: Sequence[npt.NDArray[np.generic]]) -> Tensor:
            return torch.from_numpy(np.concatenate(parts)).to(device)

        self._before = all_of(_padded([one.before + at for one, at in zip(tables, begins, strict=True)], 0))
        self._after = all_of(_padded([one.after + at for one, at in zip(tables, begins, strict=True)], 0))
        self._into = all_of(_padded([one.into for one in tables], -np.inf))
        self._out_of = all_of(_padded([one.out_of for one in tables], -np.inf))
        self._enter = all_of([one.graph.enter for one in tables])
        self._stay = all_of([one.graph.stay for one in tables])
        self._final = all_of([one.graph.final for one in tables])
        self._starts = torch.from_numpy(begins).to(device)
        self._sequence = torch.from_numpy(np.repeat(np.arange(len(tables)), sizes)).to(device)

    def sums(self, scores: Tensor, lengths: Tensor, *, occupied: bool) -> Sums:
        """Return sums over all paths of `lengths` (N,) frames, of scores (N, T, S) in double precision."""
        sequences, frames, columns = scores.shape
        by_column = scores.transpose(1, 2)  # (N, S, T)
        enters = by_column[self._sequence, self._enter].T.contiguous()  # (T, K)
        stays = by_column[self._sequence, self._stay].T.contiguous()
        stays[:, self._starts] = -torch.inf  # paths leave the first state at once
        state = scores.new_full(self._final.shape, -torch.inf)
        state[self._starts] = 0.0
        states, entered = [state], []
        for t in range(frames):
            entering = torch.logsumexp(state[self._before] + self._into, 1).add_(enters[t])
            state = torch.logaddexp(entering, state + stays[t])
            states.append(state)
            entered.append(entering)
        last = lengths[self._sequence]  # (K,) frames of the sequence that a state is of
        ends = torch.stack(states).gather(0, last[None])[0] + self._final
        log_z = _log_sums(ends, self._sequence, sequences)
        if not occupied:
            return Sums(log_z, None)
        beyond, future = log_z[self._sequence], torch.full_like(state, -torch.inf)
        shares = [torch.empty(0)] * frames, [torch.empty(0)] * frames
        for t in reversed(range(frames)):
            future = torch.where(last == t + 1, self._final - beyond, future)
            staying = stays[t] + future
            shares[0][t], shares[1][t] = (entered[t] + future).exp_(), (states[t] + staying).exp_()
            future = torch.logaddexp(torch.logsumexp((enters[t] + future)[self._after] + self._out_of, 1), staying)
        found = scores.new_zeros(sequences * columns, frames)
        for column, share in zip((self._enter, self._stay), shares, strict=True):
            found.index_add_(0, self._sequence * columns + column, torch.stack(share, 1))
        return Sums(log_z, found.view(sequences, columns, frames).transpose(1, 2))


def _padded(parts: Sequence[npt.NDArray[np.generic]], value: float) -> list[npt.NDArray[np.generic]]:
    """Pad tables to the columns of the widest: (K, M) each."""
    widest = max(part.shape[1] for part in parts)
    return [np.pad(part, ((0, 0), (0, widest - part.shape[1])), constant_values=value) for part in parts]


def _log_sums(values: Tensor, groups: Tensor, number: int) -> Tensor:
    """Return log sum exp of the values (K,) of each group, (number,)."""
    highest = values.new_full((number,), -torch.inf).scatter_reduce(0, groups, values, "amax")
    sums = values.new_zeros(number).index_add(0, groups, (values - highest[groups]).exp())
    return sums.log() + highest
