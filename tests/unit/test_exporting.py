"""Exported models agree with the networks they come from, for utterances of any length."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

from roundelay.core.errors import UserError
from roundelay_speech.decode.graphs.ctc import build_ctc_graph
from roundelay_speech.decode.graphs.graph import Graph
from roundelay_speech.decode.search import decode
from roundelay_speech.exporting.sherpa import SherpaChunks, search_graph, sherpa_ctc
from roundelay_speech.exporting.utterance import CombinedScores, UtteranceScores, combined_scores, utterance_scores
from roundelay_speech.exporting.writing import (
    DESCRIPTION,
    TOLERANCE,
    ScannedLstm,
    describe,
    describe_all,
    difference_of,
    program_of,
    quiet,
    write,
)
from roundelay_speech.features.fbank import FbankConfig
from roundelay_speech.features.parts import FeatureConfig, only_fbank
from roundelay_speech.features.store import StoredPart
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.model_input import ModelInput
from roundelay_speech.models.conformer import ConformerConfig
from roundelay_speech.models.frames import log_likelihoods
from roundelay_speech.models.network import AcousticNetwork
from roundelay_speech.ngrams.estimate import estimate
from roundelay_speech.packed.folder import PackedModel, PackedNetwork, PackedSearch
from roundelay_speech.search.fst import from_arrays
from roundelay_speech.trained import AcousticModel
from roundelay_speech.units.base import UnitSet
from support.toy_models import tiny, toy
from support.toy_units import UNALIGNED, examples_of

UNITS = "units in "
WHOLE = ("dnn", "cldnn", "blstm", "conformer", "tdnnf", *(UNITS + name for name in UNALIGNED))
EXPORTED = [name for name in WHOLE if name not in ("conformer", "tdnnf", UNITS + "blstm")]
"""Every kind of network, with tied states or with units; their scores differ in the prior alone."""


def model(name: str) -> AcousticModel:
    """With parameters that are not small, so that rounding shows."""
    if name.startswith(UNITS):
        network: AcousticNetwork = copy.deepcopy(examples_of(name.removeprefix(UNITS))[0]).eval()
    else:
        network = tiny(name).eval()
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(0, 0.3, parameter.shape)))
    columns = len(network.get_submodule(network.output_layer).bias)  # type: ignore[arg-type]
    units = UnitSet(tuple(f"U{i}" for i in range(1, columns))) if name.startswith(UNITS) else None
    return AcousticModel(network, rng.normal(-3, 1, columns).astype(np.float32), None, units)


def scores_of(name: str) -> UtteranceScores:
    return utterance_scores(model(name), name)


def in_chunks(normalise: Literal["speaker", "none"]) -> SherpaChunks:
    """Rows of 3 frames, chunks of two rows, two of them seen before."""
    config = ConformerConfig(
        layers=2, width=16, heads=2, kernel=7, deltas=1, subsampling=3, attention_chunk=6, left_chunks=2
    )
    torch.manual_seed(1)
    network = config.network([StoredPart("fbank", 4, 1, normalise)], 5).eval()
    return SherpaChunks(network, (torch.zeros(4), torch.ones(4)))


def run_in_chunks(chunks: SherpaChunks, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of all rows, and the second of the arrays that are kept at last."""
    found, kept = [], chunks.given(0)[3:5]
    for number, first in enumerate(range(0, len(features) - chunks.reach - chunks.frames + 1, chunks.frames)):
        _, offset, required, _, _, seen = chunks.given(number)
        scores, *kept = chunks(
            features[None, first : first + chunks.frames + chunks.reach], offset, required, *kept, seen
        )
        found.append(scores[0])
    return torch.cat(found), kept[1]


def test_for_sherpa_chunks_have_the_scores_of_a_stream(one_thread: None) -> None:
    """Of features that are not normalised: the rows that `transcribe --stream` searches."""
    chunks = in_chunks("none")
    features = torch.randn(6 * 9 + 2, 4, generator=torch.Generator().manual_seed(2))
    streamed = chunks.network.streamed(torch.zeros(4), torch.ones(4))
    assert streamed is not None
    with torch.inference_mode():
        found, _ = run_in_chunks(chunks, features)
    expected = streamed.push(features).log_softmax(-1)
    assert len(found) == 18
    torch.testing.assert_close(found, expected[:18], rtol=1e-4, atol=1e-4)


