"""Our alignments as Kaldi and Praat read them.

Kaldi:     ali.1.gz (transition-ids), final.mdl (the transition model alone), tree, phones.txt, pdf.txt (as ali-to-pdf
           prints), phones.ali.txt (as ali-to-phones --per-frame prints)
TextGrids: ID.TextGrid with the tiers `words` and `phones`

Legend: T frames of one utterance.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, refuse_ours, write_text
from roundelay.core.progress import Progress, tracked
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.hmm.align import word_spans
from roundelay_speech.hmm.alignment import Alignment
from roundelay_speech.hmm.formats.kaldi_model import write_transition_model, write_tree
from roundelay_speech.hmm.formats.kaldi_tying import export_transition_model, export_tree, transition_ids
from roundelay_speech.hmm.formats.textgrid import Interval, TextGrid, Tier, write_textgrid
from roundelay_speech.hmm.topology import SILENCE, phone_bounds
from roundelay_speech.kaldi_io.objects import write_archive
from roundelay_speech.kaldi_io.tables import symbol_table
from roundelay_speech.prepared import Corpus


def _aligned(corpus: Corpus, store: FeatureStore, alignment: Alignment) -> Iterator[tuple[Utterance, slice]]:
    """Yield the aligned utterances and their frames.

    Raises:
        UserError: the alignment is of another corpus.
    """
    if len(alignment.pdf) != len(store.array) or alignment.tying.phones != corpus.lexicon.phones:
        raise UserError(f"{alignment.folder}: an alignment of another corpus than {corpus.folder}.")
    for u in corpus.utterances:
        first, frames = store.span(u.id)
        own = slice(first, first + frames)
        if frames and (alignment.pdf[own] >= 0).all():
            yield u, own


def export_kaldi(corpus: Corpus, store: FeatureStore, alignment: Alignment, out: Path, progress: Progress) -> int:
    """Write an alignment as Kaldi's files into the folder `out`; return the number of utterances.

    Raises:
        UserError: the alignment is of another corpus; the disk is full.
    """
    refuse_ours(out)
    found = sorted(_aligned(corpus, store, alignment), key=lambda pair: pair[0].id)  # Kaldi's tools want them sorted
    model = export_transition_model(alignment.tree)
    write_text(out / "phones.txt", symbol_table(("<eps>", *corpus.lexicon.phones)))
    write_tree(out / "tree", export_tree(alignment.tree))
    write_transition_model(out / "final.mdl", model)
    write_archive(out / "pdf.txt", ((u.id, alignment.pdf[own].astype(np.int32)) for u, own in found), text=True)
    per_frame = ((u.id, alignment.phones[own].astype(np.int32)) for u, own in found)
    write_archive(out / "phones.ali.txt", per_frame, text=True)
    progress.start("writing the alignment", len(found))

    def ids() -> Iterator[tuple[str, npt.NDArray[np.int32]]]:
        for u, own in found:
            progress.advance()
            yield u.id, transition_ids(model, alignment.phones[own], alignment.states[own], alignment.pdf[own])

    plain = out / "ali.1"
    try:
        write_archive(plain, ids())
        with atomic_write(out / "ali.1.gz") as file, gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed:
            packed.write(plain.read_bytes())
    finally:
        plain.unlink(missing_ok=True)
    progress.finish()
    return len(found)


def export_textgrids(corpus: Corpus, store: FeatureStore, alignment: Alignment, out: Path, progress: Progress) -> int:
    """Write a TextGrid for every aligned utterance into the folder `out`; return the number of utterances.

    A boundary lies halfway between the centres of the last frame before and the first frame behind it.

    Raises:
        UserError: the alignment is of another corpus; an id is no name for a file; the disk is full.
    """
    refuse_ours(out)
    found = list(_aligned(corpus, store, alignment))
    if odd := [u.id for u, _ in found if "/" in u.id or u.id.startswith(".")]:
        raise UserError(f"{odd[0]}: an id with a slash or a dot in front is no name for a TextGrid.")
    for u, own in tracked(progress, "writing TextGrids", found):
        phones, states = alignment.phones[own], alignment.states[own]
        bounds = phone_bounds(phones, states)
        centres = store.frame_times(len(phones))
        inner = (centres[bounds[1:-1] - 1] + centres[bounds[1:-1]]) / 2
        times = [0.0, *inner.tolist(), u.duration / u.speed]
        spoken = phones[bounds[:-1]].tolist()
        names = ["" if phone == SILENCE else corpus.lexicon.phones[phone - 1] for phone in spoken]
        tiers = [Tier("phones", tuple(Interval(*span) for span in zip(times, times[1:], names, strict=False)))]
        if (words := word_spans(u.words, corpus.lexicon, spoken)) is not None:
            intervals = (Interval(times[first], times[last], word) for first, last, word in words)
            tiers.insert(0, Tier("words", tuple(intervals)))
        write_textgrid(out / f"{u.id}.TextGrid", TextGrid(0.0, times[-1], tuple(tiers)))
    return len(found)
