"""Writes acoustic models as ONNX or as programs of `torch.export`, and holds them to the network they come from.

An LSTM that can be exported for any number of frames: the steps of a torch.nn.LSTM as a scan over time.

Legend: T frames, N sequences, I inputs, H cells, O outputs (H, or those of a projection).
"""

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.export import Dim, ExportedProgram

from roundelay import __version__
from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.core.extras import need
from roundelay.core.files import atomic_write, json_text, refuse_ours, write_json, write_text
from roundelay.core.streams import stream
from roundelay_speech.decode.graphs.graph import WORDS_FILE, load_graph
from roundelay_speech.exporting.sherpa import (
    OUTPUT_NAMES,
    SherpaChunks,
    SherpaCtc,
    feature_options,
    metadata,
    search_graph,
    sherpa_chunks,
    sherpa_ctc,
    streaming_metadata,
    streams,
    tokens,
)
from roundelay_speech.exporting.utterance import (
    INPUTS,
    OUTPUT,
    CombinedScores,
    UtteranceScores,
    combined_scores,
    utterance_scores,
)
from roundelay_speech.kaldi_io.tables import symbol_table
from roundelay_speech.packed.folder import PackedModel, is_packed, read_packed
from roundelay_speech.search.fst import write_arrays
from roundelay_speech.trained import AcousticModel, load_model

State = tuple[Tensor, Tensor]


class ScannedLstm(nn.Module):
    """A module that can be exported in place of an LSTM of one layer and direction, equal up to rounding."""

    bias: Tensor
    into: Tensor
    back: Tensor
    projection: Tensor | None

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.batch_first, self.cells = lstm.batch_first, lstm.hidden_size
        self.outputs = lstm.proj_size or lstm.hidden_size
        weights = {name: weight.detach() for name, weight in lstm.named_parameters()}
        self.register_buffer("bias", weights["bias_ih_l0"] + weights["bias_hh_l0"])
        self.register_buffer("into", weights["weight_ih_l0"])
        self.register_buffer("back", weights["weight_hh_l0"].T.contiguous())
        self.register_buffer("projection", weights["weight_hr_l0"].T.contiguous() if lstm.proj_size else None)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Map (T, N, I), or (N, T, I) if it is `batch_first`, to (T, N, O) and the last state, as torch.nn.LSTM
        does."""
        if self.batch_first:
            x = x.transpose(0, 1)
        if state is None:
            hidden, cells = x.new_zeros(x.shape[1], self.outputs), x.new_zeros(x.shape[1], self.cells)
        else:
            hidden, cells = state[0][0], state[1][0]
        gates = nn.functional.linear(x, self.into, self.bias)

        def step(before: list[Tensor], gate: Tensor) -> tuple[list[Tensor], Tensor]:
            hidden, cells = before
            enter, forget, candidate, leave = (gate + hidden @ self.back).chunk(4, -1)
            cells = forget.sigmoid() * cells + enter.sigmoid() * candidate.tanh()
            hidden = leave.sigmoid() * cells.tanh()
            if self.projection is not None:
                hidden = hidden @ self.projection
            return [hidden, cells], hidden.clone()

        (hidden, cells), outputs = scan(step, [hidden, cells], gates, dim=0)
        return (outputs.transpose(0, 1) if self.batch_first else outputs), (hidden[None], cells[None])


def with_scanned_lstms(network: nn.Module) -> nn.Module:
    """Replace each LSTM in a network by one that can be exported; return the network."""
    for module in [*network.modules()]:
        for name, part in [*module.named_children()]:
            if isinstance(part, nn.LSTM):
                setattr(module, name, ScannedLstm(part))
    return network


Kind = Literal["onnx", "torch", "sherpa"]
FILES: Mapping[Kind, str] = {"onnx": "model.onnx", "torch": "model.pt2", "sherpa": "model.onnx"}
DESCRIPTION, TOKENS, HLG = "about.json", "tokens.txt", "HLG.fst"
TOLERANCE = 1e-4
"""Largest difference from the network's own log-likelihoods, as a share of the largest of them."""
IN_WORDS = (
    "(frames, features) float32, one utterance, as `roundelay prepare` stores them",
    "(features) float32, of all frames of the utterance's speaker",
    "(features) float32, standard deviation of the same",
)
OF_STATES = "(frames, states) float32, log p(state | frame) - log p(state), natural logarithms"
OF_UNITS = (
    "(frames / subsampling, rounded up; units) float32, log p(unit | frame), natural logarithms; the blank is first"
)
OF_PHONES = (
    "(frames / subsampling, rounded up; states of phones) float32, natural logarithms, up to a constant of each row"
)
SHERPA_CALLS = {
    "inputs": {
        "features": "(1, frames, features) float32, as sherpa-onnx computes them with the options in sherpa_onnx",
        "features_length": "(1) int64, their frames",
    },
    "output": "(1, frames / subsampling, rounded up; units) float32, log p(unit | frame); and the number of rows",
}
Called = UtteranceScores | CombinedScores | SherpaCtc | SherpaChunks
FRAMES = 57
"""Frames of the utterance by which a model is traced, and of the first on which it is compared."""
CHUNKS = 7
"""Number of successive chunks on which a streaming model is compared."""


