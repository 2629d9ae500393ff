"""AN4 (CMU census database, about 1991): spelled words, digits, dates and commands; an hour, 75 speakers, 16 kHz.

The folder is laid out as Kaldi-style data directories `train`, `dev` and `test` (the official test set; dev is held out
of the training speakers), audio paths relative to the folder, and CMU's dictionary in `lang/an4.dic`.
"""

from pathlib import Path

from roundelay.core.progress import Progress
from roundelay.speech.corpus.build import PrepareOptions, prepare_kaldi
from roundelay.speech.corpus.prepared import Corpus
from roundelay.speech.culprits import BadPolicy
from roundelay.speech.lexicon import MissingWordPolicy

LICENCE = (
    "Copyright (c) 1991-2005 Carnegie Mellon University; free for any use, keep its notice with copies of the data."
)


def prepare_an4(
    source: Path,
    data: Path,
    progress: Progress,
    *,
    on_bad: BadPolicy = "error",
    on_missing_words: MissingWordPolicy = "error",
    map_to: str | None = None,
    max_bad_share: float = 0.1,
) -> Corpus:
    """Check AN4 in `source`, compute its features, and write the prepared corpus to `data`; audio stays where it is.

    Raises:
        UserError: anything wrong with the corpus, all culprits of a kind together.
    """
    return prepare_kaldi(
        source,
        data,
        source / "lang" / "an4.dic",
        {"train": "train", "dev": "dev", "test": "test"},
        progress,
        options=PrepareOptions(
            on_bad=on_bad, on_missing_words=on_missing_words, map_to=map_to, max_bad_share=max_bad_share
        ),
        name="an4",
        licence=LICENCE,
    )
