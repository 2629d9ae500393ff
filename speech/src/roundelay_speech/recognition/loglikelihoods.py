"""Log-likelihoods that are decoded: of one trained run, of several together, or given.

Legend: T frames of an utterance, S columns.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundelay.core.errors import UserError
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.features.parts import Matrices
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.hmm.alignment import Alignment
from roundelay_speech.models.frames import log_likelihoods
from roundelay_speech.prepared import Corpus, load_corpus
from roundelay_speech.recipes.recipe import Recipe
from roundelay_speech.trained import AcousticModel, load_model

FRAME_SECONDS = 0.01
TUNING_SPLIT = "dev"


class Source(ABC):
    """A source of log-likelihoods of utterances."""

    @abstractmethod
    def of(self, utterances: Sequence[Utterance]) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield utterance ids with (T, S) unscaled log-likelihoods.

        Raises:
            UserError: an utterance has no log-likelihoods.
        """

    @abstractmethod
    def seconds(self, utterances: Sequence[Utterance], frames: int) -> float:
        """Return the seconds of `frames` frames of these utterances."""

    @abstractmethod
    def told(self) -> dict[str, Any]:
        """Return facts of the source, for decode.json: runs and their weights, or a file."""


@dataclass(frozen=True, eq=False)
class EnsembleMember:
    """A run of an ensemble: its model, weight and features."""

    exp: Path
    weight: float
    model: AcousticModel
    store: FeatureStore


@dataclass(frozen=True, eq=False)
class Models(Source):
    """A source that is the weighted mean of trained models' log-likelihoods."""

    members: Sequence[EnsembleMember]

    def of(self, utterances: Sequence[Utterance]) -> Iterator[tuple[str, NDArray[np.float32]]]:
        for utterance in utterances:
            yield utterance.id, mean_of(self.members, utterance.id)

    def seconds(self, utterances: Sequence[Utterance], frames: int) -> float:
        return frames * FRAME_SECONDS * self.members[0].model.module.subsampling

    def told(self) -> dict[str, Any]:
        return {"runs": {str(member.exp): member.weight for member in self.members}}


@dataclass(frozen=True, eq=False)
class Given(Source):
    """A source that is matrices computed elsewhere, by utterance (`roundelay decode --scores`)."""

    matrices: Matrices

    def of(self, utterances: Sequence[Utterance]) -> Iterator[tuple[str, NDArray[np.float32]]]:
        for utterance in utterances:
            yield utterance.id, self.matrices.get(utterance.id)

    def seconds(self, utterances: Sequence[Utterance], frames: int) -> float:
        return sum(utterance.duration for utterance in utterances)  # a frame may be of any length

    def told(self) -> dict[str, Any]:
        return {"runs": {}, "scores": str(self.matrices.source)}


def ensemble(
    exp: Path, recipe: Recipe, others: Sequence[tuple[Path, Recipe, float]], corpus: Corpus | None = None
) -> list[EnsembleMember]:
    """Load runs, checked to have the same tied states or units, with the features of `corpus`, or each with its own
    corpus's."""
    if any(not weight > 0.0 for *_, weight in others):
        raise UserError("Weights of runs must be above 0; leave out a run that is not to count.")
    members, total = [], 1.0 + sum(weight for *_, weight in others)
    first = load_model(exp)
    same = _SameUnits(exp, first) if recipe.unaligned else _SameStates(exp, recipe)
    for path, its, weight in [(exp, recipe, 1.0), *others]:
        model = first if path == exp else load_model(path)
        same.check(path, its, model)
        heard = corpus or load_corpus(its.corpus)
        splits = [split for split in {*recipe.decode.splits, TUNING_SPLIT} if split in heard.splits]
        members.append(EnsembleMember(path, weight / total, model, model.features(heard, path, splits)))
    return members


class _SameStates:
    """A check that all runs have the tied states of the first."""

    def __init__(self, exp: Path, recipe: Recipe) -> None:
        self._exp, self._recipe, self._first = exp, recipe, Alignment.load(recipe.aligned)

    def check(self, path: Path, its: Recipe, model: AcousticModel) -> None:
        """Raise a UserError unless the run in `path` has the tied states of the first run, and its model is of its
        alignment."""
        if its.unaligned:
            raise UserError(
                f"{path}: its columns are units, those of {self._exp} are tied states, so their log-likelihoods cannot "
                "be averaged. Decode each by itself."
            )
        alignment, first = Alignment.load(its.aligned), self._first
        if alignment.num_pdfs != len(model.prior):
            raise UserError(
                f"{path}: the model has {len(model.prior)} tied states, the alignment in {its.alignment} has "
                f"{alignment.num_pdfs}. Give the alignment it was trained on, or train again."
            )
        same = alignment.tying.phones == first.tying.phones
        if not same or not np.array_equal(alignment.tying.table, first.tying.table):
            raise UserError(
                f"{path}: other tied states ({its.alignment}) than {self._exp} ({self._recipe.alignment}), so their "
                "log-likelihoods cannot be averaged. Train both on alignments of one decision tree."
            )


class _SameUnits:
    """A check that all runs have the units of the first, and as many rows of scores a second."""

    def __init__(self, exp: Path, model: AcousticModel) -> None:
        self._exp, self._first = exp, model

    def check(self, path: Path, its: Recipe, model: AcousticModel) -> None:
        """Raise a UserError unless the run in `path` has the units and rows of the first run."""
        del its
        first = self._first
        if model.units != first.units or model.module.subsampling != first.module.subsampling:
            raise UserError(
                f"{path}: other units, or another model.subsampling, than {self._exp}, so their log-likelihoods cannot "
                "be averaged. Train both with the same section units and on the same corpus."
            )


def words_said(member: EnsembleMember, own: Corpus, corpus: Corpus) -> str:
    """Return a sentence on whose words and language model are used, if that is not obvious; else ""."""
    changed = member.model.input.changes(own) if member.model.input is not None else ""
    if changed:
        changed += "The graph is made of what is there now. "
    if corpus is own:
        return changed
    return f"words and language model of {own.folder}, which the model was trained on. {changed}"


def mean_of(members: Sequence[EnsembleMember], utterance: str) -> NDArray[np.float32]:
    """Return the weighted mean of all runs' log-likelihoods (T, S) of an utterance."""
    result: NDArray[np.float32] | None = None
    for member in members:
        part = log_likelihoods(member.model.module, member.store, utterance, member.model.prior)
        if len(members) > 1:
            part *= np.float32(member.weight)
        if result is not None and result.shape != part.shape:
            raise UserError(
                f"{utterance}: {len(part)} frames in {member.exp}, {len(result)} in {members[0].exp}. Decode runs "
                "together that were trained on features of one frame rate."
            )
        result = part if result is None else result + part
    assert result is not None
    return result
