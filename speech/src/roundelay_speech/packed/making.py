"""Packing: trained runs and all they need to recognise, into one folder."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from os import getpid
from pathlib import Path

import numpy as np

from roundelay import __version__
from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.core.files import read_json, sweep, unwritable, write_json
from roundelay.core.progress import Progress
from roundelay.core.streams import stream
from roundelay_speech.data.arrays import Float32, Float64
from roundelay_speech.decode.evidence import longest_phones
from roundelay_speech.decode.graphs.ctc import CtcGraph
from roundelay_speech.decode.graphs.graph import FST_FILE, GRAPH_FILE, PHONES_FILE, WORDS_FILE
from roundelay_speech.decode.graphs.making import DROPPED_FILE, G2P_MODEL, GUESSED_FILE, LEXICON_FILE, LM_FILE
from roundelay_speech.decode.lm.vocabulary import read_dictionary
from roundelay_speech.features.fbank import band_centres
from roundelay_speech.features.parts import FeatureConfig
from roundelay_speech.features.store import FeatureStore, SpeakerSums
from roundelay_speech.hmm.alignment import TREE, Alignment
from roundelay_speech.lexicon.g2p import LEAST_WORDS, g2p_of, save_g2p
from roundelay_speech.lexicon.lexicon import Lexicon, write_lexicon
from roundelay_speech.packed.adapted_runs import adaptation_of, config_of, of_audio
from roundelay_speech.packed.calibrating import MOST_SECONDS, CalibrationSpeech, HeldOut, calibrated, truths
from roundelay_speech.packed.card import Card, DecodedRuns, Run, Vocabulary, card_of, decoded_for, write_model
from roundelay_speech.packed.folder import (
    ADAPTING_VERSION,
    DICTIONARY,
    EVIDENCE_FILE,
    G2P,
    RESCORE,
    PackedModel,
    PackedNetwork,
    PackedSearch,
    checksum_below,
)
from roundelay_speech.packed.hearing import PieceFeatures
from roundelay_speech.packed.model import load_model
from roundelay_speech.packed.spread import LEAST_SPEAKERS, UTTERANCES_FITTED, SpeakerSpread
from roundelay_speech.packed.upper import LOWER, fitted, rows_of
from roundelay_speech.prepared import TRAIN, Corpus, load_corpus
from roundelay_speech.recipes.recipe import Recipe
from roundelay_speech.recognition.graph import GRAPHS, columns_of, decoding_graph, graph_of, second_model
from roundelay_speech.recognition.loglikelihoods import TUNING_SPLIT, EnsembleMember, Models, ensemble, words_said
from roundelay_speech.trained import MODEL, MODEL_META, PACKED_NETWORK

GRAPH_FILES = (FST_FILE, WORDS_FILE, PHONES_FILE, GRAPH_FILE, LM_FILE, LEXICON_FILE, DROPPED_FILE, GUESSED_FILE)


@dataclass(frozen=True)
class Packing:
    """Options of `roundelay pack`."""

    out: Path  # the folder that is made
    # a folder of `roundelay decode --out` with the word errors of these runs together; None: the run's own, or decoded
    # now.
    decoded: Path | None = None
    licence: str = ""  # of the model, for people; empty: the corpus's, where known


def pack(runs: Sequence[Run], options: Packing, progress: Progress) -> Card:
    """Pack runs, the first of which has the words and the graph, into `options.out`, which then is whole or does not
    exist.

    Raises:
        UserError: the folder exists; a run is not finished; runs do not fit together; features cannot be computed from
            audio alone.
    """
    refuse_existing(options.out)
    runs = [(exp, recipe, weight / runs[0][2]) for exp, recipe, weight in runs]
    (exp, recipe, _), *others = runs
    _check_graph(exp, recipe)
    own = load_corpus(recipe.corpus)
    members = ensemble(exp, recipe, others)
    adaptation = adaptation_of(members, [its for _, its, _ in runs])
    configs = [config_of(member.store) for member in members]
    members = [replace(member, store=of_audio(member.store)) for member in members]
    columns = columns_of(recipe, own, Models(members))
    graph = decoding_graph(recipe, own, columns, progress, words_said(members[0], own, own), exp)
    with new_folder(options.out) as folder:
        found = decoded_for(runs, options.decoded, folder / "decoded", progress)
        shutil.rmtree(folder / "decoded", ignore_errors=True)
        for name in GRAPH_FILES:
            shutil.copyfile(graph / name, folder / name)
        if not recipe.unaligned:
            shutil.copyfile(recipe.aligned / TREE, folder / TREE)
        words = _write_words(folder, recipe, own, exp if recipe.unaligned else recipe.aligned, progress)
        if (second := second_model(recipe, own, columns, graph, progress)) is not None:
            shutil.copyfile(second, folder / RESCORE)
        networks: list[PackedNetwork] = []
        below: dict[str, str] = {}
        for number, (member, config, run) in enumerate(zip(members, configs, runs, strict=True), 1):
            name = f"{PACKED_NETWORK}{number}"
            networks.append(_packed_network(folder / name, member, config, load_corpus(run[1].corpus)))
            below |= checksum_below(folder, name)
        card = card_of(runs, own, found, words, options.licence, options.out.name)
        made_by = f"roundelay {__version__}"
        rate, search = _one_rate(members), _search(found, recipe)
        rescored, silence = recipe.decode.rescored, own.lexicon.silence if recipe.unaligned else ""
        packed = PackedModel(rate, tuple(networks), search, made_by, rescored, silence, below, cleaned=own.cleaned)
        if adaptation is not None:
            packed = replace(packed, adaptation=adaptation.how, version=ADAPTING_VERSION)
            card = replace(card, adaptation=adaptation.copied(folder))
        write_model(folder, card, packed)
        speech = _calibration_speech(recipe, own, members)
        bare = load_model(folder)
        evidence = calibrated(bare, speech, progress)
        write_json(folder / EVIDENCE_FILE, plain(evidence))
        held = truths(replace(bare, evidence=evidence), speech, progress)
        card = replace(card, confidences={split: plain(one) for split, one in held.items()})
        write_model(folder, card, packed)
    return card


def _calibration_speech(recipe: Recipe, own: Corpus, members: Sequence[EnsembleMember]) -> CalibrationSpeech:
    """Choose speech of the corpus from which the evidence is learnt: an even choice of training utterances, and
    held-out ones with transcripts."""
    first = members[0].store
    training = [u.id for u in own.splits[TRAIN] if u.id in first]
    order = stream(0, "evidence", "training").permutation(len(training))
    unseen = {split: _held_out(own, split, members) for split in recipe.decode.splits if split != TUNING_SPLIT}
    shift = config_of(first).frames.frame_shift_ms / 1000
    longest = {} if recipe.unaligned else longest_phones(Alignment.load(recipe.aligned), shift)
    held_out = _held_out(own, TUNING_SPLIT, members)
    return CalibrationSpeech((first.get(training[n]) for n in order), held_out, unseen, longest)


def _held_out(own: Corpus, split: str, members: Sequence[EnsembleMember]) -> HeldOut:
    """Return utterances of a split with transcripts, at most ten minutes."""
    found, seconds = [], 0.0
    for utterance in own.splits.get(split, ()):
        if not utterance.words or utterance.copied or any(utterance.id not in m.store for m in members):
            continue
        found.append((partial(_stored, members, utterance.id), utterance.words))
        if (seconds := seconds + utterance.duration) > MOST_SECONDS:
            break
    return found


def _stored(members: Sequence[EnsembleMember], utterance: str) -> PieceFeatures:
    return PieceFeatures(tuple(np.asarray(member.store.get(utterance)) for member in members))


def _check_graph(exp: Path, recipe: Recipe) -> None:
    """Raise a UserError unless the run is decoded by a kind of graph that a packed model can have."""
    kind = recipe.decode.graph
    if kind.name != (fit := graph_of(recipe)):
        raise UserError(f"{exp}: decode.graph={kind.name} is not for its model. Give --set decode.graph={fit}.")
    if isinstance(kind, CtcGraph) and (kind.search != "words" or kind.units is not None):
        raise UserError(
            f"{exp}: a packed model finds words of a lexicon by a graph of the units it was trained on. Give --set "
            "decode.graph=ctc, without search and units."
        )


def _one_rate(members: Sequence[EnsembleMember]) -> int:
    """Return the common sampling rate of all runs, in Hz.

    Raises:
        UserError: runs have different rates.
    """
    rates = {member.store.sampling_rate: member.exp for member in members}
    if len(rates) > 1:
        told = ", ".join(f"{exp} {rate:,} Hz" for rate, exp in rates.items())
        raise UserError(f"The runs hear audio at several sampling rates ({told}): pack runs at one rate.")
    return next(iter(rates))


def _packed_network(folder: Path, member: EnsembleMember, config: FeatureConfig, corpus: Corpus) -> PackedNetwork:
    """Copy a network into a folder; return its description."""
    folder.mkdir()
    for name in (MODEL, MODEL_META):
        shutil.copyfile(member.exp / name, folder / name)
    trained = corpus.splits[TRAIN]
    plainly = [u for u in trained if not u.distortion]
    mean, std = usual_speaker(member.store, [u.id for u in plainly])
    many = len({u.speaker for u in plainly if not u.copied}) >= LEAST_SPEAKERS
    spread = spread_of(member.store, [u.id for u in plainly]).rows() if many else ()
    upper = _upper(member.store, config, [u.id for u in trained if not u.copied])
    return PackedNetwork(folder.name, member.weight, config, tuple(mean.tolist()), tuple(std.tolist()), upper, spread)


def _upper(store: FeatureStore, config: FeatureConfig, utterances: Sequence[str]) -> tuple[str, ...]:
    """Fit the map from lower to upper bands; return its rows, empty if there are no upper bands, or other features than
    one filterbank."""
    if len(config.filterbanks) != 1 or len(store.parts) > 1:
        return ()
    centres = band_centres(config.filterbanks[0].fbank, store.sampling_rate)
    lower = int((centres <= LOWER).sum())
    if not 0 < lower < len(centres):
        return ()

    def speech() -> Iterator[tuple[Float32, Float32, Float32]]:
        for n in stream(0, "upper bands").permutation(len(utterances)):
            speaker = store.speaker_indices[store.position(utterances[n])]
            yield np.asarray(store.get(utterances[n])), store.speakers.mean[speaker], store.speakers.std[speaker]

    return rows_of(fitted(speech(), lower, len(centres) - lower))


def usual_speaker(store: FeatureStore, utterances: Sequence[str]) -> tuple[Float64, Float64]:
    """Return the mean (F,) and standard deviation (F,) of an average speaker of some utterances: the means, over
    frames, of the speakers' means and variances."""
    heard = np.unique(store.speaker_indices[[store.position(u) for u in utterances]])
    speakers = store.speakers
    weight = speakers.frames[heard] / speakers.frames[heard].sum()
    mean = weight @ speakers.mean[heard].astype(np.float64)
    return mean, np.sqrt(weight @ np.square(speakers.std[heard].astype(np.float64)))