@dataclass(frozen=True)
class Exported:
    """The summary of an exported model."""

    file: Path
    difference: float  # from the network, as a share of its largest log-likelihood


def export(source: Path | str, out: Path | str, to: Kind = "onnx") -> Exported:
    """Write the acoustic model of a run, or of a packed model, into the folder `out`: model.onnx or model.pt2, and
    about.json, with the meaning of its inputs. For sherpa-onnx tokens.txt too, and of a packed model its graph; a
    conformer in chunks is written for recognition of live speech, any other for whole recordings. The networks
    of a combination become one model, with their weights.

    Raises:
        UserError: no trained model is there; a package is missing; the model cannot be exported, or its export differs
            from it.
    """
    refuse_ours(Path(out))
    if to != "torch":
        need("export", f"export {to}")
    name, folder = str(source), Path(source)
    packed = read_packed(folder) if is_packed(folder) else None
    folders = [folder] if packed is None else [folder / one.folder for one in packed.networks]
    models = [load_model(one) for one in folders]
    model = models[0]
    called: Called
    if packed is not None and len(models) > 1:
        if to == "sherpa":
            several = ", ".join(map(str, folders))
            raise UserError(f"{source}: export sherpa takes one network, and this combines {len(models)}: {several}.")
        called = combined_scores(models, packed, folder)
        about = describe_all(models, called, packed, folder.resolve().name)
    else:
        called = scores = utterance_scores(model, name)
        about = describe(model, folder.resolve().name)
        if to == "sherpa":
            called, about = _for_sherpa(model, scores, packed, name, about)
    file = Path(out) / FILES[to]
    file.parent.mkdir(parents=True, exist_ok=True)
    with quiet():
        write(program_of(called), file, to, about, _outputs(called))
    difference = difference_of(file, to, called)
    if not difference <= TOLERANCE:
        file.unlink()
        raise UserError(
            f"{name}: exported, its log-likelihoods differ by {difference:.1e} of the largest. Not written."
        )
    write_json(file.with_name(DESCRIPTION), about)
    if to == "sherpa":
        write_text(file.with_name(TOKENS), tokens(model))
    if to == "sherpa" and packed is not None:
        _write_graph(folder, packed, file.parent)
    return Exported(file, difference)


def _for_sherpa(
    model: AcousticModel, scores: UtteranceScores, packed: PackedModel | None, name: str, about: dict[str, Any]
) -> tuple[SherpaCtc | SherpaChunks, dict[str, Any]]:
    called = sherpa_ctc(model, scores, name)
    about = {**about, **metadata(model), **SHERPA_CALLS, "sherpa_onnx": feature_options(model)}
    if not streams(model):
        return called, about
    chunks = sherpa_chunks(model, None if packed is None else packed.networks[0], name)
    return chunks, {**about, **streaming_metadata(chunks)}


def _write_graph(folder: Path, packed: PackedModel, out: Path) -> None:
    graph = load_graph(folder)
    with atomic_write(out / HLG) as file:
        write_arrays(file, search_graph(graph, packed.search))
    write_text(out / WORDS_FILE, symbol_table(graph.words))


def describe(model: AcousticModel, name: str) -> dict[str, Any]:
    """Return the facts that callers of an exported model need: inputs, output, and how features are computed."""
    frontend = model.module.frontend
    return {
        "made_by": f"roundelay {__version__}",
        "source": name,
        "inputs": dict(zip(INPUTS, IN_WORDS, strict=True)),
        "output": _output(model),
        "features": sum(part.width for part in frontend.parts),
        "states": len(model.prior),
        "subsampling": model.module.subsampling,
        "units": list(model.units.columns) if model.units is not None else None,
        "parts": plain(list(frontend.parts)),
        "input": plain(model.input) if model.input is not None else None,
    }


def describe_all(
    models: Sequence[AcousticModel], scores: CombinedScores, packed: PackedModel, name: str
) -> dict[str, Any]:
    """Return the facts that callers of an exported combination need: of each network its weight, its inputs by name,
    and how its features are computed."""
    every = [describe(model, one.folder) for model, one in zip(models, packed.networks, strict=True)]
    of_all = ("made_by", "output", "states", "subsampling", "units")
    own = ("source", "features", "parts", "input")
    return {
        **{key: every[0][key] for key in of_all},
        "source": name,
        "inputs": dict(zip(scores.inputs, IN_WORDS * len(scores.kinds), strict=True)),
        "networks": [
            {**{key: about[key] for key in own}, "weight": one.weight, "inputs": list(scores.inputs_of(kind))}
            for about, one, kind in zip(every, packed.networks, scores.heard, strict=True)
        ],
    }


