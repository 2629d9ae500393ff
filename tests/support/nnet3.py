"""An independent reader of Kaldi's binary final.mdl, and nnet3 by its definition: a node's value at a frame, or none.

Frames are computed one by one. An offset beyond what the input has is no value; IfDefined makes it zero.
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Tree = tuple[str, list[Any]] | str
INTEGERS = {"InputDim", "Dim", "RankIn", "RankOut", "UpdatePeriod", "NumComponents"}


@dataclass
class Component:
    """A component of a network: its type, and its fields by name."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass
class AcousticModel:
    """An acoustic model: triples of the transition model, the network, and priors."""

    triples: list[tuple[int, int, int]]
    lines: list[str]
    components: dict[str, Component]
    priors: Vector


class Bytes:
    """A reader of tokens and numbers, one after the other, from bytes."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def token(self) -> str:
        end = self.data.index(b" ", self.at)
        word = self.data[self.at : end].decode()
        self.at = end + 1
        return word

    def number(self) -> Any:
        size = self.data[self.at]
        value = self.data[self.at + 1 : self.at + 1 + size]
        self.at += 1 + size
        assert size == 4
        return value

    def integer(self) -> int:
        return int(struct.unpack("<i", self.number())[0])

    def real(self) -> float:
        return float(struct.unpack("<f", self.number())[0])

    def array(self) -> Vector:
        kind = self.token()
        shape = [self.integer() for _ in range({"FV": 1, "FM": 2}[kind])]
        count = int(np.prod(shape))
        found = np.frombuffer(self.data, "<f4", count, self.at).reshape(shape).astype(np.float64)
        self.at += 4 * count
        return found

    def after(self, word: str) -> None:
        place = self.data.index(f"{word} ".encode(), self.at)
        self.at = place + len(word) + 1


def read_model(path: Path) -> AcousticModel:
    """Read all of a final.mdl except the topology, which kaldi_model reads."""
    source = Bytes(path.read_bytes())
    assert source.data[:2] == b"\0B"
    source.after("<Triples>")
    triples = [(source.integer(), source.integer(), source.integer()) for _ in range(source.integer())]
    source.after("<LogProbs>")
    assert (source.array(), source.token(), source.token())[1:] == ("</LogProbs>", "</TransitionModel>")
    assert source.token() == "<Nnet3>"
    end = source.data.index(b"\n\n", source.at)
    lines = source.data[source.at : end].decode().strip("\n").split("\n")
    source.at = end + 2
    assert source.token() == "<NumComponents>"
    components = {}
    for _ in range(source.integer()):
        assert source.token() == "<ComponentName>"
        name = source.token()
        components[name] = _component(source)
    assert source.token() == "</Nnet3>"
    assert [(source.token(), source.integer()) for _ in range(2)] == [("<LeftContext>", 0), ("<RightContext>", 0)]
    assert source.token() == "<Priors>"
    priors = source.array()
    assert source.at == len(source.data)
    return AcousticModel(triples, lines, components, priors)


def _component(source: Bytes) -> Component:
    kind = source.token().strip("<>")
    found = Component(kind)
    while (word := source.token()) != f"</{kind}>":
        name = word.strip("<>")
        if source.data[source.at : source.at + 3] in (b"FV ", b"FM "):
            found.fields[name] = source.array()
        elif source.data[source.at : source.at + 1] in (b"T", b"F"):
            found.fields[name] = source.data[source.at : source.at + 1] == b"T"
            source.at += 1
        else:
            found.fields[name] = source.integer() if name in INTEGERS else source.real()
    return found


class Computation:
    """Values of nodes for one utterance, (T, F), which goes on with its first and last frame as far as the network
    needs them to give a row at all."""

    def __init__(self, model: AcousticModel, features: npt.NDArray[np.floating[Any]]) -> None:
        self.model, self.features = model, features.astype(np.float64)
        self.nodes: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for line in model.lines:
            kind, rest = line.split(" ", 1)
            told = dict(re.findall(r"([a-z-]+)=(.*?)(?= [a-z-]+=|$)", rest))
            if "input" in told:
                told["input"] = parse(told["input"])
            self.nodes[told["name"]] = kind, told
        self.context = 0
        while self._reads("output", 0) is None:
            self.context += 1
        self.values: dict[tuple[str, int], Vector | None] = {}

    def _reads(self, node: str, frame: int) -> Vector | None:
        self.values = {}
        return self.value(node, frame, alone=True)

    def scores(self) -> Vector:
        """Return the scores (T, S) that Kaldi searches, unscaled."""
        self.values = {}
        found = [self.value("output", frame) for frame in range(len(self.features))]
        return np.array(found) - np.log(self.model.priors)

    def value(self, node: str, frame: int, alone: bool = False) -> Vector | None:
        """Return the value of a node at a frame; `alone`: for an utterance of the frame 0 alone."""
        if (node, frame) in self.values:
            return self.values[node, frame]
        kind, told = self.nodes[node]
        self.values[node, frame] = None  # what depends on itself has no value
        found: Vector | None
        if kind == "input-node":
            last = 0 if alone else len(self.features) - 1
            inside = -self.context <= frame <= last + self.context
            found = self.features[min(max(frame, 0), last)] if inside else None
        elif kind == "dim-range-node":
            whole = self.value(told["input-node"], frame, alone)
            first = int(told["dim-offset"])
            found = None if whole is None else whole[first : first + int(told["dim"])]
        else:
            found = self.described(told["input"], frame, alone)
            if kind == "component-node" and found is not None:
                found = apply(self.model.components[told["component"]], found)
        self.values[node, frame] = found
        return found

    def described(self, tree: Tree, frame: int, alone: bool) -> Vector | None:
        """Return the value of a descriptor at a frame."""
        if isinstance(tree, str):
            return self.value(tree, frame, alone)
        name, given = tree
        if name == "Offset":
            return self.described(given[0], frame + int(given[1]), alone)
        if name == "IfDefined":
            inner = self.described(given[0], frame, alone)
            return np.zeros(self.width(given[0])) if inner is None else inner
        if name == "Scale":
            inner = self.described(given[1], frame, alone)
            return None if inner is None else float(given[0]) * inner
        parts = []
        for one in given:
            if (part := self.described(one, frame, alone)) is None:  # before a memory that has no end is asked
                return None
            parts.append(part)
        return np.concatenate(parts) if name == "Append" else np.sum(parts, 0)

    def width(self, tree: Tree) -> int:
        """Return the number of columns of a descriptor."""
        if not isinstance(tree, str):
            name, given = tree
            widths = [
                self.width(one) for one in (given[1:] if name == "Scale" else given[:1] if name != "Append" else given)
            ]
            return sum(widths) if name == "Append" else widths[0]
        kind, told = self.nodes[tree]
        if kind in ("input-node", "dim-range-node"):
            return int(told["dim"])
        if kind == "output-node":
            return self.width(told["input"])
        component = self.model.components[told["component"]]
        if "LinearParams" in component.fields:
            return len(component.fields["LinearParams"])
        if component.kind == "LstmNonlinearityComponent":
            return 2 * int(component.fields["Params"].shape[1])
        return int(component.fields["Dim" if "Dim" in component.fields else "InputDim"])


def parse(text: str) -> Tree:
    """Return a descriptor as a tree: a name, or a word and its arguments."""
    text = text.strip()
    match = re.fullmatch(r"(\w+)\((.*)\)", text)
    if match is None:
        return text
    parts, depth = [""], 0
    for letter in match[2]:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return match[1], [parse(part) for part in parts]


def apply(component: Component, x: Vector) -> Vector:
    """Return the output of a component for input `x`, by its definition in nnet3."""
    told = component.fields
    found: Vector
    if component.kind in ("NaturalGradientAffineComponent", "FixedAffineComponent"):
        found = told["LinearParams"] @ x + told["BiasParams"]
        return found
    if component.kind == "LstmNonlinearityComponent":
        i, f, c, o, before = np.split(x, 5)
        peep = told["Params"]
        cells = sigmoid(f + peep[1] * before) * before + sigmoid(i + peep[0] * before) * np.tanh(c)
        return np.concatenate([cells, sigmoid(o + peep[2] * cells) * np.tanh(cells)])
    assert len(x) == told.get("Dim", told.get("InputDim"))
    match component.kind:
        case "RectifiedLinearComponent":
            return np.maximum(x, 0.0)
        case "NoOpComponent":
            return x
        case "NormalizeComponent":
            found = x * told["TargetRms"] / np.sqrt(np.mean(x * x))
            return found
        case "LogSoftmaxComponent":
            shifted = x - x.max()
            found = shifted - np.log(np.exp(shifted).sum())
            return found
    raise AssertionError(component.kind)


def sigmoid(x: Vector) -> Vector:
    """Return 1 / (1 + exp(-x))."""
    found: Vector = 1.0 / (1.0 + np.exp(-x))
    return found
