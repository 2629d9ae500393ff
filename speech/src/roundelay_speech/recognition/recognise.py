"""Recognition: from trained runs to words and word error rates.

OUT/decode/SPLIT/   hyp.trn, ref.trn, groups.json (speakers and subsets), ref.stm (with times in the recordings),
                    wer.txt (the %WER line and its interval), errors.txt (every error in its place), utterances.jsonl
                    (words against words, for programs), phones.json (which phones are confused), decode.json; if
                    asked for nbest.txt, lattices.txt.gz, hyp.ctm; where columns are units (decode.graph=ctc) units.txt,
                    those of the best column of each frame. OUT is the run, or a folder of the user's. Of speech
                    without transcripts there is nothing to compare with: neither references nor errors
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.core.files import write_json, write_text
from roundelay.core.progress import Progress
from roundelay.core.records import PHONES_FILE, Decoded, Results
from roundelay.loggers.base import LoggedRun
from roundelay.loggers.tensorboard import draw_word_errors
from roundelay.run_directory import append
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.decode.graphs.base import Columns
from roundelay_speech.decode.graphs.ctc import CtcGraph, UnitsAndBlank
from roundelay_speech.decode.lattice import write_lattices
from roundelay_speech.decode.lm.given import expected
from roundelay_speech.decode.parallel import Batch, Search, SearchedGraph
from roundelay_speech.decode.tuning import Tried
from roundelay_speech.features.parts import Matrices
from roundelay_speech.prepared import Corpus, has_words, load_corpus
from roundelay_speech.recipes.recipe import Decoding, Recipe
from roundelay_speech.recognition.graph import columns_of, searched
from roundelay_speech.recognition.loglikelihoods import TUNING_SPLIT, Given, Models, Source, ensemble, words_said
from roundelay_speech.recognition.settings import (
    UnfinishedDecoding,
    at_edges,
    identity_of,
    with_blank_cost,
    written_split,
)
from roundelay_speech.scoring.formats.ctm import write_ctm
from roundelay_speech.scoring.score import ErrorCounts, Score, score
from roundelay_speech.scoring.summary import (
    Summary,
    place_of,
    summarise,
    summarise_subsets,
    word_errors,
    write_phones,
    write_score,
    write_words,
)
from roundelay_speech.trained import UNITS


@dataclass(frozen=True)
class Recognised:
    """The recognition of one split by one run, or by several together."""

    split: str
    score: Score
    search: Search  # its settings
    real_time_factor: float  # seconds of one core per second of speech, of the search alone
    unfinished: int  # utterances whose best path was no whole sentence
    rescoring_factor: float  # seconds of one core per second of speech that rescoring takes
    # of the references, that the graph cannot recognise, and how often they are said, the most frequent first.
    unknown_words: dict[str, int]
    summary: Summary  # of the score
    subsets: dict[str, Summary]  # where the split has parts
    units: dict[str, tuple[str, ...]]  # that were read off by utterance, where columns are units
    unit_errors: ErrorCounts | None = None  # of those
    edges: Sequence[str] = ()  # sentences on settings at the edge of those tried

    @property
    def unknown(self) -> int:
        """Number of reference words that the graph cannot recognise."""
        return sum(self.unknown_words.values())

    @property
    def scored(self) -> bool:
        """True if the utterances have transcripts and so a score."""
        return bool(self.score.utterances)


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
    recipe fixes them. Words and language model are those of the corpus the model was trained on, and those that the
    recipe's section decode names, whichever corpus is decoded.

    Args:
        others: further runs with the same tied states, with weights (that of `exp` is 1): the weighted mean of all
            log-likelihoods is decoded.
        out: folder for the results; None: `exp`, whose results.json is then updated too.
        of: another prepared corpus, whose splits are decoded. Settings are chosen on its dev split, or on that of the
            run's corpus if it has none.
        scores: log-likelihoods to decode instead of those of the run's model (a .scp, .ark or .npz file, or a folder of
            .npy files); of the run, its recipe alone is used.

    Raises:
        UserError: the run is not finished; the kind of graph is not for its model; a split does not exist; language
            model and lexicon do not fit; runs do not fit together; features differ from those a model was trained on.
    """
    config = recipe.decode
    own = load_corpus(recipe.corpus)
    corpus = own if of is None else load_corpus(of)
    _check_asked(exp, recipe, len(others), out, of, scores)
    _check_splits(corpus, config.splits)
    tuned_on = corpus if of is None or _tunes(corpus) else own
    source, tuned, said = _sources((exp, recipe, others), (own, corpus, tuned_on), scores)
    done = []
    with searched(exp, recipe, own, columns_of(recipe, own, source), progress, said) as made:
        kept = UnfinishedDecoding.of((out or exp) / "decode", identity_of(recipe, source, (corpus, tuned_on, own)))
        graph, options, tried = with_blank_cost(made, tuned, tuned_on, config, progress, kept)
        edges = at_edges(options, tried, config, graph.columns)
        for split in config.splits:
            if split in kept.splits and (
                again := _again(graph, corpus, split, options, (out or exp) / "decode" / split)
            ):
                done.append(replace(again, unit_errors=_unit_errors(again, graph.columns, corpus), edges=edges))
                continue
            found, batch = recognise_split(graph, source, corpus.splits[split], split, options, progress)
            found = replace(found, unit_errors=_unit_errors(found, graph.columns, corpus), edges=edges)
            folder = (out or exp) / "decode" / split
            spoken = own if corpus.unlabelled else corpus, corpus.splits[split]
            _write(folder, found, batch, spoken, config, {**source.told(), **graph.columns.told()}, tried)
            if out is None and found.scored:
                _update_results(exp, found)
            done.append(found)
            kept.keep_split(split)
        kept.done()
    return done