def _output(model: AcousticModel) -> str:
    if model.units is None:
        return OF_STATES
    return OF_UNITS if model.units.hmm is None else OF_PHONES


def _inputs(frames: int, scores: UtteranceScores) -> tuple[Tensor, Tensor, Tensor]:
    """Return example inputs: random features of so many frames."""
    rng, width = stream(0, "export", frames), scores.network.frontend.scale.shape[1]
    made = rng.standard_normal((frames, width)), rng.standard_normal(width), rng.uniform(0.5, 2.0, width)
    features, mean, std = (torch.from_numpy(one.astype(np.float32)) for one in made)
    return features, mean, std


def _given(frames: int, called: Called) -> tuple[Tensor, ...]:
    """Return example inputs of a model, with random features of so many frames."""
    if isinstance(called, SherpaChunks):
        return called.given(0)
    if isinstance(called, SherpaCtc):
        return _inputs(frames, called.scores)[0][None], torch.full((1,), frames, dtype=torch.int64)
    if isinstance(called, CombinedScores):
        return tuple(one for kind in called.kinds for one in _inputs(frames, kind))
    return _inputs(frames, called)


def _compared(called: Called) -> Iterator[tuple[Tensor, ...]]:
    """Yield the inputs on which a written model is compared with its network."""
    if isinstance(called, SherpaChunks):
        yield from called.several(CHUNKS)
        return
    shortest = called.scores.shortest if isinstance(called, SherpaCtc) else called.shortest
    for frames in (FRAMES, shortest, 400, 401):
        yield _given(frames, called)


def _shapes(called: Called) -> Any:
    """Return the dimensions of inputs that may vary; None if none may."""
    if isinstance(called, SherpaChunks):
        return None
    if isinstance(called, SherpaCtc):
        return {1: Dim("frames", min=called.scores.shortest, max=1_000_000)}, None
    frames = {0: Dim("frames", min=called.shortest, max=1_000_000)}
    return ((frames, None, None) * len(called.kinds),) if isinstance(called, CombinedScores) else (frames, None, None)


def _outputs(called: Called) -> tuple[str, ...]:
    """Return the names of a model's outputs in ONNX."""
    if isinstance(called, SherpaChunks):
        return OUTPUT_NAMES
    return ("log_probs", "log_probs_length") if isinstance(called, SherpaCtc) else (OUTPUT,)


def program_of(called: Called) -> ExportedProgram:
    """Trace a model, for utterances of any length from its shortest on, or for a chunk; return the program."""
    whole = with_scanned_lstms(copy.deepcopy(called)).eval()
    with torch.no_grad():
        return torch.export.export(
            whole,
            _given(FRAMES, called),
            dynamic_shapes=_shapes(called),
            prefer_deferred_runtime_asserts_over_guards=True,  # it asks more of subsampled frames than it can prove
        )


def write(
    program: ExportedProgram, file: Path, to: Kind, about: Mapping[str, Any], outputs: Sequence[str] = (OUTPUT,)
) -> None:
    """Write a program, with facts among its metadata.

    Args:
        outputs: names of the outputs, in ONNX.

    Raises:
        UserError: a package is missing.
    """
    if to == "torch":
        with atomic_write(file) as open_file:
            torch.export.save(program, open_file, extra_files={DESCRIPTION: json_text(about)})
        return
    onnx = import_module("onnx")
    inputs, names = [*about["inputs"]], [*outputs]
    made = torch.onnx.export(program, dynamo=True, input_names=inputs, output_names=names, verbose=False)
    assert made is not None
    proto = made.model_proto
    for key, value in about.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value if isinstance(value, str) else json_text(value).strip()
    onnx.checker.check_model(proto)
    with atomic_write(file) as open_file:
        open_file.write(proto.SerializeToString())


def difference_of(file: Path, kind: Kind, called: Called) -> float:
    """Return the largest difference of an exported model from its network, over utterances of several lengths or
    successive chunks, as a share of an output's largest value."""
    differences = []
    if kind == "torch":
        program = torch.export.load(file).module()
    else:
        session = import_module("onnxruntime").InferenceSession(str(file), providers=["CPUExecutionProvider"])
    with torch.inference_mode():
        for inputs in _compared(called):
            expected = _arrays(called(*inputs))
            if kind == "torch":
                found = _arrays(program(*inputs))
            else:
                names = [one.name for one in session.get_inputs()]
                given = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
                found = session.run([*_outputs(called)], given)
            for one, other in zip(found, expected, strict=True):
                differences.append(float(np.abs(one - other).max() / np.abs(other).max()))
    return max(differences)


def _arrays(outputs: Tensor | tuple[Tensor, ...]) -> list[NDArray[Any]]:
    return [one.numpy() for one in (outputs if isinstance(outputs, tuple) else (outputs,))]


@contextmanager
def quiet() -> Iterator[None]:
    """Silence remarks of torch's exporter on missing packages, and on its future changes."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
