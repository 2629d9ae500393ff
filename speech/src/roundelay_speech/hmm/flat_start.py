"""From nothing to alignments: equal lengths, monophones, tied triphones (the recipe of The HTK Book, chapter 3).

1. Cut every training utterance into equal parts, one for each state of silence, its phones, silence.
2. Monophone mixtures: EM on that, realign, EM, ... while the mixtures grow.
3. Decision trees tie the states of phones in context, on the monophone alignment.
4. Triphone mixtures: as 2, from the monophone alignment.
5. Align the utterances of all splits with the triphone mixtures.

What is trained so far is kept, so that the same command goes on from there, to the very bits that it would have had
without an interruption:

OUT/unfinished/state.json          what is aligned and how, the stage and its passes that are done; written last
OUT/unfinished/mixtures-*.npz      the mixtures after the last pass; mono.npz, those of the monophones
OUT/unfinished/labels-*.npz        the labels that they were trained on
OUT/unfinished/tree.json           the tree of the triphones

Legend: T frames of all utterances together, D dimensions, S pdfs.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from roundelay import __version__
from roundelay.core.bounds import Bounds, Count, Positive, Share, Whole
from roundelay.core.checksums import Damaged, read_checked, write_checked
from roundelay.core.configure import check_values
from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, json_line, read_json, write_json, write_text
from roundelay.core.progress import Progress, Silent, mention
from roundelay.core.streams import stream
from roundelay_speech.data.arrays import Float32, save_array
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.hmm.align import Aligned
from roundelay_speech.hmm.alignment import FIT_FILE, GMM, LOG, MONO, AlignSummary, silence_share
from roundelay_speech.hmm.fit import FitConfig, check_fit
from roundelay_speech.hmm.gmm import Mixtures, all_cepstra, load_mixtures, save_mixtures, single_gaussians, split
from roundelay_speech.hmm.passes import Aligners, Material, Pass, aligners
from roundelay_speech.hmm.task import Labels, Task, scratch_folder
from roundelay_speech.hmm.topology import EDGE, SILENCE, STATES, Tying
from roundelay_speech.hmm.tree import DecisionTree, Statistics, accumulate, grow, untied, windows
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.prepared import Corpus

UNFINISHED_FOLDER, STATE_JSON = "unfinished", "state.json"
MONOPHONES, TRIPHONES = "monophones", "triphones"
_MONO, _TREE = "mono.npz", "tree.json"


@dataclass
class Unfinished:
    """The state of an unfinished alignment, saved after each pass of EM."""

    folder: Path  # of its files
    identity: Mapping[str, Any]  # of the corpus, the options and the version
    told: dict[str, Any] = field(default_factory=dict)  # the last state; empty where nothing is kept

    @classmethod
    def of(cls, out: Path, task: Task) -> tuple["Unfinished", str]:
        """Read the state saved in the folder of an alignment, if it is of this task; return it, and a remark on a state
        found there."""
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
        """Return the passes that are done, in words."""
        return f"pass {self.told['passes']} of {self.told['of']} of {self.told['stage']}"

    @property
    def stage(self) -> str:
        """Stage of the saved passes; "" if there are none."""
        return str(self.told.get("stage", ""))

    def restore(self, labels: Labels, task: Task, log: list[dict[str, Any]]) -> None:
        """Restore the labels, the failures and the log of the last saved pass."""
        with open(self.folder / self.told["labels"], "rb") as raw, np.load(raw, allow_pickle=False) as file:
            for name in ("pdf", "phones", "states"):
                getattr(labels, name)[:] = file[name]
        task.failed.clear()
        task.failed.update(self.told["failed"])
        task.acoustic.clear()
        task.acoustic.update(self.told["acoustic"])
        log[:] = self.told["log"]

    def passes(self, stage: str) -> tuple[int, Mixtures | None]:
        """Return the number of saved passes of a stage, and the mixtures after them."""
        if self.stage != stage:
            return 0, None
        return int(self.told["passes"]), load_mixtures(self.folder / self.told["mixtures"])

    def after_monophones(self) -> tuple[Mixtures, DecisionTree, int]:
        """Return the saved monophones, the tree grown on their labels, and the number of contexts that it has seen."""
        tree = DecisionTree.from_json(read_json(self.folder / _TREE))
        return load_mixtures(self.folder / _MONO), tree, int(self.told["contexts_seen"])

    def keep_monophones(self, mono: Mixtures, tree: DecisionTree, contexts_seen: int) -> None:
        """Save the beginning of the triphones' passes, which counts once the first of them is saved."""
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
        """Save the result of a pass.

        Args:
            passes: number of passes done, and of all passes of the stage.
            labels: labels of the training split; None: unchanged since the pass before.
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
        """Remove the saved state, once the alignment is finished."""
        shutil.rmtree(self.folder, ignore_errors=True)


def kept_in(out: Path) -> str:
    """Return words on the passes that an interrupted alignment has saved in its folder; "" if there are none."""
    try:
        told = read_checked(out / UNFINISHED_FOLDER / STATE_JSON, "")
        return Unfinished(out / UNFINISHED_FOLDER, {}, told).describe()
    except (UserError, KeyError):
        return ""


MOST_SILENCE_STATES = 9


@dataclass(frozen=True)
class AlignConfig:
    """The options of a flat start; the defaults suit an hour of speech."""

    tied_states: Count = 500
    """Tied states, at most; each needs align.min_leaf_frames frames."""
    min_leaf_frames: float = 50.0
    """Frames that a tied state needs."""
    min_leaf_gain: float = 100.0
    """Log-likelihood that a split of the decision tree must gain."""
    mono_gaussians: Count = 600
    """Gaussians of all monophone mixtures together, at the end."""
    mono_passes: Count = 24
    """Passes of EM over the monophones."""
    mono_realign: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 10, 12, 14, 17, 20, 23)
    """Passes of the monophones that align anew first."""
    tri_gaussians: Count = 2500
    """Gaussians of all triphone mixtures together, at the end."""
    tri_passes: Count = 14
    """Passes of EM over the triphones."""
    tri_realign: tuple[int, ...] = (2, 5, 8, 12)
    """Passes of the triphones that align anew first."""
    settle: int = 6
    """Last passes, in which no Gaussians are added."""
    position_dependent: bool = False
    """Tell phones at the beginning, inside and at the end of a word apart."""
    silence_states: Annotated[int, Bounds(least=1, most=MOST_SILENCE_STATES)] = STATES
    """States of silence; beyond three, inner ones that may be left out."""
    silence_probability: Annotated[float, Bounds(above=0, below=1)] = 0.5
    """Probability of a pause between two words."""
    scale: Positive = 0.1
    """Weight of the acoustic scores while aligning."""
    beam: Positive = 15.0
    """Width of the search, in scaled nats."""
    retry_beam: Annotated[float, Bounds(above=0)] = 200.0
    """Width of the second search, where the first finds no path."""
    failure_share: Share = 0.1
    """Share of utterances that may be left out because they cannot be aligned."""
    seed: int = 0
    """Seed of random draws."""
    check_fit: bool = field(default=True, compare=False)
    """Compare every utterance with transcripts of others, and name those that do not fit their audio."""
    workers: Whole = field(default=0, compare=False)
    """Processes; 0 for one a core; changes no result."""

    def __post_init__(self) -> None:
        check_values(self, "align")
        if self.retry_beam < self.beam:
            raise UserError(f"align.retry_beam is {self.retry_beam}: give at least align.beam, {self.beam}.")

    def deciding(self) -> dict[str, Any]:
        """Return the fields that decide the result, as align.json holds them."""
        fields = json.loads(json.dumps(asdict(self)))
        del fields["workers"], fields["check_fit"]
        for later, default in (("position_dependent", False), ("silence_states", STATES)):
            if fields[later] == default:  # as in alignments that were made before there was a choice
                del fields[later]
        return dict(fields)


def train_alignments(
    corpus: Corpus, store: FeatureStore, config: AlignConfig, out: Path, progress: Progress
) -> AlignSummary:
    """Align all splits of a corpus from a flat start, into the folder `out`.

    If `out` holds a complete alignment made from the same utterances by the same configuration, nothing is done (and
    the summary's `again` says so).

    Raises:
        UserError: `out` holds another alignment; more utterances than `config.failure_share` cannot be aligned.
    """
    task = Task.of(corpus, store, "gmm", config.deciding())
    if (there := task.already(out)) is not None:
        return there
    with scratch_folder(out) as scratch:
        frames = all_cepstra(store)
        save_array(scratch / "frames.npy", frames)
        lexicon = corpus.alignment_lexicon
        if config.position_dependent:
            lexicon = lexicon.by_position()
        material = Material(task.spoken, lexicon, config.silence_probability, scratch / "frames.npy")
        with aligners(material, config.workers) as run:
            kept = _kept(out, task, progress)
            training = EmTraining(task, frames, config, run, scratch, progress, Labels.empty(len(frames)), [], kept)
            mono, triphones, tree, contexts_seen = _trained(training, lexicon)
            progress.start("final alignment", len(task.spoken))
            labels = Labels.empty(len(frames))
            path = training.save("final", triphones)
            what = Pass(training.tree_file(tree, TRIPHONES), path, config.scale, (config.beam, config.retry_beam))
            task.align_all(run, ((name, None) for name in task.spoken), what, labels, progress)
            progress.finish()
            task.complain(config.failure_share)
            summary = task.summary(labels, tree, contexts_seen, triphones.components)
            (out / FIT_FILE).unlink(missing_ok=True)
            if config.check_fit:
                beams = (config.beam, config.retry_beam)
                scored = FitConfig(lexicon, config.silence_states, config.scale, beams, config.seed)
                fit, table = check_fit(task, labels, frames, scored, run, scratch, progress)
                summary = replace(summary, fit=fit.to_json())
                write_text(out / FIT_FILE, table)
        save_mixtures(out / MONO, mono)
        save_mixtures(out / GMM, triphones)
        write_text(out / LOG, "".join(json_line(line) + "\n" for line in training.log))
        labels.write(out, tree, summary)
        kept.done()
    return summary


def _kept(out: Path, task: Task, progress: Progress) -> Unfinished:
    """Return the state that an interrupted run has left, and show a remark on it."""
    kept, remark = Unfinished.of(out, task)
    if remark:
        mention(progress, "what was trained before", remark)
    return kept


def _trained(training: "EmTraining", lexicon: Lexicon) -> tuple[Mixtures, Mixtures, DecisionTree, int]:
    """Train monophones and triphones, from where an interrupted run was; return both, the tree, and the number of
    contexts that it has seen."""
    config, kept = training.config, training.kept
    assert kept is not None
    single = untied(lexicon.phones, config.silence_states)
    if kept.stage:
        kept.restore(training.labels, training.task, training.log)
    else:
        training.flat_start(lexicon, single.tying())
    if kept.stage == TRIPHONES:
        mono, tree, contexts_seen = kept.after_monophones()
    else:
        mono = training.train(MONOPHONES, single, config.mono_gaussians)
        statistics = accumulate(*training.contexts())
        tree, contexts_seen = _grown(statistics, lexicon.phones, config), len(statistics.count)
        training.retie(tree)
        kept.keep_monophones(mono, tree, contexts_seen)
    return mono, training.train(TRIPHONES, tree, config.tri_gaussians), tree, contexts_seen


def _grown(statistics: Statistics, phones: tuple[str, ...], config: AlignConfig) -> DecisionTree:
    return grow(
        statistics,
        phones,
        config.tied_states,
        silence_states=config.silence_states,
        min_frames=config.min_leaf_frames,
        min_gain=config.min_leaf_gain,
    )


@dataclass(frozen=True, eq=False)
class EmTraining:
    """A training of mixtures by EM: the frames they learn from, and the alignment that improves with them."""

    task: Task
    frames: Float32  # (T, D)
    config: AlignConfig
    run: Aligners
    scratch: Path
    progress: Progress
    labels: Labels  # of the training split; rewritten by every alignment
    log: list[dict[str, Any]]
    kept: Unfinished | None = None  # state kept after each pass; None: nothing

    def flat_start(self, lexicon: Lexicon, tying: Tying) -> None:
        """Label the frames of each utterance in equal parts by the states of silence, each word's first pronunciation,
        and silence."""
        self.task.complain(self.config.failure_share)
        for spoken in self.task.training:
            phones = [
                SILENCE,
                *(lexicon.phone_ids[p] for w in spoken.words for p in lexicon.pronunciations[w][0]),
                SILENCE,
            ]
            states = [(phone, state) for phone in phones for state in range(tying.states(phone))]
            place = np.arange(spoken.frames) * len(states) // spoken.frames
            phone, state = np.array(states)[place].T
            pdf = tying.table[EDGE, phone, EDGE, state]
            found = Aligned(pdf.astype(np.int32), phone.astype(np.int16), state.astype(np.int8), 0.0)
            self.labels.put(spoken, found)

    def train(self, stage: str, tree: DecisionTree, gaussians: int) -> Mixtures:
        """Run passes of EM, alignment before some of them, components added after each until `settle` passes are
        left."""
        config, mono = self.config, tree.context == 1
        passes = config.mono_passes if mono else config.tri_passes
        realign_at = config.mono_realign if mono else config.tri_realign
        growing = max(1, passes - config.settle)
        self.progress.start(stage, passes)
        begun, found = self.kept.passes(stage) if self.kept else (0, None)
        mixtures = single_gaussians(self.frames, self.labels.pdf, tree.num_pdfs) if found is None else found
        tree_file = self.tree_file(tree, stage)
        self.progress.advance(begun)
        for number in range(begun, passes):
            line: dict[str, Any] = {"stage": stage, "pass": number, "gaussians": mixtures.components}
            file = self.save(f"{stage}-{number}", mixtures)
            if number in realign_at:
                line |= self.realign(Pass(tree_file, file, config.scale, (config.beam, config.retry_beam)))
            relabelled = number == 0 or number in realign_at
            if relabelled or number == begun:
                pdfs = save_array(self.scratch / f"{stage}-{number}.npy", self.labels.pdf)
            mixtures = self.run.reestimate(mixtures, file, pdfs)
            if number < growing and mixtures.components < gaussians:
                target = tree.num_pdfs + (gaussians - tree.num_pdfs) * (number + 1) // growing
                frames = np.bincount(self.labels.pdf[self.labels.pdf >= 0], minlength=tree.num_pdfs)
                mixtures = split(mixtures, frames, target, stream(config.seed, stage, number))
            self.log.append(line)
            if self.kept:
                labels = self.labels if relabelled else None
                self.kept.keep(stage, (number + 1, passes), mixtures, labels, self.task, self.log)
            likelihood = line.get("log_likelihood")
            self.progress.advance(1, "" if likelihood is None else f"log-likelihood {likelihood:.2f}")
        self.progress.finish()
        return mixtures

    def realign(self, what: Pass) -> dict[str, Any]:
        """Align the training utterances anew; those without a path keep their old alignment."""
        before = self.labels.pdf.copy()
        training = self.task.training
        lost = self.task.align_all(self.run, ((s.id, None) for s in training), what, self.labels, Silent())
        frames = sum(s.frames for s in training if s.id in self.task.acoustic)
        total = sum(self.task.acoustic[s.id] for s in training if s.id in self.task.acoustic)
        trained = before >= 0
        return {
            "aligned": len(training) - lost,
            "no_path": lost,
            "log_likelihood": round(total / max(1, frames), 4),
            "changed_share": round(float((self.labels.pdf != before)[trained].mean()), 4),
            "silence_share": round(silence_share(self.labels.phones[trained]), 4),
        }

    def contexts(self) -> tuple[Float32, npt.NDArray[np.int64]]:
        """Return (frames (N, D), their contexts (N, 4)) of the training split."""
        training = self.task.training
        spans = [slice(s.first, s.first + s.frames) for s in training]
        context = [windows(self.labels.phones[span], self.labels.states[span]) for span in spans]
        return np.concatenate([self.frames[span] for span in spans]), np.concatenate(context)

    def retie(self, tree: DecisionTree) -> None:
        """Relabel every training frame with the tree's pdf for its state in context."""
        table = tree.tying().table
        for spoken in self.task.training:
            span = slice(spoken.first, spoken.first + spoken.frames)
            context = windows(self.labels.phones[span], self.labels.states[span])
            self.labels.pdf[span] = table[tuple(context.T)]

    def save(self, name: str, mixtures: Mixtures) -> Path:
        """Write mixtures to a file that workers can open, with a new name for every version; return the path."""
        path = self.scratch / f"{name}.npz"
        save_mixtures(path, mixtures)
        return path

    def tree_file(self, tree: DecisionTree, stage: str) -> Path:
        """Write the tying to a file that workers can open; return the path."""
        path = self.scratch / f"{stage}.json"
        if not path.exists():
            write_json(path, tree.to_json())
        return path