def test_for_sherpa_a_chunk_is_normalised_by_all_that_came(one_thread: None) -> None:
    """By no more than the average speaker has to lend; of five seconds by nothing else."""
    chunks = in_chunks("speaker")
    features = 3 + 2 * torch.randn(6 * 90 + 2, 4, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        _, kept = run_in_chunks(chunks, features)
        mean, variance, last = chunks._kept(kept)
        some, all_ = (chunks._statistics(mean, variance, torch.tensor([frames])) for frames in (250, 540))
    heard = features[: 6 * 90]
    torch.testing.assert_close(mean, heard.mean(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(variance, heard.var(0, correction=0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(last, heard[-2:])
    torch.testing.assert_close(all_, (heard.mean(0), heard.std(0, correction=0)), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(some[1].square(), 0.5 * heard.var(0, correction=0) + 0.5, rtol=1e-4, atol=1e-4)
    lent = 0.5 * 0.5**0.5 * heard.mean()  # loudness, by the root of the share of frames that have come
    torch.testing.assert_close(some[0], 0.5 * heard.mean(0) + lent, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", WHOLE)
def test_scores_of_an_utterance_are_those_that_decode_searches(name: str, one_thread: None) -> None:
    store, _, splits, _ = toy()
    made = model(name)
    for utterance in splits["dev"][:3]:
        first, frames = store.span(utterance)
        _, mean, std = tiny("dnn").whole(store, utterance)
        features = torch.from_numpy(np.array(store.array[first : first + frames], np.float32))
        with torch.inference_mode():
            found = utterance_scores(made, name)(features, mean[0], std[0]).numpy()
        expected = log_likelihoods(made.module, store, utterance, made.prior)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", EXPORTED)
def test_what_is_written_agrees_with_the_network_and_says_what_it_takes(name: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="ONNX is an extra: pip install 'roundelay[export]'")
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    scores, about = scores_of(name), describe(model(name), name)
    with quiet():
        program = program_of(scores)
        for kind, file in (("onnx", tmp_path / "model.onnx"), ("torch", tmp_path / "model.pt2")):
            write(program, file, kind, about)  # type: ignore[arg-type]
            assert difference_of(file, kind, scores) <= TOLERANCE  # type: ignore[arg-type]
        kept: dict[str, str] = {DESCRIPTION: ""}
        torch.export.load(tmp_path / "model.pt2", extra_files=kept)
    assert json.loads(kept[DESCRIPTION]) == about
    metadata = {one.key: one.value for one in onnx.load(str(tmp_path / "model.onnx")).metadata_props}
    assert (metadata["source"], int(metadata["states"])) == (name, len(scores.prior))
    assert int(metadata["subsampling"]) == scores.network.subsampling
    with torch.no_grad():  # another model is not taken for this one
        scores.prior.add_(torch.arange(len(scores.prior)))
    assert difference_of(tmp_path / "model.onnx", "onnx", scores) > TOLERANCE


def combination(kinds: int) -> tuple[CombinedScores, dict[str, Any]]:
    """Two networks, a quarter and three, that hear the same features or each its own; and what is said of them."""
    usual, other = FeatureConfig(), only_fbank(FbankConfig(num_bins=23))
    heard, still = (usual, usual if kinds == 1 else other), (0.0,) * 4
    names = ("dnn", "tdnnf")
    members = [
        PackedNetwork(f"acoustic-{i}", weight, of, still, still)
        for i, (weight, of) in enumerate(zip((0.25, 0.75), heard, strict=True), 1)
    ]
    packed = PackedModel(8000, tuple(members), PackedSearch(1.0, 0.0, 8.0, 200, 6.0, 0.5), "")
    models = [model(name) for name in names]
    whole = combined_scores(models, packed, Path("MODEL"))
    return whole, describe_all(models, whole, packed, "MODEL")


@pytest.mark.parametrize("kinds", [1, 2])
def test_a_combination_is_one_model_of_the_weighted_mean(kinds: int, tmp_path: Path, one_thread: None) -> None:
    """As the packed model has it: each network with its own normalisation, its weight, and features of its kind."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    whole, about = combination(kinds)
    first, second = scores_of("dnn"), scores_of("tdnnf")
    rng, width = np.random.default_rng(1), whole.kinds[0].network.frontend.scale.shape[1]
    given = [
        torch.from_numpy(one.astype(np.float32))
        for _ in range(kinds)
        for one in (rng.standard_normal((31, width)), rng.standard_normal(width), rng.uniform(0.5, 2.0, width))
    ]
    with torch.inference_mode():
        expected = (0.25 * first(*given[:3]) + 0.75 * second(*given[-3:])).numpy()
        np.testing.assert_allclose(whole(*given).numpy(), expected, rtol=1e-5, atol=1e-5)
    kind, file = ("onnx", tmp_path / "model.onnx") if kinds == 2 else ("torch", tmp_path / "model.pt2")
    with quiet():
        write(program_of(whole), file, kind, about)  # type: ignore[arg-type]
        assert difference_of(file, kind, whole) <= TOLERANCE  # type: ignore[arg-type]
    names = list(whole.inputs)
    if kind == "onnx":
        session = onnxruntime.InferenceSession(str(file))
        assert [one.name for one in session.get_inputs()] == names
        (found,) = session.run(None, {name: one.numpy() for name, one in zip(names, given, strict=True)})
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())
    usual = ["features", "mean", "std"]
    assert names == [*about["inputs"]] == (usual if kinds == 1 else [f"{n}_{k}" for k in (1, 2) for n in usual])
    assert [one["inputs"] for one in about["networks"]] == [names[:3], names[-3:]]
    assert [one["weight"] for one in about["networks"]] == [0.25, 0.75]


@pytest.mark.parametrize("projection", [0, 3])
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_scanned_lstm_is_the_lstm(projection: int, batch_first: bool, one_thread: None) -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(4, 5, batch_first=batch_first, proj_size=projection)
    x, scanned = torch.randn(2, 2, 4), ScannedLstm(lstm)
    with torch.no_grad():
        state = lstm(x)[1]
        for given in (None, state):
            expected, (hidden, cells) = lstm(x, given)
            found, (its_hidden, its_cells) = scanned(x, given)
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(its_hidden, hidden)
            torch.testing.assert_close(its_cells, cells)


def test_a_model_of_overlapping_windows_is_refused() -> None:
    with pytest.raises(UserError, match=r"exp/chunks: .* overlapping windows.* model.chunk=null"):
        utterance_scores(model("blstm-chunks"), "exp/chunks")


def heard(**changes: object) -> ModelInput:
    """One usual filterbank, or another."""
    bank = {"num_bins": 40, "low_freq": 20.0, "high_freq": 0.0, "preemphasis": 0.97}
    usual = ModelInput(16000, 0.01, 0.025, "fbank40", [bank], 4, "", "")
    return dataclasses.replace(usual, **changes)  # type: ignore[arg-type]


def test_for_sherpa_an_utterance_is_normalised_by_itself(one_thread: None) -> None:
    made = dataclasses.replace(model(UNITS + "tdnnf"), input=heard())
    scores = utterance_scores(made, "exp")
    features = 3 + 2 * torch.randn(50, scores.network.frontend.scale.shape[1])
    with torch.inference_mode():
        found, rows = sherpa_ctc(made, scores, "exp")(features[None], torch.tensor([50]))
        expected = scores(features, features.mean(0), features.std(0, correction=0))
    assert rows.tolist() == [len(expected)] == [17]
    torch.testing.assert_close(found[0], expected)


@pytest.mark.parametrize(("scale", "word_cost", "blank_cost"), [(1.0, 0.0, 0.0), (2.0, 0.5, 0.0), (0.7, 0.3, 1.5)])
def test_for_sherpa_the_graph_has_all_costs(scale: float, word_cost: float, blank_cost: float) -> None:
    """Log-probabilities as they are find in it what scaled and charged ones find in ours, at a cost `scale` less."""
    columns = ("<blk>", "A", "B", "C")
    lexicon = Lexicon({"AB": (("A", "B"),), "BA": (("B", "A"),), "C": (("C",), ("C", "A"))})
    model = estimate([["AB", "C"], ["BA", "BA", "C"], ["C"]], lexicon.words)
    graph = build_ctc_graph(lexicon, model, columns, "<blk>")
    search = PackedSearch(scale, word_cost, 50.0, 7000, 6.0, 0.5, blank_cost)
    whole = Graph(from_arrays(search_graph(graph, search)), graph.words, graph.num_pdfs, graph.info)
    charged = np.array([blank_cost, 0, 0, 0], np.float32)
    for seed in range(20):
        scores = np.log(np.random.default_rng(seed).dirichlet(np.ones(4) * 0.5, 9)).clip(-20).astype(np.float32)
        expected = decode(graph.with_word_cost(word_cost), np.float32(scale) * (scores - charged), 100.0)
        found = decode(whole, scores, 100.0)
        assert found.words == expected.words
        assert found.cost == pytest.approx(expected.cost / scale, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("blstm", {}, "tied states.*export onnx"),
        (UNITS + "blstm", {"frame_length": 0.02}, "20 ms every 10 ms; sherpa-onnx computes frames of 25 ms"),
        (UNITS + "blstm", {"filterbanks": []}, "computes one filterbank"),
    ],
)
def test_sherpa_refuses_what_it_cannot_hear(name: str, changes: dict[str, object], problem: str) -> None:
    made = dataclasses.replace(model(name), input=heard(**changes))
    with pytest.raises(UserError, match=rf"exp/run: .*{problem}"):
        sherpa_ctc(made, utterance_scores(made, "exp/run"), "exp/run")
