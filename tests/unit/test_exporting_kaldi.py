"""Networks in Kaldi's terms: read by an independent reader, their log-likelihoods are those that `decode` searches."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.exporting.kaldi.nnet3 import INPUT, Network, Seen, add_scores, reach_of
from roundelay_speech.exporting.kaldi.writing import global_statistics, save_model
from roundelay_speech.exporting.utterance import utterance_scores
from roundelay_speech.features.store import StoredPart
from roundelay_speech.hmm.formats.kaldi_model import (
    PDF_CLASS,
    Answer,
    EventMap,
    Question,
    TableMap,
    read_transition_model,
)
from roundelay_speech.hmm.formats.kaldi_tying import export_transition_model, export_tree
from roundelay_speech.hmm.tree import LEFT, OWN, RIGHT, DecisionTree, Leaf, Split, untied
from roundelay_speech.models.dnn import DnnConfig
from roundelay_speech.models.network import AcousticNetwork
from roundelay_speech.trained import AcousticModel
from support.nnet3 import Computation, read_model
from support.toy_models import tiny

FRAMES = 24


def with_large_parameters(network: AcousticNetwork) -> AcousticModel:
    """Parameters and scales that show in every column; a prior of its own."""
    rng = stream(0, "kaldi")
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(0, 0.3, parameter.shape)))
        network.frontend.scale.copy_(torch.from_numpy(rng.uniform(0.5, 2.0, network.frontend.scale.shape)))
    prior = np.log(rng.dirichlet(np.ones(network.columns)))
    return AcousticModel(network.eval(), prior.astype(np.float32))


def through_file(path: Path, models: dict[str, AcousticModel], weights: tuple[float, ...], scale: Any) -> Any:
    """The networks, summed by weights, written and read by the independent reader."""
    network = Network()
    network.takes(INPUT, len(scale))
    seen = Seen(scale, max(reach_of(model.module) for model in models.values()))
    names = [add_scores(network, model.module, seen, f"{name}.", name) for name, model in models.items()]
    scaled = [f"Scale({weight!r}, {name})" for weight, name in zip(weights, names, strict=True)]
    network.gives(f"Sum({', '.join(scaled)})" if len(scaled) > 1 else names[0])
    prior = np.sum([weight * model.prior for weight, model in zip(weights, models.values(), strict=True)], 0)
    save_model(path, export_transition_model(untied(("SIL", "A", "B"))), network, prior)
    return read_model(path)


def features_of(width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features (FRAMES, F), and a speaker's mean and standard deviation."""
    rng = stream(1, "kaldi")
    made = rng.normal(2, 3, (FRAMES, width)), rng.normal(2, 1, width), rng.uniform(0.5, 4.0, width)
    features, mean, std = (torch.from_numpy(one.astype(np.float32)) for one in made)
    return features, mean, std


PARTS = [StoredPart("fbank", 4, 1), StoredPart("one", 2, 0, "none", False)]
"""One part with neighbours, and one without, nor deltas."""
SUMS: dict[str, tuple[Callable[[], dict[str, AcousticNetwork]], tuple[float, ...], bool]] = {
    **{name: (lambda name=name: {name: tiny(name)}, (1.0,), False) for name in ("dnn", "blstm", "tdnnf")},  # type: ignore[misc]
    "parts": (lambda: {"dnn": DnnConfig(layers=2, width=8, context=2).network(PARTS, 9)}, (1.0,), False),
    # Of a network that sees five frames on each side, and one of whole utterances, for which two are enough.
    "a combination": (lambda: {name: tiny(name) for name in ("dnn", "blstm")}, (0.25, 0.75), False),
    "centred only": (lambda: {"dnn": tiny("dnn")}, (1.0,), True),
}
"""Networks and their weights, and whether their features are divided by the first layer."""


