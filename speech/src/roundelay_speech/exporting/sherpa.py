"""Models trained by CTC as sherpa-onnx loads them: of whole recordings, or chunk by chunk while somebody speaks.

sherpa-onnx knows no speakers, so the utterance's own mean and standard deviation take the place of its speaker's.
Deltas and normalisation are in the model. Of the kinds of CTC models that sherpa-onnx knows, `wenet_ctc` scales samples
to 16-bit integers as Kaldi does, does not normalise features, and takes any subsampling.

sherpa-onnx knows models in chunks from WeNet (its kind `wenet_ctc` of online models). It keeps two arrays between the
chunks, of shapes that follow from numbers in the file, and does not look into them: of every block keys and values, and
inputs of its convolution. Two things more are kept here in the second array, behind those inputs: the last frames,
which deltas of the next chunk look at, and mean and variance of all frames so far. The speaker is not known, so a chunk
is normalised by these; while less than five seconds have come, the rest is made up by the average speaker of the
training data. How loud it is here is believed by the root of the share of five seconds that has come: the first frames
are silence, and who takes their loudness for that of speech misunderstands the first words.

Legend: T frames, L rows of a chunk, P frames of a row, R frames behind a chunk that deltas look at, F features, S units
and a blank, W rows before a chunk that attention sees, B blocks, H heads, D width, K columns kept of every block.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.decode.graphs.graph import Graph
from roundelay_speech.exporting.utterance import UtteranceScores
from roundelay_speech.features.store import SpeakerStats
from roundelay_speech.kaldi_io.tables import symbol_table
from roundelay_speech.models.conformer import Conformer, Past
from roundelay_speech.models.network import stacked
from roundelay_speech.packed.folder import PackedNetwork, PackedSearch
from roundelay_speech.packed.hearing import ENOUGH_FRAMES
from roundelay_speech.search.fst import Arcs, to_arrays
from roundelay_speech.trained import AcousticModel

FRAMES_IN_SECONDS = (0.025, 0.01)
"""Length and shift of frames in seconds, for which sherpa-onnx has no option."""
PREEMPHASIS = 0.97


class SherpaCtc(nn.Module):
    """A module as sherpa-onnx calls one on whole recordings: from features (1, T, F) and their number (1,) to log
    p(unit | frame), (1, T / subsampling rounded up, S), and the number of rows (1,)."""

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
    """Return the model of the run or folder `name` in the form that sherpa-onnx calls.

    Raises:
        UserError: the model has no units, or needs features that sherpa-onnx cannot compute.
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
    """Return the facts that sherpa-onnx reads from the model's file."""
    return {
        "model_type": "wenet_ctc",
        "vocab_size": len(model.prior),
        "subsampling_factor": model.module.subsampling,
    }


def feature_options(model: AcousticModel) -> Mapping[str, Any]:
    """Return the arguments of sherpa-onnx's FeatureExtractorConfig for the features of `roundelay prepare`."""
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
    """Return the content of tokens.txt: a unit and its column a line."""
    assert model.units is not None
    return symbol_table(model.units.columns)


