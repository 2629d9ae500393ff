"""Utterances to be aligned, those that cannot be and why, and the labels that come of it; and the same alignment again
with better models, by any log-likelihoods for the tied states.

Legend: T frames of all utterances together, or of one, S pdfs.
"""

import hashlib
import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from roundelay.core.checksums import write_checked
from roundelay.core.errors import UserError
from roundelay.core.files import json_line, write_json, write_text
from roundelay.core.progress import Progress
from roundelay_speech.data.arrays import Float32, save_array
from roundelay_speech.data.problems import counted, listing
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.hmm.align import Aligned, shortest
from roundelay_speech.hmm.alignment import (
    BESIDE,
    LOG,
    PDFS,
    PHONES,
    STATE_FILE,
    SUMMARY,
    TREE,
    Alignment,
    AlignSummary,
    read_summary,
    silence_share,
)
from roundelay_speech.hmm.passes import Aligners, Material, Pass, Spoken, aligners
from roundelay_speech.hmm.tree import DecisionTree
from roundelay_speech.prepared import TRAIN, Corpus

SCRATCH = ".aligning-"  # and the process id
UNKNOWN_WORDS = "has words that are not in the lexicon"


@dataclass(frozen=True, eq=False)
class Labels:
    """Pdf, phone and state of every frame of the store, as in Alignment."""

    pdf: npt.NDArray[np.int32]
    phones: npt.NDArray[np.int16]
    states: npt.NDArray[np.int8]

    @classmethod
    def empty(cls, frames: int) -> "Labels":
        return cls(np.full(frames, -1, np.int32), np.zeros(frames, np.int16), np.full(frames, -1, np.int8))

    def put(self, spoken: Spoken, found: Aligned) -> None:
        own = slice(spoken.first, spoken.first + spoken.frames)
        self.pdf[own], self.phones[own], self.states[own] = found.pdfs, found.phones, found.states

    def write(self, out: Path, tree: DecisionTree, summary: AlignSummary) -> None:
        """Write all files of an alignment but the models, the log and the fit; align.json last."""
        (out / SUMMARY).unlink(missing_ok=True)  # a mixture of two alignments must not look whole
        for name, array in ((PDFS, self.pdf), (PHONES, self.phones), (STATE_FILE, self.states)):
            save_array(out / name, array)
        write_json(out / TREE, tree.to_json())
        told = {key: value for key, value in asdict(summary).items() if key != "again"}
        beside = [name for name in BESIDE if (out / name).exists()]
        write_checked(out / SUMMARY, told, [PDFS, PHONES, STATE_FILE, TREE, *beside])


