"""A recipe trained with speakers left out in turn, and the errors of all folds pooled: how well it recognises people
whom it has never heard.

FOLDER/fold-1/, ...         run directories, each trained and decoded
FOLDER/corpora/fold-1/      its prepared corpus, with a link to the features of the whole
FOLDER/alignments/fold-1/   its alignment, from a flat start without the speakers it leaves out
FOLDER/decode/test/         words of all speakers, as a decoding leaves them: `roundelay score FOLDER` reads them
FOLDER/folds.json           who was left out when, and word errors
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from roundelay.core.errors import UserError
from roundelay.core.files import write_json
from roundelay.core.progress import Progress
from roundelay.grids.grid import Cell
from roundelay.grids.results import CellOutcome, CellState
from roundelay.grids.running import GridWork
from roundelay.job import Interrupt
from roundelay.strategies import make_strategy
from roundelay_speech.corpus.folds import TEST, fold, speaker_parts, write_fold
from roundelay_speech.grids.running import RecipeConfiguration, RecipeWork, of_recipe
from roundelay_speech.hmm.flat_start import train_alignments
from roundelay_speech.packed.card import errors_of
from roundelay_speech.prepared import Corpus, load_corpus
from roundelay_speech.recipes.recipe import Recipe, load_recipe
from roundelay_speech.scoring.alignment.groups import Groups, by_gender, by_speaker
from roundelay_speech.scoring.formats.trn import read_trn, trn_name
from roundelay_speech.scoring.output import GENDER, OutputOptions, describe
from roundelay_speech.scoring.score import Score, score
from roundelay_speech.scoring.summary import group_of_utterance, summarise, write_score

FOLDS = "folds.json"


@dataclass(frozen=True)
class Folds:
    """The trainings of a recipe with speakers left out in turn."""

    corpus: Corpus  # of the recipe
    folder: Path
    parts: tuple[tuple[str, ...], ...]  # speakers that each fold leaves out
    corpora: tuple[Corpus, ...]  # of each fold
    cells: tuple[Cell, ...]  # the training of each fold


@dataclass(frozen=True)
class Pooled:
    """The word errors of all speakers, each recognised by a model that never heard them."""

    name: str
    score: Score
    groups: Groups

    @property
    def text(self) -> str:
        """Text on the word errors of all, of women and men, and of every speaker, with intervals."""
        known = any(by_gender(self.score, self.groups))
        wanted = OutputOptions(interval=True, unit="speakers", per_speaker=True, by=GENDER if known else "")
        return describe(self.name, self.score, self.groups, wanted)


def plan_folds(source: str, overrides: Sequence[str], count: int, folder: Path | None = None) -> Folds:
    """Plan the trainings of a recipe in folds.

    Args:
        count: number of folds.
        folder: folder of all runs; None: exp/RECIPE/folds-COUNT.

    Raises:
        UserError: no such recipe or corpus; fewer speakers than folds; a model or features that may know the speakers
            who are left out.
    """
    recipe = load_recipe(source, overrides)
    corpus = load_corpus(recipe.corpus)
    corpus.check_labelled()
    _check_unheard(recipe, corpus)
    parts = tuple(speaker_parts(corpus, count))
    folder = Path("exp") / recipe.name / f"folds-{count}" if folder is None else folder
    corpora = tuple(fold(corpus, parts, n, folder / "corpora" / f"fold-{n + 1}") for n in range(count))
    cells = tuple(_cell(recipe, made, folder) for made in corpora)
    return Folds(corpus, folder, parts, corpora, cells)


def _check_unheard(recipe: Recipe, corpus: Corpus) -> None:
    """Raise a UserError if something that all folds share was trained on the speakers who are left out."""
    if recipe.init.model is not None:
        raise UserError(
            f"init.model is {recipe.init.model}, which may have heard the speakers who are left out. Give "
            "init.model=null."
        )
    store = corpus.features()
    store.must_be_whole("folds need")
    if corpus.audio and (names := [part.name for part in store.parts if not part.filterbank]):
        raise UserError(
            f"{store.folder}: {', '.join(names)} among the features may come from models that have heard the speakers "
            "who are left out. Choose filterbanks alone by `roundelay features`."
        )


def _cell(recipe: Recipe, made: Corpus, folder: Path) -> Cell:
    """Return the training of a fold: that of the recipe, on the fold's corpus."""
    name, training = made.folder.name, recipe.training
    own = replace(
        recipe,
        corpus=made.folder,
        alignment=None if recipe.unaligned else folder / "alignments" / name,
        decode=replace(recipe.decode, splits=(TEST,)),
    )
    strategy = make_strategy(training.strategy, training.options)
    configuration = RecipeConfiguration(strategy, training.learners, training.stragglers, (("fold", name),), name, own)
    return Cell(folder / name, configuration, training.seed)


