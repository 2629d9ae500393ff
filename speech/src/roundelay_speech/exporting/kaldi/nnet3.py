"""Networks of Kaldi's nnet3 in its binary form: lines that name nodes and join them, then the parameters.

    <Nnet3> lines, and an empty one  <NumComponents> n  (<ComponentName> name component) x n  </Nnet3>

A component begins and ends with its type (src/nnet3/nnet-simple-component.cc and nnet-combined-component.cc). Affine
layers are of the kind that Kaldi trains on, with the options that its tools give a new one.

Our networks in that form: normalisation, deltas, splicing and their scales are one linear map of the frames around a
frame, so they become one with the first layer: a network of nnet3 takes a frame of features and looks at its
neighbours. Kaldi thinks an utterance to go on with its first and its last frame, as we do.

LSTMs and factored convolutions take frames beyond an utterance as zero: IfDefined(...), which is zero where
nnet3 cannot compute a node. So these read whole utterances (--frames-per-chunk no less than the longest), and look at
as many frames to each side as the network beside them that looks furthest, if with no weight: Kaldi adds so many frames
to an utterance, and with fewer needed it would compute nodes beyond it.

    layer norm of D values x       FixedAffine   (x - mean(x), sqrt(D e))          D + 1 values
                                   Normalize     root mean square sqrt(D / (D + 1))
                                   FixedAffine   gamma, beta on the first D of them

since the mean of D + 1 squares is (D var(x) + D e) / (D + 1).

Legend: W frames of a window, F features, H and O outputs, I inputs, C cells.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from roundelay.core.errors import UserError
from roundelay_speech.data.arrays import Float64
from roundelay_speech.kaldi_io.tokens import BinaryOutput
from roundelay_speech.models.blstm import Blstm
from roundelay_speech.models.dnn import Dnn
from roundelay_speech.models.frontend import Frontend
from roundelay_speech.models.network import AcousticNetwork, FrameNetwork, SequenceNetwork
from roundelay_speech.models.tdnnf import BYPASS, Tdnnf, semi_orthogonal

Real = npt.NDArray[np.floating[Any]]

LEARNING_RATE = 0.001
RANKS, UPDATE_PERIOD, HISTORY, ALPHA = (20, 80), 4, 2000.0, 4.0
"""Settings of the natural gradient, Kaldi's own."""
SELF_REPAIR = (0.05, 0.05, 0.2, 0.05, 0.2, 1e-5, 1e-5, 1e-5, 1e-5, 1e-5)
"""Self-repair in training of an LSTM's five nonlinearities: thresholds and scales, Kaldi's own."""


@final
class Network:
    """A network under construction. Nodes are known by their names, and a node's input is a descriptor: a name, or
    Append(...), Sum(...), Offset(NAME, FRAMES), IfDefined(...), Scale(NUMBER, NAME) of such."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._components: list[tuple[str, bytes]] = []

    def takes(self, name: str, width: int) -> str:
        """Add an input of `width` features a frame; return its name."""
        self._lines.append(f"input-node name={name} dim={width}")
        return name

    def add(self, name: str, component: bytes, source: str) -> str:
        """Add a component with input `source`; return the node's name."""
        self._components.append((name, component))
        self._lines.append(f"component-node name={name} component={name} input={source}")
        return name

    def part(self, name: str, node: str, first: int, width: int) -> str:
        """Add a node of some columns of another, from `first` on; return its name."""
        self._lines.append(f"dim-range-node name={name} input-node={node} dim-offset={first} dim={width}")
        return name

    def gives(self, source: str) -> None:
        """Add the output node, with input `source`."""
        self._lines.append(f"output-node name=output input={source} objective=linear")

    def put(self, out: BinaryOutput) -> None:
        """Write the network in Kaldi's binary form."""
        out.token("<Nnet3>")
        out.data += b"\n" + "".join(f"{line}\n" for line in self._lines).encode() + b"\n"
        out.token("<NumComponents>")
        out.integer(len(self._components))
        for name, component in self._components:
            out.token("<ComponentName>")
            out.token(name)
            out.data += component
        out.token("</Nnet3>")


def appended(*sources: str) -> str:
    """Return the descriptor that appends several sources."""
    return f"Append({', '.join(sources)})" if len(sources) > 1 else sources[0]


def offset(source: str, frames: int) -> str:
    """Return the descriptor of a node `frames` frames later."""
    return f"Offset({source}, {frames})" if frames else source


def affine(weight: Real, bias: Real) -> bytes:
    """Return the component of a trainable layer W x + b, W (O, I) and b (O,)."""
    out = _opened("NaturalGradientAffineComponent")
    _rate(out)
    _matrix(out, "<LinearParams>", weight)
    out.token("<BiasParams>")
    out.reals(bias.tolist())
    for name, rank in zip(("<RankIn>", "<RankOut>"), RANKS, strict=True):
        out.token(name)
        out.integer(rank)
    out.token("<UpdatePeriod>")
    out.integer(UPDATE_PERIOD)
    out.token("<NumSamplesHistory>")
    out.real(HISTORY)
    out.token("<Alpha>")
    out.real(ALPHA)
    return _closed(out, "NaturalGradientAffineComponent")


def fixed(weight: Real, bias: Real) -> bytes:
    """Return the component of a fixed layer W x + b, which training does not change."""
    out = _opened("FixedAffineComponent")
    _matrix(out, "<LinearParams>", weight)
    out.token("<BiasParams>")
    out.reals(bias.tolist())
    return _closed(out, "FixedAffineComponent")


