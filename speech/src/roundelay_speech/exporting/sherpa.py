"""A model trained by CTC as sherpa-onnx loads it: its features of a recording in, log-probabilities of units out.

sherpa-onnx knows no speakers, so the utterance's own mean and standard deviation take the place of its speaker's.
Deltas and normalisation are in the model. Of the kinds of CTC models that sherpa-onnx knows, `wenet_ctc` scales samples
to 16-bit integers as Kaldi does, does not normalise features, and takes any subsampling.

Legend: T frames, F features, S units and a blank.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from roundelay.core.errors import UserError
from roundelay_speech.decode.graphs.graph import Graph
from roundelay_speech.exporting.utterance import UtteranceScores
from roundelay_speech.features.store import SpeakerStats
from roundelay_speech.packed.folder import PackedSearch
from roundelay_speech.search.fst import Arcs, to_arrays
from roundelay_speech.trained import AcousticModel

FRAMES_IN_SECONDS = (0.025, 0.01)
"""Length and shift of frames, which sherpa-onnx has no option for."""
PREEMPHASIS = 0.97


class SherpaCtc(nn.Module):
    """Features (1, T, F) and their number (1,) to log p(unit | frame), (1, T / subsampling rounded up, S), and the
    number of rows (1,)."""

    def __init__(self, scores: UtteranceScores) -> None:
        super().__init__()
        self.scores = scores
        self.normalised = scores.network.frontend.parts[0].normalise == "speaker"

    def forward(self, features: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        utterance, subsampling = features[0], self.scores.network.subsampling
        mean = utterance.mean(0)
        std = (utterance - mean).square().mean(0).sqrt().clamp_min(SpeakerStats.STD_FLOOR)
        if not self.normalised:
            mean, std = torch.zeros_like(mean), torch.ones_like(std)
        found = self.scores(utterance, mean, std)[None]
        return found, torch.div(length + subsampling - 1, subsampling, rounding_mode="floor")


def sherpa_ctc(model: AcousticModel, scores: UtteranceScores, name: str) -> SherpaCtc:
    """Return the model of the run or folder `name` as sherpa-onnx calls it.

    Raises:
        UserError: it has no units, or hears features that sherpa-onnx cannot compute.
    """
    if model.units is None or model.units.hmm is not None:
        has = "tied states" if model.units is None else "states of phones"
        raise UserError(
            f"{name}: export sherpa takes models trained by CTC (training.objective=ctc); this one has {has}. Use "
            "`roundelay export onnx`."
        )
    heard, parts = model.input, model.module.frontend.parts
    alone = len(parts) == 1 and parts[0].filterbank and heard is not None and len(heard.filterbanks) == 1
    if not alone or heard is None:
        raise UserError(f"{name}: sherpa-onnx computes one filterbank, and this model hears something else, or more.")
    if (heard.frame_length, heard.frame_shift) != FRAMES_IN_SECONDS or _bank(model)["preemphasis"] != PREEMPHASIS:
        raise UserError(
            f"{name}: it hears frames of {1000 * heard.frame_length:g} ms every {1000 * heard.frame_shift:g} ms; "
            f"sherpa-onnx computes frames of 25 ms every 10, with a preemphasis of {PREEMPHASIS}."
        )
    return SherpaCtc(scores).eval()


def metadata(model: AcousticModel) -> Mapping[str, Any]:
    """Return facts that sherpa-onnx reads from the file."""
    return {
        "model_type": "wenet_ctc",
        "vocab_size": len(model.prior),
        "subsampling_factor": model.module.subsampling,
    }


def feature_options(model: AcousticModel) -> Mapping[str, Any]:
    """Return arguments of sherpa-onnx's FeatureExtractorConfig with which its features are those of `roundelay
    prepare`."""
    assert model.input is not None
    bank = _bank(model)
    return {
        "sampling_rate": model.input.sampling_rate,
        "feature_dim": bank["num_bins"],
        "low_freq": bank["low_freq"],
        "high_freq": bank["high_freq"],
        "snip_edges": True,
        "dither": 0.0,
    }


def tokens(model: AcousticModel) -> str:
    """Return contents of tokens.txt: a unit and its column a line."""
    assert model.units is not None
    return "".join(f"{name} {column}\n" for column, name in enumerate(model.units.columns))


def search_graph(graph: Graph, search: PackedSearch) -> Arcs:
    """Return the graph of a packed model as sherpa-onnx searches it: with log-probabilities as they are, and settings
    of its own. So all costs are divided by the acoustic scale, and words and blanks have theirs in it; the same paths
    are the best.

    Args:
        graph: its input labels are columns + 1, as sherpa-onnx has them; the blank's column is the first.
    """
    arcs = to_arrays(graph.with_word_cost(search.word_cost).fst)
    costs = arcs.arcs.copy()
    costs["weight"] /= np.float32(search.scale)
    costs["weight"] += np.float32(search.blank_cost) * (costs["ilabel"] == 1)
    return replace(arcs, final=arcs.final / np.float32(search.scale), arcs=costs)


def _bank(model: AcousticModel) -> Mapping[str, Any]:
    assert model.input is not None
    bank: Mapping[str, Any] = model.input.filterbanks[0]
    return bank
