"""Alignments that others made, as ours; and ours as others read them.

From Kaldi: `ali.*.gz` with `final.mdl`, `tree` and `phones.txt`; or what `ali-to-pdf` printed, with `tree` and
`phones.txt`. From the Montreal Forced Aligner: TextGrids, whose phones are cut into three states here. The state tying
is Kaldi's own, that of an alignment there is, one grown here on the imported phones, or none (monophones). Whichever it
is, the pdf of a frame is what the tying says about its phone, state and neighbours, as it is in decoding.

Legend: T frames of one utterance.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.files import read_json, write_text
from roundelay.core.progress import Progress
from roundelay.speech.data.manifest import Utterance
from roundelay.speech.data.problems import counted, listing
from roundelay.speech.features.store import FeatureStore
from roundelay.speech.hmm.align import Aligned, align, utterance_graph
from roundelay.speech.hmm.alignment import LOG, TREE, AlignSummary, silence_share
from roundelay.speech.hmm.cepstra import all_cepstra
from roundelay.speech.hmm.formats.kaldi_model import read_transition_model, read_tree
from roundelay.speech.hmm.formats.kaldi_tying import (
    ImportedTying,
    PhoneMap,
    import_tying,
    match_phones,
    our_state,
    read_symbols,
)
from roundelay.speech.hmm.formats.textgrid import TextGrid, Tier, read_textgrid, without_gaps
from roundelay.speech.hmm.passes import Spoken
from roundelay.speech.hmm.task import Labels, Task
from roundelay.speech.hmm.topology import SILENCE, STATES
from roundelay.speech.hmm.tree import DecisionTree, accumulate, grow, untied, windows
from roundelay.speech.kaldi_io.archive import read_int_vectors
from roundelay.speech.lexicon.lexicon import Lexicon
from roundelay.speech.prepared import TRAIN, Corpus

Phones = npt.NDArray[np.int16]
States = npt.NDArray[np.int8]
Pdfs = npt.NDArray[np.int32]

_POSITION = re.compile(r"(.+)_[BIES]")
_STRESS = re.compile(r"(.*[^0-2])[0-2]")
_SILENCES = frozenset({"", "sil", "sp", "<eps>"})
_NEVER = -1000.0  # log-likelihood of a pdf that is not the one given; further from 0 than any beam
_OFF = "not in the alignment"


@dataclass(frozen=True)
class ImportConfig:
    """Options of importing foreign alignments.

    Attributes:
        tying: `kaldi` its own tree; `monophones`; `grow` trees on the imported phones; or the folder of an alignment
            whose tree is taken.
        tied_states, min_leaf_frames, min_leaf_gain: of `grow`, as for `roundelay align`.
        shares: of a TextGrid's phone, for its three states.
        tolerance: frames that an alignment may be longer or shorter than the features; cut, or the last one repeated.
        failure_share: utterances that may be left out, as a share of those in the splits that the alignment covers.
    """

    tying: str = "kaldi"
    tied_states: int = 500
    min_leaf_frames: float = 50.0
    min_leaf_gain: float = 100.0
    shares: tuple[float, float, float] = (1.0, 1.0, 1.0)
    tolerance: int = 0
    failure_share: float = 0.1

    def __post_init__(self) -> None:
        if min(self.shares) <= 0:
            raise UserError(f"shares of states {self.shares}: give three numbers above 0.")
        if self.tied_states < 1 or self.tolerance < 0 or not 0 <= self.failure_share <= 1:
            raise UserError("tied states: 1 or more; tolerance: 0 or more frames; failure share: 0 to 1.")


@dataclass(frozen=True, eq=False)
class Foreign:
    """An utterance's frames as somebody else labelled them; `pdfs` by our number, None where they are not known."""

    phones: Phones
    states: States
    pdfs: Pdfs | None = None


