"""CHOCO-SGD: without compression it is D-PSGD, and with it its equation, written out by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.algorithms.codecs import CODECS
from roundelay.algorithms.codecs.sparse import Sparse
from roundelay.algorithms.local_update import Sgd
from roundelay.core.codec import Codec
from roundelay.core.errors import UserError
from roundelay.core.topology import complete_matrix, metropolis_matrix, ring_matrix
from support.clusters import make_strategy
from support.on_paper import Paper, simulated

PAPERS = st.builds(Paper, st.integers(1, 6), st.integers(1, 9), st.sampled_from([0.1, 0.3]), seed=st.integers(0, 9))
LOCAL = st.sampled_from([Sgd(), Sgd(0.9), Sgd(0.5, nesterov=True)])
FORMS = {"codec=int4": CODECS["int4"], "codec=bf16": CODECS["bf16"], "density=0.3": Sparse("", 0.3, two_bits=False)}

some = settings(max_examples=10, deadline=None)


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """But for the order of additions."""
    torch.testing.assert_close(found, expected.expand_as(found), rtol=1e-4, atol=1e-5)


@given(PAPERS, LOCAL, st.sampled_from(["ring", "complete"]), st.integers(1, 10))
@some
@pytest.mark.parametrize("all_of_it", ["codec=fp32", "density=1"])
def test_choco_sgd_without_compression_is_dpsgd(
    all_of_it: str, paper: Paper, local: Sgd, topology: str, tenths: int
) -> None:
    setting = f"mixing={tenths / 10}"
    found = simulated(f"choco-sgd:{topology} {setting} {all_of_it}", paper, local)
    same(found.rows, simulated(f"dpsgd:{topology} {setting}", paper, local).rows)


@given(PAPERS, st.sampled_from(["ring", "complete", "graph"]), st.sampled_from([*FORMS]), st.integers(1, 10))
@some
def test_choco_sgd_is_its_equation(paper: Paper, topology: str, form: str, tenths: int) -> None:
    """With x^ of everybody, as the paper has it."""
    edges = [(i, i + 1) for i in range(paper.learners - 1)]
    topology = "ring" if topology == "graph" and not edges else topology
    matrices = {"ring": ring_matrix(paper.learners), "complete": complete_matrix(paper.learners)}
    matrices["graph"] = metropolis_matrix(paper.learners, edges)
    mixing, matrix = tenths / 10, torch.from_numpy(matrices[topology]).float()
    x, known = paper.start, paper.start
    for k in range(paper.rounds):
        y = x - paper.rate * paper.gradients(x, k)
        known = known + torch.stack([coded(FORMS[form], row) for row in y - known])
        x = y + mixing * (matrix @ known - known)
    shown = f" edges={[list(edge) for edge in edges]}".replace(", ", ",") if topology == "graph" else ""
    found = simulated(f"choco-sgd:{topology} mixing={mixing} {form}{shown}", paper)
    torch.testing.assert_close(found.rows, x, rtol=2e-3, atol=2e-3)  # a number in the middle may go up here, down there


def coded(codec: Codec, x: torch.Tensor) -> torch.Tensor:
    arrived = torch.empty_like(x)
    codec.send(x, None, arrived)
    return arrived


@pytest.mark.parametrize("form", ["codec=int4 mixing=1", "codec=1bit mixing=0.3", "density=0.1 mixing=0.3"])
def test_rows_agree_though_little_is_sent_and_their_mean_stays(form: str) -> None:
    """Without gradients rows that begin apart come together, at the mean: all that a codec leaves out is sent later."""
    rows = torch.randn(5, 50, generator=torch.Generator().manual_seed(0))
    paper = Paper(5, 400, rate=0.0, parameters=50)
    found = simulated(f"choco-sgd {form}", paper, scattered=rows).rows
    torch.testing.assert_close(found, rows.mean(0).expand_as(rows), rtol=0, atol=1e-3)
    torch.testing.assert_close(found.mean(0), rows.mean(0), rtol=0, atol=1e-4)  # 400 sums, each to half of 2^-22


def test_what_cannot_be_known_of_neighbours_is_refused() -> None:
    with pytest.raises(UserError, match=r"choco-sgd.topology is exponential, .* choose one of ring, complete, graph"):
        make_strategy("choco-sgd:exponential")
    with pytest.raises(UserError, match=r"choco-sgd.density is 0"):
        make_strategy("choco-sgd density=0")
    with pytest.raises(UserError, match=r"choco-sgd.mixing is 0"):
        make_strategy("choco-sgd mixing=0")
    with pytest.raises(UserError, match=r"choco-sgd.codec is 'int3'"):
        make_strategy("choco-sgd codec=int3")
