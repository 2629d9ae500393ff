"""Folds of a prepared corpus: its speakers left out in turn, so that each is recognised by a model that has never heard
them.

Speakers of all splits but `dev` take part. In fold k the speakers of part k are the split `test`, all others are
`train`; `dev` stays, for settings are chosen on it. Where there is none, it is the next part's speakers.
"""

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.folders import check_there
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import counted
from roundelay_speech.lexicon.lexicon import Lexicon, write_lexicon
from roundelay_speech.prepared import CORPUS, HELD_OUT_LEXICON, TRAIN, Corpus, load_corpus, write_prepared

DEV, TEST = "dev", "test"
_FEWEST = 2


def speaker_parts(corpus: Corpus, count: int) -> list[tuple[str, ...]]:
    """Divide the speakers into parts with about equal numbers of women, of men, and of seconds of speech: speakers with
    most speech first, each to the part with the fewest of the same gender, then with the fewest seconds.

    Raises:
        UserError: there are fewer speakers than parts, or fewer parts than 2.
    """
    seconds: dict[str, float] = defaultdict(float)
    kinds: dict[str, str] = {}
    for utterance in _pool(corpus):
        if not utterance.copied:
            seconds[utterance.speaker] += utterance.duration
            kinds.setdefault(utterance.speaker, (utterance.gender or "")[:1].lower())
    least = _FEWEST if corpus.splits.get(DEV) else _FEWEST + 1
    if count < least:
        what = "" if least == _FEWEST else f", for {corpus.folder} has no split {DEV}, and one part takes its place"
        raise UserError(f"--folds {count}: {least} is the least{what}.")
    if len(seconds) < count:
        raise UserError(
            f"--folds {count}: {corpus.folder} has {counted(len(seconds), 'speaker')} outside {DEV}. Give as many "
            "folds at most; if recordings of several people bear one name, mend utt2spk."
        )
    parts: list[list[str]] = [[] for _ in range(count)]
    for name in sorted(seconds, key=lambda one: (-seconds[one], one)):
        parts.sort(key=lambda part: (sum(kinds[one] == kinds[name] for one in part), sum(map(seconds.get, part))))  # type: ignore[arg-type]
        parts[0].append(name)
    return sorted(tuple(sorted(part)) for part in parts)


def fold(corpus: Corpus, parts: Sequence[Sequence[str]], number: int, folder: Path) -> Corpus:
    """Return the corpus of a fold, for `folder`. Features are those of the whole corpus.

    Copies at other speeds and warps belong to the speaker they were made of. Words that only held-out speech had, and
    that is trained on now, are known words of the fold.

    Args:
        number: number of the part that is left out, from 0.
    """
    left_out = set(parts[number])
    held_out = [u for u in corpus.splits.get(DEV, ()) if _original(u) not in left_out and not u.copied]
    apart = left_out if held_out else left_out | set(parts[(number + 1) % len(parts)])
    training = [u for u in corpus.splits[TRAIN] if _original(u) not in apart]
    for name in corpus.splits:
        if name not in (TRAIN, DEV):
            training += [u for u in corpus.alignable(name) if _original(u) not in apart]
    pool = [u for u in _pool(corpus) if not u.copied]
    held_out = held_out or [u for u in pool if u.speaker in apart - left_out]
    splits = {TRAIN: training, DEV: held_out, TEST: [u for u in pool if u.speaker in left_out]}
    said = {word for u in training for word in u.words}
    known = {word: some for word, some in corpus.held_out_words.items() if word in said}
    return replace(
        corpus,
        folder=folder,
        splits={name: [_seen_from(u, corpus.folder, folder) for u in some] for name, some in splits.items()},
        lexicon=replace(corpus.lexicon, pronunciations={**corpus.lexicon.pronunciations, **known}),
        held_out_words={word: some for word, some in corpus.held_out_words.items() if word not in known},
        left_out={},
        remarks=[],
    )


def write_fold(made: Corpus, corpus: Corpus) -> None:
    """Write the corpus of a fold, with a link to the whole corpus's features, unless it exists already.

    Raises:
        UserError: another corpus is there.
    """
    if (made.folder / CORPUS).is_file():
        if load_corpus(made.folder).splits != made.splits:
            raise UserError(
                f"{made.folder}: made of another corpus than {corpus.folder} is now, or for other folds. Choose "
                "another --exp, or delete the folder above it."
            )
        return
    made.folder.mkdir(parents=True, exist_ok=True)
    link, target = made.folder / corpus.feature_folder, corpus.folder / corpus.feature_folder
    check_there(target)
    link.unlink(missing_ok=True)
    link.symlink_to(_relative(target, made.folder), target_is_directory=True)
    if made.held_out_words:
        write_lexicon(made.folder / HELD_OUT_LEXICON, Lexicon(dict(made.held_out_words), made.lexicon.silence))
    write_prepared(made)


def _pool(corpus: Corpus) -> list[Utterance]:
    """Return the utterances of all splits whose speakers take part."""
    return [u for name, some in corpus.splits.items() if name != DEV for u in some]


def _original(utterance: Utterance) -> str:
    """Return the speaker of an utterance, or of the utterance that it is a copy of."""
    name = utterance.speaker
    for prefix, factor in (("sp", utterance.speed), ("vtln", utterance.warp)):
        if factor != 1:
            name = name.removeprefix(f"{prefix}{factor:g}-")
    return name.removeprefix(f"{utterance.distortion}-") if utterance.distortion else name


def _seen_from(utterance: Utterance, there: Path, here: Path) -> Utterance:
    """Return the utterance with its path, relative to folder `there`, made relative to folder `here`."""
    if os.path.isabs(utterance.path):
        return utterance
    return replace(utterance, path=_relative(there / utterance.path, here))


def _relative(path: Path, start: Path) -> str:
    return os.path.relpath(os.path.realpath(path), os.path.realpath(start))
