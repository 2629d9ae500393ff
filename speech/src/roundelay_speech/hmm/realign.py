"""The same alignment again with better models: any log-likelihoods for the tied states there are.

Legend: T frames of one utterance, S pdfs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import (
    Any,
    final,
)

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.files import json_line, write_json, write_text
from roundelay.core.progress import Progress
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.hmm.alignment import LOG, Alignment, AlignSummary
from roundelay_speech.hmm.passes import Material, Pass, aligners
from roundelay_speech.hmm.task import Labels, Task, scratch_folder
from roundelay_speech.prepared import Corpus

Float32 = npt.NDArray[np.float32]

REALIGN_SCALE = 0.5  # of a network's log-likelihoods: surer than mixtures', whose frames count as independent


@dataclass(frozen=True)
class RealignConfig:
    """Options of aligning again."""

    scale: float = REALIGN_SCALE  # of the log-likelihoods
    beams: tuple[float, ...] = (40.0, 200.0)  # tried in order, in scaled nats
    silence_probability: float = 0.5  # of a silence between two words
    failure_share: float = 0.1  # utterances that may be left out, as a share of all
    workers: int = 0  # processes; 0: one a core

    def __post_init__(self) -> None:
        if not 0 < self.scale < math.inf:
            raise UserError(f"Realignment: scale is {self.scale}: give a number above 0; {REALIGN_SCALE} is usual.")

    def deciding(self) -> dict[str, Any]:
        """Return the fields that decide the result, as align.json holds them."""
        return {
            "scale": self.scale,
            "beams": list(self.beams),
            "silence_probability": self.silence_probability,
            "failure_share": self.failure_share,
        }


@final
@dataclass(frozen=True)
class ModelScores:
    """Log-likelihoods by anybody's model."""

    # (its frames, S) unscaled log-likelihoods of an utterance by its id, prior removed; called in the process that
    # aligns, utterance by utterance.
    of: Callable[[str], Float32]
    # names the model, and is what tells one realignment from another: the same corpus, options and name are taken to be
    # the same alignment.
    made_by: str


def realign(
    corpus: Corpus,
    store: FeatureStore,
    alignment: Alignment,
    scores: ModelScores,
    *,
    out: Path,
    progress: Progress,
    config: RealignConfig = RealignConfig(),
) -> AlignSummary:
    """Align all splits again, with the tying of an alignment and anybody's log-likelihoods, into the folder `out`.

    Raises:
        UserError: as `train_alignments`; `alignment` or the log-likelihoods do not fit the corpus.
    """
    loglikes_of, made_by = scores.of, scores.made_by
    task = Task.of(corpus, store, made_by, config.deciding())
    if (there := task.already(out)) is not None:
        return there
    lexicon = corpus.alignment_lexicon.in_phones(alignment.tying.phones)
    if len(alignment.pdf) != task.frames or alignment.tying.phones != lexicon.phones:
        raise UserError(
            f"{alignment.folder}: an alignment of another corpus than {corpus.folder}. Align this one first."
        )
    labels = Labels.empty(task.frames)
    with scratch_folder(out) as scratch:
        tree_file = scratch / "tree.json"
        write_json(tree_file, alignment.tree.to_json())
        material = Material(task.spoken, lexicon, config.silence_probability, None)
        progress.start("realignment", len(task.spoken))
        with aligners(material, config.workers) as run:
            checked = ((name, task.checked(name, loglikes_of(name), alignment.num_pdfs)) for name in task.spoken)
            task.align_all(run, checked, Pass(tree_file, None, config.scale, config.beams), labels, progress)
        progress.finish()
    before = alignment.summary
    task.complain(config.failure_share)
    summary = task.summary(labels, alignment.tree, before.contexts_seen)
    both = (labels.pdf >= 0) & (alignment.pdf >= 0)
    changed = float((labels.pdf != alignment.pdf)[both].mean()) if both.any() else 0.0
    summary = replace(summary, log_likelihood=None, changed_share=changed)
    write_text(out / LOG, json_line({"stage": "realignment", "made_by": made_by, "changed_share": changed}) + "\n")
    labels.write(out, alignment.tree, summary)
    return summary