@pytest.mark.parametrize("case", SUMS)
def test_networks_in_kaldis_terms_have_the_same_log_likelihoods(case: str, tmp_path: Path, one_thread: None) -> None:
    make, weights, centred = SUMS[case]
    models = {name: with_large_parameters(network) for name, network in make().items()}
    first = next(iter(models.values())).module
    features, mean, std = features_of(
        sum(part.width for part in PARTS) if case == "parts" else first.frontend.scale.shape[1]
    )
    with torch.inference_mode():
        parts = [utterance_scores(model, name)(features, mean, std).numpy() for name, model in models.items()]
    expected = sum(weight * part for weight, part in zip(weights, parts, strict=True))
    read = through_file(
        tmp_path / "final.mdl", models, weights, 1 / std.double().numpy() if centred else np.ones(len(mean))
    )
    found = Computation(read, ((features - mean) / (1 if centred else std)).numpy()).scores()
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("name", "problem"), [("cldnn", "a cldnn has layers"), ("conformer", "a conformer has layers")]
)
def test_what_nnet3_cannot_say_is_refused_by_name(name: str, problem: str) -> None:
    with pytest.raises(UserError, match=f"exp/one: {problem}"):
        add_scores(Network(), tiny(name), Seen(np.ones(3), 5), "", "exp/one")


def test_silence_of_five_states_has_all_ways_through_it(tmp_path: Path) -> None:
    """Kaldi checks that the probabilities of the ways out of a state sum to one."""
    model = export_transition_model(untied(("SIL", "A"), 5))
    first = model.topology[1]
    assert [[to for to, _ in state.transitions] for state in first] == [
        [0, 1, 2, 3],
        [1, 2, 3, 4],
        [2, 3, 4],
        [3, 4],
        [4, 5],
        [],
    ]
    assert [[to for to, _ in state.transitions] for state in model.topology[2]] == [[0, 1], [1, 2], [2, 3], []]
    sums = np.bincount(model.transition_states[1:], np.exp(model.log_probs[1:]))
    np.testing.assert_allclose(sums, 1.0, rtol=1e-6)
    path = tmp_path / "final.mdl"
    save_model(path, model, Network(), np.zeros(1))
    assert list(read_transition_model(path).tuples) == [(*one, one[2]) for one in read_model(path).triples]


@pytest.mark.parametrize("context", [2, 3])
def test_a_tree_may_ask_for_the_phone_itself(context: int) -> None:
    """Phones that share a root are told apart by a question about their own place in the word."""
    nodes: tuple[Split | Leaf, ...] = (
        Split(OWN, frozenset({2}), 1, 2),  # the first state of phones 2 and 3
        Split(LEFT, frozenset({0, 1}), 3, 4),
        Split(RIGHT, frozenset({3}), 5, 6) if context == 3 else Split(LEFT, frozenset({3}), 5, 6),
        *map(Leaf, range(6)),
    )
    roots = ((7, 7, 7), (0, 8, 8), (0, 8, 8))
    tree = DecisionTree(("SIL", "A_B", "A_E"), context, roots, nodes)
    theirs, table = export_tree(tree), tree.tying().table
    for left, phone, right, state in itertools.product(range(4), range(1, 4), range(4), range(3)):
        told = {0: left, 1: phone, 2: right, PDF_CLASS: state}
        assert answer(theirs.to_pdf, told) == table[left, phone, right, state]


def answer(node: EventMap | None, told: dict[int, int]) -> int:
    """The pdf of a phone between its neighbours, as Kaldi finds it."""
    while not isinstance(node, Answer):
        if isinstance(node, TableMap):
            node = node.entries[told[node.key]]
        else:
            assert isinstance(node, Question)
            node = node.yes if told[node.key] in node.values else node.no
    return node.pdf


def test_global_statistics_have_mean_and_variance_of_the_average_speaker() -> None:
    text = global_statistics([2.0, -1.0], [3.0, 0.5])
    rows = np.array([line.split() for line in text.strip().strip("[]").strip().split("\n")], float)
    assert rows.shape == (2, 3)
    mean = rows[0, :2] / rows[0, 2]
    np.testing.assert_allclose(mean, [2.0, -1.0])
    np.testing.assert_allclose(rows[1, :2] / rows[0, 2] - mean**2, [9.0, 0.25])
