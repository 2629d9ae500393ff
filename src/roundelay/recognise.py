"""Recognition: from trained runs to words and word error rates.

OUT/decode/SPLIT/   hyp.trn, ref.trn, groups.json (speakers and subsets), ref.stm (with times in the recordings),
                    wer.txt (the %WER line and its interval), errors.txt (every error in its place), decode.json; if
                    asked for nbest.txt, lattices.txt.gz, hyp.ctm. OUT is the run, or a folder of the user's
ALIGNMENT/graphs/   decoding graphs, shared by all runs that use the same lexicon, tied states and language model
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from roundelay.acoustic import AcousticModel, load_model
from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.core.files import read_json, write_json, write_text
from roundelay.core.progress import Progress
from roundelay.core.records import Decoded, Results
from roundelay.recipes.recipe import Decoding, Recipe
from roundelay.run_directory import append
from roundelay.speech.data.manifest import Utterance
from roundelay.speech.decode.confidence import Pronouncing
from roundelay.speech.decode.graphs.hmm import GRAPH_FILE, GraphConfig
from roundelay.speech.decode.graphs.making import LEXICON_FILE, GraphJob, LanguageOptions, find_or_make
from roundelay.speech.decode.lattice import write_lattices
from roundelay.speech.decode.lm.estimate import Estimator
from roundelay.speech.decode.parallel import Batch, Decoders, Search, decoders
from roundelay.speech.decode.search import SCALES
from roundelay.speech.decode.tuning import Tried, Tuning
from roundelay.speech.features.store import FeatureStore
from roundelay.speech.hmm.alignment import Alignment
from roundelay.speech.lexicon.lexicon import read_lexicon
from roundelay.speech.models.frames import log_likelihoods
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

FRAME_SECONDS = 0.01
TUNING_SPLIT = "dev"
GRAPHS = "graphs"


@dataclass(frozen=True)
class Recognised:
    """One split of one run, or of several together."""

    split: str
    score: Score
    search: Search  # its settings
    real_time_factor: float  # seconds of one core per second of speech, of the search alone
    unfinished: int  # utterances whose best path was no whole sentence
    unknown: int  # reference words that the graph cannot recognise
    summary: Summary  # of the score
    subsets: dict[str, Summary]  # where the split has parts


@dataclass(frozen=True, eq=False)
class Voice:
    """A run that takes part: its model, and the features it hears."""

    exp: Path
    weight: float
    model: AcousticModel
    store: FeatureStore


def recognise(
    exp: Path,
    recipe: Recipe,
    progress: Progress,
    *,
    others: Sequence[tuple[Path, Recipe, float]] = (),
    out: Path | None = None,
    of: Path | None = None,
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

    Raises:
        UserError: not a finished run; a split that does not exist; language model and lexicon do not fit; runs that do
            not fit together; features that differ from those a model was trained on.
    """
    config = recipe.decode
    own, alignment = load_corpus(recipe.corpus), Alignment.load(recipe.alignment)
    corpus = own if of is None else load_corpus(of)
    if (others or of is not None) and out is None:
        what = "Runs that are decoded together need" if others else "Decoding another corpus needs"
        raise UserError(f"{what} a folder for the results: give --out DIR.")
    if unknown := [split for split in config.splits if split not in corpus.splits]:
        raise UserError(
            f"decode.splits: {corpus.folder} has no split {', '.join(unknown)}, only {', '.join(corpus.splits)}."
        )
    voices = _voices(exp, recipe, others, None if of is None else corpus)
    tuned = voices
    if of is not None and TUNING_SPLIT not in corpus.splits:
        tuned = _voices(exp, recipe, others)
    graph = _graph(recipe, own, alignment, progress, _said(voices[0], own, corpus))
    pronouncing = None
    if config.ctm:
        lexicon = read_lexicon(graph / LEXICON_FILE, alignment.tying.phones[0])
        pronouncing = Pronouncing(lexicon, alignment.tying, config.silence_probability, FRAME_SECONDS)
    done = []
    with decoders(graph, config.workers, pronouncing) as run:
        options, tried = _settings(run, tuned, corpus if tuned is voices else own, config, progress)
        words = set(read_lexicon(graph / LEXICON_FILE).words)
        for split in config.splits:
            found, batch = _one_split(run, voices, corpus.splits[split], split, options, words, progress)
            folder = (out or exp) / "decode" / split
            _write(folder, found, batch, corpus, config, voices, tried)
            if out is None:
                _update_results(exp, found)
            done.append(found)
    return done


def _voices(
    exp: Path, recipe: Recipe, others: Sequence[tuple[Path, Recipe, float]], corpus: Corpus | None = None
) -> list[Voice]:
    """The runs, checked to have the same tied states, with the features of `corpus`, or each with its own corpus's."""
    voices, first = [], Alignment.load(recipe.alignment)
    total = 1.0 + sum(weight for *_, weight in others)
    if any(not weight > 0.0 for *_, weight in others):
        raise UserError("Weights of runs must be above 0; leave out a run that is not to count.")
    for path, its, weight in [(exp, recipe, 1.0), *others]:
        model, alignment = load_model(path), Alignment.load(its.alignment)
        if alignment.num_pdfs != len(model.prior):
            raise UserError(
                f"{path}: the model has {len(model.prior)} tied states, the alignment in {its.alignment} has "
                f"{alignment.num_pdfs}. Give the alignment it was trained on, or train again."
            )
        same = alignment.tying.phones == first.tying.phones
        if not same or not np.array_equal(alignment.tying.table, first.tying.table):
            raise UserError(
                f"{path}: other tied states ({its.alignment}) than {exp} ({recipe.alignment}), so their "
                "log-likelihoods cannot be averaged. Train both on alignments of one decision tree."
            )
        heard = corpus or load_corpus(its.corpus)
        splits = [split for split in {*recipe.decode.splits, TUNING_SPLIT} if split in heard.splits]
        voices.append(Voice(path, weight / total, model, model.features(heard, path, splits)))
    return voices


