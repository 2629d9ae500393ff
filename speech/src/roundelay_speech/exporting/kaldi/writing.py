"""A packed model of tied states as a folder that Kaldi's programs and vosk read.

OUT/final.mdl           transition model, network, prior; hears features normalised by speaker (apply-cmvn)
OUT/tree, phones.txt    tied states as Kaldi's decision tree
OUT/cmvn_opts           options of apply-cmvn, as steps/nnet3/decode.sh takes them
OUT/graph/              HCLG.fst with transition-ids, words.txt, phones.txt and files beside them
OUT/conf/fbank.conf     options of the features; decode.conf: of the search; online.conf, model.conf: of live decoders
OUT/am/final.mdl        the same network for vosk, which takes off a mean but does not divide
OUT/global_cmvn.stats   of the average speaker, which live decoders begin with; also in am/
OUT/about.json          all of this for programs

Kaldi's filterbanks are ours, if it adds no dither. The decoding graph has transition-ids. A transition-id says phone,
state, pdf, and the way it is left, so that Kaldi finds phones and words in a path. Ours stand where Kaldi's are with
--reorder=true: the way out of a state on the arc that enters it, its loop behind. Weights are those of the packed
graph, costs of words in them: transitions cost nothing here, and Kaldi's decoders take all costs from the graph.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from roundelay import __version__
from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, read_json, refuse_ours, write_json, write_text
from roundelay_speech.data.arrays import Float64
from roundelay_speech.decode.graphs.graph import FST_FILE, PHONES_FILE, WORDS_FILE, GraphConfig
from roundelay_speech.decode.graphs.hmm import GraphOfStates, graph_of_states
from roundelay_speech.decode.graphs.making import LEXICON_FILE, LM_FILE
from roundelay_speech.decode.graphs.transducers import EPSILON
from roundelay_speech.decode.lm.arpa_file import read_arpa
from roundelay_speech.exporting.kaldi.nnet3 import INPUT, Network, Seen, add_scores, reach_of, takes_chunks
from roundelay_speech.exporting.utterance import utterance_scores
from roundelay_speech.exporting.writing import DESCRIPTION
from roundelay_speech.features.parts import Filterbank
from roundelay_speech.hmm.alignment import TREE
from roundelay_speech.hmm.formats.kaldi_model import TransitionModel, put_transition_model, write_tree
from roundelay_speech.hmm.formats.kaldi_tying import export_transition_model, export_tree
from roundelay_speech.hmm.topology import SILENCE
from roundelay_speech.hmm.tree import DecisionTree
from roundelay_speech.kaldi_io.tables import symbol_table
from roundelay_speech.kaldi_io.tokens import BinaryOutput, save
from roundelay_speech.lexicon.lexicon import INSIDE, SINGLE, WORD_BEGIN, WORD_END, are_by_position, read_lexicon
from roundelay_speech.packed.folder import PackedModel, PackedSearch, read_packed
from roundelay_speech.search.beam import FEWEST_ACTIVE
from roundelay_speech.search.fst import Arcs, add_output_cost, write_arrays
from roundelay_speech.trained import AcousticModel, load_model

GLOBAL_FRAMES = 100_000
"""Number of frames written into the average speaker's statistics; only ratios count."""
PLACES = {WORD_BEGIN: "begin", WORD_END: "end", INSIDE: "internal", SINGLE: "singleton"}
FINAL, GLOBAL = "final.mdl", "global_cmvn.stats"
VOSK_GRAPH_SCALE = 0.9
"""Factor by which vosk multiplies the graph's costs before it takes the best words of a lattice (src/recognizer.cc)."""
WHOLE = 1_000_000
"""Frames of a chunk for networks that read whole utterances."""


@dataclass(frozen=True)
class ForKaldi:
    """The summary of a model that was written for Kaldi."""

    folder: Path  # of its files
    # states, pdfs: of the graph; columns of the network.
    states: int
    pdfs: int
    live: bool  # whether decoders of live speech can use it
    left_out: tuple[str, ...]  # sentences on parts not in it


