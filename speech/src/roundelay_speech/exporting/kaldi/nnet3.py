"""Networks of Kaldi's nnet3 in its binary form: lines that name nodes and join them, then the parameters.

    <Nnet3> lines, and an empty one  <NumComponents> n  (<ComponentName> name component) x n  </Nnet3>

A component begins and ends with its type (src/nnet3/nnet-simple-component.cc and nnet-combined-component.cc). Affine
layers are of the kind that Kaldi trains on, with the options that its tools give a new one.

Legend: O outputs, I inputs, C cells.
"""

from typing import Any, final

import numpy as np
import numpy.typing as npt

from roundelay_speech.kaldi_io.tokens import BinaryOutput

Real = npt.NDArray[np.floating[Any]]
Float64 = npt.NDArray[np.float64]

LEARNING_RATE = 0.001
RANKS, UPDATE_PERIOD, HISTORY, ALPHA = (20, 80), 4, 2000.0, 4.0
"""Settings of the natural gradient, Kaldi's own."""
SELF_REPAIR = (0.05, 0.05, 0.2, 0.05, 0.2, 1e-5, 1e-5, 1e-5, 1e-5, 1e-5)
"""Thresholds and scales of an LSTM's five nonlinearities in training, Kaldi's own."""


@final
class Network:
    """A network under construction. Nodes are known by their names, and a node's input is a descriptor: a name, or
    Append(...), Sum(...), Offset(NAME, FRAMES), IfDefined(...), Scale(NUMBER, NAME) of such."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._components: list[tuple[str, bytes]] = []

    def takes(self, name: str, width: int) -> str:
        """Add an input of so many features a frame; returns its name, as all of these do."""
        self._lines.append(f"input-node name={name} dim={width}")
        return name

    def add(self, name: str, component: bytes, source: str) -> str:
        """Add a component that takes `source`."""
        self._components.append((name, component))
        self._lines.append(f"component-node name={name} component={name} input={source}")
        return name

    def part(self, name: str, node: str, first: int, width: int) -> str:
        """Add some columns of a node."""
        self._lines.append(f"dim-range-node name={name} input-node={node} dim-offset={first} dim={width}")
        return name

    def gives(self, source: str) -> None:
        """Add the output."""
        self._lines.append(f"output-node name=output input={source} objective=linear")

    def put(self, out: BinaryOutput) -> None:
        """Write the network."""
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
    """Return the descriptor of several side by side."""
    return f"Append({', '.join(sources)})" if len(sources) > 1 else sources[0]


def offset(source: str, frames: int) -> str:
    """Return the descriptor of a node so many frames later."""
    return f"Offset({source}, {frames})" if frames else source


def affine(weight: Real, bias: Real) -> bytes:
    """Return a layer W x + b, (O, I) and (O,)."""
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
    """Return a layer W x + b that training leaves as it is."""
    out = _opened("FixedAffineComponent")
    _matrix(out, "<LinearParams>", weight)
    out.token("<BiasParams>")
    out.reals(bias.tolist())
    return _closed(out, "FixedAffineComponent")


def relu(width: int) -> bytes:
    """Return max(x, 0)."""
    return _nonlinear("RectifiedLinearComponent", width)


def same(width: int) -> bytes:
    """Return x: gives a sum of nodes a name."""
    return _nonlinear("NoOpComponent", width)


def log_softmax(width: int) -> bytes:
    """Return logarithms of probabilities."""
    return _nonlinear("LogSoftmaxComponent", width)


def normalised(width: int, rms: float) -> bytes:
    """Return x, scaled so that the root of its mean square is `rms`."""
    out = _opened("NormalizeComponent")
    out.token("<InputDim>")
    out.integer(width)
    out.token("<TargetRms>")
    out.real(rms)
    out.token("<AddLogStddev>")
    out.data += b"F"
    return _closed(out, "NormalizeComponent")


def lstm(cells: int) -> bytes:
    """Return gates to cells and outputs, (5 C) -> (2 C): of (input, forget, candidate, output gate, cells before) the
    cells and outputs now; without peepholes."""
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
    """Return a nonlinearity whose statistics are empty."""
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
    out.data.clear()  # what stands at the beginning of a file
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
