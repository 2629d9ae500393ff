"""Settings of a search that a recipe leaves to held-out speech: scale, cost of a word, widths, cost of a blank."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay_speech.decode.graphs.base import Columns
from roundelay_speech.decode.graphs.ctc import CtcGraph, UnitsAndBlank
from roundelay_speech.decode.parallel import Decoders, Search, SearchedGraph, Searcher
from roundelay_speech.decode.search import SCALES
from roundelay_speech.decode.tuning import Trials, Tried, Tuning
from roundelay_speech.prepared import Corpus
from roundelay_speech.recipes.recipe import Decoding
from roundelay_speech.recognition.loglikelihoods import TUNING_SPLIT, Source
from roundelay_speech.recognition.unfinished import UnfinishedDecoding


def chosen_settings(
    run: Searcher,
    source: Source,
    corpus: Corpus,
    config: Decoding,
    progress: Progress,
    columns: Columns | None = None,
    kept: UnfinishedDecoding | None = None,
) -> tuple[Search, Mapping[Search, Tried]]:
    """Return the search with what the recipe fixes, and the rest as it is best on dev; and all that was tried for that.
    A search without a graph has no settings. `columns` say what the search sees of log-likelihoods; None: all as it is.
    What was tried is `kept`.
    """
    if not isinstance(run, Decoders):
        return Search(1.0), {}
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
        if columns is not None:
            loglikes = {name: columns.searched(matrix) for name, matrix in loglikes.items()}
        frames = sum(map(len, loglikes.values()))
        frame_seconds = source.seconds(utterances, frames) / max(1, frames)
        refs = {u.id: u.text.split() for u in utterances}
        before = None
        if kept is not None:
            blank_cost = columns.blank_cost if isinstance(columns, UnitsAndBlank) else 0.0
            before = Trials(kept.known(blank_cost), partial(kept.keep_tried, blank_cost))
        tuning = Tuning(run, loglikes, refs, frame_seconds, TUNING_SPLIT, progress, before)
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


def at_edges(search: Search, tried: Collection[Search], config: Decoding, columns: Columns) -> list[str]:
    """Return sentences on settings that are the lowest or the highest of those that were tried for them, beyond which a
    better one may lie. The narrowest beam is none of these: it is as good as the wider ones."""
    grids: list[tuple[str, float | None, set[float], str]] = [
        ("acoustic scale", search.scale, {one.scale for one in tried}, "scales"),
        ("word cost", search.word_cost, set(config.word_costs), "word_costs"),
        ("beam", search.beam, set(config.beams), "beams"),
        ("number of active paths", search.max_active, set(config.max_actives), "max_actives"),
    ]
    if isinstance(columns, UnitsAndBlank) and isinstance(config.graph, CtcGraph):
        grids.append(("blank cost", columns.blank_cost, set(config.graph.blank_costs), "graph.blank_costs"))
    found = []
    for name, value, grid, option in grids:
        if value is None or len(grid) < 2 or value not in (min(grid), max(grid)):
            continue
        if value == min(grid) and option in ("beams", "max_actives"):
            continue
        which, beyond = ("lowest", "lower") if value == min(grid) else ("highest", "higher")
        found.append(
            f"{name} {value:g} is the {which} that was tried on {TUNING_SPLIT}; a {beyond} one may be better: "
            f"--set decode.{option}=[...]"
        )
    return found


def with_blank_cost(
    graph: SearchedGraph,
    source: Source,
    corpus: Corpus,
    config: Decoding,
    progress: Progress,
    kept: UnfinishedDecoding | None = None,
) -> tuple[SearchedGraph, Search, Mapping[Search, Tried]]:
    """Return `chosen_settings`, and before all others the cost of a blank where the recipe has several: that with the
    fewest errors at its best settings, of equally good ones the lowest. The graph has it in its columns.

    Raises:
        UserError: costs of a blank are to be chosen, and nothing else is.
    """
    columns, kind = graph.columns, config.graph
    costs = kind.blank_costs if isinstance(kind, CtcGraph) and isinstance(graph.run, Decoders) else ()
    if not costs or not isinstance(columns, UnitsAndBlank):
        return graph, *chosen_settings(graph.run, source, corpus, config, progress, columns, kept)
    found = []
    for cost in sorted(set(costs)):
        charged = replace(columns, blank_cost=cost)
        options, tried = chosen_settings(graph.run, source, corpus, config, progress, charged, kept)
        if not tried:
            raise UserError(
                "decode.graph.blank_costs are chosen with the scale or the cost of a word: leave decode.scale out, or "
                "give decode.graph.blank_cost, which fixes it."
            )
        found.append((min(one.errors.total for one in tried.values()), cost, charged, options, tried))
    _, _, charged, options, tried = min(found, key=lambda one: one[:2])
    return replace(graph, columns=charged), options, tried