@dataclass(frozen=True, eq=False)
class Task:
    """A task of alignment: the utterances, and those that cannot be aligned."""

    spoken: Mapping[str, Spoken]  # by id; those with frames enough
    splits: Mapping[str, tuple[str, ...]]  # ids of all utterances, by split
    failed: dict[str, str]  # reason by id; grows
    acoustic: dict[str, float]  # scaled log-likelihood by id, of the last alignment
    frames: int
    made_by: str
    config: Mapping[str, Any]
    fingerprint: str

    @classmethod
    def of(cls, corpus: Corpus, store: FeatureStore, made_by: str, config: Mapping[str, Any]) -> "Task":
        corpus.check_labelled()
        spoken: dict[str, Spoken] = {}
        failed: dict[str, str] = {}
        lexicon = corpus.alignment_lexicon
        digest = hashlib.blake2b(lexicon.to_text().encode(), digest_size=16)
        digest.update(json.dumps([store.sampling_rate, dict(store.config)], sort_keys=True).encode())
        for split_name, utterances in corpus.splits.items():
            alignable = {u.id: tuple(u.words) for u in corpus.alignable(split_name)}
            for utterance in utterances:
                first, frames = store.span(utterance.id)
                words = alignable.get(utterance.id)
                digest.update(json.dumps([split_name, utterance.id, utterance.speaker, words, first, frames]).encode())
                if words is None:
                    failed[utterance.id] = UNKNOWN_WORDS
                    continue
                needed = shortest(words, lexicon)
                if frames < needed:
                    failed[utterance.id] = f"too short: {frames} frames for words that need {needed}"
                else:
                    spoken[utterance.id] = Spoken(utterance.id, words, first, frames)
        splits = {name: tuple(u.id for u in utterances) for name, utterances in corpus.splits.items()}
        return cls(spoken, splits, failed, {}, len(store.array), made_by, config, digest.hexdigest())

    @property
    def training(self) -> list[Spoken]:
        return [self.spoken[name] for name in self.splits[TRAIN] if name in self.spoken]

    def already(self, out: Path) -> AlignSummary | None:
        """Return the summary if `out` already holds this very alignment; else None."""
        there = read_summary(out)
        if there is None:
            return None
        other = [
            name
            for name, same in (
                ("utterances, transcripts or lexicon", there.fingerprint == self.fingerprint),
                (f"models (made by {there.made_by})", there.made_by == self.made_by),
                *((k, there.config.get(k) == v) for k, v in self.config.items()),
            )
            if not same
        ]
        if other:
            raise UserError(
                f"{out}: holds an alignment that differs in {', '.join(other)}. Name another folder or delete this one."
            )
        return replace(Alignment.load(out).summary, again=True)

    def align_all(
        self,
        run: Aligners,
        utterances: Iterable[tuple[str, Float32 | None]],
        what: Pass,
        labels: Labels,
        progress: Progress,
    ) -> int:
        """Align utterances, and write their labels into `labels`; return the number without a path."""
        lost = 0
        for name, found in run(utterances, what):
            if found is None:
                self.failed[name] = "no path: speech and words do not match, or the beam is too narrow"
                lost += 1
            else:
                self.failed.pop(name, None)
                self.acoustic[name] = float(found.acoustic / what.scale)
                labels.put(self.spoken[name], found)
            progress.advance(1)
        return lost

    def checked(self, name: str, loglikes: Float32, pdfs: int) -> Float32:
        """Check the log-likelihoods of an utterance, and return them."""
        expected = self.spoken[name].frames, pdfs
        if loglikes.shape != expected:
            raise UserError(f"{name}: log-likelihoods are {loglikes.shape}, expected (frames, pdfs) = {expected}.")
        if not loglikes.max() < math.inf:  # NaN fails the comparison as well
            raise UserError(f"{name}: log-likelihoods hold NaN or +inf. Check the model.")
        return loglikes

    def summary(self, labels: Labels, tree: DecisionTree, contexts_seen: int, gaussians: int = 0) -> AlignSummary:
        """Return the summary of a finished alignment."""
        training = np.zeros(self.frames, bool)
        for spoken in self.training:
            training[spoken.first : spoken.first + spoken.frames] = True
        aligned = labels.pdf >= 0
        total = sum(self.acoustic[s.id] for s in self.training if s.id in self.acoustic)
        return AlignSummary(
            made_by=self.made_by,
            fingerprint=self.fingerprint,
            config=dict(self.config),
            utterances={name: len(ids) for name, ids in self.splits.items()},
            aligned={name: sum(i not in self.failed for i in ids) for name, ids in self.splits.items()},
            failed=dict(self.failed),
            frames=self.frames,
            aligned_frames=int(aligned.sum()),
            num_pdfs=tree.num_pdfs,
            contexts_seen=contexts_seen,
            gaussians=gaussians,
            log_likelihood=total / max(1, int((aligned & training).sum())) if self.acoustic else None,
            silence_share=silence_share(labels.phones[training]),
        )

    def complain(self, share: float) -> None:
        """Raise a UserError if more than the share `share` of all utterances failed, or all of a split.

        Held-out utterances with unknown words do not count as failed: the preparation of the corpus skips them.
        """
        total = sum(len(ids) for ids in self.splits.values())
        empty = [name for name, ids in self.splits.items() if all(i in self.failed for i in ids)]
        if sum(reason != UNKNOWN_WORDS for reason in self.failed.values()) <= share * total and not empty:
            return
        kinds = Counter(reason.split(":")[0] for reason in self.failed.values())
        why = ", ".join(f"{number} x {kind}" for kind, number in kinds.most_common())
        lost = f"; nothing is left of {', '.join(empty)}" if empty else ""
        raise UserError(
            f"{counted(len(self.failed), 'utterance')} of {total} cannot be aligned ({why}{lost}); {100 * share:g} % "
            "may be left out. Do transcripts, audio and sampling rate belong together?\n"
            + listing([f"{name}: {reason}" for name, reason in self.failed.items()])
        )


@contextmanager
def scratch_folder(out: Path) -> Iterator[Path]:
    """Make a folder for a run's temporary files, beside its results and so on the same disk. Folders of killed runs are
    removed."""
    folder = out / f"{SCRATCH}{os.getpid()}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        for left in out.glob(f"{SCRATCH}*"):
            if not _alive(left.name.removeprefix(SCRATCH)):
                shutil.rmtree(left, ignore_errors=True)
        folder.mkdir()
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror or error}).") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return int(process) != os.getpid()  # ours can only be that of a dead process with the same id


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
    """A model by which to align: its log-likelihoods of an utterance, and its name."""

    # (its frames, S) unscaled log-likelihoods of an utterance by its id, prior removed; called in the process that
    # aligns, utterance by utterance.
    of: Callable[[str], Float32]
    # names the model, and tells one realignment from another: the same corpus, options and name are taken to be
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
    """Align all splits again, with the tying of an alignment and log-likelihoods of any model, into the folder `out`.

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
