"""The reader of a corpus in Kaldi data directories (kaldi.py has the format)."""

from roundelay_speech.corpus.build import prepare_kaldi
from roundelay_speech.corpus.readers.base import Reader

STANDARD = {split: split for split in ("train", "dev", "test")}

KALDI = Reader.of_format(
    "kaldi", "A corpus of your own in Kaldi data directories.", prepare_kaldi, STANDARD, unlabelled=True
)
