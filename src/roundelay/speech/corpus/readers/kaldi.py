"""The reader of a corpus in Kaldi data directories (kaldi.py has the format)."""

from roundelay.core.progress import Progress
from roundelay.speech.corpus.build import prepare_kaldi
from roundelay.speech.corpus.readers.base import Reader, Request
from roundelay.speech.prepared import Corpus

STANDARD = {split: split for split in ("train", "dev", "test")}


def _prepare(request: Request, progress: Progress) -> Corpus:
    splits = {split: parts[-1] for split, parts in request.splits.items()} or STANDARD
    return prepare_kaldi(
        request.folder,
        request.data,
        request.dictionary,
        splits,
        progress,
        options=request.options,
        name=request.data.name,
    )


KALDI = Reader(
    name="kaldi",
    about="A corpus of your own in Kaldi data directories.",
    prepare=_prepare,
    takes=frozenset({"--source", "--lexicon", "--split", "--vocabulary"}),
    needs_lexicon=True,
)
