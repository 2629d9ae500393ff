"""The page's errors: intervals and tests against numbers worked out otherwise; bounded sound; choice; contrast."""

import base64
import json
import math
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from roundelay.core.errors import UserError
from roundelay.core.files import write_text
from roundelay.core.records import PHONES_FILE, UTTERANCES_FILE
from roundelay.core.streams import stream
from roundelay.reports import load_runs, render_html
from roundelay.reports.charts import DARKEST
from roundelay.reports.mistakes import MOST_AUDIO_BYTES, HeardUtterance
from roundelay.reports.page import MANY_SERIES
from roundelay.reports.words import confused, difference, errors_by_utterance, holm, rate, utterances_of
from support.decoded_runs import decoded, two
from support.fake_runs import Fake, write_run
from support.outline import Outline

Floats = npt.NDArray[np.float64]
CSS = Path(__file__).parents[2] / "src" / "roundelay" / "reports" / "page.css"
PAIRS = [["NINE", "NINE"], ["FIVE", "NINE"], [None, "OH"], ["TWO", None]]


# numbers --------------------------------------------------------------------------------------------------------------


def test_what_decoding_wrote_is_read(tmp_path: Path) -> None:
    line = {"id": "u", "speaker": "s", "gender": None, "subset": "clean", "pairs": PAIRS, "forgiven": [1]}
    write_text(tmp_path / "decode" / "test" / UTTERANCES_FILE, json.dumps(line) + "\n")
    (u,) = utterances_of(tmp_path, "test")
    assert u.wrong == [(None, "OH"), ("TWO", None)]
    assert (u.words, u.subset) == (3, "clean")
    assert confused([[u], [u]]) == {(None, "OH"): 2, ("TWO", None): 2}
    assert utterances_of(tmp_path, "dev") == ()


@pytest.mark.parametrize("line", ["{", "[]", '{"id": "u"}', '{"id":"u","speaker":"s","pairs":[1]}', "[" * 9000])
def test_a_damaged_file_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "decode" / "test" / UTTERANCES_FILE
    write_text(file, line + "\n")
    with pytest.raises(UserError, match=re.escape(f"{file}:1: damaged")):
        utterances_of(tmp_path, "test")


def test_an_interval_is_that_of_the_normal_distribution_where_that_fits() -> None:
    rng = stream(1, "rates")
    counts = [(float(rng.binomial(10, 0.2)), 10) for _ in range(2000)]
    found = rate(counts)
    half = 1.96 * 100 * math.sqrt(0.2 * 0.8 / 20_000)
    assert found.interval is not None
    assert found.interval[0] == pytest.approx(found.wer - half, abs=0.12)
    assert found.interval[1] == pytest.approx(found.wer + half, abs=0.12)
    assert rate(counts[:1]).interval is None


def test_matched_pairs_by_hand() -> None:
    a, b = ({f"{i}": (float(e), 5) for i, e in enumerate(errors)} for errors in ([3, 1, 2, 2], [1, 1, 1, 1]))
    found = difference(a, b)
    assert found is not None
    assert found.wer == pytest.approx(100 * 4 / 20)
    z = 1.0 / (math.sqrt(2 / 3) / 2)  # mean 1, standard deviation sqrt(2/3), 4 utterances
    assert found.p == pytest.approx(math.erfc(z / math.sqrt(2)))
    opposite = difference(b, a)
    assert opposite is not None
    assert (opposite.wer, opposite.p) == (-found.wer, found.p)
    assert difference(a, {**b, "more": (0.0, 5)}) is None


def test_equal_systems_do_not_differ() -> None:
    a = {"u": (1.0, 5), "v": (0.0, 5)}
    found = difference(a, a)
    assert found is not None
    assert (found.wer, found.interval, found.p) == (0.0, (0.0, 0.0), 1.0)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_seeds_count_as_their_mean(tmp_path: Path) -> None:
    folders = [decoded(tmp_path / name, {"u": errors, "v": 1}) for name, errors in (("one", 1), ("two", 4))]
    runs = [utterances_of(folder, "test") for folder in folders]
    assert errors_by_utterance(runs) == {"u": (2.5, 10), "v": (1.0, 10)}


# the page -------------------------------------------------------------------------------------------------------------


def test_chance_is_said_and_so_is_more_than_chance(tmp_path: Path) -> None:
    alike = " ".join(Outline(render_html(load_runs(two(tmp_path / "alike", 0)))).words)
    assert "chance explains that" in alike
    apart = " ".join(Outline(render_html(load_runs(two(tmp_path / "apart", 4)))).words)
    assert "more than chance explains" in apart
    assert "more errors" in apart
    assert "intervals overlap" not in alike + apart


def test_errors_are_told_by_word_speaker_and_group(tmp_path: Path) -> None:
    outline = Outline(render_html(load_runs(two(tmp_path, 2))))
    words = " ".join(outline.words)
    for said in ("Confused words, test", "Word error rate by speaker", "Word error rate by group", "women", "men"):
        assert said in words
    assert sum(tag == "audio" for tag, _ in outline.found) == 0
    assert "The worst utterances of test" in words


def test_ten_rows_of_a_table_and_three_utterances_are_enough(tmp_path: Path) -> None:
    """The rest of the utterances is folded; the caption says of how many rows these are the worst."""
    folder = write_run(tmp_path, Fake())
    lines = [
        {
            "id": f"u{i}",
            "speaker": f"s{i}",
            "gender": None,
            "pairs": [[f"W{i}", "NO"], *[["A", "A"]] * i],
            "forgiven": [],
        }
        for i in range(12)
    ]
    write_text(folder / "decode" / "test" / UTTERANCES_FILE, "".join(json.dumps(line) + "\n" for line in lines))
    page = render_html(load_runs([folder]))
    assert "Confused words, test: the 10 most frequent of 12" in page
    assert "Word error rate by speaker, test, the worst first: 10 of 12" in page
    assert (page.count('<td data-t="recognised">NO</td>'), page.count(">s0<"), page.count(">s11<")) == (10, 1, 0)
    utterances = [a for tag, a in Outline(page).found if tag == "details" and a.get("class") == "run utterance"]
    assert ["open" in one for one in utterances] == [True] * 3 + [False] * 7