# Kaldi ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KaldiAlignment:
    """Locations of Kaldi's files.

    Attributes:
        folders: each with `ali.*.gz` (or any `ali.*`, packed or not, binary or text); the first also holds the models.
        pdfs: instead of `ali.*`: files that `ali-to-pdf` printed.
        model, tree, phones: None: `final.mdl`, `tree`, `phones.txt` in the first folder.
    """

    folders: tuple[Path, ...] = ()
    pdfs: tuple[Path, ...] = ()
    model: Path | None = None
    tree: Path | None = None
    phones: Path | None = None

    def file(self, given: Path | None, name: str, option: str) -> Path:
        """The file given, or the one of that name in the first folder.

        Raises:
            UserError: there is none.
        """
        found = given or (self.folders[0] / name if self.folders else None)
        if found is None or not found.is_file():
            raise UserError(f"{found or name}: no such file. Name it with {option}.")
        return found

    def archives(self) -> list[Path]:
        """The files that hold the labels.

        Raises:
            UserError: a folder has none.
        """
        found = list(self.pdfs)
        for folder in () if self.pdfs else self.folders:
            own = sorted(p for p in folder.glob("ali.*") if p.suffix != ".scp" and p.is_file())
            if not own:
                raise UserError(f"{folder}: no alignment here (no ali.*.gz).")
            found += own
        if not found:
            raise UserError("Name a folder with ali.*.gz (--ali), or what ali-to-pdf printed (--pdfs).")
        return found


def import_kaldi(
    corpus: Corpus, store: FeatureStore, source: KaldiAlignment, config: ImportConfig, out: Path, progress: Progress
) -> AlignSummary:
    """Import an alignment of Kaldi's into the folder `out`.

    Raises:
        UserError: a file is missing, broken or does not fit the others; too many utterances are left out.
    """
    symbols = source.file(source.phones, "phones.txt", "--phones")
    phones = match_phones(read_symbols(symbols), corpus.lexicon.phones, str(symbols))
    archives = source.archives()
    wants_tree = config.tying == "kaldi" or bool(source.pdfs)
    imported = None
    topology = None
    model = None
    if not source.pdfs:
        model = read_transition_model(source.file(source.model, "final.mdl", "--model"))
        topology = model.topology
    if wants_tree:
        tree = source.file(source.tree, "tree", "--tree")
        imported = import_tying(read_tree(tree), topology, phones, corpus.lexicon.phones, str(tree))
    progress.start("importing the alignment")
    if model is None:
        assert imported is not None
        reader = _PdfReader(imported, corpus)
        found = ((name, reader.read(name, values)) for name, values in _vectors(archives))
    else:
        ids = _TransitionIds(model.tuples, model.transition_states, phones, imported)
        found = ((name, ids.read(values)) for name, values in _vectors(archives))
    read: dict[str, Foreign | str] = {}
    for name, value in found:
        read[name] = value
        progress.advance()
    progress.finish()
    return _write(corpus, store, read, imported, config, out, f"kaldi: {', '.join(map(str, archives[:3]))}")


def _vectors(archives: Sequence[Path]) -> Iterator[tuple[str, npt.NDArray[np.int32]]]:
    seen: dict[str, Path] = {}
    for path in archives:
        for name, values in read_int_vectors(path):
            if name in seen:
                raise UserError(f"{path}: {name} is also in {seen[name]}. Name every alignment once.")
            seen[name] = path
            yield name, values


class _TransitionIds:
    """Phones and states of transition-ids."""

    def __init__(
        self,
        tuples: Sequence[tuple[int, int, int, int]],
        transition_states: npt.NDArray[np.int64],
        phones: PhoneMap,
        imported: ImportedTying | None,
    ) -> None:
        self._of = transition_states
        self._names = [phones.names.get(phone, str(phone)) for phone, _, _, _ in tuples]
        self._phone = np.array([phones.ours.get(phone, 0) for phone, _, _, _ in tuples], np.int16)
        counts: dict[int, int] = {}
        for phone, state, _, _ in tuples:
            counts[phone] = max(counts.get(phone, 0), state + 1)
        self._state = np.array([our_state(state, counts[phone]) for phone, state, _, _ in tuples], np.int8)
        self._pdf = None
        if imported is not None:
            self._pdf = np.array([imported.pdfs.get(pdf, -1) for _, _, pdf, _ in tuples], np.int32)

    def read(self, ids: npt.NDArray[np.int32]) -> Foreign | str:
        """Phones, states and pdfs of the frames, or the reason why they cannot be read."""
        if not len(ids):
            return "no frames in the alignment"
        if (outside := (ids < 1) | (ids >= len(self._of))).any():
            frame = int(outside.argmax())
            return f"transition-id {ids[frame]} in frame {frame}, the model has 1 to {len(self._of) - 1}"
        rows = self._of[ids]
        phones = self._phone[rows]
        if (phones == 0).any():
            return f"phone {self._names[int(rows[int((phones == 0).argmax())])]}, which the lexicon does not have"
        return Foreign(phones, self._state[rows], None if self._pdf is None else self._pdf[rows])