def _sources(
    runs: tuple[Path, Recipe, Sequence[tuple[Path, Recipe, float]]],
    corpora: tuple[Corpus, Corpus, Corpus],
    scores: Path | None,
) -> tuple[Source, Source, str]:
    """Return the source to decode, the source on which settings are chosen, and a remark on the words.

    Args:
        runs: a run, its recipe, and others beside it.
        corpora: the run's own, the one to decode, and the one on which settings are chosen.
        scores: given log-likelihoods; None: those of the runs.
    """
    if scores is not None:
        given = Given(Matrices.open(scores))
        return given, given, ""
    (exp, recipe, others), (own, corpus, tuned_on) = runs, corpora
    source = Models(ensemble(exp, recipe, others, None if corpus is own else corpus))
    tuned = source if tuned_on is corpus else Models(ensemble(exp, recipe, others))
    return source, tuned, words_said(source.members[0], own, corpus)


def _again(graph: SearchedGraph, corpus: Corpus, split: str, options: Search, folder: Path) -> Recognised | None:
    """Return a split that was finished by an interrupted decoding with the same options; None if its files are not
    whole."""
    written = written_split(folder, corpus, split)
    if written is None:
        return None
    told = written.told
    numbers = told["real_time_factor"], told["unfinished_utterances"], told.get("rescoring_real_time_factor", 0.0)
    return _scored(graph, split, corpus.splits[split], written.words, options, written.units, numbers)


def _unit_errors(found: Recognised, columns: Columns, corpus: Corpus) -> ErrorCounts | None:
    """Return the errors of the recognised units, compared with the transcripts'; None if columns are no units of a
    model trained here. Utterances that cannot be written in units do not count."""
    if not isinstance(columns, UnitsAndBlank) or columns.pieces is None:
        return None
    if corpus.unlabelled:
        return None
    lexicon, refs = corpus.alignment_lexicon, {}
    for utterance in corpus.splits[found.split]:
        if (written := columns.pieces.written(utterance.words, lexicon)) is not None:
            refs[utterance.id] = list(written)
    return score(refs, {u: list(found.units.get(u, ())) for u in refs}).errors if refs else None


