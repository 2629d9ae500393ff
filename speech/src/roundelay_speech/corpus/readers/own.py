"""Readers of users' own corpora, by format (corpus/formats)."""

from roundelay_speech.corpus.build import prepare_kaldi, prepare_lhotse, prepare_recordings
from roundelay_speech.corpus.readers.base import Reader

STANDARD = {split: split for split in ("train", "dev", "test")}

KALDI = Reader.of_format(
    "kaldi", "A corpus of your own in Kaldi data directories.", prepare_kaldi, STANDARD, unlabelled=True
)
LHOTSE = Reader.of_format("lhotse", "A corpus of your own in Lhotse manifests.", prepare_lhotse)
RECORDINGS = Reader.of_format(
    "recordings",
    "Folders of recordings of any kind, the words of NAME.wav in NAME.txt or in a file text.",
    prepare_recordings,
    unlabelled=True,
)
