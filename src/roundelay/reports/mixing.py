"""Matrices of exchanges, and how fast they would mix: the effective spectral gap of counted exchanges.

Counts come as a matrix of L rows: n[i][j] exchanges that learner i began with row j. A strategy with a centre has one
more column, the last, for exchanges with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from roundelay.reports.charts import heat_map
from roundelay.reports.numbers import plain
from roundelay.reports.runs import Run

MOST_CELLS = 32  # learners drawn one by one in a matrix; more are drawn in groups of neighbours
CENTRE = "centre"

Matrix = list[list[int]]


def counted(runs: Sequence[Run]) -> Matrix:
    """Return all exchanges of all these runs, (L, L) or (L, L + 1); empty if none is recorded."""
    matrices = [e.matrix for run in runs for e in run.exchanges]
    height = max((len(matrix) for matrix in matrices), default=0)
    width = max((len(row) for matrix in matrices for row in matrix), default=0)
    width = min(max(width, height), height + 1)  # a row too long or too short is a damaged record's
    total = [[0] * width for _ in range(height)]
    for matrix in matrices:
        for i, row in enumerate(matrix):
            for j, count in enumerate(row[:width]):
                total[i][j] += count
    return total


def has_centre(matrix: Matrix) -> bool:
    """Return True if the last column is a centre."""
    return bool(matrix) and len(matrix[0]) == len(matrix) + 1


@dataclass(frozen=True)
class Gap:
    """Speed of mixing: shares of the squared distance from consensus that are gone at least, in the mean."""

    exchange: float  # after one exchange
    round: float  # after as many as there are learners
    learners: int  # that took part


def effective_gap(matrix: Matrix) -> Gap | None:
    """Return the spectral gap that counted pair averages imply.

    One average of rows i and j is the mixing matrix P = I - (e_i - e_j)(e_i - e_j)' / 2, a projection. Let pairs come
    independently, in the proportions n of the counts: the mean matrix is

        W = sum_ij n_ij P_ij / sum_ij n_ij,

    and since P'P = P, the expected squared distance from consensus after an exchange is x'Wx, at most the second
    eigenvalue of W times that before (Boyd et al. 2006, randomized gossip). The gap is 1 - lambda_2(W) for one
    exchange, and 1 - lambda_2(W)^L for a round of L. Learners that took part in none are left out. Zero: some never
    heard of others.

    None without exchanges, and with a centre: exchanges with it are not averages.
    """
    if has_centre(matrix):
        return None
    weight = [[matrix[i][j] + matrix[j][i] if i != j else 0 for j in range(len(matrix))] for i in range(len(matrix))]
    present = [i for i, row in enumerate(weight) if any(row)]
    if not present:
        return None
    # Here, for the first matrix: a page without exchanges is made without numpy.
    import numpy as np  # noqa: PLC0415

    from roundelay.core.topology import second_eigenvalue  # noqa: PLC0415

    pairs = np.array([[weight[i][j] for j in present] for i in present], float)
    mean = np.eye(len(present)) - (np.diag(pairs.sum(1)) - pairs) / pairs.sum()
    kept = min(1.0, max(0.0, second_eigenvalue(mean)))
    kept = 1.0 if 1 - kept < 1e-12 else kept
    return Gap(1 - kept, 1 - kept ** len(present), len(present))


def gap_note(matrix: Matrix) -> str:
    """Return number of exchanges, and their gap in words."""
    total = f"{sum(map(sum, matrix)):,} exchanges."
    if has_centre(matrix):
        return f"{total} With the centre they are not averages, so there is no spectral gap."
    gap = effective_gap(matrix)
    if gap is None:
        return total
    if not gap.exchange:
        return f"{total} Spectral gap 0: some learners never heard of some others by exchanges."
    return f"{total} Spectral gap {plain(gap.exchange)} an exchange, {plain(gap.round)} a round of {gap.learners}."


_IJ = "<sub>ij</sub>"
FORMULA = Markup(
    "Spectral gap: an average of rows i and j is the mixing matrix "
    f"P{_IJ} = I − (e<sub>i</sub> − e<sub>j</sub>)(e<sub>i</sub> − e<sub>j</sub>)ᵀ / 2. With n{_IJ} such exchanges "
    f"counted, W = Σ n{_IJ} P{_IJ} / Σ n{_IJ} is their mean, and the gap is 1 − λ₂(W): if pairs came independently in "
    "these proportions, an exchange would take at least that share off the squared distance from consensus, in the "
    "mean, and a round of L exchanges 1 − λ₂(W)<sup>L</sup>."
)
"""Meaning of the gap."""


def exchange_map(matrix: Matrix, index: int, label: str) -> Markup:
    """Return the matrix drawn; many learners in groups of neighbours."""
    size = len(matrix)
    rows = groups(size, MOST_CELLS)
    centre = [(size, size + 1)] * has_centre(matrix)
    cells = [[float(sum(sum(matrix[i][c:d]) for i in range(a, b))) for c, d in [*rows, *centre]] for a, b in rows]
    names = [f"{a}" if b - a == 1 else f"{a}-{b - 1}" for a, b in rows]
    return heat_map(cells, names, index, label, [CENTRE] * len(centre))


def groups(size: int, most: int) -> list[tuple[int, int]]:
    """Return 0..size in at most `most` runs of neighbours of equal length (the last may be shorter)."""
    length = -(-size // most)
    return [(first, min(first + length, size)) for first in range(0, size, length)]
