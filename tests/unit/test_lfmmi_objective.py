"""The LF-MMI loss against every path, one by one, and its gradient against finite differences."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from roundelay.core.state_graph import StateGraph
from roundelay.learner.objectives import Evidence
from roundelay_speech.lexicon.lexicon import Lexicon, Said, ways_to_say
from roundelay_speech.mmi.graphs import PhoneNgram, denominator, numerator
from roundelay_speech.objectives import LfMmi
from roundelay_speech.objectives.lfmmi import MmiGraphs
from roundelay_speech.units.states import PhoneStates

LEXICON = Lexicon({"A": (("a",), ("a", "b")), "BA": (("b", "a"),), "C": (("c",),)})
TEXTS = ["A BA", "BA", "C A", "A"]
LENGTHS = [5, 4, 3, 2]
SPOKEN = LEXICON.phones[1:]


def said(text: str) -> Said:
    found = ways_to_say(text.split(), LEXICON)
    assert found is not None
    return found


EMITTED = {states: PhoneStates("SIL", states, ("b a", "SIL a")).emitted(SPOKEN) for states in (1, 2)}
"""Some phones have columns of their own after others."""
MODELS = {states: PhoneNgram([(said(text), 1) for text in TEXTS], 2 + states, 0.5) for states in (1, 2)}
GRAPHS = {
    states: (denominator(MODELS[states], some), [numerator(said(text), MODELS[states], some) for text in TEXTS])
    for states, some in EMITTED.items()
}
"""By the states of a phone, denominator and numerators of TEXTS; trigrams with one state, 4-grams with two."""
COLUMNS = {states: states * (len(LEXICON.phones) + 2) for states in GRAPHS}


def objective(states: int = 2, l2: float = 0.0, cross_entropy: float = 0.0) -> LfMmi:
    return LfMmi(l2=l2, cross_entropy=cross_entropy).on(MmiGraphs(*GRAPHS[states]))


def scores_of(states: int, seed: int) -> Tensor:
    """(N, T, S), double."""
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(len(LENGTHS), max(LENGTHS), COLUMNS[states], generator=generator, dtype=torch.float64)


TARGETS = torch.tensor([[length, number] for number, length in enumerate(LENGTHS, 1)])


def by_every_path(graph: StateGraph, scores: Tensor) -> float:
    """log sum over all paths of scores (T, S), each walked by itself."""
    found = []

    def walk(state: int, t: int, log_p: float) -> None:
        if t == len(scores):
            found.append(log_p + graph.final[state])
            return
        if state:
            walk(state, t + 1, log_p + float(scores[t, graph.stay[state]]))
        for arc in np.flatnonzero(graph.source == state):
            target = int(graph.target[arc])
            walk(target, t + 1, log_p + graph.weight[arc] + float(scores[t, graph.enter[target]]))

    walk(0, 0, 0.0)
    return float(np.logaddexp.reduce(found))


def each_by_every_path(states: int, scores: Tensor) -> list[float]:
    everything, own = GRAPHS[states]
    rows = [(own[n], scores[n, :length]) for n, length in enumerate(LENGTHS)]
    return [by_every_path(everything, row) - by_every_path(graph, row) for graph, row in rows]


@pytest.mark.parametrize("states", [1, 2])
@pytest.mark.parametrize("seed", range(2))
def test_the_loss_is_the_sum_over_all_paths(states: int, seed: int) -> None:
    scores = scores_of(states, seed)
    loss, evidence = objective(states).loss(nn.Identity(), (scores,), TARGETS)
    each = each_by_every_path(states, scores)
    assert evidence.outputs.tolist() == pytest.approx(each, rel=1e-9)
    assert float(loss) == pytest.approx(np.mean(each), rel=1e-9)
    assert float(evidence.measure) == float(loss)
    assert min(each) > 0  # what was said is among all that could have been


def test_the_gradient_is_that_of_finite_differences() -> None:
    loss_of = objective(l2=0.3)
    scores = scores_of(2, 7).requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of.loss(nn.Identity(), (scores,), TARGETS)[0], scores)
    step = 1e-5
    every = itertools.product(range(len(LENGTHS)), range(max(LENGTHS)), range(COLUMNS[2]))
    for n, t, c in itertools.islice(every, 0, None, 5):
        moved = []
        for sign in (1, -1):
            there = scores.detach().clone()
            there[n, t, c] += sign * step
            moved.append(float(loss_of.loss(nn.Identity(), (there,), TARGETS)[0]))
        assert float(gradient[n, t, c]) == pytest.approx((moved[0] - moved[1]) / (2 * step), abs=1e-7)


def test_the_cross_entropy_is_against_the_occupation_of_the_transcript() -> None:
    """Its gradient is that of a softmax: the column's probability less the numerator's occupation."""
    scores = scores_of(2, 4).requires_grad_()

    def gradient(cross_entropy: float) -> Tensor:
        loss, _ = objective(cross_entropy=cross_entropy).loss(nn.Identity(), (scores,), TARGETS)
        return torch.autograd.grad(loss, scores)[0]

    found = (gradient(0.5) - gradient(0.0)) * len(LENGTHS) / 0.5
    occupied = nn.functional.softmax(scores.detach(), 2) - found
    for n, length in enumerate(LENGTHS):
        assert torch.allclose(occupied[n, :length].sum(1), torch.ones(length, dtype=torch.float64))
        assert occupied[n, :length].min() > -1e-12
        emitted = {int(c) for c in (*GRAPHS[2][1][n].enter[1:], *GRAPHS[2][1][n].stay[1:])}
        others = [c for c in range(COLUMNS[2]) if c not in emitted]
        assert occupied[n, :length][:, others].abs().max() < 1e-12


def test_a_transcript_that_the_denominator_has_not_is_added_to_it() -> None:
    """A held-out one, whose phones never stood so: the loss is the sum over all paths still, and not below zero."""
    everything, model = GRAPHS[2][0], MODELS[2]
    new = numerator(said("BA C"), model, EMITTED[2])
    assert not new.within
    assert all(graph.within for graph in GRAPHS[2][1])
    scores, targets = scores_of(2, 9)[:1].requires_grad_(), torch.tensor([[5, 1]])
    loss_of = LfMmi(l2=0).on(MmiGraphs(everything, [new]))
    loss, evidence = loss_of.loss(nn.Identity(), (scores,), targets)
    before = float(evidence.measure)
    ways = by_every_path(everything, scores.detach()[0]), by_every_path(new, scores.detach()[0])
    assert before == pytest.approx(np.logaddexp(*ways) - ways[1], rel=1e-9)
    (gradient,) = torch.autograd.grad(loss, scores)
    there = scores.detach() - 1e-6 * gradient
    fallen = before - float(loss_of.loss(nn.Identity(), (there,), targets)[0])
    assert fallen == pytest.approx(1e-6 * float(gradient.square().sum()), rel=1e-4)


def test_outputs_that_differ_by_hundreds_of_nats_are_summed_exactly() -> None:
    """A way to say the transcript that is hopeless in every frame may be the only one."""
    scores = scores_of(2, 8)
    scores[:, :, 1] += 300.0  # silence goes on, says the network, where words are
    _, evidence = objective().loss(nn.Identity(), (scores.requires_grad_(),), TARGETS)
    each = each_by_every_path(2, scores.detach())
    assert evidence.outputs.tolist() == pytest.approx(each, rel=1e-9)
    assert evidence.outputs.max() > 500


def test_an_utterance_is_right_if_it_is_more_probable_than_all_else() -> None:
    found = LfMmi().statistics(Evidence(torch.tensor(1.5), torch.tensor([0.1, 0.69, 0.70])), TARGETS[:3])
    assert (found.frames, found.loss, found.correct) == (3, 4.5, 2)


def test_the_gradient_is_the_same_to_the_bit_when_computed_again() -> None:
    scores = scores_of(2, 5).float().requires_grad_()
    found = [torch.autograd.grad(objective().loss(nn.Identity(), (scores,), TARGETS)[0], scores)[0] for _ in range(2)]
    assert torch.equal(found[0], found[1])