def export_kaldi(source: Path | str, out: Path | str) -> ForKaldi:
    """Write a packed model of tied states into the folder `out`, in Kaldi's terms.

    Raises:
        UserError: `source` is no packed model; Kaldi cannot express its units, features or networks (names which, and
            why).
    """
    folder, out = Path(source), Path(out)
    refuse_ours(out)
    packed = read_packed(folder)
    models = [load_model(folder / one.folder) for one in packed.networks]
    _refuse_units(models[0], folder)
    part = filterbank_of(packed, folder)
    for model, one in zip(models, packed.networks, strict=True):
        utterance_scores(model, str(folder / one.folder))  # refuses models not decoded in one pass
    live = all(takes_chunks(model.module) for model in models)
    tree = DecisionTree.from_json(read_json(folder / TREE))
    transitions = export_transition_model(tree)
    normalised = part.normalise == "speaker"
    ones = [np.ones(part.fbank.num_bins)] * len(models)
    prior = np.sum([one.weight * model.prior for model, one in zip(models, packed.networks, strict=True)], 0)
    save_model(out / FINAL, transitions, _network(models, packed, folder, ones), prior)
    if live:
        scales = [1 / np.array(one.usual_std) for one in packed.networks] if normalised else ones
        save_model(out / "am" / FINAL, transitions, _network(models, packed, folder, scales), prior)
    if live and normalised:
        first = packed.networks[0]
        for place in (out, out / "am"):
            write_text(place / GLOBAL, global_statistics(first.usual_mean, first.usual_std))
    write_tree(out / "tree", export_tree(tree))
    write_text(out / "phones.txt", symbol_table((EPSILON, *tree.phones)))
    write_text(out / "cmvn_opts", f"--norm-means={_said(normalised)} --norm-vars={_said(normalised)}\n")
    states = _write_graph(out / "graph", folder, tree, transitions, packed.search)
    _write_options(out / "conf", packed, option_lines(frame_options(part, packed.sampling_rate)), live, normalised)
    left_out = _left_out(packed, live)
    write_json(
        out / DESCRIPTION,
        {
            "made_by": f"roundelay {__version__}",
            "source": folder.resolve().name,
            "sampling_rate": packed.sampling_rate,
            "features": frame_options(part, packed.sampling_rate),
            "normalised": part.normalise,
            "acoustic_scale": packed.search.scale,
            "pdfs": tree.num_pdfs,
            "live": live,
            "left_out": list(left_out),
        },
    )
    return ForKaldi(out, states, tree.num_pdfs, live, left_out)


def _refuse_units(model: AcousticModel, folder: Path) -> None:
    if model.units is not None:
        has = "units and a blank: use `roundelay export sherpa`"
        if model.units.hmm is not None:
            has = "states of phones, which are not written for Kaldi: use `roundelay export onnx`"
        raise UserError(f"{folder}: export kaldi takes models of tied states; the columns of this one are {has}.")


def _network(models: Sequence[AcousticModel], packed: PackedModel, folder: Path, scales: Sequence[Float64]) -> Network:
    """Combine all networks of a packed model into one, whose output is the weighted sum of theirs."""
    network = Network()
    network.takes(INPUT, len(scales[0]))
    outputs, reach = [], max(reach_of(model.module) for model in models)
    for number, (model, one, scale) in enumerate(zip(models, packed.networks, scales, strict=True), 1):
        prefix = f"network{number}." if len(models) > 1 else ""
        outputs.append(add_scores(network, model.module, Seen(scale, reach), prefix, str(folder / one.folder)))
    if len(outputs) > 1:
        scaled = (f"Scale({one.weight!r}, {name})" for one, name in zip(packed.networks, outputs, strict=True))
        network.gives(f"Sum({', '.join(scaled)})")
    else:
        network.gives(outputs[0])
    return network


def save_model(path: Path, transitions: TransitionModel, network: Network, prior: Float64) -> None:
    """Write a model as Kaldi's AmNnetSimple: transition model, network, and log p(state), (S,)."""
    out = BinaryOutput()
    put_transition_model(out, transitions)
    network.put(out)
    for name in ("<LeftContext>", "<RightContext>"):
        out.token(name)
        out.integer(0)  # Kaldi computes both when it reads the network
    out.token("<Priors>")
    out.reals(np.exp(prior).tolist())
    save(path, out)


def _write_graph(
    out: Path, folder: Path, tree: DecisionTree, transitions: TransitionModel, search: PackedSearch
) -> int:
    """Compile the graph of a packed model for transition-ids, and write it; return the number of its states."""
    lexicon, model = read_lexicon(folder / LEXICON_FILE, tree.phones[SILENCE - 1]), read_arpa(folder / LM_FILE)
    graph = graph_of_states(lexicon, model, tree.tying(), GraphConfig(search.silence_probability))
    write_graph_folder(out, graph, with_transition_ids(graph, transitions, search.word_cost), tree.num_pdfs)
    return len(graph.arcs.final)


def _write_options(out: Path, packed: PackedModel, features: str, live: bool, normalised: bool) -> None:
    search = packed.search
    beams: Mapping[str, object] = {
        "acoustic-scale": search.scale,
        "beam": search.beam,
        "max-active": search.max_active,
        "min-active": FEWEST_ACTIVE,
        "lattice-beam": search.lattice_beam,
    }
    write_text(out / "fbank.conf", features)
    write_text(out / "decode.conf", option_lines({**beams, "frames-per-chunk": 50 if live else WHOLE}))
    if not live:
        return
    spoken = {**beams, "frame-subsampling-factor": 1, "endpoint.silence-phones": SILENCE}
    for_vosk = {"acoustic-scale": VOSK_GRAPH_SCALE * search.scale}  # so that the two are to each other as they should
    write_text(out / "model.conf", option_lines({**spoken, **for_vosk}))
    online: dict[str, object] = {**spoken, "feature-type": "fbank", "fbank-config": "conf/fbank.conf"}
    if normalised:
        write_text(out / "online_cmvn.conf", option_lines({"norm-means": "true", "norm-vars": "true"}))
        online |= {"cmvn-config": "conf/online_cmvn.conf", "global-cmvn-stats": GLOBAL}
    write_text(out / "online.conf", option_lines(online))


