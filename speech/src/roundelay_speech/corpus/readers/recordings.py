"""The reader of folders of recordings, with their words beside them or without words (formats/recordings.py)."""

from roundelay_speech.corpus.build import prepare_recordings
from roundelay_speech.corpus.readers.base import Reader

RECORDINGS = Reader.of_format(
    "recordings",
    "Folders of recordings of any kind, the words of NAME.wav in NAME.txt or in a file text.",
    prepare_recordings,
    unlabelled=True,
)
