"""An acoustic model as a task for learners: its network, its features and its targets.

Targets are the tied states of an alignment, a label for every frame; or units of transcripts without times, in one row
or in graphs of all ways to say them. Which of them follows from the objective.

Legend: S columns of scores: tied states, units and a blank, or states of phones.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

from roundelay.core.errors import UserError
from roundelay.core.streams import stream, stream_seed
from roundelay.learner.base import Learner, Task
from roundelay.learner.module import ModuleLearner
from roundelay.learner.objectives import CrossEntropy, Objective
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.mmi.graphs import TranscriptGraphs, graph_splits
from roundelay_speech.models import AcousticNetwork, ModelConfig
from roundelay_speech.models.frames import FrameExamples, OrderName, log_prior
from roundelay_speech.models.frontend import AugmentConfig, Frontend, SpecAugment
from roundelay_speech.models.sequences import LabelledUtterances, SequenceExamples, UtteranceExamples
from roundelay_speech.objectives import LfMmi
from roundelay_speech.objectives.lfmmi import MmiGraphs
from roundelay_speech.prepared import load_corpus
from roundelay_speech.starting import targets_of, targets_of_units
from roundelay_speech.training_index import TrainingIndex, is_in_shards
from roundelay_speech.unit_labels import label_splits
from roundelay_speech.units.base import UnitSet

TRAIN, HELD_OUT = "train", "dev"
AcousticExamples = FrameExamples | SequenceExamples | UtteranceExamples


class Targets(ABC):
    """Features of a corpus and the targets to be learned of them."""

    store: FeatureStore  # the features
    columns: int  # S
    digest: str  # of the meaning of the columns

    @abstractmethod
    def examples(self, network: AcousticNetwork) -> AcousticExamples:
        """Return the examples of all splits, drawn as the network wants them.

        Raises:
            UserError: no training or held-out examples, or the network cannot train on them.
        """

    @abstractmethod
    def frames(self, examples: AcousticExamples) -> int:
        """Return the number of training frames of the examples."""

    @abstractmethod
    def prior(self, examples: AcousticExamples) -> NDArray[np.float32]:
        """Return the log prior (S,), by which posteriors are divided in recognition."""

    def objective(self, chosen: Objective) -> Objective:
        """Return the objective that a recipe chooses, for these targets."""
        return chosen


@final
class TiedStates(Targets):
    """The targets of models of tied states: every frame has one, from an alignment."""

    def __init__(self, corpus: Path, alignment: Path, order: OrderName) -> None:
        make = TrainingIndex.open if order == "blocks" else TrainingIndex.make
        self._corpus, self._order, self._index = corpus, order, make(corpus, alignment)
        self.store, self.columns = self._index.store, self._index.num_pdfs
        self.digest = targets_of(alignment)

    def examples(self, network: AcousticNetwork) -> FrameExamples | SequenceExamples:
        index = self._index
        examples = network.examples(index.store, index.labels, index.splits, self._order)
        for split in (TRAIN, HELD_OUT):
            if split not in index.splits or not examples.count(split):
                raise UserError(
                    f"{self._corpus}: no aligned frames in split {split!r}; training needs {TRAIN} and {HELD_OUT}. "
                    f"`roundelay prepare ... --split {split}=FOLDER` names it; then align again."
                )
        return examples

    def frames(self, examples: AcousticExamples) -> int:
        return examples.count(TRAIN)

    def prior(self, examples: AcousticExamples) -> NDArray[np.float32]:
        assert not isinstance(examples, UtteranceExamples)
        return log_prior(examples.label_counts(TRAIN, self.columns))


@final
class Units(Targets):
    """The targets of models of units: every utterance has a row of units, or a graph of them, without times.

    Args:
        objective: the objective by which the units are learned.
    """

    def __init__(self, corpus: Path, units: UnitSet, subsampling: int, objective: Objective) -> None:
        prepared = load_corpus(corpus)
        self.store, self.columns = prepared.features(), len(units.columns)
        if prepared.absent_shards:
            raise UserError(
                f"{corpus}: shards {', '.join(map(str, prepared.absent_shards))} of {TRAIN} are not here. "
                f"training.objective {objective.name} wants whole corpora: copy them here."
            )
        self.digest = targets_of_units(units)
        self._graphs: TranscriptGraphs | None = None
        if isinstance(objective, LfMmi):
            self._graphs = TranscriptGraphs(prepared, units, objective.order, objective.least)
            splits, self.left_out = graph_splits(prepared, self.store, self._graphs, subsampling)
        else:
            splits, self.left_out = label_splits(prepared, self.store, units, subsampling)
        self._splits: Mapping[str, LabelledUtterances] = splits
        self._corpus = corpus

    def objective(self, chosen: Objective) -> Objective:
        if self._graphs is None or not isinstance(chosen, LfMmi):
            return chosen
        return chosen.on(MmiGraphs(self._graphs.denominator, self._graphs))

    def examples(self, network: AcousticNetwork) -> UtteranceExamples:
        examples = network.utterances(self.store, self._splits)
        for split in (TRAIN, HELD_OUT):
            if split not in self._splits or not examples.count(split):
                raise UserError(
                    f"{self._corpus}: no utterance of split {split!r} can be written in units; training needs {TRAIN} "
                    f"and {HELD_OUT}."
                )
        return examples

    def frames(self, examples: AcousticExamples) -> int:
        assert isinstance(examples, UtteranceExamples)
        return examples.frames(TRAIN)

    def prior(self, examples: AcousticExamples) -> NDArray[np.float32]:
        return np.zeros(
            self.columns, np.float32
        )  # columns are no states of an alignment, with shares in frames to divide by


@dataclass(frozen=True)
class AcousticTask(Task):
    """Classification of frames into tied states, or of utterances into rows of units. Small and picklable: each learner
    opens the shared files itself."""

    corpus: Path
    alignment: Path | None  # needed where `units` is None
    model: ModelConfig
    seed: int
    autocast: bool
    clip: float | None = None
    device: str = "cpu"
    compiled: bool = False
    augment: AugmentConfig = AugmentConfig()
    objective: Objective = CrossEntropy()
    order: OrderName = "shuffle"
    units: UnitSet | None = None  # None: tied states of the alignment
    scales: tuple[float, ...] = ()  # of the front end, where the first of several hosts has measured them
    measured: list[tuple[float, ...]] = field(default_factory=list, init=False, repr=False, compare=False)
    """Scales that the first learner built here has measured, for all further ones, also in other processes."""

    @property
    def in_shards(self) -> bool:
        return self.units is None and is_in_shards(self.corpus)

    def begun_as(self, common: Sequence[float]) -> Task:
        return replace(self, scales=tuple(common))

    def targets(self) -> Targets:
        """Return the features and targets; of a large corpus as an index that all processes of a host map.

        Raises:
            UserError: corpus or alignment is missing or broken.
        """
        if self.units is not None:
            return Units(self.corpus, self.units, self.subsampling, self.objective)
        assert self.alignment is not None
        return TiedStates(self.corpus, self.alignment, self.order)

    @property
    def subsampling(self) -> int:
        """Number of frames of features for one row of scores."""
        return int(getattr(self.model, "subsampling", 1))

    def build(self) -> Learner:
        targets = self.targets()
        store = targets.store
        network = self.model.network(store.parts, targets.columns)
        examples = targets.examples(network)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(self.seed, "initial"))
            network.reset()
        scales = self._set_scales(network.frontend, examples, targets.frames(examples))
        if self.augment.masks:
            network.frontend.augment = SpecAugment(self.augment, store.parts)
        device = None if self.device == "cpu" else torch.device(self.device)
        objective = targets.objective(self.objective)
        learner = ModuleLearner(network, examples, self.autocast, self.clip, device, self.compiled, objective)
        if not isinstance(examples, UtteranceExamples):
            learner.shards, learner.common = examples.shards, scales if examples.shards else ()
        return learner

    def _set_scales(self, frontend: Frontend, examples: AcousticExamples, frames: int) -> tuple[float, ...]:
        """Set the scales of a front end, and return them: those already known, else those of a sample of the `frames`
        training frames."""
        if known := self.scales or next(iter(self.measured), ()):
            frontend.scale.copy_(torch.tensor(known).view_as(frontend.scale))
            return known
        sample = stream(0, "scale").integers(0, frames, 20_000)
        frontend.fit_scale(*examples.windows(TRAIN, sample, frontend.config.reach))
        self.measured.append(tuple(frontend.scale.flatten().tolist()))
        return self.measured[0]
