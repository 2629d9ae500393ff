"""The section of errors: is one better, who confuses what, which speakers suffer, the worst utterances in full."""

import base64
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.reports.details import table
from roundelay.reports.headline import SURE, small
from roundelay.reports.numbers import MISSING, plain
from roundelay.reports.series import Series
from roundelay.reports.svg import element, esc
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
MOST_OPEN = 3  # utterances; the rest are folded
MOST_WORST = 10
MOST_AUDIO_BYTES = 12_000_000  # in a page, before base64
NOTHING = "(nothing)"


@dataclass(frozen=True)
class HeardUtterance:
    """The sound of one utterance for the page.

    Attributes:
        audio, media_type: a file that browsers play.
        picture: a PNG, its spectrogram: time to the right over all its width, frequency upwards.
        seconds: its length.
        timed: words that were recognised with begin and end in seconds, where decoding noted them.
        note: what picture and words show, a sentence.
    """

    audio: bytes
    media_type: str
    picture: bytes
    seconds: float
    timed: tuple[tuple[str, float, float], ...] = ()
    note: str = ""


Listen = Callable[[Path, str, str], HeardUtterance | None]
"""From a run's folder, a split and an utterance's id to its sound; None: there is none any more."""


def mistakes(series: Sequence[Series], split: str | None, listen: Listen | None = None) -> list[str]:
    """Return parts of the section; empty where no run says word by word what was recognised."""
    if split is None:
        return []
    known = [(s, found) for s in series if (found := recognised(s, split))]
    if not known:
        return []
    ranked = sorted(known, key=lambda pair: rate(errors_by_utterance(pair[1]).values()).wer)
    shown = ranked[:MOST_SIDE_BY_SIDE]
    confusions = [
        _confusions(shown, split, "word", [confused(runs) for _, runs in shown]),
        _confusions(shown, split, "phone", [_phones(s, split) for s, _ in shown]),
    ]
    groups = [
        _by_group(shown, split, "group", lambda u: u.subset or {"f": "women", "m": "men"}.get((u.gender or "")[:1])),
        _by_group(shown, split, "speaker", lambda u: u.speaker),
    ]
    tables = [_paired(confusions), _paired(groups)] if len(shown) <= FEW_SERIES else [*confusions, *groups]
    parts = [_significance(ranked, split), *tables, _worst(shown, split, listen)]
    if len(shown) < len(ranked):
        left = f"Below are the {len(shown)} of {len(ranked)} series with the fewest word errors."
        parts[1:1] = [element("p", esc(left), class_="note")]
    return [part for part in parts if part]


def _paired(tables: Sequence[str]) -> str:
    """Return two tables beside each other, where the page is wide enough."""
    there = [table for table in tables if table]
    return element("div", *there, class_="two") if len(there) > 1 else "".join(there)


Known = Sequence[tuple[Series, list[tuple[ScoredUtterance, ...]]]]


def _significance(ranked: Known, split: str) -> str:
    """Return a table of all series against the one with the fewest errors, utterance by utterance."""
    if len(ranked) < 2:
        return ""
    (best, first), *others = ranked
    counts = errors_by_utterance(first)
    found = [(s, errors_by_utterance(runs)) for s, runs in others]
    pairs = [(s, theirs, apart) for s, theirs in found if (apart := difference(theirs, counts)) is not None]
    if not pairs:
        return ""
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
    return table(caption, titles, rows, [False, True, True, True, True, False], meanings)


def _percent(found: Rate) -> str:
    between = "" if found.interval is None else f" ({plain(found.interval[0], 1)} to {plain(found.interval[1], 1)})"
    return f"{plain(found.wer, 2)} %{between}" if found.words else MISSING


def _confusions(shown: Known, split: str, what: str, counts: Sequence[Counter[WordPair]]) -> str:
    """Return a table of what is confused most, by the counts of each series over all its runs."""
    total = sum(counts[1:], counts[0])
    if not total:
        return ""
    runs = [len(found) for _, found in shown]
    rows = [
        [_word(pair[0]), _word(pair[1]), *(_mean(count[pair], n) for count, n in zip(counts, runs, strict=True))]
        for pair in sorted(total, key=lambda pair: (-total[pair], str(pair)))[:MOST_ROWS]
    ]
    titles = ["said", "recognised", *(s.name for s, _ in shown)]
    meanings = [f"{what} of the reference", f"{what} in its place", *("times, mean of the runs" for _ in shown)]
    caption = f"Confused {what}s, {split}"
    if len(total) > MOST_ROWS:
        caption += f": the {MOST_ROWS} most frequent of {len(total)}"
    return table(caption, titles, rows, [False, False, *([True] * len(shown))], meanings)


def _phones(series: Series, split: str) -> Counter[WordPair]:
    found: Counter[WordPair] = Counter()
    for run in series.runs:
        found.update(phones_of(run.folder, split))
    return found


def _word(word: str | None) -> str:
    return NOTHING if word is None else word