def relu(width: int) -> bytes:
    """Return the component max(x, 0)."""
    return _nonlinear("RectifiedLinearComponent", width)


def same(width: int) -> bytes:
    """Return the component x, which gives a sum of nodes a name."""
    return _nonlinear("NoOpComponent", width)


def log_softmax(width: int) -> bytes:
    """Return the component of a log softmax."""
    return _nonlinear("LogSoftmaxComponent", width)


def normalised(width: int, rms: float) -> bytes:
    """Return the component that scales x to a root mean square of `rms`."""
    out = _opened("NormalizeComponent")
    out.token("<InputDim>")
    out.integer(width)
    out.token("<TargetRms>")
    out.real(rms)
    out.token("<AddLogStddev>")
    out.data += b"F"
    return _closed(out, "NormalizeComponent")


def lstm(cells: int) -> bytes:
    """Return the component of an LSTM's nonlinearity without peepholes, (5 C) -> (2 C): from (input, forget, candidate,
    output gate, cells before) to cells and outputs."""
    out = _opened("LstmNonlinearityComponent")
    _rate(out)
    _matrix(out, "<Params>", np.zeros((3, cells)))
    _matrix(out, "<ValueAvg>", np.zeros((5, cells)))
    _matrix(out, "<DerivAvg>", np.zeros((5, cells)))
    out.token("<SelfRepairConfig>")
    out.reals(SELF_REPAIR)
    out.token("<SelfRepairProb>")
    out.reals([0.0] * 5)
    out.token("<Count>")
    out.real(0.0)
    return _closed(out, "LstmNonlinearityComponent")


def _nonlinear(kind: str, width: int) -> bytes:
    """Return the component of a nonlinearity, with empty statistics."""
    out = _opened(kind)
    out.token("<Dim>")
    out.integer(width)
    for name, count in (("<ValueAvg>", None), ("<DerivAvg>", "<Count>"), ("<OderivRms>", "<OderivCount>")):
        out.token(name)
        out.reals([])
        if count is not None:
            out.token(count)
            out.real(0.0)
    for name in ("<NumDimsSelfRepaired>", "<NumDimsProcessed>"):
        out.token(name)
        out.real(0.0)
    return _closed(out, kind)


def _opened(kind: str) -> BinaryOutput:
    out = BinaryOutput()
    out.data.clear()  # the text at the beginning of a file
    out.token(f"<{kind}>")
    return out


def _closed(out: BinaryOutput, kind: str) -> bytes:
    out.token(f"</{kind}>")
    return bytes(out.data)


def _rate(out: BinaryOutput) -> None:
    out.token("<LearningRate>")
    out.real(LEARNING_RATE)


def _matrix(out: BinaryOutput, name: str, values: Real) -> None:
    out.token(name)
    out.token("FM")
    for size in values.shape:
        out.integer(size)
    out.data += np.ascontiguousarray(values, "<f4").tobytes()


INPUT = "input"


@dataclass(frozen=True, eq=False)
class Seen:
    """The features that Kaldi gives a network."""

    scale: Float64  # (F,) by which they are multiplied to be those that networks were trained on
    reach: int  # frames that the first layers look at on each side


def takes_chunks(module: AcousticNetwork) -> bool:
    """Return True if a network sees only a window around each frame, so that it can take an utterance piece by
    piece."""
    return isinstance(module, FrameNetwork)


def reach_of(module: AcousticNetwork) -> int:
    """Return the number of frames that a network sees on each side of a frame, without LSTMs and convolutions."""
    return module.reach if isinstance(module, SequenceNetwork) else module.frontend.config.reach


def add_scores(network: Network, module: AcousticNetwork, seen: Seen, prefix: str, name: str) -> str:
    """Add the nodes of a network, whose names begin with `prefix`; return the name of the one for log p(state | frame).

    Args:
        seen: features that Kaldi gives the network.

    Raises:
        UserError: nnet3 cannot express the network (names it, `name`, and the part).
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
    """Add an LSTM of one direction, whose memory is `step` frames away; return its name."""
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
    """Convert a first layer on the front end's outputs, (H, outputs), to one on windows of seen features, (H, W F)."""
    matrix, spread = _values(frontend.matrix), _values(frontend.scale)
    orders, features = spread.shape
    every = np.zeros((len(weight), len(matrix) * features))
    every[:, slice(None) if frontend.kept is None else frontend.kept.numpy()] = weight
    spliced = every.reshape(len(weight), orders, -1, features) * spread[:, None]
    of_frames = np.einsum("hkf,kw->hwf", spliced.reshape(len(weight), -1, features), matrix)
    more = seen.reach - frontend.config.reach
    return np.pad(of_frames * seen.scale, ((0, 0), (more, more), (0, 0))).reshape(len(weight), -1)


def _windows(reach: int) -> list[str]:
    """Return the descriptors of the frames around a frame, `reach` on each side."""
    return [offset(INPUT, frame) for frame in range(-reach, reach + 1)]


def _remembered(node: str, frames: int) -> str:
    """Return the descriptor of a node `frames` frames away; zero beyond the utterance."""
    return f"IfDefined({offset(node, frames)})"


def _linear(layer: nn.Linear) -> bytes:
    return affine(_values(layer.weight), _values(layer.bias))


def _values(tensor: Tensor) -> Float64:
    found: Float64 = tensor.detach().double().numpy()
    return found
