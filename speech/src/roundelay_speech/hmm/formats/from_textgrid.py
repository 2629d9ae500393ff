"""Import of TextGrids of the Montreal Forced Aligner, whose phones are cut into three states here.

Legend: T frames of one utterance.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import counted
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.hmm.alignment import AlignSummary
from roundelay_speech.hmm.formats.interchange import Foreign, ImportConfig, write_import
from roundelay_speech.hmm.formats.kaldi_phones import POSITION
from roundelay_speech.hmm.formats.textgrid import TextGrid, Tier, read_textgrid, without_gaps
from roundelay_speech.hmm.topology import SILENCE, STATES
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.prepared import Corpus

_STRESS = re.compile(r"(.*[^0-2])[0-2]")
_SILENCES = frozenset({"", "sil", "sp", "<eps>"})


def import_textgrids(
    corpus: Corpus, store: FeatureStore, folder: Path, config: ImportConfig, out: Path, progress: Progress
) -> AlignSummary:
    """Import TextGrids: one for each utterance (ID.TextGrid) or recording, in `folder` or below it.

    Raises:
        UserError: a file is broken, or too many utterances are left out.
    """
    files: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.TextGrid")):
        if path.stem in files:
            raise UserError(f"{path}: {files[path.stem]} is of the same name. Keep one of them.")
        files[path.stem] = path
    if not files:
        raise UserError(f"{folder}: no TextGrid here (*.TextGrid).")
    utterances = corpus.utterances
    progress.start("importing TextGrids", len(utterances))
    read: dict[str, Foreign | str] = {}
    kept: tuple[Path, TextGrid] | None = None  # the utterances of a recording follow each other
    for u in utterances:
        progress.advance()
        own = files.get(u.id) or files.get(u.recording_id)
        if own is None:
            continue
        if kept is None or kept[0] != own:
            kept = own, read_textgrid(own)
        offset = 0.0 if own.stem == u.id else u.start
        read[u.id] = _from_grid(kept[1], u, offset, corpus.lexicon, store, config)
    progress.finish()
    return write_import(corpus, store, read, None, config, out, f"textgrid: {folder}")


def phone_tier(grid: TextGrid, speaker: str) -> Tier | None:
    """Return the tier of the phones: `phones`, or that of the speaker (`SPEAKER - phones`) where there are several."""
    own = [tier for tier in grid.tiers if tier.name.lower() == "phones" or tier.name.lower().endswith("- phones")]
    named = [tier for tier in own if tier.name.lower() == f"{speaker} - phones".lower()]
    return named[0] if named else own[0] if len(own) == 1 else None


def phone_id(label: str, lexicon: Lexicon) -> int | None:
    """Return the id of a phone by its name: as it is, without its position in the word, without its stress; None:
    unknown."""
    if label.lower() in _SILENCES:
        return SILENCE
    names = [label]
    for pattern in (POSITION, _STRESS):
        names += [found[1] for name in names if (found := pattern.fullmatch(name))]
    return next((lexicon.phone_ids[name] for name in names if name in lexicon.phone_ids), None)


def _from_grid(
    grid: TextGrid, u: Utterance, offset: float, lexicon: Lexicon, store: FeatureStore, config: ImportConfig
) -> Foreign | str:
    tier = phone_tier(grid, u.speaker)
    if tier is None:
        return f"no tier `phones`, nor one `{u.speaker} - phones`"
    intervals = without_gaps(tier.intervals, offset, offset + u.duration)
    centres = offset + store.frame_times(store.frames(u.id))
    ends = np.searchsorted(centres, [i.end for i in intervals], side="right")
    ends[-1] = len(centres)
    phones: list[int] = []
    bounds: list[int] = []
    for interval, end in zip(intervals, ends.tolist(), strict=True):
        phone = phone_id(interval.text.strip(), lexicon)
        if phone is None:
            return f"phone {interval.text.strip()!r}, which the lexicon does not have"
        if phones and phone == phones[-1] == SILENCE:
            bounds[-1] = end
        elif phone != SILENCE or end > (bounds[-1] if bounds else 0):
            phones.append(phone)
            bounds.append(end)
    if not phones:
        return "no phones in its TextGrid"
    spread = at_least(bounds, STATES)
    if spread is None:
        return f"too short: {len(centres)} frames for {counted(len(phones), 'phone')}"
    return _with_states(phones, np.diff([0, *spread]), config.shares)


def at_least(bounds: Sequence[int], least: int) -> list[int] | None:
    """Return ends of intervals moved as little as needed for each to have `least` frames; None: there are not
    enough."""
    total = bounds[-1]
    if total < least * len(bounds):
        return None
    moved: list[int] = []
    for end in bounds:
        moved.append(max(end, (moved[-1] if moved else 0) + least))
    moved[-1] = total
    for place in range(len(moved) - 2, -1, -1):
        moved[place] = min(moved[place], moved[place + 1] - least)
    return moved


def _with_states(phones: Sequence[int], sizes: npt.NDArray[np.int64], shares: Sequence[float]) -> Foreign:
    """Return each phone cut into its states by their shares, each of at least a frame."""
    upto = np.cumsum(shares) / sum(shares)
    states = []
    for size in sizes.tolist():
        first = min(max(1, round(upto[0] * size)), size - 2)
        second = min(max(first + 1, round(upto[1] * size)), size - 1)
        states.append(np.repeat(np.arange(STATES, dtype=np.int8), [first, second - first, size - second]))
    return Foreign(np.repeat(np.array(phones, np.int16), sizes), np.concatenate(states))