def _mean(count: int, runs: int) -> str:
    return str(count) if runs == 1 else f"{count / runs:.1f}"


def _by_group(shown: Known, split: str, what: str, of: Callable[[ScoredUtterance], str | None]) -> str:
    columns = [grouped(runs, of) for _, runs in shown]
    names = list(dict.fromkeys(name for column in columns for name in column))
    if len(names) < 2:
        return ""
    rates = {name: [rate(column.get(name, ())) for column in columns] for name in names}
    names.sort(key=lambda name: -max((r.wer for r in rates[name] if r.words), default=0.0))
    rows = [[name, str(max(r.words for r in rates[name])), *map(_percent, rates[name])] for name in names]
    meanings = [what, "words of the reference", *("word error rate with its 95 % interval" for _ in shown)]
    titles = [what, "words", *(s.name for s, _ in shown)]
    caption = f"Word error rate by {what}, {split}, the worst first"
    if len(rows) > MOST_ROWS:
        caption += f": {MOST_ROWS} of {len(rows)}"
    return table(
        caption,
        titles,
        rows[:MOST_ROWS],
        [False, *([True] * (len(shown) + 1))],
        meanings,
    )


# The worst utterances -------------------------------------------------------------------------------------------------


def _worst(shown: Known, split: str, listen: Listen | None) -> str:
    counts = [errors_by_utterance(runs) for _, runs in shown]
    errors: dict[str, float] = {}
    for count in counts:
        for name, (wrong, _) in count.items():
            errors[name] = errors.get(name, 0.0) + wrong / len(counts)
    worst = sorted((name for name in errors if errors[name]), key=lambda name: (-errors[name], name))[:MOST_WORST]
    if not worst:
        return ""
    spent = 0
    parts: list[str] = []
    for name in worst:
        heard = listen(shown[0][0].runs[0].folder, split, name) if listen is not None else None
        if heard is not None and spent + len(heard.audio) + len(heard.picture) > MOST_AUDIO_BYTES:
            heard = None
        spent += 0 if heard is None else len(heard.audio) + len(heard.picture)
        parts.append(_utterance(name, shown, heard, errors[name], unfolded=len(parts) < MOST_OPEN))
    title = element("h3", esc(f"The worst utterances of {split}"))
    note = "Reference above, what was recognised below; errors are framed." + (
        "" if listen is not None else " `roundelay report --audio` puts their sound and spectrograms into the page."
    )
    return element("div", title, element("p", esc(note), class_="note"), *parts, class_="worst")


def _utterance(name: str, shown: Known, heard: HeardUtterance | None, errors: float, *, unfolded: bool) -> str:
    body = [] if heard is None else [_sound(name, heard)]
    for s, runs in shown:
        for u in runs[0]:
            if u.id == name:
                body.append(_aligned(s, u))
    speaker = next((u.speaker for _, runs in shown for u in runs[0] if u.id == name), "")
    mean = ", mean of the series" if len(shown) > 1 else ""
    opened = {"open": "open"} if unfolded else {}
    said = f"{name}, speaker {speaker}: {errors:.3g} error{'s' * (errors != 1)}{mean}"
    return element("details", element("summary", esc(said)), *body, class_="run utterance", **opened)


def _sound(name: str, heard: HeardUtterance) -> str:
    words = [
        element(
            "span",
            esc(word),
            style=f"left:{100 * begin / heard.seconds:.2f}%;width:{100 * (end - begin) / heard.seconds:.2f}%",
        )
        for word, begin, end in heard.timed
        if heard.seconds > 0
    ]
    said = f"Spectrogram of {name}, {heard.seconds:.1f} s. {heard.note}"
    picture = element("img", src=_data("image/png", heard.picture), alt=said).removesuffix("</img>")
    timed = element("div", *words, class_="timed", aria_hidden="true") if words else ""
    player = element(
        "audio",
        controls="controls",
        preload="none",
        src=_data(heard.media_type, heard.audio),
        aria_label=f"Play {name}",
    )
    return element("div", player, picture, timed, element("p", esc(heard.note), class_="note"), class_="sound")


def _data(media_type: str, content: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def _aligned(series: Series, utterance: ScoredUtterance) -> str:
    """Return pairs of words, that of the reference above the one recognised; they wrap like words."""
    pairs = []
    for place, pair in enumerate(utterance.pairs):
        wrong = pair[0] != pair[1] and place not in utterance.forgiven
        said = {"class_": "wrong", "title": _kind(pair)} if wrong else {}
        pairs.append(element("li", *(element("span", esc("·" if w is None else w)) for w in pair), **said))
    number = len(utterance.wrong)
    title = element("p", esc(f"{series.name}, {number} error{'s' * (number != 1)}"), class_="note")
    return title + element("ol", *pairs, class_="aligned")


def _kind(pair: WordPair) -> str:
    return "inserted" if pair[0] is None else "deleted" if pair[1] is None else "substituted"
