"""Transcripts of a corpus in its dictionary's words, what that changed by kind, and the file that lists it.

DATA/cleaned.tsv   a line for each change: its kind, how often, before, after; see `cleaning.CHANGE_KINDS`
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.files import read_text, write_text
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import LeftOut
from roundelay_speech.lexicon.cleaning import CHANGE_KINDS, Change, Cleaned, Cleaner, Kind
from roundelay_speech.lexicon.lexicon import Lexicon

CHANGES_FILE = "cleaned.tsv"
_SHOWN = 5


@dataclass(frozen=True)
class CleanedSplits:
    """Utterances with clean transcripts."""

    splits: dict[str, list[Utterance]]
    left_out: list[LeftOut]  # those of which nothing is left, or in which something was not understood, with reasons
    changes: Mapping[Change, int]  # how often each was made


def cleaned(splits: Mapping[str, Sequence[Utterance]], lexicon: Lexicon) -> CleanedSplits:
    """Rewrite transcripts in the dictionary's words (see `Cleaner`); where there are none, there is nothing to do."""
    clean, changes, left_out = Cleaner(lexicon), Counter[Change](), list[LeftOut]()
    made: dict[str, list[Utterance]] = {}
    for split, utterances in splits.items():
        made[split] = []
        for u in utterances:
            if not u.words:
                made[split].append(u)
                continue
            found = clean(u.text)
            changes.update(found.changes)
            if found.words and not found.unclear:
                text = " ".join(found.words)
                made[split].append(u if text == u.text else dataclasses.replace(u, text=text))
            else:
                left_out.append(LeftOut(u.id, f"{u.id}: {_why(u, found)}"))
    return CleanedSplits(made, left_out, changes)


def _why(utterance: Utterance, found: Cleaned) -> str:
    marks = ", ".join(dict.fromkeys(c.before for c in found.changes if c.kind == "unclear"))
    if marks:
        return f"some of it was not understood ({marks})"
    if any(change.kind == "noise" for change in found.changes):
        return f"nothing but noises ({utterance.text})"
    return f"no word is left of its transcript ({utterance.text})"


def by_kind(changes: Mapping[Change, int]) -> dict[Kind, int]:
    """Return the number of changes of each kind that occurs, the most telling first."""
    counts: Counter[Kind] = Counter()
    for change, times in changes.items():
        counts[change.kind] += times
    return {kind: counts[kind] for kind in CHANGE_KINDS if counts[kind]}


def written_so(changes: Mapping[Kind, int]) -> str:
    """Say what was changed in transcripts that a model is compared with; empty where nothing was."""
    if not changes:
        return ""
    told = ", ".join(
        f"{times:,} x {CHANGE_KINDS[kind].partition(',')[0].partition(':')[0]}" for kind, times in changes.items()
    )
    return f"transcripts were written in the model's words: {told}"


def table(changes: Mapping[Change, int]) -> list[tuple[str, str, str]]:
    """Return a row for each kind: what it is, its most frequent changes, and how often."""
    rows = []
    for kind, total in by_kind(changes).items():
        some = sorted(((c, n) for c, n in changes.items() if c.kind == kind), key=lambda one: (-one[1], one[0].before))
        shown = [f"{_shown(change)}{f' ({times})' if times > 1 else ''}" for change, times in some[:_SHOWN]]
        rows.append((CHANGE_KINDS[kind], ", ".join(shown) + (", ..." if len(some) > _SHOWN else ""), f"{total:,}"))
    return rows


def _shown(change: Change) -> str:
    if change.kind in ("noise", "unclear"):
        return change.before
    return f"{change.before} -> {change.after or '(nothing)'}"


def write_changes(folder: Path, changes: Mapping[Change, int]) -> None:
    """Write the list of changes, the most frequent of a kind first; without any, what an earlier run listed goes."""
    path = folder / CHANGES_FILE
    if not changes:
        path.unlink(missing_ok=True)
        return
    order = list(CHANGE_KINDS)
    ranked = sorted(changes.items(), key=lambda one: (order.index(one[0].kind), -one[1], one[0].before))
    lines = [f"{change.kind}\t{times}\t{change.before}\t{change.after}\n" for change, times in ranked]
    write_text(path, "".join(["kind\ttimes\tbefore\tafter\n", *lines]))


def read_changes(folder: Path) -> dict[Change, int]:
    """Return the list that `write_changes` wrote; empty where there is none, of an older version."""
    path = folder / CHANGES_FILE
    if not path.is_file():
        return {}
    found = {}
    for line in read_text(path, "a list of changes is expected").split("\n")[1:]:
        kind, _, rest = line.partition("\t")
        times, before, after = [*rest.split("\t"), "", "", ""][:3]
        known = next((name for name in CHANGE_KINDS if name == kind), None)
        if known is not None and times.isdigit():
            found[Change(known, before, after)] = int(times)
    return found