def _left_out(packed: PackedModel, live: bool) -> tuple[str, ...]:
    found = []
    if packed.rescored:
        found.append("The second pass with a large language model is not in it: words are those of the first.")
    if not live:
        found.append("Its network reads whole utterances, so nothing for live decoders was written.")
    return tuple(found)


def _said(answer: bool) -> str:
    return "true" if answer else "false"


def filterbank_of(packed: PackedModel, folder: Path) -> Filterbank:
    """Return the filterbank that is the only input of all networks of a packed model.

    Raises:
        UserError: a network has other inputs.
    """
    kinds = [one.features for one in packed.networks]
    parts = kinds[0].parts
    if any(kind != kinds[0] for kind in kinds) or len(parts) > 1 or not isinstance(parts[0], Filterbank):
        heard = ", ".join(dict.fromkeys(part.name for kind in kinds for part in kind.parts))
        raise UserError(f"{folder}: it hears {heard}. Written for Kaldi are models that hear one filterbank.")
    return parts[0]


def frame_options(part: Filterbank, rate: int) -> dict[str, object]:
    """Return the options of compute-fbank-feats for a filterbank."""
    config = part.fbank
    return {
        "sample-frequency": rate,
        "frame-length": config.frame_length_ms,
        "frame-shift": config.frame_shift_ms,
        "preemphasis-coefficient": config.preemphasis,
        "window-type": "povey",
        "dither": 0,
        "snip-edges": "true",
        "num-mel-bins": config.num_bins,
        "low-freq": config.low_freq,
        "high-freq": config.high_freq,
        "use-energy": "false",
    }


def option_lines(options: Mapping[str, object]) -> str:
    """Return the content of a file with these options."""
    return "".join(f"--{name}={value}\n" for name, value in options.items())


def global_statistics(mean: Sequence[float], std: Sequence[float]) -> str:
    """Return the average speaker's statistics in Kaldi's form: sums and number of frames, sums of squares and 0."""
    sums = GLOBAL_FRAMES * np.array(mean)
    squares = GLOBAL_FRAMES * (np.square(std) + np.square(mean))
    rows = [[*sums.tolist(), GLOBAL_FRAMES], [*squares.tolist(), 0]]
    return f" [\n{''.join('  ' + ' '.join(map(str, row)) + chr(10) for row in rows)}]\n"


def with_transition_ids(graph: GraphOfStates, model: TransitionModel, word_cost: float) -> Arcs:
    """Return the arcs of the graph with transition-ids as input labels, and the costs of words."""
    first = dict(zip((told[:3] for told in model.tuples), model.first_ids.tolist(), strict=True))
    loop_of = np.array([0, *(first[state] for state in graph.states)])
    arcs = graph.arcs.arcs.copy()
    entered = arcs["ilabel"] > 0
    loops = entered & (arcs["target"] == graph.arcs.source)
    arcs["ilabel"] = loop_of[arcs["ilabel"]] + (entered & ~loops)
    return add_output_cost(replace(graph.arcs, arcs=arcs), word_cost)


def write_graph_folder(folder: Path, graph: GraphOfStates, arcs: Arcs, pdfs: int) -> None:
    """Write HCLG.fst, words.txt, phones.txt, num_pdfs and phones/, as utils/mkgraph.sh leaves them."""
    with atomic_write(folder / FST_FILE) as file:
        write_arrays(file, arcs)
    write_text(folder / WORDS_FILE, symbol_table(graph.symbols.words))
    write_text(folder / PHONES_FILE, symbol_table((*graph.symbols.phones, *graph.symbols.disambiguation)))
    write_text(folder / "num_pdfs", f"{pdfs}\n")
    write_text(folder / "phones/silence.csl", f"{SILENCE}\n")
    phones = graph.symbols.phones[1:]
    if are_by_position(phones):
        write_text(folder / "phones/word_boundary.int", _boundaries(phones))


def _boundaries(phones: Sequence[str]) -> str:
    """Return the content of the table of phones' positions in words: a number and a position a line."""
    places = ["nonword" if number == SILENCE else PLACES[phone[-2:]] for number, phone in enumerate(phones, 1)]
    return "".join(f"{number} {place}\n" for number, place in enumerate(places, 1))
