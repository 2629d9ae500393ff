"""The CTC loss against every path, one by one, and its gradient against finite differences."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from roundelay.learner.objectives import Evidence
from roundelay_speech.objectives import Ctc


def scores_of(lengths: list[int], classes: int, seed: int) -> Tensor:
    """(N, T, C), double."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(lengths), max(lengths), classes, generator=generator, dtype=torch.float64)


def targets_of(lengths: list[int], labels: list[list[int]]) -> Tensor:
    longest = max(map(len, labels))
    rows = [[n, *row, *[-1] * (longest - len(row))] for n, row in zip(lengths, labels, strict=True)]
    return torch.tensor(rows)


def by_every_path(scores: Tensor, labels: list[int]) -> float:
    """-log p of labels from scores (T, C), summed over all C^T paths."""
    log_p = scores - torch.logsumexp(scores, 1, keepdim=True)
    total = 0.0
    for path in itertools.product(range(scores.shape[1]), repeat=len(scores)):
        if [c for c, _ in itertools.groupby(path) if c] == labels:
            total += math.exp(sum(float(log_p[t, c]) for t, c in enumerate(path)))
    return -math.log(total)


LENGTHS = [6, 5, 3, 4]
LABELS = [[1, 2, 2], [2], [1, 1], []]


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_is_the_sum_over_all_paths(seed: int) -> None:
    scores, targets = scores_of(LENGTHS, 3, seed), targets_of(LENGTHS, LABELS)
    loss, evidence = Ctc().loss(nn.Identity(), (scores,), targets)
    each = [by_every_path(scores[n, :length], LABELS[n]) for n, length in enumerate(LENGTHS)]
    assert float(loss) == pytest.approx(np.mean(each), rel=1e-5)
    assert float(evidence.measure) == float(loss)
    flat, _ = Ctc().loss(nn.Identity(), (scores.flatten(0, 1),), targets)
    assert float(flat) == float(loss)


def test_the_gradient_is_that_of_finite_differences() -> None:
    targets = targets_of(LENGTHS, LABELS)
    scores = scores_of(LENGTHS, 3, 7).requires_grad_()
    loss, _ = Ctc().loss(nn.Identity(), (scores,), targets)
    (gradient,) = torch.autograd.grad(loss, scores)
    step = 1e-4
    for n, t, c in itertools.product(range(len(LENGTHS)), range(max(LENGTHS)), range(3)):
        moved = []
        for sign in (1, -1):
            there = scores.detach().clone()
            there[n, t, c] += sign * step
            moved.append(by_every_path(there[n, : LENGTHS[n]], LABELS[n]))
        expected = (moved[0] - moved[1]) / (2 * step) / len(LENGTHS) if t < LENGTHS[n] else 0.0
        assert float(gradient[n, t, c]) == pytest.approx(expected, abs=2e-5)


def test_an_utterance_is_right_if_all_its_labels_are() -> None:
    rows = [[1, 1, 0, 1, 2, 2], [1, 0, 0, 2, 0, 0], [0, 0, 1, 2, 2, 2]]
    lengths, labels = [6, 4, 3], [[1, 1, 2], [1, 2], [1, 2]]  # the last is cut before its 2
    found = Ctc().statistics(Evidence(torch.tensor(1.5), torch.tensor(rows)), targets_of(lengths, labels))
    assert (found.frames, found.loss, found.correct) == (3, 4.5, 2)


def test_the_gradient_is_the_same_to_the_bit_when_computed_again() -> None:
    scores, targets = scores_of(LENGTHS, 3, 5).float().requires_grad_(), targets_of(LENGTHS, LABELS)
    found = [torch.autograd.grad(Ctc().loss(nn.Identity(), (scores,), targets)[0], scores)[0] for _ in range(3)]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


class TwoViews(nn.Module):
    """Adds to each view of the N scores what is given."""

    def __init__(self, views: Tensor) -> None:
        super().__init__()
        self.views = views

    def forward(self, scores: Tensor) -> Tensor:
        return scores + self.views


def test_equal_views_have_the_loss_and_the_gradient_of_one() -> None:
    scores, targets = scores_of(LENGTHS, 3, 4).requires_grad_(), targets_of(LENGTHS, LABELS)
    one, (twice, evidence) = (
        Ctc().loss(nn.Identity(), (scores,), targets),
        Ctc(consistency=0.7).loss(nn.Identity(), (scores,), targets),
    )
    torch.testing.assert_close(twice, one[0])
    torch.testing.assert_close(torch.autograd.grad(twice, scores)[0], torch.autograd.grad(one[0], scores)[0])
    assert evidence.outputs.shape == one[1].outputs.shape
    with torch.no_grad():  # an evaluation looks once
        assert float(Ctc(consistency=0.7).loss(nn.Identity(), (scores,), targets)[0]) == pytest.approx(float(one[0]))


def test_consistency_is_the_divergence_of_either_view_from_the_other() -> None:
    scores, targets = scores_of(LENGTHS, 3, 4), targets_of(LENGTHS, LABELS)
    views = scores_of(LENGTHS * 2, 3, 8).requires_grad_()
    loss, evidence = Ctc(consistency=0.2).loss(TwoViews(views), (scores,), targets)
    a, b = (torch.log_softmax(scores + view, 2) for view in views.chunk(2))
    plain = [Ctc().loss(nn.Identity(), (view,), targets)[0] for view in (a, b)]
    apart = torch.zeros((), dtype=torch.float64)
    for n, length in enumerate(LENGTHS):
        for one, other in ((a[n, :length], b[n, :length].detach()), (b[n, :length], a[n, :length].detach())):
            apart = apart + nn.functional.kl_div(one, other, reduction="sum", log_target=True) / 2
    torch.testing.assert_close(evidence.measure.double(), (plain[0] + plain[1]).detach() / 2, check_dtype=False)
    expected = (plain[0] + plain[1]) / 2 + 0.2 * apart / len(LENGTHS)
    torch.testing.assert_close(loss.double(), expected, check_dtype=False, rtol=1e-5, atol=1e-6)
    found, wanted = (torch.autograd.grad(one, views, retain_graph=True)[0] for one in (loss, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
