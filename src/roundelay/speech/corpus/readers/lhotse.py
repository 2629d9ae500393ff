"""The reader of a corpus in Lhotse manifests (lhotse.py has the format)."""

from roundelay.core.progress import Progress
from roundelay.speech.corpus.build import prepare_lhotse
from roundelay.speech.corpus.readers.base import Reader, Request
from roundelay.speech.prepared import Corpus


def _prepare(request: Request, progress: Progress) -> Corpus:
    splits = {split: parts[-1] for split, parts in request.splits.items()}
    return prepare_lhotse(
        request.folder,
        request.data,
        request.dictionary,
        splits,
        progress,
        options=request.options,
        name=request.data.name,
    )


LHOTSE = Reader(
    name="lhotse",
    about="A corpus of your own in Lhotse manifests.",
    prepare=_prepare,
    takes=frozenset({"--source", "--lexicon", "--split", "--vocabulary"}),
    needs_lexicon=True,
)
