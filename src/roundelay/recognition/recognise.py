"""Recognition: from trained runs to words and word error rates.

OUT/decode/SPLIT/   hyp.trn, ref.trn, groups.json (speakers and subsets), ref.stm (with times in the recordings),
                    wer.txt (the %WER line and its interval), errors.txt (every error in its place), utterances.jsonl
                    (words against words, for programs), decode.json; if
                    asked for nbest.txt, lattices.txt.gz, hyp.ctm; where columns are units (decode.graph=ctc) units.txt,
                    those of the best column of each frame. OUT is the run, or a folder of the user's
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.core.files import read_json, write_json, write_text
from roundelay.core.progress import Progress
from roundelay.core.records import Decoded, Results
from roundelay.recipes.recipe import Decoding, Recipe
from roundelay.recognition.graph import decoding_graph, pronouncing, rescorer
from roundelay.recognition.loglikelihoods import (
    TUNING_SPLIT,
    Given,
    Models,
    Source,
    ensemble,
    words_said,
)
from roundelay.run_directory import append
from roundelay.speech.data.manifest import Utterance
from roundelay.speech.decode.graphs.making import LEXICON_FILE
from roundelay.speech.decode.lattice import write_lattices
from roundelay.speech.decode.parallel import Batch, Decoders, Search, SearchedGraph, decoders
from roundelay.speech.decode.search import SCALES
from roundelay.speech.decode.tuning import Tried, Tuning
from roundelay.speech.features.external import Matrices
from roundelay.speech.hmm.alignment import Alignment
from roundelay.speech.lexicon.lexicon import read_lexicon
from roundelay.speech.prepared import Corpus, load_corpus
from roundelay.speech.scoring.formats.ctm import write_ctm
from roundelay.speech.scoring.score import Score, score
from roundelay.speech.scoring.summary import (
    Summary,
    place_of,
    summarise,
    summarise_subsets,
    word_errors,
    write_score,
)

UNITS = "units.txt"


@dataclass(frozen=True)
class Recognised:
    """One split of one run, or of several together."""

    split: str
    score: Score
    search: Search  # its settings
    real_time_factor: float  # seconds of one core per second of speech, of the search alone
    unfinished: int  # utterances whose best path was no whole sentence
    rescoring_factor: float  # seconds of one core per second of speech that rescoring takes
    unknown: int  # reference words that the graph cannot recognise
    summary: Summary  # of the score
    subsets: dict[str, Summary]  # where the split has parts
    units: dict[str, tuple[str, ...]]  # that were read off by utterance, where columns are units


def recognise(
    exp: Path,
    recipe: Recipe,
    progress: Progress,
    *,
    others: Sequence[tuple[Path, Recipe, float]] = (),
    out: Path | None = None,
    of: Path | None = None,
    scores: Path | None = None,
) -> list[Recognised]:
    """Decode and score the recipe's splits with the model in `exp`; write everything into `out`/decode.

    Acoustic scale, cost of a word, beam and number of active paths are chosen on the dev split (`Tuning`), unless the
    recipe fixes them. Words and language model are those of the corpus the model was trained on, and of what the
    recipe's section decode names, whichever corpus is decoded.

    Args:
        others: more runs with the same tied states, and their weights beside the 1 of `exp`: the weighted mean of all
            log-likelihoods is decoded.
        out: `exp` by default; then its results.json is brought up to date as well.
        of: another prepared corpus than the run's own, whose splits are decoded. Settings are chosen on its dev split,
            or on that of the run's corpus where it has none.
        scores: log-likelihoods to decode instead of those of the run's model (a .scp, .ark or .npz file, or a folder of
            .npy files); of the run, its recipe alone is used.

    Raises:
        UserError: not a finished run; a kind of graph that its model is not for; a split that does not exist; language
            model and lexicon do not fit; runs that do not fit together; features that differ from those a model
            was trained on.
    """
    config = recipe.decode
    own, alignment = load_corpus(recipe.corpus), Alignment.load(recipe.alignment)
    corpus = own if of is None else load_corpus(of)
    _check_asked(exp, config, len(others), out, of, scores)
    _check_splits(corpus, config.splits)
    tuned_on = own if of is not None and TUNING_SPLIT not in corpus.splits else corpus
    source: Source
    tuned: Source
    if scores is None:
        source = Models(ensemble(exp, recipe, others, None if of is None else corpus))
        tuned = source if tuned_on is corpus else Models(ensemble(exp, recipe, others))
        said = words_said(source.members[0], own, corpus)
    else:
        source = tuned = Given(Matrices.open(scores))
        said = ""
    columns = config.graph.columns(alignment.tying)
    graph = decoding_graph(recipe, own, columns, progress, said)
    words = pronouncing(graph, alignment.tying, config) if config.ctm else None
    done = []
    with decoders(graph, config.workers, words, rescorer(graph, config.rescore, progress)) as run:
        options, tried = chosen_settings(run, tuned, tuned_on, config, progress)
        searched = SearchedGraph(run, columns, set(read_lexicon(graph / LEXICON_FILE).words))
        for split in config.splits:
            found, batch = recognise_split(searched, source, corpus.splits[split], split, options, progress)
            folder = (out or exp) / "decode" / split
            _write(folder, found, batch, corpus, config, source, tried)
            if out is None:
                _update_results(exp, found)
            done.append(found)
    return done


def _check_splits(corpus: Corpus, splits: Sequence[str]) -> None:
    if unknown := [split for split in splits if split not in corpus.splits]:
        raise UserError(
            f"decode.splits: {corpus.folder} has no split {', '.join(unknown)}, only {', '.join(corpus.splits)}."
        )


def _check_asked(
    exp: Path, config: Decoding, others: int, out: Path | None, of: Path | None, scores: Path | None
) -> None:
    """Raise a UserError where what is asked for cannot be."""
    if (others or of is not None or scores is not None) and out is None:
        what = "Runs that are decoded together need" if others else "Decoding another corpus needs"
        what = what if scores is None else "Decoding given log-likelihoods needs"
        raise UserError(f"{what} a folder for the results: give --out DIR.")
    if others and scores is not None:
        raise UserError("--scores stands for the log-likelihoods of runs: leave --with out.")
    kind = config.graph
    if not kind.tied_states and scores is None:
        raise UserError(
            f"{exp}: its model gives log-likelihoods of tied states, which are decoded with decode.graph=hmm. For "
            f"decode.graph={kind.name}, give log-probabilities of units and a blank that another model computed: "
            "--scores FILE."
        )
    if not kind.tied_states and config.ctm:
        raise UserError(
            f"decode.ctm: a graph of kind {kind.name} does not say when a phone begins, so words have no times. Leave "
            "decode.ctm out, or decode with decode.graph=hmm."
        )


def _refs(utterances: Sequence[Utterance]) -> dict[str, list[str]]:
    return {u.id: u.text.split() for u in utterances}


def chosen_settings(
    run: Decoders, source: Source, corpus: Corpus, config: Decoding, progress: Progress
) -> tuple[Search, Mapping[Search, Tried]]:
    """The search with what the recipe fixes, and the rest as it is best on dev; and all that was tried for that."""
    scale = SCALES[0] if config.scale is None else config.scale
    search = Search(scale, config.beam, config.max_active, config.word_cost)
    width = bool(config.beams or config.max_actives)
    if config.scale is None or config.word_costs or width:
        if TUNING_SPLIT not in corpus.splits:
            fixed = ["decode.scale=VALUE"] if config.scale is None else []
            fixed += [f"decode.{name}=[]" for name in ("word_costs", "beams", "max_actives") if getattr(config, name)]
            raise UserError(
                f"{corpus.folder} has no {TUNING_SPLIT} split to choose the settings of the search on. Fix them: "
                f"--set {' '.join(fixed)}"
            )
        utterances = corpus.splits[TUNING_SPLIT]
        loglikes = dict(source.of(utterances))
        frames = sum(map(len, loglikes.values()))
        frame_seconds = source.seconds(utterances, frames) / max(1, frames)
        tuning = Tuning(run, loglikes, _refs(utterances), frame_seconds, TUNING_SPLIT, progress)
        if config.scale is None:
            if config.word_costs:
                search = replace(search, word_cost=sorted(config.word_costs)[len(config.word_costs) // 2])
            search = tuning.choose_scale(search, config.scales)
        if config.word_costs:
            search = tuning.choose_word_cost(search, config.word_costs)
        if width:
            beams, paths = config.beams or (config.beam,), config.max_actives or (config.max_active,)
            search = tuning.choose_width(search, beams, paths, config.search_slack)
        tried: Mapping[Search, Tried] = tuning.tried
    else:
        tried = {}
    details = replace(
        search, nbest=config.nbest, lattice=config.lattice, times=config.ctm, lattice_beam=config.lattice_beam
    )
    return details, tried


def recognise_split(
    graph: SearchedGraph,
    source: Source,
    utterances: Sequence[Utterance],
    split: str,
    options: Search,
    progress: Progress,
) -> tuple[Recognised, Batch]:
    """Decode and score one split."""
    progress.start(f"decoding {split}", len(utterances))
    frames, units = 0, {}

    def counted() -> Iterator[tuple[str, NDArray[np.float32]]]:
        nonlocal frames
        for utterance, matrix in source.of(utterances):
            frames += len(matrix)
            if read := graph.columns.read_off(matrix):
                units[utterance] = read
            yield utterance, matrix

    batch = graph.run.search(counted(), options, progress)
    progress.finish()
    refs, hypotheses = _refs(utterances), batch.hypotheses
    result = score(refs, {u: list(h.words) for u, h in hypotheses.items()})
    found = Recognised(
        split,
        result,
        options,
        batch.search_seconds / source.seconds(utterances, frames),
        sum(not h.reached_final for h in hypotheses.values()),
        batch.rescoring_seconds / source.seconds(utterances, frames),
        sum(word not in graph.words for ref in refs.values() for word in ref),
        summarise(result),
        summarise_subsets(result, utterances),
        units,
    )
    return found, batch


def _write(
    folder: Path,
    found: Recognised,
    batch: Batch,
    corpus: Corpus,
    config: Decoding,
    source: Source,
    tried: Mapping[Search, Tried],
) -> None:
    write_score(folder, found.summary, found.subsets, corpus.splits[found.split])
    (folder / UNITS).unlink(missing_ok=True)
    if found.units:
        write_text(folder / UNITS, "".join(f"{u} {' '.join(units)}\n" for u, units in found.units.items()))
    _write_details(folder, batch, corpus.splits[found.split], config)
    write_json(
        folder / "decode.json",
        {
            **_shown(found.search),
            "real_time_factor": found.real_time_factor,
            "unfinished_utterances": found.unfinished,
            **_rescoring(found, batch, config),
            "words": found.score.errors.ref,
            "unknown_words": found.unknown,
            **source.told(),
            "options": plain(config),
            f"tried_on_{TUNING_SPLIT}": [
                {
                    **_shown(search),
                    "errors": it.errors.total,
                    "words": it.errors.ref,
                    "real_time_factor": it.real_time_factor,
                }
                for search, it in tried.items()
            ],
        },
    )


def _rescoring(found: Recognised, batch: Batch, config: Decoding) -> dict[str, float | str]:
    """Facts of rescoring, where there was any."""
    if config.rescore is None:
        return {}
    return {
        "rescored_with": config.rescore.name,
        "rescoring_real_time_factor": found.rescoring_factor,
        "not_rescored_utterances": batch.kept_as_found,
    }


def _shown(search: Search) -> dict[str, float]:
    """The settings that dev may choose."""
    return {
        "acoustic_scale": search.scale,
        "word_cost": search.word_cost or 0.0,
        "beam": search.beam,
        "max_active": search.max_active,
    }


def _write_details(folder: Path, batch: Batch, utterances: Sequence[Utterance], config: Decoding) -> None:
    """n-best lists, lattices and times; what an earlier decoding left and this one was not asked for goes."""
    for name in ("nbest.txt", "lattices.txt.gz", "hyp.ctm"):
        (folder / name).unlink(missing_ok=True)
    if config.nbest:
        lines = [
            f"{utterance} {rank} {string.cost:.4f} {' '.join(string.words)}".rstrip() + "\n"
            for utterance, detail in batch.details.items()
            for rank, string in enumerate(detail.nbest, 1)
        ]
        write_text(folder / "nbest.txt", "".join(lines))
    if config.lattice:
        write_lattices(folder / "lattices.txt.gz", ((u, detail.lattice) for u, detail in batch.details.items()))
    if config.ctm:
        places = {u.id: place_of(u) for u in utterances}
        write_ctm(folder / "hyp.ctm", {u: detail.timed for u, detail in batch.details.items()}, places)


def _update_results(exp: Path, found: Recognised) -> None:
    """Add the word errors to results.json and a line to the log."""
    results, errors = Results.from_json(read_json(exp / Results.FILE)), found.score.errors
    results.wer[found.split] = word_errors(found.summary, found.subsets, found.search.scale)
    write_json(exp / Results.FILE, results.to_json())
    append(
        exp,
        Decoded(
            wall_s=results.wall_seconds,
            virtual_s=results.virtual_seconds,
            split=found.split,
            wer=errors.wer,
            errors={"ins": errors.ins, "del": errors.del_, "sub": errors.sub, "ref": errors.ref},
            acoustic_scale=found.search.scale,
            real_time_factor=found.real_time_factor,
        ),
    )