class _PdfReader:
    """Phones and states of pdfs: the way through the words' pronunciations that has just these pdfs."""

    def __init__(self, imported: ImportedTying, corpus: Corpus) -> None:
        self._imported, self._lexicon, self._tying = imported, corpus.lexicon, imported.tree.tying()
        self._words = {u.id: u.words for split in corpus.splits for u in corpus.alignable(split)}

    def read(self, name: str, pdfs: npt.NDArray[np.int32]) -> Foreign | str:
        words = self._words.get(name)
        if words is None:
            return "has words that are not in the lexicon"
        ours = np.array([self._imported.pdfs.get(pdf, -1) for pdf in pdfs.tolist()], np.int32)
        if (ours < 0).any():
            return f"pdf {pdfs[int((ours < 0).argmax())]}, which no phone of the lexicon has"
        graph = utterance_graph(words, self._lexicon, self._tying)
        scores = np.where(graph.pdfs[None] == ours[:, None], 0.0, _NEVER).astype(np.float32)
        found = align(graph, scores, (-_NEVER / 2,))
        if found is None or (found.pdfs != ours).any():
            return "its pdfs are those of no pronunciation of its words"
        return Foreign(found.phones, found.states, ours)


# TextGrids ------------------------------------------------------------------------------------------------------------


def import_textgrids(
    corpus: Corpus, store: FeatureStore, folder: Path, config: ImportConfig, out: Path, progress: Progress
) -> AlignSummary:
    """Import TextGrids: one for each utterance (ID.TextGrid) or recording, in `folder` or below it.

    Raises:
        UserError: a file is broken, or too many utterances are left out.
    """
    files: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.TextGrid")):
        if path.stem in files:
            raise UserError(f"{path}: {files[path.stem]} is of the same name. Keep one of them.")
        files[path.stem] = path
    if not files:
        raise UserError(f"{folder}: no TextGrid here (*.TextGrid).")
    utterances = corpus.utterances
    progress.start("importing TextGrids", len(utterances))
    read: dict[str, Foreign | str] = {}
    kept: tuple[Path, TextGrid] | None = None  # the utterances of a recording follow each other
    for u in utterances:
        progress.advance()
        own = files.get(u.id) or files.get(u.recording_id)
        if own is None:
            continue
        if kept is None or kept[0] != own:
            kept = own, read_textgrid(own)
        offset = 0.0 if own.stem == u.id else u.start
        read[u.id] = _from_grid(kept[1], u, offset, corpus.lexicon, store, config)
    progress.finish()
    return _write(corpus, store, read, None, config, out, f"textgrid: {folder}")


def phone_tier(grid: TextGrid, speaker: str) -> Tier | None:
    """The tier of the phones: `phones`, or that of the speaker (`SPEAKER - phones`) where there are several."""
    own = [tier for tier in grid.tiers if tier.name.lower() == "phones" or tier.name.lower().endswith("- phones")]
    named = [tier for tier in own if tier.name.lower() == f"{speaker} - phones".lower()]
    return named[0] if named else own[0] if len(own) == 1 else None


def phone_id(label: str, lexicon: Lexicon) -> int | None:
    """The id of a phone by its name: as it is, without its position in the word, without its stress; None: unknown."""
    if label.lower() in _SILENCES:
        return SILENCE
    names = [label]
    for pattern in (_POSITION, _STRESS):
        names += [found[1] for name in names if (found := pattern.fullmatch(name))]
    return next((lexicon.phone_ids[name] for name in names if name in lexicon.phone_ids), None)


