"""Our networks as networks of nnet3, node by node.

Normalisation, deltas, splicing and their scales are one linear map of the frames around a frame, so they become one
with the first layer: a network of nnet3 takes a frame of features and looks at its neighbours. Kaldi thinks an
utterance to go on with its first and its last frame, as we do.

What lies beyond an utterance is nothing for LSTMs and for factored convolutions: IfDefined(...), which is zero where
nnet3 cannot compute a node. So these read whole utterances (--frames-per-chunk no less than the longest), and look at
as many frames to each side as the network beside them that looks furthest, if with no weight: Kaldi adds so many frames
to an utterance, and with fewer needed it would compute nodes beyond it.

    layer norm of D values x       FixedAffine   (x - mean(x), sqrt(D e))          D + 1 values
                                   Normalize     root mean square sqrt(D / (D + 1))
                                   FixedAffine   gamma, beta on the first D of them

since the mean of D + 1 squares is (D var(x) + D e) / (D + 1).

Legend: W frames of a window, F features, H outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from roundelay.core.errors import UserError
from roundelay_speech.exporting.kaldi.nnet3 import (
    Float64,
    Network,
    affine,
    appended,
    fixed,
    log_softmax,
    lstm,
    normalised,
    offset,
    relu,
    same,
)
from roundelay_speech.models.blstm import Blstm
from roundelay_speech.models.dnn import Dnn
from roundelay_speech.models.frontend import Frontend
from roundelay_speech.models.network import AcousticNetwork, FrameNetwork, SequenceNetwork
from roundelay_speech.models.tdnnf import BYPASS, Tdnnf, semi_orthogonal

INPUT = "input"


@dataclass(frozen=True, eq=False)
class Seen:
    """Features that Kaldi gives networks."""

    scale: Float64  # (F,) by which they are multiplied to be those that networks were trained on
    reach: int  # frames that the first layers look at on each side


def takes_chunks(module: AcousticNetwork) -> bool:
    """Return True if a network sees no more than a window around a frame, and so may be fed an utterance piece by
    piece."""
    return isinstance(module, FrameNetwork)


def reach_of(module: AcousticNetwork) -> int:
    """Return frames that a network looks at on each side of a frame, LSTMs and convolutions apart."""
    return module.reach if isinstance(module, SequenceNetwork) else module.frontend.config.reach


def add_scores(network: Network, module: AcousticNetwork, seen: Seen, prefix: str, name: str) -> str:
    """Add the nodes of a network, whose names begin with `prefix`; returns that of log p(state | frame).

    Args:
        seen: features that Kaldi gives it.

    Raises:
        UserError: nnet3 cannot say it (names the network, `name`, and what).
    """
    if module.subsampling > 1:
        raise UserError(
            f"{name}: it gives a row for {module.subsampling} frames (model.subsampling); only networks with a row for "
            "every frame are written for Kaldi."
        )
    if isinstance(module, Dnn):
        scores = _dnn(network, module, seen, prefix)
    elif isinstance(module, Blstm):
        scores = _blstm(network, module, seen, prefix)
    elif isinstance(module, Tdnnf):
        scores = _tdnnf(network, module, seen, prefix)
    else:
        kind = type(module).__name__.lower()
        raise UserError(
            f"{name}: a {kind} has layers that are not written in Kaldi's terms; dnn, blstm and tdnnf are. Use "
            "`roundelay export onnx`."
        )
    return network.add(f"{prefix}log-softmax", log_softmax(module.columns), scores)


def _dnn(network: Network, module: Dnn, seen: Seen, prefix: str) -> str:
    layers = [layer for layer in module.net if isinstance(layer, nn.Linear)]
    source = INPUT
    for number, layer in enumerate(layers, 1):
        weight, bias = _values(layer.weight), _values(layer.bias)
        if number == 1:
            weight = _on_windows(weight, module.frontend, seen)
            source = appended(*_windows(seen.reach))
        if number == len(layers):
            return network.add(f"{prefix}output-affine", affine(weight, bias), source)
        source = network.add(f"{prefix}affine{number}", affine(weight, bias), source)
        source = network.add(f"{prefix}relu{number}", relu(layer.out_features), source)
    raise AssertionError("a network has layers")


def _blstm(network: Network, module: Blstm, seen: Seen, prefix: str) -> str:
    sources = _windows(seen.reach)
    for number, layer in enumerate(module.layers, 1):
        both = []
        for way, step in (("ahead", -1), ("back", 1)):
            one = getattr(layer, way)
            assert isinstance(one, nn.LSTM)
            weights = {part: _values(tensor) for part, tensor in one.named_parameters()}
            into, bias = weights["weight_ih_l0"], weights["bias_ih_l0"] + weights["bias_hh_l0"]
            if number == 1:
                into = _on_windows(into, module.frontend, seen)
            weight = np.concatenate([into, weights["weight_hh_l0"]], 1)
            both.append(_lstm(network, f"{prefix}{way}{number}", sources, (weight, bias), step))
        sources = both
    if module.bottleneck is not None:
        sources = [network.add(f"{prefix}bottleneck", _linear(module.bottleneck), appended(*sources))]
    return network.add(f"{prefix}output-affine", _linear(module.output), appended(*sources))


def _lstm(network: Network, name: str, sources: Sequence[str], layer: tuple[Float64, Float64], step: int) -> str:
    """Return one direction: `step` frames away lies what it remembers."""
    weight, bias = layer
    cells = len(bias) // 4
    gates, nonlinearity, cell, hidden = f"{name}-gates", f"{name}-lstm", f"{name}-cells", f"{name}-hidden"
    network.add(gates, affine(weight, bias), appended(*sources, _remembered(hidden, step)))
    network.add(nonlinearity, lstm(cells), appended(gates, _remembered(cell, step)))
    network.part(cell, nonlinearity, 0, cells)
    return network.part(hidden, nonlinearity, cells, cells)


def _tdnnf(network: Network, module: Tdnnf, seen: Seen, prefix: str) -> str:
    weight, bias = _on_windows(_values(module.input.weight), module.frontend, seen), _values(module.input.bias)
    x = network.add(f"{prefix}affine0", affine(weight, bias), appended(*_windows(seen.reach)))
    x = _layer_norm(network, f"{prefix}norm0", network.add(f"{prefix}relu0", relu(len(bias)), x), module.norm)
    for number, layer in enumerate(module.layers, 1):
        first, second, stride, norm = (getattr(layer, part) for part in ("first", "second", "stride", "norm"))
        thin, wide = f"{prefix}factor{number}", f"{prefix}affine{number}"
        factor = _values(semi_orthogonal(first.weight))
        network.add(thin, affine(factor, np.zeros(len(factor))), appended(_remembered(x, -stride), x))
        network.add(wide, _linear(second), appended(thin, _remembered(thin, stride)))
        wide = network.add(f"{prefix}relu{number}", relu(second.out_features), wide)
        wide = _layer_norm(network, f"{prefix}norm{number}", wide, norm)
        x = network.add(f"{prefix}layer{number}", same(second.out_features), f"Sum(Scale({BYPASS}, {x}), {wide})")
    return network.add(f"{prefix}output-affine", _linear(module.output), x)


def _layer_norm(network: Network, name: str, source: str, norm: nn.LayerNorm) -> str:
    (width,) = norm.normalized_shape
    centred = np.zeros((width + 1, width))
    centred[:width] = np.eye(width) - 1 / width
    constant = np.zeros(width + 1)
    constant[width] = np.sqrt(width * norm.eps)
    scaled = np.zeros((width, width + 1))
    scaled[:, :width] = np.diag(_values(norm.weight))
    source = network.add(f"{name}-centred", fixed(centred, constant), source)
    source = network.add(f"{name}-rms", normalised(width + 1, float(np.sqrt(width / (width + 1)))), source)
    return network.add(name, fixed(scaled, _values(norm.bias)), source)


def _on_windows(weight: Float64, frontend: Frontend, seen: Seen) -> Float64:
    """Return a first layer (H, what the front end gives) as one of windows of the features that are seen, (H, W F)."""
    matrix, spread = _values(frontend.matrix), _values(frontend.scale)
    orders, features = spread.shape
    every = np.zeros((len(weight), len(matrix) * features))
    every[:, slice(None) if frontend.kept is None else frontend.kept.numpy()] = weight
    spliced = every.reshape(len(weight), orders, -1, features) * spread[:, None]
    of_frames = np.einsum("hkf,kw->hwf", spliced.reshape(len(weight), -1, features), matrix)
    more = seen.reach - frontend.config.reach
    return np.pad(of_frames * seen.scale, ((0, 0), (more, more), (0, 0))).reshape(len(weight), -1)


def _windows(reach: int) -> list[str]:
    """Return descriptors of the frames around a frame."""
    return [offset(INPUT, frame) for frame in range(-reach, reach + 1)]


def _remembered(node: str, frames: int) -> str:
    """Return a node so many frames away; zero where it lies beyond the utterance."""
    return f"IfDefined({offset(node, frames)})"


def _linear(layer: nn.Linear) -> bytes:
    return affine(_values(layer.weight), _values(layer.bias))


def _values(tensor: Tensor) -> Float64:
    found: Float64 = tensor.detach().double().numpy()
    return found
