"""Pages in a real browser: the served page with a file in the place of a microphone, and the report. By the keyboard
alone, and under axe, which finds what people with other eyes, ears or hands could not use."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import soundfile

from roundelay.core.files import read_json, write_text
from roundelay.core.records import Results
from roundelay.reports import load_runs, render_html
from roundelay.reports.mistakes import HeardUtterance
from roundelay.reports.page import MANY_SERIES
from roundelay_lab.storm.both import RunEnd, StormOptions, StormResult
from roundelay_lab.storm.page import render_page
from roundelay_lab.storm.story import Story, Struck
from roundelay_speech.audio.sound import flac, spectrogram_png
from support.browser import Browser, Page, axe_source, chromium
from support.decoded_runs import two
from support.fake_runs import Fake, write_run
from support.recogniser import tones
from support.served import served, tone_worker
from support.until import until

RATE = 16000
WORDS = ["LOW", "TOP", "HIGH"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """It hears WORDS again and again."""
    folder = tmp_path_factory.mktemp("browser")
    soundfile.write(folder / "microphone.wav", tones(WORDS, RATE, 0.3), RATE, subtype="PCM_16")
    microphone = ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]
    with chromium(folder, [*microphone, f"--use-file-for-fake-audio-capture={folder / 'microphone.wav'}"]) as found:
        yield found


@pytest.fixture(scope="module")
def served_page(browser: Browser) -> Iterator[Page]:
    with served(partial(tone_worker, RATE)) as server:
        yield browser.page(f"http://localhost:{server.port}/")


@pytest.fixture(scope="module")
def report(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Page:
    """A page with everything: many series, errors, sound."""
    folder = tmp_path_factory.mktemp("report")
    samples = tones(["LOW", "TOP"], 8000, 0.1)

    def listen(run: Path, split: str, name: str) -> HeardUtterance:
        return HeardUtterance(
            flac(samples, 8000), "audio/flac", spectrogram_png(samples, 8000), 2.0, (("YES", 0.5, 1.0),), "Words below."
        )

    strategies = [Fake(name="slow", straggler=1, lost=1, epochs=3)]
    strategies += [Fake(name=f"s{i}", label=f"strategy{i}", epochs=2) for i in range(MANY_SERIES - 2)]
    runs = [*two(folder, 2), *(write_run(folder, fake) for fake in strategies)]
    page = folder / "report.html"
    write_text(page, render_html(load_runs(runs), listen=listen))
    shown = browser.page(page.as_uri())
    # The details of all runs are alike: of two they are looked at, unfolded.
    shown.run("document.querySelectorAll('details.run').forEach((e, n) => (n < 2 ? (e.open = true) : e.remove()))")
    shown.run("document.querySelectorAll('details.run details').forEach((e) => (e.open = true))")
    return shown


def test_a_visitor_records_and_reads(served_page: Page) -> None:
    """Words come while somebody speaks. The button says what it does, and each step is said aloud: `role=status` and
    `aria-live`, but not words that may still change."""
    served_page.tab_to("#record")
    served_page.press(" ")
    served_page.until("document.getElementById('status').textContent.startsWith('Recording')")
    assert served_page.run("document.activeElement.textContent") == "Stop"
    said = "document.getElementById('text').textContent.trim()"
    served_page.until("document.getElementById('level').value > 0.3")
    served_page.until("/^0:0[1-9]/.test(document.getElementById('time').textContent)")
    served_page.until("document.getElementById('sofar').textContent")
    assert served_page.run("document.getElementById('sofar').closest('[aria-live]')") is None
    served_page.until(f"/ /.test({said})")  # the file is played again and again: two words are final
    assert served_page.run("document.getElementById('status').textContent").startswith("Recording")
    served_page.press("Enter")
    served_page.until("/words? in|No words|Not |No micro/.test(document.getElementById('status').textContent)")
    assert served_page.run("document.activeElement.textContent") == "Record"
    text = served_page.run("document.getElementById('text').textContent").split()
    # The file is played from a place of its own: some part of it is heard.
    assert len(text) >= 2
    assert set(text) <= set(WORDS)
    rows = served_page.run("[...document.querySelectorAll('#words tbody tr')].map((r) => r.innerText.split('\\t'))")
    assert [row[0] for row in rows] == text
    assert all(row[3] == "50 %" for row in rows)
    assert served_page.run("document.querySelectorAll('#text .unsure').length") == len(text)
    status = "document.getElementById('status')"
    assert served_page.run(f"{status}.textContent").startswith(f"{len(text)} words in ")
    live = "(e) => e.getAttribute('aria-live')"
    assert served_page.run(f"['status', 'text'].map((id) => document.getElementById(id)).map({live})") == ["polite"] * 2
    assert served_page.errors() == []


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """A recording."""
    soundfile.write(tmp_path / "talk.wav", tones(["HIGH", "LOW"], RATE, 0.6), RATE, subtype="PCM_16")
    return tmp_path / "talk.wav"


def choose(page: Page, file: Path, said: str = "2 words in ") -> None:
    """Have a file transcribed, by keys."""
    page.ask("Page.setInterceptFileChooserDialog", enabled=True)
    page.run("document.getElementById('status').textContent = ''")
    page.tab_to("#file")
    page.press("Enter")
    chooser = page.browser.event("Page.fileChooserOpened")
    page.ask("DOM.setFileInputFiles", files=[str(file)], backendNodeId=chooser["backendNodeId"])
    page.until(f"document.getElementById('status').textContent.startsWith('{said}')")


def test_a_file_is_chosen_without_a_mouse(served_page: Page, talk: Path) -> None:
    """In the place of dropping it; the same one twice."""
    for _ in range(2):
        choose(served_page, talk)
        assert served_page.run("getComputedStyle(document.querySelector('label[for=file]')).outlineStyle") == "solid"
        assert served_page.run("document.getElementById('text').textContent").split() == ["HIGH", "LOW"]
    assert served_page.errors() == []


def test_the_model_is_named_and_words_are_kept(served_page: Page, talk: Path, tmp_path: Path) -> None:
    """Copied, and saved under the recording's name."""
    choose(served_page, talk)
    assert served_page.run("document.getElementById('about').textContent") == "By the model tones, which knows 4 words."
    known = "[...document.querySelectorAll('#known li')].map((e) => e.textContent)"
    assert served_page.run(known) == ["HIGH", "LOW", "MIDDLE", "TOP"]
    for does, said in (("window.copied = text", "Copied."), ("throw new Error('no')", "Not copied, but selected: no")):
        served_page.run(f"navigator.clipboard.writeText = async (text) => {{ {does}; }}; 0")
        served_page.tab_to("#copy")
        served_page.press("Enter")
        served_page.until(f"document.getElementById('status').textContent === '{said}'")
    assert served_page.run("[window.copied, getSelection().toString().trim()]") == ["HIGH LOW"] * 2
    served_page.ask("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    served_page.tab_to("#save")
    served_page.press("Enter")
    until(lambda: (tmp_path / "talk.txt").is_file() and (tmp_path / "talk.txt").read_text() == "HIGH LOW\n")


def test_of_a_bad_file_no_words_stay(served_page: Page, talk: Path, tmp_path: Path) -> None:
    """Those of the file before it, above all."""
    choose(served_page, talk)
    (tmp_path / "bad.wav").write_bytes(b"RIFF, but no sound, WAVE")
    choose(served_page, tmp_path / "bad.wav", "bad.wav is not transcribed: The recording: cannot be read")
    assert served_page.run("document.getElementById('text').textContent") == ""
    shown = "['words', 'keep', 'heading', 'hearing'].filter((id) => !document.getElementById(id).hidden)"
    assert served_page.run(shown) == []


@pytest.mark.parametrize(("dark", "width"), [(False, 1200), (True, 360)])
def test_axe_finds_nothing_on_the_served_page(served_page: Page, talk: Path, dark: bool, width: int) -> None:
    """With words on it, and those of somebody who still speaks; nothing is wider than a telephone."""
    axe = axe_source()
    served_page.look(dark=dark, width=width)
    choose(served_page, talk)
    served_page.run("soFar('LOW'); say('Recording ...'); count(performance.now())")
    served_page.run("document.getElementById('level').hidden = false; document.querySelector('details').open = true")
    assert served_page.problems(axe) == []
    assert served_page.run("document.documentElement.scrollWidth <= innerWidth")
    served_page.run("count()")


@pytest.mark.parametrize(("dark", "width"), [(False, 1200), (True, 390)])
def test_axe_finds_nothing_in_the_report(report: Page, dark: bool, width: int) -> None:
    """On a telephone no table is cut off; in the dark spectrograms are dark too."""
    axe = axe_source()
    report.look(dark=dark, width=width)
    wider = "(e) => e.scrollWidth > e.clientWidth + 1"
    if width < 600:
        assert (
            report.run(f"[document.documentElement, ...document.querySelectorAll('.scroll')].filter({wider}).length")
            == 0
        )
    assert report.run("getComputedStyle(document.querySelector('.sound img')).filter").startswith(
        ("none", "invert")[dark]
    )
    assert report.run("document.querySelectorAll('audio').length") > 0
    assert report.problems(axe) == []
    assert report.errors() == []


def test_a_film_is_played_by_the_keyboard(browser: Browser, tmp_path: Path) -> None:
    """And axe finds nothing on its page."""
    story = Story(2)
    for at, frames in [(0.0, 0), (10.0, 900), (13.0, 1000), (30.0, 2400)]:
        story.see_frames(at, frames)
    for at, ranks in [(0.0, (0, 1)), (10.2, (0,)), (13.0, (0, 1))]:
        story.see_living(at, ranks)
    story.struck.append(Struck(10.0, "kill", 1, 10.0))
    story.seconds = 30.0
    results = RunEnd.of(Results.from_json(read_json(write_run(tmp_path, Fake()) / Results.FILE)))
    shown = tmp_path / "storm.html"
    write_text(shown, render_page(StormResult(story, story, story, (results, results)), StormOptions("demo", tmp_path)))
    page = browser.page(shown.as_uri())
    page.tab_to(".film input")
    page.press("Home", *["ArrowRight"] * 3)
    said = page.run("document.activeElement.getAttribute('aria-valuetext')")
    assert said.startswith("0.3 s: 0 frames trained, 2 of 2 learners")
    page.tab_to(".film button", backwards=True)
    page.press(" ")
    page.until("parseFloat(document.querySelector('.film input').value) > 0.5")
    page.press(" ")
    assert page.run("document.activeElement.textContent") == "Play"
    assert page.errors() == []
    assert page.problems(axe_source()) == []


def test_axe_finds_what_is_wrong(browser: Browser, tmp_path: Path) -> None:
    """A page that nobody could read: else the tests above would say nothing."""
    axe = axe_source()
    bad = tmp_path / "bad.html"
    bad.write_text("<html lang=en><title>x</title><main><h1 style='color:#bbb'>low</h1><input></main>")
    found = browser.page(bad.as_uri()).problems(axe)
    assert {problem.split(":")[0] for problem in found} == {"color-contrast", "label"}


def test_a_table_is_sorted_by_the_keyboard(report: Page) -> None:
    report.look()
    title = "table.sortable th:nth-child(3) button"
    report.begin()
    report.tab_to(title)
    column = f"[...document.querySelector('{title}').closest('table').tBodies[0].rows].map((r) => r.cells[2].innerText)"
    state = f"document.querySelector('{title}').closest('th').getAttribute('aria-sort')"
    report.press("Enter")
    up = [number(cell) for cell in report.run(column)]
    assert (report.run(state), up) == ("ascending", sorted(up))
    report.press(" ")
    down = [number(cell) for cell in report.run(column)]
    assert (report.run(state), down) == ("descending", sorted(up, reverse=True))
    assert len(set(up)) > 1
    assert report.run(f"document.activeElement.matches('{title}')")


def number(cell: str) -> float:
    found = re.match(r"[\d.]+", cell)
    return float(found[0]) if found else float("inf")


def test_series_are_chosen_by_the_keyboard(report: Page) -> None:
    report.look()
    shown = "new Set([...document.querySelectorAll('svg .series:not(.gone):not(.row)')].map((e) => e.dataset.s)).size"
    ticked = "document.querySelectorAll('.choice input:checked').length"
    assert report.run(shown) == report.run(ticked) > 1
    report.begin()
    report.tab_to(".choice button[data-all=none]")
    report.press("Enter")
    assert (report.run(shown), report.run(ticked)) == (0, 0)
    report.begin()
    report.tab_to(".choice input")
    report.press(" ")
    assert (report.run(shown), report.run(ticked)) == (1, 1)
    report.begin()
    report.tab_to(".legend button")
    report.press(" ")
    assert report.run("document.activeElement.getAttribute('aria-pressed')") == "true"
    report.press(" ")
    assert report.run("document.activeElement.getAttribute('aria-pressed')") == "false"


STOPS = """
(() => {
  const stop = document.activeElement, last = window.stopBefore;
  window.stopBefore = stop;
  const style = getComputedStyle(stop);
  return {
    what: stop.outerHTML.slice(0, 80),
    end: stop === document.body || (stop !== last && stop.hasAttribute("data-met")),
    met: stop.setAttribute("data-met", ""),
    seen: stop.localName === "audio" || style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1,
    onward: !last || !(stop.compareDocumentPosition(last) & Node.DOCUMENT_POSITION_FOLLOWING),
  };
})()
"""
"""One press of Tab further: the element, whether one sees that it has the focus, and whether it is further down. A
player has several stops inside, and shows them itself."""


@pytest.mark.parametrize("which", ["served_page", "report"])
def test_every_stop_of_the_tab_key_is_seen_and_further_down(which: str, request: pytest.FixtureRequest) -> None:
    page: Page = request.getfixturevalue(which)
    page.look()
    page.begin()
    stops: list[Any] = []
    page.press("Tab")
    while not (stop := page.run(STOPS))["end"]:
        stops.append(stop)
        page.press("Tab")
    assert len({stop["what"] for stop in stops}) >= 2
    assert [stop["what"] for stop in stops if not stop["seen"] or not stop["onward"]] == []
