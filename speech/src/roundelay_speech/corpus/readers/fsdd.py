"""The Free Spoken Digit Dataset: "zero" to "nine", one word a recording, 8 kHz, a handful of speakers.

Taken as published, `recordings/DIGIT_SPEAKER_NUMBER.wav`, or as Kaldi data directories train, dev and test. As
published the numbers 0 to 4 of each digit and speaker are the test set, so the same speakers are in all splits; 5 to 9
become dev.
"""

import re
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay_speech.audio.reading import AudioError, whole_recording
from roundelay_speech.corpus.build import ReadUtterances, prepare_utterances
from roundelay_speech.corpus.download import Remote, Wanted
from roundelay_speech.corpus.options import Preparation, PrepareOptions
from roundelay_speech.corpus.readers.base import Reader, Request, checked_audio, checked_folder, read_data_dirs
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import LeftOut, counted, listing
from roundelay_speech.lexicon.lexicon import parse_lexicon
from roundelay_speech.prepared import TRAIN, Corpus

LICENCE = "Free Spoken Digit Dataset, Zohar Jackson and contributors; Creative Commons Attribution-ShareAlike 4.0."
ARCHIVE = Remote(
    "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/v1.0.9.tar.gz",
    "sha256:8bc44cde129d505cbbb6b365c09f80c663f2aa77578afc634e6141a2f87100c0",
)
"""The archive of the digits, with the checksum that TensorFlow Datasets has."""
DIGITS = ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")
PRONUNCIATIONS = """\
ZERO Z IH R OW
ZERO(2) Z IY R OW
ONE W AH N
ONE(2) HH W AH N
TWO T UW
THREE TH R IY
FOUR F AO R
FIVE F AY V
SIX S IH K S
SEVEN S EH V AH N
EIGHT EY T
NINE N AY N
"""
"""Pronunciations of the digits, in the phones of the CMU dictionary."""

_NAME = re.compile(r"(\d)_([A-Za-z]+)_(\d+)")
TEST_NUMBERS, DEV_NUMBERS = range(5), range(5, 10)


def prepare_fsdd(request: Request, progress: Progress) -> Corpus:
    """Check the digits, compute their features, and write the prepared corpus.

    Raises:
        UserError: anything wrong with the corpus, all problems of a kind together.
    """
    source, options = checked_folder(request.folder), request.options
    if (source / TRAIN / "wav.scp").is_file():
        found = ReadUtterances.of(read_data_dirs(source, options.on_bad))
    else:
        found = _read_recordings(source, options)
    lexicon = parse_lexicon(PRONUNCIATIONS, "lexicon of the digits")
    return prepare_utterances(found, lexicon, Preparation(request.data, "fsdd", LICENCE, options), progress)


def _read_recordings(source: Path, options: PrepareOptions) -> ReadUtterances:
    folders = [source / "recordings", *sorted(source.glob("*/recordings"))]
    folder = next((one for one in folders if one.is_dir()), source)
    files = sorted(folder.glob("*.wav"))
    if odd := [f"{path}: not DIGIT_SPEAKER_NUMBER.wav" for path in files if not _NAME.fullmatch(path.stem)]:
        raise UserError(f"{folder}: {counted(len(odd), 'file')} with other names; rename or move them:\n{listing(odd)}")
    if not files:
        raise UserError(f"{source}: no recordings/DIGIT_SPEAKER_NUMBER.wav here. Add `--download` to get them.")
    splits: dict[str, list[Utterance]] = {TRAIN: [], "dev": [], "test": []}
    left_out: dict[str, list[LeftOut]] = {split: [] for split in splits}
    for path in files:
        match = _NAME.fullmatch(path.stem)
        assert match is not None
        digit, speaker, number = int(match[1]), match[2].lower(), int(match[3])
        name = f"fsdd-{speaker}-{digit}-{number:02d}"
        split = "test" if number in TEST_NUMBERS else "dev" if number in DEV_NUMBERS else TRAIN
        try:
            splits[split].append(whole_recording(name, path, f"fsdd-{speaker}", DIGITS[digit]))
        except AudioError as error:
            left_out[split].append(LeftOut(name, f"{name}: {error}"))
    return checked_audio(splits, left_out, options.on_bad)


FSDD = Reader(
    name="fsdd",
    about="Ten digits by a handful of speakers, 8 kHz.",
    prepare=prepare_fsdd,
    takes=frozenset({"--source"}),
    free=lambda _: Wanted((ARCHIVE,)),
    licence=LICENCE,
)