def _from_grid(
    grid: TextGrid, u: Utterance, offset: float, lexicon: Lexicon, store: FeatureStore, config: ImportConfig
) -> Foreign | str:
    tier = phone_tier(grid, u.speaker)
    if tier is None:
        return f"no tier `phones`, nor one `{u.speaker} - phones`"
    intervals = without_gaps(tier.intervals, offset, offset + u.duration)
    centres = offset + store.frame_times(store.frames(u.id))
    ends = np.searchsorted(centres, [i.end for i in intervals], side="right")
    ends[-1] = len(centres)
    phones: list[int] = []
    bounds: list[int] = []
    for interval, end in zip(intervals, ends.tolist(), strict=True):
        phone = phone_id(interval.text.strip(), lexicon)
        if phone is None:
            return f"phone {interval.text.strip()!r}, which the lexicon does not have"
        if phones and phone == phones[-1] == SILENCE:
            bounds[-1] = end
        elif phone != SILENCE or end > (bounds[-1] if bounds else 0):
            phones.append(phone)
            bounds.append(end)
    if not phones:
        return "no phones in its TextGrid"
    spread = at_least(bounds, STATES)
    if spread is None:
        return f"too short: {len(centres)} frames for {counted(len(phones), 'phone')}"
    return _with_states(phones, np.diff([0, *spread]), config.shares)


def at_least(bounds: Sequence[int], least: int) -> list[int] | None:
    """Ends of intervals moved as little as needed for each to have `least` frames; None: there are not enough."""
    total = bounds[-1]
    if total < least * len(bounds):
        return None
    moved: list[int] = []
    for end in bounds:
        moved.append(max(end, (moved[-1] if moved else 0) + least))
    moved[-1] = total
    for place in range(len(moved) - 2, -1, -1):
        moved[place] = min(moved[place], moved[place + 1] - least)
    return moved


def _with_states(phones: Sequence[int], sizes: npt.NDArray[np.int64], shares: Sequence[float]) -> Foreign:
    """Each phone cut into its states by their shares, each of at least a frame."""
    upto = np.cumsum(shares) / sum(shares)
    states = []
    for size in sizes.tolist():
        first = min(max(1, round(upto[0] * size)), size - 2)
        second = min(max(first + 1, round(upto[1] * size)), size - 1)
        states.append(np.repeat(np.arange(STATES, dtype=np.int8), [first, second - first, size - second]))
    return Foreign(np.repeat(np.array(phones, np.int16), sizes), np.concatenate(states))


# What both become -----------------------------------------------------------------------------------------------------


def _write(
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
    summary = _summary(task, labels, tree, len(contexts))
    unknown = len(read.keys() - task.spoken.keys())
    line = f'{{"stage": "import", "not_in_the_corpus": {unknown}, "frames_with_another_pdf": {different}}}\n'
    write_text(out / LOG, line)
    labels.write(out, tree, summary)
    return summary


def _task(corpus: Corpus, store: FeatureStore, made_by: str, config: Mapping[str, Any]) -> Task:
    """All utterances: what others have aligned need not fit the lexicon's words."""
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in config.items()}
    task = Task.of(corpus, store, made_by, plain)
    spoken = {u.id: Spoken(u.id, tuple(u.words), *store.span(u.id)) for u in corpus.utterances}
    return replace(task, spoken=spoken, failed={})


def _fit(found: Foreign, frames: int, tolerance: int) -> Foreign | str:
    """Labels for just as many frames as there are."""
    own = len(found.phones)
    if own == frames:
        return found
    if abs(own - frames) > tolerance:
        return f"{own} frames in the alignment, {frames} in the features"
    place = np.minimum(np.arange(frames), own - 1)
    return Foreign(found.phones[place], found.states[place], None if found.pdfs is None else found.pdfs[place])


def _complain(task: Task, share: float) -> None:
    """Raise unless the training split is there, and most of every split that the alignment covers."""
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
        raise UserError(f"{path}: a tree of other phones than those of {corpus.folder}.")
    return tree


def _summary(task: Task, labels: Labels, tree: DecisionTree, contexts: int) -> AlignSummary:
    training = np.zeros(task.frames, bool)
    for name in task.splits[TRAIN]:
        spoken = task.spoken[name]
        training[spoken.first : spoken.first + spoken.frames] = True
    return AlignSummary(
        made_by=task.made_by,
        fingerprint=task.fingerprint,
        config=dict(task.config),
        utterances={split: len(ids) for split, ids in task.splits.items()},
        aligned={split: sum(name not in task.failed for name in ids) for split, ids in task.splits.items()},
        failed=dict(task.failed),
        frames=task.frames,
        aligned_frames=int((labels.pdf >= 0).sum()),
        num_pdfs=tree.num_pdfs,
        contexts_seen=contexts,
        gaussians=0,
        log_likelihood=None,
        silence_share=silence_share(labels.phones[training]),
    )
