"""Settings of a search that a recipe leaves to held-out speech: scale, cost of a word, widths, cost of a blank.

What is tried and done is kept, so that the same command goes on from there:

OUT/decode/unfinished.json   models and options, errors by setting, names of splits; gone when all is done
"""

import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from roundelay import __version__
from roundelay.core.checksums import file_checksum, read_checked, write_checked
from roundelay.core.configure import build, plain
from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay.core.progress import Progress
from roundelay_speech.decode.graphs.base import Columns
from roundelay_speech.decode.graphs.ctc import CtcGraph, UnitsAndBlank
from roundelay_speech.decode.parallel import Decoders, Search, SearchedGraph, Searcher
from roundelay_speech.decode.search import SCALES
from roundelay_speech.decode.tuning import Trials, Tried, Tuning
from roundelay_speech.hmm.alignment import TREE
from roundelay_speech.prepared import CORPUS, Corpus
from roundelay_speech.recipes.recipe import Decoding, Recipe
from roundelay_speech.recognition.loglikelihoods import TUNING_SPLIT, Models, Source
from roundelay_speech.scoring.formats.trn import read_trn, trn_name
from roundelay_speech.scoring.score import ErrorCounts
from roundelay_speech.trained import MODEL, UNITS

UNFINISHED = "unfinished.json"


@dataclass
class UnfinishedDecoding:
    """The results of a decoding under way, saved in a file."""

    path: Path  # of its file
    identity: str  # of the corpus, the models and the options
    # a row for each setting that was tried on held-out speech: the cost of a blank, its errors, its speed.
    tried: list[dict[str, Any]] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)  # those that are done, all of whose files are written

    @classmethod
    def of(cls, folder: Path, identity: str) -> "UnfinishedDecoding":
        """Read the results saved in a folder, if they are of this very decoding; else begin with none."""
        path = folder / UNFINISHED
        try:
            told = read_checked(path, "") if path.is_file() else {}
        except UserError:
            told = {}  # damaged: it is decoded anew
        if told.get("identity") != identity:
            return cls(path, identity)
        return cls(path, identity, list(told["tried"]), list(told["splits"]))

    def known(self, blank_cost: float) -> dict[Search, Tried]:
        """Return the settings tried with a cost of a blank, in order, and their results."""
        return {
            build(Search, row["search"]): Tried(ErrorCounts(**row["errors"]), row["real_time_factor"])
            for row in self.tried
            if row["blank_cost"] == blank_cost
        }

    def keep_tried(self, blank_cost: float, search: Search, found: Tried) -> None:
        """Save the result of one more setting."""
        row = {"search": dataclasses.asdict(search), "errors": dataclasses.asdict(found.errors)}
        self.tried.append({"blank_cost": blank_cost, **row, "real_time_factor": found.real_time_factor})
        self._write()

    def keep_split(self, split: str) -> None:
        """Save that a split is done, after its files were written."""
        self.splits.append(split)
        self._write()

    def done(self) -> None:
        """Remove the file, once everything is decoded."""
        self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        told = {"identity": self.identity, "tried": self.tried, "splits": self.splits}
        write_checked(self.path, told, one_line=True)


def identity_of(recipe: Recipe, source: Source, corpora: Sequence[Corpus]) -> str:
    """Return a checksum of everything that decides the words of a decoding."""
    config = recipe.decode
    named = [path for path in (config.arpa, config.rescore, config.lexicon, *config.text) if path is not None]
    made_of = [corpus.folder / CORPUS for corpus in corpora]
    made_of += [member.exp / MODEL for member in source.members] if isinstance(source, Models) else []
    made_of += [] if recipe.unaligned else [recipe.aligned / TREE]
    told = [
        __version__,
        plain(config),
        source.told(),
        [file_checksum(path) for path in made_of],
        [[path.stat().st_size, path.stat().st_mtime_ns] for path in named],
    ]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class WrittenSplit:
    """A split as read from its result files: words and units by utterance, and decode.json."""

    words: dict[str, list[str]]
    units: dict[str, tuple[str, ...]]
    told: dict[str, Any]


def written_split(folder: Path, corpus: Corpus, split: str) -> WrittenSplit | None:
    """Read the results of a finished split; return None if its files are not whole."""
    try:
        heard, told = read_trn(folder / "hyp.trn"), read_json(folder / "decode.json")
        words = {u.id: list(heard[trn_name(u.id, u.speaker)]) for u in corpus.splits[split]}
        units = {}
        if (folder / UNITS).is_file():
            lines = (folder / UNITS).read_text(encoding="utf-8").split("\n")
            units = {line.split(" ")[0]: tuple(line.split(" ")[1:]) for line in lines if line}
        return WrittenSplit(words, units, told)
    except (UserError, KeyError, OSError, UnicodeDecodeError):
        return None


def kept_of(folder: Path) -> str:
    """Return words on the results that an interrupted decoding has saved in its folder; "" if there are none."""
    try:
        told = read_checked(folder / UNFINISHED, "")
    except UserError:
        return ""
    parts = [f"{len(told['tried'])} settings tried"] if told["tried"] else []
    parts += [f"the words of {', '.join(told['splits'])}"] if told["splits"] else []
    return " and ".join(parts)


def chosen_settings(
    run: Searcher,
    source: Source,
    corpus: Corpus,
    config: Decoding,
    progress: Progress,
    columns: Columns | None = None,
    kept: UnfinishedDecoding | None = None,
) -> tuple[Search, Mapping[Search, Tried]]:
    """Choose the settings of a search: those that the recipe fixes, and the best on dev for the others; return the
    search, and all settings tried. A search without a graph has no settings. `columns` transform log-likelihoods for
    the search; None: unchanged. Settings tried are saved in `kept`."""
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
    """Return sentences on settings that are the lowest or highest tried, beyond which a better one may be. The
    narrowest beam is not among them, since it is as good as wider ones."""
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
    """Choose settings as `chosen_settings`, and before that the cost of a blank, if the recipe has several: the one
    with the fewest errors at its best settings, of equally good ones the lowest. The returned graph has it in its
    columns.

    Raises:
        UserError: a cost of a blank is to be chosen, but dev chooses no other setting.
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
