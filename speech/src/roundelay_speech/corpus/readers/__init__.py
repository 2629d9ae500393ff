"""Corpora by name: what `roundelay prepare` reads. A new corpus is a file beside these with a `Reader`, and its name
here."""

from collections.abc import Mapping

from roundelay_speech.corpus.readers.an4 import AN4
from roundelay_speech.corpus.readers.base import Reader
from roundelay_speech.corpus.readers.demo import DEMO
from roundelay_speech.corpus.readers.fsdd import FSDD
from roundelay_speech.corpus.readers.librispeech import LIBRISPEECH, MINI_LIBRISPEECH
from roundelay_speech.corpus.readers.own import KALDI, LHOTSE, RECORDINGS
from roundelay_speech.corpus.readers.switchboard import SWITCHBOARD

READERS: Mapping[str, Reader] = {
    reader.name: reader
    for reader in (LIBRISPEECH, MINI_LIBRISPEECH, FSDD, AN4, SWITCHBOARD, KALDI, LHOTSE, RECORDINGS, DEMO)
}