def _said(voice: Voice, own: Corpus, corpus: Corpus) -> str:
    """A sentence on whose words and language model are used, where that is not plain."""
    changed = voice.model.input.changes(own) if voice.model.input is not None else ""
    if changed:
        changed += "The graph is made of what is there now. "
    if corpus is own:
        return changed
    return f"words and language model of {own.folder}, which the model was trained on. {changed}"


def _graph(recipe: Recipe, corpus: Corpus, alignment: Alignment, progress: Progress, said: str) -> Path:
    """The folder of the decoding graph, built unless it is there; `said` is told with it."""
    config = recipe.decode
    how = Estimator(config.order, config.method, config.discount, config.cutoffs, config.prune)
    options = LanguageOptions(
        how,
        config.arpa,
        config.text,
        config.join,
        config.transcript_weight,
        config.vocabulary,
        config.lexicon,
        config.guess,
    )
    transcripts = tuple(corpus.transcripts("train"))
    # The cost of words is put on when the graph is loaded: one graph serves all of them.
    job = GraphJob(options, GraphConfig(config.silence_probability), transcripts, corpus.lexicon, alignment.tying)
    progress.start("building the decoding graph")
    folder, new = find_or_make(job, recipe.alignment / GRAPHS)
    info = read_json(folder / GRAPH_FILE)
    note = (
        f"{info['words']:,} words, {info['states']:,} states, {info['arcs']:,} arcs, {info['build_seconds']:.1f} s ("
        f"{info['language_model_seconds']:.1f} s for the language model), {info['peak_bytes'] / 1e9:.2f} GB. "
    )
    progress.advance(0, said + (note if new else "") + info["left_out"])
    progress.finish()
    return folder


def _loglikes(voices: Sequence[Voice], utterances: Sequence[Utterance]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """The weighted mean of all runs' log-likelihoods (T, S)."""
    for utterance in utterances:
        result: NDArray[np.float32] | None = None
        for voice in voices:
            part = log_likelihoods(voice.model.module, voice.store, utterance.id, voice.model.prior)
            if len(voices) > 1:
                part *= np.float32(voice.weight)
            if result is not None and result.shape != part.shape:
                raise UserError(
                    f"{utterance.id}: {len(part)} frames in {voice.exp}, {len(result)} in {voices[0].exp}. Decode runs "
                    "together that were trained on features of one frame rate."
                )
            result = part if result is None else result + part
        assert result is not None
        yield utterance.id, result


def _refs(utterances: Sequence[Utterance]) -> dict[str, list[str]]:
    return {u.id: u.text.split() for u in utterances}


def _settings(
    run: Decoders, voices: Sequence[Voice], corpus: Corpus, config: Decoding, progress: Progress
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
        loglikes = dict(_loglikes(voices, utterances))
        tuning = Tuning(run, loglikes, _refs(utterances), FRAME_SECONDS, TUNING_SPLIT, progress)
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


def _one_split(
    run: Decoders,
    voices: Sequence[Voice],
    utterances: Sequence[Utterance],
    split: str,
    options: Search,
    words: set[str],
    progress: Progress,
) -> tuple[Recognised, Batch]:
    progress.start(f"decoding {split}", len(utterances))
    frames = 0

    def counted() -> Iterator[tuple[str, NDArray[np.float32]]]:
        nonlocal frames
        for utterance, matrix in _loglikes(voices, utterances):
            frames += len(matrix)
            yield utterance, matrix

    batch = run.search(counted(), options, progress)
    progress.finish()
    refs, hypotheses = _refs(utterances), batch.hypotheses
    result = score(refs, {u: list(h.words) for u, h in hypotheses.items()})
    found = Recognised(
        split,
        result,
        options,
        batch.search_seconds / (frames * FRAME_SECONDS),
        sum(not h.reached_final for h in hypotheses.values()),
        sum(word not in words for ref in refs.values() for word in ref),
        summarise(result),
        summarise_subsets(result, utterances),
    )
    return found, batch


def _write(
    folder: Path,
    found: Recognised,
    batch: Batch,
    corpus: Corpus,
    config: Decoding,
    voices: Sequence[Voice],
    tried: Mapping[Search, Tried],
) -> None:
    write_score(folder, found.summary, found.subsets, corpus.splits[found.split])
    _write_details(folder, batch, corpus.splits[found.split], config)
    write_json(
        folder / "decode.json",
        {
            **_shown(found.search),
            "real_time_factor": found.real_time_factor,
            "unfinished_utterances": found.unfinished,
            "words": found.score.errors.ref,
            "unknown_words": found.unknown,
            "runs": {str(voice.exp): voice.weight for voice in voices},
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
