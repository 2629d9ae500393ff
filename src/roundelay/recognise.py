"""From a trained run to words and word error rates.

RUN/decode/SPLIT/   hyp.trn, ref.trn, groups.json (speakers and subsets), ref.stm (with times in the recordings),
                    wer.txt (the %WER line and its interval), errors.txt (every error in its place), decode.json
ALIGNMENT/graphs/   decoding graphs, shared by all runs that use the same lexicon, tied states and language model
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from roundelay.acoustic import AcousticModel, load_model
from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.core.files import read_json, write_json
from roundelay.core.progress import Progress
from roundelay.core.records import Decoded, Results
from roundelay.recipes.recipe import Decoding, Recipe
from roundelay.run_directory import append
from roundelay.runtime.base import wall_clock
from roundelay.speech.corpus.manifest import Utterance
from roundelay.speech.corpus.prepared import Corpus, load_corpus
from roundelay.speech.decode.graph import GRAPH_FILE, GraphConfig, build_graph, save_graph
from roundelay.speech.decode.ngram import Arpa, estimate, read_arpa, restrict, write_arpa
from roundelay.speech.decode.search import Decoders, choose_scale, decoders
from roundelay.speech.feature_store import FeatureStore
from roundelay.speech.frames import log_likelihoods
from roundelay.speech.hmm.alignment import Alignment
from roundelay.speech.score import Score, score
from roundelay.speech.scoring.summary import Summary, summarise, summarise_subsets, word_errors, write_score

FRAME_SECONDS = 0.01
TUNING_SPLIT = "dev"


@dataclass(frozen=True)
class Recognised:
    """One split of one run."""

    split: str
    score: Score
    acoustic_scale: float
    real_time_factor: float  # decoding alone, all cores together
    unfinished: int  # utterances whose best path was no whole sentence
    summary: Summary  # of the score
    subsets: dict[str, Summary]  # where the split has parts


def recognise(exp: Path, recipe: Recipe, progress: Progress) -> list[Recognised]:
    """Decode and score the recipe's splits with the model in `exp`; write everything into `exp`/decode.

    The acoustic scale is the one with the fewest word errors on the dev split, unless the recipe fixes it.

    Raises:
        UserError: not a finished run; a split that does not exist; language model and lexicon do not fit.
    """
    model, config = load_model(exp), recipe.decode
    corpus, alignment = load_corpus(recipe.corpus), Alignment.load(recipe.alignment)
    if alignment.num_pdfs != len(model.prior):
        raise UserError(
            f"{exp}: the model has {len(model.prior)} tied states, the alignment in {recipe.alignment} has "
            f"{alignment.num_pdfs}. Give the alignment it was trained on, or train again."
        )
    if unknown := [split for split in config.splits if split not in corpus.splits]:
        raise UserError(
            f"decode.splits: {corpus.folder} has no split {', '.join(unknown)}, only {', '.join(corpus.splits)}."
        )
    graph = _graph(recipe, corpus, alignment, progress)
    store = corpus.features()
    done = []
    with decoders(graph, config.workers) as run:
        scale = config.scale if config.scale is not None else _choose_scale(run, model, store, corpus, config, progress)
        for split in config.splits:
            found = _one_split(run, model, store, corpus.splits[split], split, scale, config, progress)
            _write(exp, found, corpus, config)
            _update_results(exp, found)
            done.append(found)
    return done


def language_model(corpus: Corpus, config: Decoding) -> tuple[Arpa, str]:
    """The given ARPA model cut to the lexicon, and what was left out; or an n-gram of the training transcripts."""
    if config.arpa is not None:
        found = restrict(read_arpa(config.arpa), corpus.lexicon.words)
        return found.model, found.describe()
    sentences = [text.split() for text in corpus.transcripts("train")]
    return estimate(sentences, corpus.lexicon.words, config.order, config.discount), ""


def _graph(recipe: Recipe, corpus: Corpus, alignment: Alignment, progress: Progress) -> Path:
    """The folder of the decoding graph, built unless it is there."""
    config = recipe.decode
    given = config.arpa.read_bytes() if config.arpa is not None and config.arpa.is_file() else b""
    key = hashlib.sha256(
        json.dumps(
            [config.order, config.discount, str(config.arpa), config.silence_probability, config.word_cost,
             corpus.transcripts("train"), corpus.lexicon.to_text(), list(alignment.tying.phones)]
        ).encode() + alignment.tying.table.tobytes() + given
    ).hexdigest()[:16]  # fmt: skip
    folder = recipe.alignment / "graphs" / key
    if not (folder / GRAPH_FILE).is_file():
        progress.start("building the decoding graph")
        model, left_out = language_model(corpus, config)
        progress.advance(0, left_out)
        folder.mkdir(parents=True, exist_ok=True)
        write_arpa(folder / "lm.arpa", model)
        graph = build_graph(
            corpus.lexicon, model, alignment.tying, GraphConfig(config.silence_probability, config.word_cost)
        )
        save_graph(graph, folder)
        progress.finish()
    return folder


def _loglikes(
    model: AcousticModel, store: FeatureStore, utterances: Sequence[Utterance]
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    for utterance in utterances:
        yield utterance.id, log_likelihoods(model.module, store, utterance.id, model.prior)


def _refs(utterances: Sequence[Utterance]) -> dict[str, list[str]]:
    return {u.id: u.text.split() for u in utterances}


def _choose_scale(
    run: Decoders, model: AcousticModel, store: FeatureStore, corpus: Corpus, config: Decoding, progress: Progress
) -> float:
    if TUNING_SPLIT not in corpus.splits:
        raise UserError(
            f"{corpus.folder} has no {TUNING_SPLIT} split to choose the acoustic scale on: give decode.scale."
        )
    utterances = corpus.splits[TUNING_SPLIT]
    progress.start(f"acoustic scale on {TUNING_SPLIT}", len(utterances) * len(config.scales))
    choice = choose_scale(
        run, dict(_loglikes(model, store, utterances)), _refs(utterances), config.scales,
        beam=config.beam, max_active=config.max_active, progress=progress,
    )  # fmt: skip
    progress.finish()
    return choice.scale


def _one_split(
    run: Decoders, model: AcousticModel, store: FeatureStore, utterances: Sequence[Utterance], split: str, scale: float,
    config: Decoding, progress: Progress,
) -> Recognised:  # fmt: skip
    progress.start(f"decoding {split}", len(utterances))
    loglikes = list(_loglikes(model, store, utterances))
    started = wall_clock()
    found = run(loglikes, scale, config.beam, config.max_active, progress)
    seconds = wall_clock() - started
    progress.finish()
    result = score(_refs(utterances), {u: list(h.words) for u, h in found.items()})
    audio = sum(len(matrix) for _, matrix in loglikes) * FRAME_SECONDS
    unfinished = sum(not h.reached_final for h in found.values())
    return Recognised(
        split, result, scale, seconds / audio, unfinished, summarise(result), summarise_subsets(result, utterances)
    )


def _write(exp: Path, found: Recognised, corpus: Corpus, config: Decoding) -> None:
    folder = exp / "decode" / found.split
    write_score(folder, found.summary, found.subsets, corpus.splits[found.split])
    write_json(
        folder / "decode.json",
        {"acoustic_scale": found.acoustic_scale, "real_time_factor": found.real_time_factor,
         "unfinished_utterances": found.unfinished, "options": plain(config)},
    )  # fmt: skip


def _update_results(exp: Path, found: Recognised) -> None:
    """Add the word errors to results.json and a line to the log."""
    results, errors = Results.from_json(read_json(exp / Results.FILE)), found.score.errors
    results.wer[found.split] = word_errors(found.summary, found.subsets, found.acoustic_scale)
    write_json(exp / Results.FILE, results.to_json())
    append(
        exp,
        Decoded(
            wall_s=results.wall_seconds, virtual_s=results.virtual_seconds, split=found.split, wer=errors.wer,
            errors={"ins": errors.ins, "del": errors.del_, "sub": errors.sub, "ref": errors.ref},
            acoustic_scale=found.acoustic_scale, real_time_factor=found.real_time_factor,
        ),
    )  # fmt: skip
