"""Alignments that others made, written as ours: the part that all their formats share.

The state tying is Kaldi's own, that of an alignment there is, one grown here on the imported phones, or none
(monophones). Whichever it is, the pdf of a frame is that of the tying for its phone, state and neighbours, as it is in
decoding.

Legend: T frames of one utterance.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.files import read_json, write_text
from roundelay_speech.data.problems import counted, listing
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.hmm.align import Aligned
from roundelay_speech.hmm.alignment import LOG, TREE, AlignSummary
from roundelay_speech.hmm.formats.kaldi_tying import ImportedTying
from roundelay_speech.hmm.gmm import all_cepstra
from roundelay_speech.hmm.passes import Spoken
from roundelay_speech.hmm.task import Labels, Task
from roundelay_speech.hmm.tree import DecisionTree, accumulate, grow, untied, windows
from roundelay_speech.prepared import TRAIN, Corpus

Phones = npt.NDArray[np.int16]
States = npt.NDArray[np.int8]
Pdfs = npt.NDArray[np.int32]
_OFF = "not in the alignment"


@dataclass(frozen=True)
class ImportConfig:
    """Options of importing foreign alignments."""

    # `kaldi` its own tree; `monophones`; `grow` trees on the imported phones; or the folder of an alignment whose tree
    # is taken.
    tying: str = "kaldi"
    # tied_states, min_leaf_frames, min_leaf_gain: of `grow`, as for `roundelay align`.
    tied_states: int = 500
    min_leaf_frames: float = 50.0
    min_leaf_gain: float = 100.0
    shares: tuple[float, float, float] = (1.0, 1.0, 1.0)  # of a TextGrid's phone, for its three states
    # frames that an alignment may be longer or shorter than the features; cut, or the last one repeated.
    tolerance: int = 0
    # utterances that may be left out, as a share of those in the splits that the alignment covers.
    failure_share: float = 0.1

    def __post_init__(self) -> None:
        if min(self.shares) <= 0:
            raise UserError(f"shares of states {self.shares}: give three numbers above 0.")
        if self.tied_states < 1 or self.tolerance < 0 or not 0 <= self.failure_share <= 1:
            raise UserError("tied states: 1 or more; tolerance: 0 or more frames; failure share: 0 to 1.")


@dataclass(frozen=True, eq=False)
class Foreign:
    """An utterance's labels from elsewhere; `pdfs` by our numbers, None if unknown."""

    phones: Phones
    states: States
    pdfs: Pdfs | None = None


def write_import(
    corpus: Corpus,
    store: FeatureStore,
    read: Mapping[str, Foreign | str],
    imported: ImportedTying | None,
    config: ImportConfig,
    out: Path,
    made_by: str,
) -> AlignSummary:
    """Fit foreign labels to the frames, tie their states, write the alignment."""
    task = _task(corpus, store, made_by, asdict(config))
    if (there := task.already(out)) is not None:
        return there
    fitted: dict[str, Foreign] = {}
    for name, spoken in task.spoken.items():
        found = read.get(name, _OFF)
        fits = found if isinstance(found, str) else _fit(found, spoken.frames, config.tolerance)
        if isinstance(fits, str):
            task.failed[name] = fits
        else:
            fitted[name] = fits
    _complain(task, config.failure_share)
    tree = _tree(corpus, store, task, fitted, imported, config)
    tying = tree.tying()
    labels, different, compared = Labels.empty(task.frames), 0, 0
    contexts: set[tuple[int, ...]] = set()
    for name, foreign in fitted.items():
        own = windows(foreign.phones, foreign.states)
        pdfs = tying.table[tuple(own.T)]
        if imported is not None and config.tying == "kaldi" and foreign.pdfs is not None:
            differs = pdfs != foreign.pdfs
            if differs.any() and imported.exact:
                frame = int(differs.argmax())
                raise UserError(
                    f"{name}: frame {frame} has another pdf by the transition model than by the tree. Take final.mdl, "
                    "tree and ali.*.gz of the same folder."
                )
            different, compared = different + int(differs.sum()), compared + len(pdfs)
        labels.put(task.spoken[name], Aligned(pdfs, foreign.phones, foreign.states, 0.0))
        contexts.update(map(tuple, np.unique(own, axis=0).tolist()))
    summary = task.summary(labels, tree, len(contexts))
    unknown = len(read.keys() - task.spoken.keys())
    line = f'{{"stage": "import", "not_in_the_corpus": {unknown}, "frames_with_another_pdf": {different}}}\n'
    write_text(out / LOG, line)
    labels.write(out, tree, summary)
    return summary


