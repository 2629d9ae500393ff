"""The section of errors: which series is better, confused words, errors by speaker, and the worst utterances in
full."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from roundelay.reports.charts import table
from roundelay.reports.headline import SURE, small
from roundelay.reports.markup import draw
from roundelay.reports.numbers import MISSING, plain
from roundelay.reports.series import Series
from roundelay.reports.words import (
    Rate,
    ScoredUtterance,
    WordPair,
    confused,
    difference,
    errors_by_utterance,
    grouped,
    holm,
    phones_of,
    rate,
    recognised,
)

MOST_SIDE_BY_SIDE = 6  # series in columns
FEW_SERIES = 2  # whose tables have room beside each other
MOST_ROWS = 10
MOST_WORST = 10
MOST_AUDIO_BYTES = 12_000_000  # in a page, before base64
NOTHING = "(nothing)"


@dataclass(frozen=True)
class HeardUtterance:
    """Sound, spectrogram and timed words of one utterance, for the page."""

    # audio, media_type: a file that browsers play.
    audio: bytes
    media_type: str
    picture: bytes  # a PNG, its spectrogram: time to the right over all its width, frequency upwards
    seconds: float  # its length
    # words that were recognised with begin and end in seconds, where decoding noted them.
    timed: tuple[tuple[str, float, float], ...] = ()
    note: str = ""  # what picture and words show, a sentence


Listen = Callable[[Path, str, str], HeardUtterance | None]
"""Function from a run's folder, a split and an utterance's id to its sound; None if that is gone."""
Part = Markup | list[Markup]
"""Part of a section of the page; parts in a list stand side by side where the page is wide enough."""
Known = Sequence[tuple[Series, list[tuple[ScoredUtterance, ...]]]]


def mistakes(series: Sequence[Series], split: str | None, listen: Listen | None = None) -> list[Part]:
    """Return the parts of the section of errors; empty if no run has its recognised words."""
    if split is None:
        return []
    known = [(s, found) for s in series if (found := recognised(s, split))]
    if not known:
        return []
    ranked = sorted(known, key=lambda pair: rate(errors_by_utterance(pair[1]).values()).wer)
    shown = ranked[:MOST_SIDE_BY_SIDE]
    pairs = [
        [
            _confusions(shown, split, "word", [confused(runs) for _, runs in shown]),
            _confusions(shown, split, "phone", [_phones(s, split) for s, _ in shown]),
        ],
        [
            _by_group(
                shown, split, "group", lambda u: u.subset or {"f": "women", "m": "men"}.get((u.gender or "")[:1])
            ),
            _by_group(shown, split, "speaker", lambda u: u.speaker),
        ],
    ]
    parts: list[Part | None] = [_significance(ranked, split)]
    if len(shown) < len(ranked):
        left = f"Below are the {len(shown)} of {len(ranked)} series with the fewest word errors."
        parts.append(Markup('<p class="note">{}</p>').format(left))
    for pair in pairs:
        tables = [one for one in pair if one]
        parts += [tables] if len(tables) > 1 and len(shown) <= FEW_SERIES else tables
    return [part for part in (*parts, _worst(shown, split, listen)) if part]


def _significance(ranked: Known, split: str) -> Markup | None:
    """Return a table that compares all series with the one with the fewest errors, utterance by utterance."""
    if len(ranked) < 2:
        return None
    (best, first), *others = ranked
    counts = errors_by_utterance(first)
    found = [(s, errors_by_utterance(runs)) for s, runs in others]
    pairs = [(s, theirs, apart) for s, theirs in found if (apart := difference(theirs, counts)) is not None]
    if not pairs:
        return None
    ps = holm([apart.p for _, _, apart in pairs])
    rows = [[best.name, _percent(rate(counts.values())), MISSING, MISSING, MISSING, "fewest errors"]]
    for (s, theirs, apart), p in zip(pairs, ps, strict=True):
        low, high = apart.interval
        verdict = "more errors" if p < SURE else "chance explains the difference"
        between = f"{low:+.2f} to {high:+.2f}"
        row = [s.name, _percent(rate(theirs.values())), f"{apart.wer:+.2f}", between, small(p), verdict]
        rows.append(row)
    titles = ["series", f"{split} WER", "difference", "95 % interval", "p", "so"]
    meanings = [
        "one configuration, all its seeds",
        "word error rate, percent, with its own interval",
        f"percent absolute, against {best.name}",
        "of the difference: bootstrap over utterances, both on the same draws",
        "two-sided, matched pairs of utterances, corrected for the number of comparisons (Holm)",
        f"at the level of {SURE:g}",
    ]
    caption = f"Is one better? Every series against {best.name} on the same utterances of {split}"
    return table(caption, titles, rows, meanings, words=(0, 5))


def _percent(found: Rate) -> str:
    between = "" if found.interval is None else f" ({plain(found.interval[0], 1)} to {plain(found.interval[1], 1)})"
    return f"{plain(found.wer, 2)} %{between}" if found.words else MISSING


def _confusions(shown: Known, split: str, what: str, counts: Sequence[Counter[WordPair]]) -> Markup | None:
    """Return a table of the most confused words (or `what` else), by each series' counts over all its runs."""
    total = sum(counts[1:], counts[0])
    if not total:
        return None
    runs = [len(found) for _, found in shown]
    rows = [
        [*(NOTHING if word is None else word for word in pair), *map(_mean, (count[pair] for count in counts), runs)]
        for pair in sorted(total, key=lambda pair: (-total[pair], str(pair)))[:MOST_ROWS]
    ]
    titles = ["said", "recognised", *(s.name for s, _ in shown)]
    meanings = [f"{what} of the reference", f"{what} in its place", *("times, mean of the runs" for _ in shown)]
    caption = f"Confused {what}s, {split}"
    if len(total) > MOST_ROWS:
        caption += f": the {MOST_ROWS} most frequent of {len(total)}"
    return table(caption, titles, rows, meanings, words=(0, 1))


