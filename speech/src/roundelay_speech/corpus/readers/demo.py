"""The reader of the demo corpus, which is made and not read (demo/make.py)."""

from roundelay.core.progress import Progress
from roundelay_speech.corpus.demo.make import LICENCE, prepare_demo
from roundelay_speech.corpus.readers.base import Reader, Request
from roundelay_speech.prepared import Corpus


def _prepare(request: Request, progress: Progress) -> Corpus:
    return prepare_demo(request.data, progress, seed=request.seed)


DEMO = Reader(
    name="demo",
    about="Spoken commands that a synthesiser on this machine makes: nothing to download.",
    prepare=_prepare,
    takes=frozenset(),
    data="demo/data",
    licence=LICENCE,
)
