"""An alignment that is not finished yet: what is trained so far, so that the same command goes on from there.

OUT/unfinished/state.json          what is aligned and how, the stage and its passes that are done; written last
OUT/unfinished/mixtures-*.npz      the mixtures after the last pass; mono.npz, those of the monophones
OUT/unfinished/labels-*.npz        the labels that they were trained on
OUT/unfinished/tree.json           the tree of the triphones

It goes on to the very bits that it would have had without an interruption.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from roundelay import __version__
from roundelay.core.checksums import Damaged, read_checked, write_checked
from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, read_json, write_json
from roundelay_speech.hmm.gmm import Mixtures, load_mixtures, save_mixtures
from roundelay_speech.hmm.task import Labels, Task
from roundelay_speech.hmm.tree import DecisionTree

UNFINISHED_FOLDER, STATE_JSON = "unfinished", "state.json"
MONOPHONES, TRIPHONES = "monophones", "triphones"
_MONO, _TREE = "mono.npz", "tree.json"


@dataclass
class Unfinished:
    """State of a training that is kept after each pass of EM."""

    folder: Path  # of its files
    identity: Mapping[str, Any]  # of what is aligned, how, and by which version
    told: dict[str, Any] = field(default_factory=dict)  # the last state; empty where nothing is kept

    @classmethod
    def of(cls, out: Path, task: Task) -> tuple["Unfinished", str]:
        """Return the state that is kept in the folder of an alignment, if it is of this one; and a remark on what was
        there."""
        identity = {"fingerprint": task.fingerprint, "config": dict(task.config), "version": __version__}
        found = cls(out / UNFINISHED_FOLDER, identity)
        if not (found.folder / STATE_JSON).is_file():
            return found, ""
        try:
            told = read_checked(found.folder / STATE_JSON, "")
            if told.get("identity") != identity:
                return found, f"what {found.folder} keeps is of another corpus, configuration or version: begun anew"
            found.told = told
        except Damaged as error:
            return found, f"{error} Begun anew."
        return found, f"going on after {found.describe()}"

    def describe(self) -> str:
        """Return passes that are done so far, in words."""
        return f"pass {self.told['passes']} of {self.told['of']} of {self.told['stage']}"

    @property
    def stage(self) -> str:
        """The stage that passes are kept of; empty where none are."""
        return str(self.told.get("stage", ""))

    def restore(self, labels: Labels, task: Task, log: list[dict[str, Any]]) -> None:
        """Put back the labels, the failures and the log as they were after the last pass that is kept."""
        with open(self.folder / self.told["labels"], "rb") as raw, np.load(raw, allow_pickle=False) as file:
            for name in ("pdf", "phones", "states"):
                getattr(labels, name)[:] = file[name]
        task.failed.clear()
        task.failed.update(self.told["failed"])
        task.acoustic.clear()
        task.acoustic.update(self.told["acoustic"])
        log[:] = self.told["log"]

    def passes(self, stage: str) -> tuple[int, Mixtures | None]:
        """Return the number of passes of a stage that are done, and the mixtures after them."""
        if self.stage != stage:
            return 0, None
        return int(self.told["passes"]), load_mixtures(self.folder / self.told["mixtures"])

    def after_monophones(self) -> tuple[Mixtures, DecisionTree, int]:
        """Return the monophones, the tree that was grown on their labels, and how many contexts it has seen."""
        tree = DecisionTree.from_json(read_json(self.folder / _TREE))
        return load_mixtures(self.folder / _MONO), tree, int(self.told["contexts_seen"])

    def keep_monophones(self, mono: Mixtures, tree: DecisionTree, contexts_seen: int) -> None:
        """Keep what the passes of the triphones begin with; it counts with the first of them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        save_mixtures(self.folder / _MONO, mono)
        write_json(self.folder / _TREE, tree.to_json())
        self.told = {**self.told, "contexts_seen": contexts_seen}

    def keep(
        self,
        stage: str,
        passes: tuple[int, int],
        mixtures: Mixtures,
        labels: Labels | None,
        task: Task,
        log: list[dict[str, Any]],
    ) -> None:
        """Keep what a pass left.

        Args:
            passes: those that are done, and all of the stage.
            labels: of the training split; None: as they were after the pass before.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"{stage}-{passes[0]}.npz"
        save_mixtures(self.folder / f"mixtures-{name}", mixtures)
        if labels is not None:
            with atomic_write(self.folder / f"labels-{name}") as file:
                np.savez(file, pdf=labels.pdf, phones=labels.phones, states=labels.states)
        before = self.told
        self.told = {
            "identity": self.identity,
            "stage": stage,
            "passes": passes[0],
            "of": passes[1],
            "mixtures": f"mixtures-{name}",
            "labels": before["labels"] if labels is None else f"labels-{name}",
            "contexts_seen": before.get("contexts_seen", 0),
            "failed": task.failed,
            "acoustic": task.acoustic,
            "log": log,
        }
        files = [self.told["mixtures"], self.told["labels"], *([_MONO, _TREE] if stage == TRIPHONES else [])]
        write_checked(self.folder / STATE_JSON, self.told, files, one_line=True)
        for key in ("mixtures", "labels"):
            if before.get(key, self.told[key]) != self.told[key]:
                (self.folder / before[key]).unlink(missing_ok=True)

    def done(self) -> None:
        """Remove it: the alignment is finished."""
        shutil.rmtree(self.folder, ignore_errors=True)


def kept_in(out: Path) -> str:
    """Return passes that an interrupted alignment has kept in its folder, in words; empty: nothing."""
    try:
        told = read_checked(out / UNFINISHED_FOLDER / STATE_JSON, "")
        return Unfinished(out / UNFINISHED_FOLDER, {}, told).describe()
    except (UserError, KeyError):
        return ""