def run_folds(
    folds: Folds, progress: Progress, announce: Callable[[str], None], interrupt: Interrupt
) -> tuple[list[CellOutcome], Pooled | None]:
    """Align, train and decode every fold, or go on with it; a fold that fails does not stop the others.

    Returns:
        The end of each fold; the pooled errors where all are finished.
    """
    work = GridWork(len(folds.cells), progress, announce, interrupt, partial(_FoldWork, folds))
    for cell in folds.cells:
        work.add(cell, decode=True)
    whole = all(outcome.state is CellState.FINISHED for outcome in work.outcomes)
    return work.outcomes, _pooled(folds) if whole else None


class _FoldWork(RecipeWork):
    """The work on a fold: its corpus and its alignment come before the training."""

    def __init__(self, folds: Folds, cell: Cell, decode: bool, progress: Progress, interrupt: Interrupt) -> None:
        super().__init__(cell, decode, progress, interrupt)
        self.folds = folds

    def go(self) -> bool:
        recipe = of_recipe(self.cell.configuration).base
        made = self.folds.corpora[self.folds.cells.index(self.cell)]
        write_fold(made, self.folds.corpus)
        if not recipe.unaligned:
            train_alignments(made, made.features(), recipe.align, recipe.aligned, self.progress)
        return super().go()


def _pooled(folds: Folds) -> Pooled:
    """Pool the errors of all folds, and write them.

    Raises:
        UserError: a fold diverged, so that there is nothing to score.
    """
    heard: dict[str, list[str]] = {}
    spoken = [u for made in folds.corpora for u in made.splits[TEST]]
    for made, cell in zip(folds.corpora, folds.cells, strict=True):
        hypotheses = cell.exp / "decode" / TEST / "hyp.trn"
        if not hypotheses.is_file():
            raise UserError(f"{cell.exp}: the training diverged, so nothing is decoded. Try a lower learning rate.")
        words = read_trn(hypotheses)
        heard |= {u.id: words[trn_name(u.id, u.speaker)] for u in made.splits[TEST]}
    result = score({u.id: u.words for u in spoken}, heard)
    groups = {u.id: group_of_utterance(u) for u in spoken}
    write_score(folds.folder / "decode" / TEST, summarise(result), {}, spoken)
    write_json(folds.folder / FOLDS, _told(folds, result, groups))
    return Pooled(str(folds.folder), result, groups)


def _told(folds: Folds, result: Score, groups: Groups) -> dict[str, Any]:
    """Return the content of FOLDS. Intervals of all, and of women and men, are over speakers; a speaker's is over
    utterances."""
    genders, speakers = by_gender(result, groups), by_speaker(result, groups)
    return {
        "corpus": str(folds.corpus.folder),
        "left_out": {cell.exp.name: list(part) for cell, part in zip(folds.cells, folds.parts, strict=True)},
        **errors_of(summarise(result, groups, "speakers")),
        "groups": {name: errors_of(summarise(part, groups, "speakers")) for name, part in genders.items()},
        "speakers": {name: errors_of(summarise(part)) for name, part in speakers.items()},
    }
