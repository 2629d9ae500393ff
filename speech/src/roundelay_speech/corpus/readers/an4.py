"""AN4 (CMU census database, about 1991): spelled words, digits, dates and commands; an hour, 75 speakers, 16 kHz.

Taken as Kaldi-style data directories `train`, `dev` and `test` (the official test set; dev is held out of the training
speakers), audio paths relative to the folder, and CMU's dictionary in `lang/an4.dic`; or as CMU gives it:

    etc/an4_train.transcription, etc/an4_test.transcription     WORDS (an251-fash-b)
    wav/an4_clstk/fash/an251-fash-b.sph, wav/an4test_clstk/...
    etc/an4.dic

which has no dev set: DEV_SPEAKERS are held out.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay_speech.audio.reading import AudioError, read_header, whole_recording
from roundelay_speech.corpus.build import ReadUtterances, prepare_kaldi, prepare_utterances
from roundelay_speech.corpus.download import Remote, Wanted
from roundelay_speech.corpus.options import Preparation
from roundelay_speech.corpus.readers.base import Reader, Request, checked_audio
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import BadPolicy, LeftOut, counted, listing
from roundelay_speech.lexicon.lexicon import read_lexicon
from roundelay_speech.prepared import TRAIN, Corpus

LICENCE = (
    "Copyright (c) 1991-2005 Carnegie Mellon University; free for any use, keep its notice with copies of the data."
)
ARCHIVE = Remote("http://www.speech.cs.cmu.edu/databases/an4/an4_sphere.tar.gz")
"""The archive of AN4, without https and without a published checksum."""
DEV_SPEAKERS = frozenset({"fejs", "fkdo", "mcrt", "mjhp", "mrab", "msrb"})
_TRANSCRIPT = re.compile(r"(.*)\(([a-z0-9]+-([a-z0-9]+)-[a-z])\)")
_MARKS = frozenset({"<s>", "</s>", "<sil>"})


def prepare_an4(request: Request, progress: Progress) -> Corpus:
    """Check AN4, compute its features, and write the prepared corpus; audio stays where it is.

    Raises:
        UserError: anything wrong with the corpus, all problems of a kind together.
    """
    source, preparation = request.folder, Preparation(request.data, "an4", LICENCE, request.options)
    root = next((one for one in (source, source / "an4") if (one / "etc" / "an4_train.transcription").is_file()), None)
    if root is not None and not (source / "train" / "wav.scp").is_file():
        found = _read_published(root, request.options.on_bad)
        return prepare_utterances(found, read_lexicon(root / "etc" / "an4.dic"), preparation, progress)
    splits = {"train": "train", "dev": "dev", "test": "test"}
    return prepare_kaldi(source, source / "lang" / "an4.dic", splits, preparation, progress, _gender)


def _gender(speaker: str) -> str | None:
    """Return a speaker's gender: f or m, as the name has it behind `an4-`; None if it has neither."""
    first = speaker.removeprefix("an4-")[:1]
    return first if first in ("f", "m") else None


def _read_published(root: Path, on_bad: BadPolicy) -> ReadUtterances:
    audio = {path.stem: path for path in sorted((root / "wav").glob("*/*/*.sph"))}
    splits: dict[str, list[Utterance]] = {TRAIN: [], "dev": [], "test": []}
    left_out: dict[str, list[LeftOut]] = {split: [] for split in splits}
    problems: list[str] = []
    for part in (TRAIN, "test"):
        path = root / "etc" / f"an4_{part}.transcription"
        if not path.is_file():
            problems.append(f"{path}: no such file")
            continue
        for number, line in enumerate(path.read_text(encoding="latin-1").split("\n"), 1):
            match = _TRANSCRIPT.fullmatch(line.strip())
            words = [word for word in match[1].split() if word not in _MARKS] if match else []
            if match is None or not words:
                problems += [f"{path}:{number}: not `WORDS (ID-SPEAKER-b)` but `{line[:60]}`"] if line.strip() else []
                continue
            split = "dev" if part == TRAIN and match[3] in DEV_SPEAKERS else part
            made = _utterance(match[2], match[3], words, audio)
            if isinstance(made, LeftOut):
                left_out[split].append(made)
            else:
                splits[split].append(made)
    if problems:
        raise UserError(f"{root}: {counted(len(problems), 'fault')} in the transcripts:\n{listing(problems)}")
    return checked_audio(splits, left_out, on_bad)


def _utterance(stem: str, speaker: str, words: list[str], audio: Mapping[str, Path]) -> Utterance | LeftOut:
    name = f"an4-{speaker}-{stem.split('-', maxsplit=1)[0]}"
    if stem not in audio:
        return LeftOut(name, f"{name}: no wav/*/{speaker}/{stem}.sph")
    try:
        read_header(audio[stem])
        return whole_recording(name, audio[stem], f"an4-{speaker}", " ".join(words), _gender(speaker))
    except AudioError as error:
        return LeftOut(name, f"{name}: {error}")


AN4 = Reader(
    name="an4",
    about="Spelled words, numbers and commands, 16 kHz, one hour.",
    prepare=prepare_an4,
    takes=frozenset({"--source"}),
    free=lambda _: Wanted((ARCHIVE,)),
    licence=LICENCE,
)