def _phones(series: Series, split: str) -> Counter[WordPair]:
    return sum((phones_of(run.folder, split) for run in series.runs), Counter[WordPair]())


def _mean(count: int, runs: int) -> str:
    return str(count) if runs == 1 else f"{count / runs:.1f}"


def _by_group(shown: Known, split: str, what: str, of: Callable[[ScoredUtterance], str | None]) -> Markup | None:
    columns = [grouped(runs, of) for _, runs in shown]
    names = list(dict.fromkeys(name for column in columns for name in column))
    if len(names) < 2:
        return None
    rates = {name: [rate(column.get(name, ())) for column in columns] for name in names}
    names.sort(key=lambda name: -max((r.wer for r in rates[name] if r.words), default=0.0))
    rows = [[name, str(max(r.words for r in rates[name])), *map(_percent, rates[name])] for name in names]
    meanings = [what, "words of the reference", *("word error rate with its 95 % interval" for _ in shown)]
    titles = [what, "words", *(s.name for s, _ in shown)]
    caption = f"Word error rate by {what}, {split}, the worst first"
    if len(rows) > MOST_ROWS:
        caption += f": {MOST_ROWS} of {len(rows)}"
    return table(caption, titles, rows[:MOST_ROWS], meanings)


# The worst utterances -------------------------------------------------------------------------------------------------


def _worst(shown: Known, split: str, listen: Listen | None) -> Markup | None:
    counts = [errors_by_utterance(runs) for _, runs in shown]
    errors: dict[str, float] = {}
    for count in counts:
        for name, (wrong, _) in count.items():
            errors[name] = errors.get(name, 0.0) + wrong / len(counts)
    worst = sorted((name for name in errors if errors[name]), key=lambda name: (-errors[name], name))[:MOST_WORST]
    if not worst:
        return None
    spent = 0
    utterances = []
    for name in worst:
        heard = listen(shown[0][0].runs[0].folder, split, name) if listen is not None else None
        size = 0 if heard is None else len(heard.audio) + len(heard.picture)
        if spent + size > MOST_AUDIO_BYTES:
            heard, size = None, 0
        spent += size
        aligned = [(s, u) for s, runs in shown for u in runs[0] if u.id == name]
        mean = ", mean of the series" if len(shown) > 1 else ""
        speaker = next((u.speaker for _, u in aligned), "")
        said = f"speaker {speaker}: {errors[name]:.3g} error{'s' * (errors[name] != 1)}{mean}"
        utterances.append((name, said, heard, aligned))
    return draw("worst", split, listen is not None, utterances, template="worst.html")
