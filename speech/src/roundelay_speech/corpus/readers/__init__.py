"""Corpora by name, for `roundelay prepare`. A new corpus is a file beside these with a `Reader`, and its name here; or
an object of another package, by an entry point of the group `roundelay.corpora`."""

from roundelay.core.plugins import WithPlugins
from roundelay_speech.corpus.readers.an4 import AN4
from roundelay_speech.corpus.readers.demo import DEMO
from roundelay_speech.corpus.readers.fsdd import FSDD
from roundelay_speech.corpus.readers.librispeech import LIBRISPEECH, MINI_LIBRISPEECH
from roundelay_speech.corpus.readers.own import KALDI, LHOTSE, RECORDINGS
from roundelay_speech.corpus.readers.switchboard import SWITCHBOARD

_OWN = {
    reader.name: reader
    for reader in (LIBRISPEECH, MINI_LIBRISPEECH, FSDD, AN4, SWITCHBOARD, KALDI, LHOTSE, RECORDINGS, DEMO)
}


READERS = WithPlugins("corpora", _OWN)
"""All readers of corpora by name, those of other installed packages last."""
