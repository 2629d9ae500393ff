"""Alignments on disk: which pdf, phone and state every frame belongs to.

A folder ALI holds

    alignment.npy   (T,) int32   pdf of every frame, in the order of the feature store; -1: utterance not aligned
    phones.npy      (T,) int16   phone id, 0: not aligned
    states.npy      (T,) int8    state in the phone, -1: not aligned
    tree.json                    the tying (see tree.DecisionTree)
    align.json                   summary and checksums, written last: without it the folder is not an alignment
    log.jsonl                    one line per pass over the training utterances

and, made by Gaussian mixtures, mono.npz and gmm.npz, and fit.tsv, how well each utterance fits its transcript.

Legend: T frames of all utterances together, S pdfs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.core.checksums import read_checked
from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay_speech.data.arrays import map_array
from roundelay_speech.data.problems import named
from roundelay_speech.hmm.topology import SILENCE, Tying
from roundelay_speech.hmm.tree import DecisionTree

PDFS, PHONES, STATE_FILE, TREE, SUMMARY, LOG = (
    "alignment.npy",
    "phones.npy",
    "states.npy",
    "tree.json",
    "align.json",
    "log.jsonl",
)
MONO, GMM = "mono.npz", "gmm.npz"
FIT_FILE = "fit.tsv"
BESIDE = (MONO, GMM, LOG, FIT_FILE)  # not read with an alignment, so not held to their checksums then
ALIGNMENT_VERSION = 1
FAILURES_SHOWN = 5  # utterances left out that a summary names


@dataclass(frozen=True)
class AlignSummary:
    """The summary of an alignment, content of align.json.

    Attributes:
        aligned, utterances: how many were aligned, of how many; by split.
    """

    made_by: str  # which models aligned, "gmm" or a name that the caller of `realign` chose
    fingerprint: str  # of the utterances, transcripts, frames and lexicon that were aligned
    config: Mapping[str, Any]  # everything that decides the result
    utterances: Mapping[str, int]
    aligned: Mapping[str, int]
    failed: Mapping[str, str]  # reason by utterance id
    frames: int
    aligned_frames: int
    num_pdfs: int
    contexts_seen: int
    gaussians: int
    # per frame of the training split, in nats; None when it is not one of frames (scaled posteriors).
    log_likelihood: float | None
    silence_share: float  # of the aligned training frames
    # of the frames that both have, how many got another pdf than in the alignment before; None if that was tied
    # otherwise.
    changed_share: float | None = None
    # how well utterances fit their transcripts (see fit.Fit.to_json); None: it was not looked at.
    fit: Mapping[str, Any] | None = None
    version: int = ALIGNMENT_VERSION
    again: bool = field(
        default=False, compare=False
    )  # not made now: it was there, from the same corpus and configuration

    def __str__(self) -> str:
        """Return the summary in words."""
        parts = [f"{self.aligned[s]} of {n} {s}" for s, n in self.utterances.items()]
        text = f"aligned {', '.join(parts)} utterances; {self.num_pdfs} pdfs, {100 * self.silence_share:.1f} % silence"
        asked = self.config.get("tied_states")
        if asked is not None and asked != self.num_pdfs:
            text += f" ({asked} asked for: {self._why_other()})"
        if self.changed_share is not None:
            text += f", {100 * self.changed_share:.1f} % of frames changed"
        if self.failed:
            text += f"; left out: {named([f'{u} ({why})' for u, why in self.failed.items()], FAILURES_SHOWN)}"
            text += f" (all are in {SUMMARY})" if len(self.failed) > FAILURES_SHOWN else ""
        return f"{text} (there already, from the same corpus and configuration)" if self.again else text

    def _why_other(self) -> str:
        """Return the reason why there are fewer tied states than asked for."""
        if self.num_pdfs > self.config["tied_states"]:
            return "every state of every phone has one at least"
        return (
            f"no further split leaves {self.config['min_leaf_frames']:g} frames on both sides and gains "
            f"{self.config['min_leaf_gain']:g} nats; see align.min_leaf_frames and align.min_leaf_gain"
        )


@dataclass(frozen=True, eq=False)
class Alignment:
    """An alignment in memory (memory-mapped, read-only)."""

    folder: Path
    pdf: npt.NDArray[np.int32]  # (T,) int32, -1 for frames that are not aligned
    phones: npt.NDArray[np.int16]  # (T,) int16, 0 for frames that are not aligned
    states: npt.NDArray[np.int8]  # (T,) int8, -1 for frames that are not aligned
    num_pdfs: int
    tying: Tying
    tree: DecisionTree
    summary: AlignSummary

    @classmethod
    def load(cls, folder: Path) -> "Alignment":
        """Read and check an alignment.

        Raises:
            UserError: the folder holds none, or its files do not belong together.
        """
        summary = require_summary(folder)
        try:
            tree = DecisionTree.from_json(read_json(folder / TREE))
            pdf, phones, states = (map_array(folder / name) for name in (PDFS, PHONES, STATE_FILE))
        except (UserError, ValueError) as error:
            raise UserError(f"{folder}: broken alignment ({error}). Delete the folder and align again.") from error
        whole = (
            pdf.shape == phones.shape == states.shape == (summary.frames,)
            and (pdf.dtype, phones.dtype, states.dtype) == (np.int32, np.int16, np.int8)
            and tree.num_pdfs == summary.num_pdfs
            and (not len(pdf) or -1 <= pdf.min() <= pdf.max() < tree.num_pdfs)
        )
        if not whole:
            raise UserError(f"{folder}: its files do not belong together. Delete the folder and align again.")
        return cls(folder, pdf, phones, states, tree.num_pdfs, tree.tying(), tree, summary)

    def counts(self, frames: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.int64]:
        """Count the frames of each pdf, (S,), among all aligned frames or those in the mask (T,)."""
        pdf = self.pdf if frames is None else self.pdf[frames]
        return np.bincount(pdf[pdf >= 0], minlength=self.num_pdfs)


def read_summary(folder: Path) -> AlignSummary | None:
    """Return the summary of an alignment; None if there is no (complete) one.

    Raises:
        UserError: align.json is not of this version's form, or a file it names is damaged.
    """
    path = folder / SUMMARY
    if not path.is_file():
        return None
    value = read_checked(path, f"Delete {folder} and align again by `roundelay align`.", skip=BESIDE)
    try:
        if value["version"] != ALIGNMENT_VERSION:
            raise UserError(f"{path}: made by another version of Roundelay. Delete {folder} and align again.")
        return AlignSummary(**value)
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not what `roundelay align` writes ({error!r}). Delete {folder} and align again."
        ) from error


def require_summary(folder: Path) -> AlignSummary:
    """Return the summary of an alignment that must be there.

    Raises:
        UserError: there is no (complete) one; as `read_summary`.
    """
    summary = read_summary(folder)
    if summary is None:
        raise UserError(
            f"{folder}: no alignment here (no {SUMMARY}; an interrupted one has none). Run `roundelay align`."
        )
    return summary


def silence_share(phones: npt.NDArray[np.int16]) -> float:
    """Return the share of silence among the aligned frames; 0 without any."""
    aligned = int((phones > 0).sum())
    return int((phones == SILENCE).sum()) / aligned if aligned else 0.0