def search_graph(graph: Graph, search: PackedSearch) -> Arcs:
    """Convert the graph of a packed model for sherpa-onnx, which searches with unscaled log-probabilities and settings
    of its own: all costs are divided by the acoustic scale, and those of words and blanks are included, so that the
    same paths are best.

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


class SherpaChunks(nn.Module):
    """A module as sherpa-onnx calls one on live speech: from a chunk (1, L P + R, F), whose last R frames begin the
    next, the rows that came before it plus W (1,), W (1,), the arrays that are kept, (B, H, W, 2 D / H) and (B, 1, D,
    K), and which of W + L rows there are (1, 1, W + L), to log p(unit | frame) (1, L, S), and the arrays for the next.

    Args:
        network: a network evaluated in chunks, each with some before it.
        usual: mean and standard deviation (F,) of the average training speaker.
    """

    usual_mean: Tensor
    usual_std: Tensor

    def __init__(self, network: Conformer, usual: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        config = network.config
        assert config.rows is not None
        self.network, self.rows, self.before = network, config.rows, config.rows_before
        self.frames, self.reach = self.rows * network.subsampling, network.reach
        self.features, self.side = len(usual[0]), config.kernel // 2
        self.normalised = network.frontend.parts[0].normalise == "speaker"
        # The first block has two rows of statistics and R frames behind its columns.
        self.columns = self.side - (-(2 + self.reach) * self.features // config.width)
        self.register_buffer("usual_mean", usual[0])
        self.register_buffer("usual_std", usual[1])

    def given(self, chunk: int) -> tuple[Tensor, ...]:
        """Return example arguments of a first chunk: random features, and nothing kept."""
        config = self.network.config
        shape = (1, self.frames + self.reach, self.features)
        some = stream(0, "export", chunk).standard_normal(shape).astype(np.float32)
        seen = torch.arange(self.before + self.rows) >= self.before - chunk * self.rows
        return (
            torch.from_numpy(some),
            torch.tensor([self.before + chunk * self.rows]),
            torch.tensor([self.before]),
            torch.zeros(config.layers, config.heads, self.before, 2 * config.width // config.heads),
            torch.zeros(config.layers, 1, config.width, self.columns),
            seen[None, None],
        )

    def several(self, chunks: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield example arguments of so many successive chunks."""
        kept: tuple[Tensor, ...] = ()
        for chunk in range(chunks):
            features, offset, required, attention, convolution, seen = self.given(chunk)
            given = features, offset, required, *(kept or (attention, convolution)), seen
            yield given
            kept = self(*given)[1:]

    def forward(
        self, x: Tensor, offset: Tensor, required: Tensor, attention: Tensor, convolution: Tensor, seen: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        number = offset - required  # of the chunk's first row
        mean, variance, last = self._kept(convolution)
        fresh, first = x[0, : self.frames], x[0, :1]
        last = torch.where(number > 0, last, first.expand(self.reach, -1))
        mean, variance = self._so_far(mean, variance, fresh, number * self.network.subsampling)
        known = self._statistics(mean, variance, (number + self.rows) * self.network.subsampling)
        frames = torch.cat([last, x[0]])[None]
        flat = self.network.frontend.flat_over_time(frames, *(one[None] for one in known))
        rows, _ = stacked(flat, torch.tensor([self.frames]), self.network.subsampling)
        pasts = []
        for block in range(self.network.config.layers):
            keys, values = attention[block][None].chunk(2, -1)
            pasts.append(Past(number, keys, values, convolution[block, :, :, : self.side].transpose(1, 2)))
        scores = self.network.going_on(rows, pasts, seen[None]).log_softmax(-1)[None]
        next_attention = torch.cat([torch.cat([past.keys, past.values], -1) for past in pasts])
        near = torch.stack([past.near for past in pasts]).transpose(2, 3)
        state = torch.cat([mean[None], variance[None], frames[0, self.frames : self.frames + self.reach]])
        return scores, next_attention, torch.cat([near, self._laid_in(state)], 3)

    def _kept(self, convolution: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean and variance (F,) so far, and the last frames (R, F), as kept in `convolution`."""
        held = convolution[0, 0, :, self.side :].flatten()[: (2 + self.reach) * self.features]
        rows = held.reshape(2 + self.reach, self.features)
        return rows[0], rows[1], rows[2:]

    def _laid_in(self, state: Tensor) -> Tensor:
        """Return a state as columns behind the convolution's, (B, 1, D, columns): in the first block, zeros
        elsewhere."""
        config = self.network.config
        size = config.width * (self.columns - self.side)
        flat = nn.functional.pad(state.flatten(), (0, config.layers * size - state.numel()))
        return flat.reshape(config.layers, 1, config.width, self.columns - self.side)

    def _so_far(self, mean: Tensor, variance: Tensor, fresh: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and variance of `before` earlier frames and `fresh` ones together."""
        share = self.frames / (before + self.frames).float()
        here = fresh.mean(0)
        spread = (fresh - here).square().mean(0)
        away = here - mean
        return mean + share * away, variance + share * (spread - variance) + share * (1 - share) * away.square()

    def _statistics(self, mean: Tensor, variance: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and standard deviation (F,) by which features are normalised, after so many frames."""
        if not self.normalised:
            return torch.zeros_like(mean), torch.ones_like(mean)
        floored = variance.clamp_min(SpeakerStats.STD_FLOOR**2)
        share = (frames.float() / ENOUGH_FRAMES).clamp_max(1.0)
        likely = self.usual_mean + share.sqrt() * (mean - self.usual_mean).mean()
        made_up = share * floored + (1 - share) * self.usual_std.square()
        return share * mean + (1 - share) * likely, made_up.sqrt()


def streams(model: AcousticModel) -> bool:
    """Return True if a model's network is evaluated in chunks."""
    return isinstance(model.module, Conformer) and model.module.config.attention_chunk is not None


def sherpa_chunks(model: AcousticModel, packed: PackedNetwork | None, name: str) -> SherpaChunks:
    """Return the model of the folder `name` in the form that sherpa-onnx calls on live speech.

    Raises:
        UserError: the model was not packed; or its attention sees no chunk before its own.
    """
    network = model.module
    assert isinstance(network, Conformer)
    if packed is None:
        raise UserError(
            f"{name}: a conformer in chunks is exported for recognition while somebody speaks, which is normalised by "
            "the average speaker at first; that is in a packed model. Call `roundelay pack` before."
        )
    if network.config.left_chunks == 0:
        raise UserError(f"{name}: sherpa-onnx takes chunks that see one before them at least; model.left_chunks is 0.")
    mean, std = (torch.tensor(one, dtype=torch.float32) for one in (packed.usual_mean, packed.usual_std))
    return SherpaChunks(network, (mean, std)).eval()


CALLS = {
    "inputs": {
        "features": "(1, chunk and right context, features) float32, as sherpa-onnx computes them",
        "offset": "(1) int64, rows that came before, plus those that attention sees",
        "required_cache_size": "(1) int64, rows before a chunk that attention sees",
        "attention_cache": "(blocks, heads, rows, 2 width / heads) float32; zeros at first",
        "convolution_cache": "(blocks, 1, width, columns) float32; zeros at first",
        "attention_mask": "(1, 1, rows and those of the chunk) bool, which of them there are",
    },
    "output": "(1, rows of a chunk, units) float32, log p(unit | frame); and both caches for the next chunk",
}
OUTPUT_NAMES = ("log_probs", "next_attention_cache", "next_convolution_cache")
"""Names of the outputs in ONNX."""


def streaming_metadata(chunks: SherpaChunks) -> Mapping[str, Any]:
    """Return the facts that sherpa-onnx reads from the model's file, and those given beside the file."""
    config = chunks.network.config
    return {
        **CALLS,
        "streaming": True,
        "head": config.heads,
        "num_blocks": config.layers,
        "output_size": config.width,
        "cnn_module_kernel": chunks.columns + 1,
        "right_context": chunks.network.subsampling + chunks.reach - 1,
        "sherpa_onnx_chunks": {"chunk_size": chunks.rows, "num_left_chunks": config.left_chunks},
    }