def _tunes(corpus: Corpus) -> bool:
    """Return True if settings of a search can be chosen on a corpus: it has a dev split with transcripts."""
    return TUNING_SPLIT in corpus.splits and has_words(TUNING_SPLIT, corpus.splits[TUNING_SPLIT])


def _check_splits(corpus: Corpus, splits: Sequence[str]) -> None:
    if unknown := [split for split in splits if split not in corpus.splits]:
        raise UserError(
            f"decode.splits: {corpus.folder} has no split {', '.join(unknown)}, only {', '.join(corpus.splits)}."
        )


def _check_asked(
    exp: Path, recipe: Recipe, others: int, out: Path | None, of: Path | None, scores: Path | None
) -> None:
    """Raise a UserError if the options of recognition do not fit together."""
    config = recipe.decode
    if (others or of is not None or scores is not None) and out is None:
        what = "Runs that are decoded together need" if others else "Decoding another corpus needs"
        what = what if scores is None else "Decoding given log-likelihoods needs"
        raise UserError(f"{what} a folder for the results: give --out DIR.")
    if others and scores is not None:
        raise UserError("--scores stands for the log-likelihoods of runs: leave --with out.")
    if config.rescore is not None:
        expected(config.rescore)  # before a graph is made, which may take long
    kind = config.graph
    if not kind.tied_states and scores is None and not recipe.unaligned:
        way = "train with training.objective=lfmmi"
        if kind.name == "ctc":
            way = (
                "give log-probabilities of units and a blank that another model computed: --scores FILE; or train with "
                "training.objective=ctc"
            )
        raise UserError(
            f"{exp}: its model gives log-likelihoods of tied states, which are decoded with decode.graph=hmm. For "
            f"decode.graph={kind.name}, {way}."
        )
    more = [name for name in ("nbest", "lattice", "rescore", "rescore_order") if getattr(config, name)]
    if isinstance(kind, CtcGraph) and kind.search != "words" and more:
        raise UserError(
            f"decode.{more[0]}: decode.graph.search={kind.search} knows no lexicon and no language model, and finds "
            "one row of words. Leave it out, or give decode.graph.search=words."
        )
    if not kind.tied_states and config.ctm:
        raise UserError(
            f"decode.ctm: a graph of kind {kind.name} does not say when a phone begins, so words have no times. Leave "
            "decode.ctm out, or decode with decode.graph=hmm."
        )


def recognise_split(
    graph: SearchedGraph,
    source: Source,
    utterances: Sequence[Utterance],
    split: str,
    options: Search,
    progress: Progress,
) -> tuple[Recognised, Batch]:
    """Decode one split, and score it if its utterances have transcripts."""
    progress.start(f"decoding {split}", len(utterances))
    frames, units = 0, {}

    def counted() -> Iterator[tuple[str, NDArray[np.float32]]]:
        nonlocal frames
        for utterance, matrix in source.of(utterances):
            frames += len(matrix)
            if read := graph.columns.read_off(matrix):
                units[utterance] = read
            yield utterance, graph.columns.searched(matrix)

    batch = graph.run.search(counted(), options, progress)
    if batch.unbounded:
        progress.advance(0, f"{batch.unbounded} with too many word strings for a lattice")
    progress.finish()
    seconds, words = source.seconds(utterances, frames), {u: list(h.words) for u, h in batch.hypotheses.items()}
    unfinished = sum(not h.reached_final for h in batch.hypotheses.values())
    numbers = batch.search_seconds / seconds, unfinished, batch.rescoring_seconds / seconds
    return _scored(graph, split, utterances, words, options, units, numbers), batch


