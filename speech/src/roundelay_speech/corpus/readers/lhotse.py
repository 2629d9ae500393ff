"""The reader of a corpus in Lhotse manifests (lhotse.py has the format)."""

from roundelay_speech.corpus.build import prepare_lhotse
from roundelay_speech.corpus.readers.base import Reader

LHOTSE = Reader.of_format("lhotse", "A corpus of your own in Lhotse manifests.", prepare_lhotse)