def test_confused_phones_are_told_where_decoding_noted_them(tmp_path: Path) -> None:
    folders = two(tmp_path, 2)
    assert "Confused phones" not in render_html(load_runs(folders))
    file = folders[0] / "decode" / "test" / PHONES_FILE
    write_text(file, json.dumps({"confused": [["EH", "OW", 7], [None, "Y", 2]]}))
    words = Outline(render_html(load_runs(folders))).words
    place = words.index("Confused phones, test")
    assert words[place:][: words[place:].index("7") + 1].count("EH") == 1
    write_text(file, "[1]")
    with pytest.raises(UserError, match="damaged"):
        render_html(load_runs(folders))


def test_sound_is_in_the_page_only_when_asked_for_and_within_bounds(tmp_path: Path) -> None:
    runs = load_runs(two(tmp_path, 2))
    size = MOST_AUDIO_BYTES // 4
    heard = HeardUtterance(b"x" * size, "audio/flac", b"png", 2.0, (("YES", 0.5, 1.0),), "Below it the words.")
    asked: list[tuple[Path, str, str]] = []

    def listen(run: Path, split: str, name: str) -> HeardUtterance:
        asked.append((run, split, name))
        return heard

    page = render_html(runs, listen=listen)
    outline = Outline(page)
    players = [attributes for tag, attributes in outline.found if tag == "audio"]
    assert len(players) == 3  # of ten: the fourth would exceed what a page may hold
    assert all(one["aria-label"] and one["preload"] == "none" and "controls" in one for one in players)
    assert str(players[0]["src"]) == "data:audio/flac;base64," + base64.b64encode(heard.audio).decode()
    assert all(attributes["alt"] for tag, attributes in outline.found if tag == "img")
    assert "media-src data:" in page
    assert {run for run, _, _ in asked} <= {run.folder for run in runs}
    quiet = render_html(runs)
    assert "media-src" not in quiet
    assert "data:audio" not in quiet


def test_words_of_others_cannot_become_markup(tmp_path: Path) -> None:
    folder = write_run(tmp_path, Fake())
    evil = "<img/src=x>"
    line = {"id": evil, "speaker": evil, "gender": None, "pairs": [[evil, "NO"], [evil, None]], "forgiven": []}
    write_text(folder / "decode" / "test" / UTTERANCES_FILE, json.dumps(line) + "\n")
    outline = Outline(render_html(load_runs([folder])))
    assert "img" not in [tag for tag, _ in outline.found]


def test_many_series_can_be_chosen_from_and_few_need_not(tmp_path: Path) -> None:
    fakes = [Fake(name=f"r{i}", label=f"strategy{i}", learners=1 + (i > 0)) for i in range(MANY_SERIES + 1)]
    folders = [write_run(tmp_path, fake) for fake in fakes]
    outline = Outline(render_html(load_runs(folders)))
    boxes = [attributes for tag, attributes in outline.found if tag == "input"]
    assert len(boxes) == MANY_SERIES + 1
    assert 0 < sum("checked" in box for box in boxes) <= MANY_SERIES
    assert ("fieldset", {"hidden": "hidden", "class": "choice"}) in outline.found  # without the script all are shown
    assert "input" not in [tag for tag, _ in Outline(render_html(load_runs(folders[:3]))).found]


def test_what_is_pressed_has_a_name_and_what_scrolls_a_role(tmp_path: Path) -> None:
    outline = Outline(render_html(load_runs(two(tmp_path, 2))))
    for tag, attributes in outline.found:
        if tag == "button":
            assert attributes["type"] == "button"
        if attributes.get("tabindex") == "0" and tag == "div":
            assert attributes["role"] == "region"
            assert attributes["aria-label"]
    ids = [attributes["id"] for _, attributes in outline.found if "id" in attributes]
    assert len(ids) == len(set(ids))


# contrast -------------------------------------------------------------------------------------------------------------


def _modes() -> list[dict[str, str]]:
    css = CSS.read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    return [dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", text)) for text in (light, dark)]


def _rgb(colour: str) -> Floats:
    return np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])


def _contrast(a: Floats, b: Floats) -> float:
    """Of the Web Content Accessibility Guidelines 2.2: relative luminances, lighter over darker."""
    linear = [np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) for c in (a, b)]
    low, high = sorted(float(one @ [0.2126, 0.7152, 0.0722]) for one in linear)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_contrast_of_figures_is_enough(mode: int) -> None:
    colours = _modes()[mode]
    sheet, ink = _rgb(colours["sheet"]), _rgb(colours["ink"])
    assert _contrast(_rgb(colours["soft"]), sheet) >= 4.5
    assert _contrast(_rgb(colours["soft"]), _rgb(colours["paper"])) >= 4.5
    assert _contrast(_rgb(colours["warn"]), sheet) >= 4.5
    for i in range(8):
        colour = _rgb(colours[f"c{i}"])
        assert _contrast(colour, sheet) >= 4.5, i  # lines, marks, bars
        darkest = sheet + (0.06 + DARKEST) * (colour - sheet)
        assert _contrast(ink, darkest) >= 4.5, i  # counts in the cells of a heat map