def _scored(
    graph: SearchedGraph,
    split: str,
    utterances: Sequence[Utterance],
    words: Mapping[str, Sequence[str]],
    options: Search,
    units: dict[str, tuple[str, ...]],
    numbers: tuple[float, int, float],
) -> Recognised:
    """Return a split whose words are found, scored if its utterances have transcripts.

    Args:
        numbers: real time factor, unfinished utterances, and real time factor of rescoring.
    """
    refs = {u.id: u.words for u in utterances} if has_words(split, utterances) else {}
    result = score(refs, words) if refs else Score(())
    known = graph.words
    unknown = Counter(word for ref in refs.values() for word in ref if known is not None and word not in known)
    summary, parts = summarise(result), summarise_subsets(result, utterances)
    return Recognised(split, result, options, *numbers, dict(unknown.most_common()), summary, parts, units)


def _write(
    folder: Path,
    found: Recognised,
    batch: Batch,
    spoken: tuple[Corpus, Sequence[Utterance]],
    config: Decoding,
    told: Mapping[str, Any],
    tried: Mapping[Search, Tried],
) -> None:
    """Write all result files of a split; `spoken` is the corpus whose lexicon has the pronunciations, and the
    utterances."""
    lexical, utterances = spoken
    if found.scored:
        write_score(folder, found.summary, found.subsets, utterances)
        write_phones(folder, found.score, lexical.alignment_lexicon)
    else:
        write_words(folder, {u: h.words for u, h in batch.hypotheses.items()}, utterances)
        (folder / PHONES_FILE).unlink(missing_ok=True)
    (folder / UNITS).unlink(missing_ok=True)
    if found.units:
        write_text(folder / UNITS, "".join(f"{u} {' '.join(units)}\n" for u, units in found.units.items()))
    _write_details(folder, batch, utterances, config)
    write_json(
        folder / "decode.json",
        {
            **_shown(found.search),
            "real_time_factor": found.real_time_factor,
            "unfinished_utterances": found.unfinished,
            **_rescoring(found, batch, config),
            **({"utterances_without_lattice": batch.unbounded} if batch.unbounded else {}),
            "words": found.score.errors.ref,
            "unknown_words": found.unknown,
            "unknown_word_counts": found.unknown_words,
            **_of_units(found),
            **told,
            "at_edges": list(found.edges),
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


def _of_units(found: Recognised) -> dict[str, float | int]:
    """Return the fields on errors of units; empty if columns are no units."""
    if found.unit_errors is None:
        return {}
    errors = found.unit_errors
    return {"unit_error_rate": errors.wer, "unit_errors": errors.total, "units": errors.ref}


def _rescoring(found: Recognised, batch: Batch, config: Decoding) -> dict[str, float | str]:
    """Return the fields on rescoring; empty if there was none."""
    if not config.rescored:
        return {}
    return {
        "rescored_with": config.rescore.name if config.rescore else f"{config.rescore_order}-gram of the texts",
        "rescoring_real_time_factor": found.rescoring_factor,
        "not_rescored_utterances": batch.kept_as_found,
    }


def _shown(search: Search) -> dict[str, float]:
    """Return the settings of a search that are chosen on dev."""
    return {
        "acoustic_scale": search.scale,
        "word_cost": search.word_cost or 0.0,
        "beam": search.beam,
        "max_active": search.max_active,
    }


def _write_details(folder: Path, batch: Batch, utterances: Sequence[Utterance], config: Decoding) -> None:
    """Write n-best lists, lattices and times; remove those of an earlier decoding that are not asked for now."""
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
    """Add a split's word errors to the run's results.json and its log."""
    results, errors = Results.read(exp), found.score.errors
    results.wer[found.split] = word_errors(found.summary, found.subsets, found.search.scale)
    results.write(exp)
    record = Decoded(
        wall_s=results.wall_seconds,
        virtual_s=results.virtual_seconds,
        split=found.split,
        wer=errors.wer,
        errors={"ins": errors.ins, "del": errors.del_, "sub": errors.sub, "ref": errors.ref},
        acoustic_scale=found.search.scale,
        real_time_factor=found.real_time_factor,
    )
    append(exp, record)
    draw_word_errors(LoggedRun(exp, {}, results.frames_seen), record)
