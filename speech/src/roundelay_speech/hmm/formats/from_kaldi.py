"""Import of Kaldi's alignments: `ali.*.gz` with `final.mdl`, `tree` and `phones.txt`, or the output of `ali-to-pdf`.

Legend: T frames of one utterance.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.hmm.align import align, utterance_graph
from roundelay_speech.hmm.alignment import AlignSummary
from roundelay_speech.hmm.formats.interchange import Foreign, ImportConfig, write_import
from roundelay_speech.hmm.formats.kaldi_model import read_transition_model, read_tree
from roundelay_speech.hmm.formats.kaldi_tying import (
    ImportedTying,
    PhoneMap,
    import_tying,
    match_phones,
    our_state,
    read_symbols,
)
from roundelay_speech.kaldi_io.objects import read_int_vectors
from roundelay_speech.prepared import Corpus

_NEVER = -1000.0  # log-likelihood of a pdf that is not the one given; further from 0 than any beam


@dataclass(frozen=True)
class KaldiAlignment:
    """The files of an alignment that Kaldi made."""

    # each with `ali.*.gz` (or any `ali.*`, packed or not, binary or text); the first also holds the models.
    folders: tuple[Path, ...] = ()
    pdfs: tuple[Path, ...] = ()  # instead of `ali.*`: files that `ali-to-pdf` printed
    # model, tree, phones: None: `final.mdl`, `tree`, `phones.txt` in the first folder.
    model: Path | None = None
    tree: Path | None = None
    phones: Path | None = None

    def file(self, given: Path | None, name: str, option: str) -> Path:
        """Return the file `given`, or the one called `name` in the first folder.

        Raises:
            UserError: there is no such file; names the `option`.
        """
        found = given or (self.folders[0] / name if self.folders else None)
        if found is None or not found.is_file():
            raise UserError(f"{found or name}: no such file. Name it with {option}.")
        return found

    def archives(self) -> list[Path]:
        """Return the files that hold the labels.

        Raises:
            UserError: a folder has no such file.
        """
        found = list(self.pdfs)
        for folder in () if self.pdfs else self.folders:
            own = sorted(p for p in folder.glob("ali.*") if p.suffix != ".scp" and p.is_file())
            if not own:
                raise UserError(f"{folder}: no alignment here (no ali.*.gz).")
            found += own
        if not found:
            raise UserError("Name a folder with ali.*.gz (--ali), or the output of ali-to-pdf (--pdfs).")
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
    return write_import(corpus, store, read, imported, config, out, f"kaldi: {', '.join(map(str, archives[:3]))}")


def _vectors(archives: Sequence[Path]) -> Iterator[tuple[str, npt.NDArray[np.int32]]]:
    seen: dict[str, Path] = {}
    for path in archives:
        for name, values in read_int_vectors(path):
            if name in seen:
                raise UserError(f"{path}: {name} is also in {seen[name]}. Name every alignment once.")
            seen[name] = path
            yield name, values


class _TransitionIds:
    """A reader of transition-ids: the phone and state of each."""

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
        """Return phones, states and pdfs of the frames, or the reason why they cannot be read."""
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
    """A reader of pdfs: phones and states follow from the way through the words' pronunciations that has just these
    pdfs."""

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
            return "its pdfs agree with no pronunciation of its words"
        return Foreign(found.phones, found.states, ours)