def _task(corpus: Corpus, store: FeatureStore, made_by: str, config: Mapping[str, Any]) -> Task:
    """Return the task with all utterances, since foreign alignments need not fit the lexicon's words."""
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in config.items()}
    task = Task.of(corpus, store, made_by, plain)
    spoken = {u.id: Spoken(u.id, tuple(u.words), *store.span(u.id)) for u in corpus.utterances}
    return replace(task, spoken=spoken, failed={})


def _fit(found: Foreign, frames: int, tolerance: int) -> Foreign | str:
    """Fit foreign labels to the number of `frames`; return them, or the reason why they do not fit."""
    own = len(found.phones)
    if own == frames:
        return found
    if abs(own - frames) > tolerance:
        return f"{own} frames in the alignment, {frames} in the features"
    place = np.minimum(np.arange(frames), own - 1)
    return Foreign(found.phones[place], found.states[place], None if found.pdfs is None else found.pdfs[place])


def _complain(task: Task, share: float) -> None:
    """Raise a UserError unless the alignment covers the training split, and enough of every split that it covers."""
    covered = {split: ids for split, ids in task.splits.items() if any(task.failed.get(name) != _OFF for name in ids)}
    failed = {name: task.failed[name] for ids in covered.values() for name in ids if name in task.failed}
    total = sum(len(ids) for ids in covered.values())
    if TRAIN in covered and len(failed) <= share * total and any(n not in failed for n in covered[TRAIN]):
        return
    if TRAIN not in covered:
        raise UserError(
            f"None of the {len(task.splits[TRAIN])} training utterances is in the alignment. Are the ids the same?"
        )
    kinds = Counter(re.sub(r"'.*?'|\d+", "..", reason) for reason in failed.values())
    why = ", ".join(f"{number} x {kind}" for kind, number in kinds.most_common(5))
    raise UserError(
        f"{counted(len(failed), 'utterance')} of {total} cannot be imported ({why}); {100 * share:g} % may be "
        "left out:\n" + listing([f"{name}: {reason}" for name, reason in failed.items()])
    )


def _tree(
    corpus: Corpus,
    store: FeatureStore,
    task: Task,
    fitted: Mapping[str, Foreign],
    imported: ImportedTying | None,
    config: ImportConfig,
) -> DecisionTree:
    """Return the decision tree that `--tying` asks for: the imported one, none, a grown one or a file's."""
    phones = corpus.lexicon.phones
    if config.tying == "kaldi":
        if imported is None:
            raise UserError("A TextGrid has no tree: choose --tying monophones, grow, or the folder of an alignment.")
        return imported.tree
    if config.tying == "monophones":
        return untied(phones)
    if config.tying == "grow":
        training = [task.spoken[name] for name in task.splits[TRAIN] if name in fitted]
        frames = all_cepstra(store)
        context = np.concatenate([windows(fitted[s.id].phones, fitted[s.id].states) for s in training])
        own = np.concatenate([frames[s.first : s.first + s.frames] for s in training])
        return grow(
            accumulate(own, context),
            phones,
            config.tied_states,
            min_frames=config.min_leaf_frames,
            min_gain=config.min_leaf_gain,
        )
    path = Path(config.tying) / TREE
    if not path.is_file():
        raise UserError(f"--tying {config.tying}: neither kaldi, monophones, grow nor the folder of an alignment.")
    try:
        tree = DecisionTree.from_json(read_json(path))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if tree.phones != phones:
        raise UserError(f"{path}: the phones of this tree are not the phones of {corpus.folder}.")
    return tree