def spread_of(store: FeatureStore, utterances: Sequence[str]) -> SpeakerSpread:
    """Fit the differences between the speakers of some utterances."""
    sums, of = SpeakerSums(), {}
    for n in stream(0, "spread").permutation(len(utterances))[:UTTERANCES_FITTED]:
        sums.add(utterances[n], np.asarray(store.get(utterances[n])))
        of[utterances[n]] = int(store.speaker_indices[store.position(utterances[n])])
    found = sums.finish(store.parts)
    return SpeakerSpread.fitted(found, [of[name] for name in found.names], store.speakers, store.parts)


def _search(found: DecodedRuns, recipe: Recipe) -> PackedSearch:
    config = recipe.decode
    return PackedSearch(
        found.scale,
        found.word_cost,
        found.beam,
        found.max_active,
        config.lattice_beam,
        config.silence_probability,
        found.blank_cost,
    )


def _write_words(folder: Path, recipe: Recipe, own: Corpus, beside: Path, progress: Progress) -> Vocabulary:
    """Write the dictionary and, if it is large enough to learn from, the model of spelling, which is kept with the
    graphs in `beside`."""
    dictionary = own.lexicon
    if recipe.decode.lexicon is not None:
        known = read_dictionary(recipe.decode.lexicon, own.lexicon).pronunciations
        dictionary = Lexicon({**own.lexicon.pronunciations, **known}, own.lexicon.silence)
    write_lexicon(folder / DICTIONARY, dictionary)
    spells = len(dictionary.words) >= LEAST_WORDS
    if spells:
        try:
            save_g2p(folder / G2P, g2p_of(dictionary, beside / GRAPHS / G2P_MODEL, progress))
        except UserError:  # words enough, but few of them spelled as they sound
            spells = False
    info = read_json(folder / GRAPH_FILE)
    return Vocabulary(int(info["words"]), int(info["lm_order"]), sum(info["lm_ngrams"]), spells)


def refuse_existing(out: Path) -> None:
    """Raise a UserError if `out` exists and would be overwritten."""
    if out.exists():
        raise UserError(f"{out} exists: give --out another folder, or remove it.")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Make a folder beside `out` that becomes it at the end, or is removed.

    Raises:
        UserError: `out` exists, or cannot be written.
    """
    refuse_existing(out)
    folder = out.with_name(f".{out.name}.{getpid()}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        sweep(out.parent)
        folder.mkdir()
        yield folder
        refuse_existing(out)  # another command may have made it meanwhile
        folder.rename(out)
    except OSError as error:
        raise unwritable(out, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
