"""Terminal output when a command ends early."""

import io
import re

import pytest
from rich.console import Console

from roundelay import terminal


def test_a_bar_cut_short_gives_the_cursor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(terminal, "console", Console(file=written, force_terminal=True))

    def fail() -> None:
        with terminal.tidy():
            terminal.Bar().start("decoding", 10)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert written.getvalue().count("\x1b[?25l") == written.getvalue().count("\x1b[?25h") == 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x\x1b[2J\x1b]0;PWNED\x07", "x\\x1b[2J\\x1b]0;PWNED\\x07"),
        ("\ufeffan4-1", "\\ufeffan4-1"),
        ("a\u202egnp.exe", "a\\u202egnp.exe"),
        ("one\r\x9b2Ktwo\u2028three", "one\\r\\x9b2Ktwo\\u2028three"),
        ("caf\u00e9 \u4f60\u597d\n\tthere", "caf\u00e9 \u4f60\u597d\n\tthere"),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"),
    ],
)
def test_foreign_text_is_shown_and_never_obeyed(
    text: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In sentences, tables, bars and errors alike; brackets are no markup."""
    assert terminal.visible(text) == shown
    written = io.StringIO()
    monkeypatch.setattr(terminal, "console", type(terminal.console)(file=written, width=200, soft_wrap=True))
    bar = terminal.Bar()
    bar.start(text)
    bar.advance(0, text)
    bar.finish()
    terminal.console.print(f"[red]{text}")
    terminal.print_table(["label"], [[f"[red]{text}"]])
    terminal.complain(text)
    captured = capsys.readouterr()
    assert "[red]" in written.getvalue()
    assert written.getvalue().count("[red]") + captured.out.count("[red]") == 2
    for out in (written.getvalue(), captured.out + captured.err):
        assert "\x1b" not in out
        assert "\ufeff" not in out
        assert "\u202e" not in out


def test_a_name_between_colons_is_no_picture() -> None:
    written = io.StringIO()
    type(terminal.console)(file=written).print("dpsgd:ring: 18 trainings")
    assert written.getvalue() == "dpsgd:ring: 18 trainings\n"


def test_long_work_says_in_a_log_how_long_it_will_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a minute, and then ever more rarely; short work says nothing but that it is done."""
    written, now = io.StringIO(), [0.0]
    monkeypatch.setattr(terminal, "console", type(terminal.console)(file=written, width=200, soft_wrap=True))
    bar = terminal.Bar(clock=lambda: now[0])
    bar.start("computing features", 10_000)
    for _ in range(1000):
        now[0] += 1
        bar.advance(2)
    bar.finish()
    lines = written.getvalue().splitlines()
    assert lines[0] == "computing features: 120 of 10,000, about 1 h 22 min left"
    assert lines[-1] == "computing features"
    assert 4 <= len(lines) <= 6
    bar.start("reading", 30)
    for _ in range(30):
        now[0] += 1
        bar.advance()
    bar.finish()
    assert written.getvalue().splitlines()[len(lines) :] == ["reading"]


def test_a_notebook_has_a_bar_that_is_written_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing stays of it: every state covers the one before, and the last is blank."""
    now = [0.0]
    console = type(terminal.console)(file=io.StringIO())
    console.is_jupyter = True
    monkeypatch.setattr(terminal, "console", console)
    bar = terminal.Bar(quiet=True, clock=lambda: now[0])
    bar.start("reading", 100)
    for number in range(100):
        now[0] += 0.1
        bar.advance(note="a longer note" * (number < 50))
    bar.finish()
    states = capsys.readouterr().out.split("\r")
    assert 10 <= len(states) <= 25
    assert any(re.match("reading █{15,16}░{14,15} about 5 s left", state) for state in states)
    screen = ""
    for state in states:
        screen = state + screen[len(state) :]
    assert not screen.strip()


@pytest.mark.parametrize(("quiet", "verbose", "lines"), [(True, False, 0), (False, False, 1), (False, True, 4)])
def test_quiet_and_verbose(quiet: bool, verbose: bool, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a minute of work: nothing, that it is done, or also how far it is every ten seconds."""
    written, now = io.StringIO(), [0.0]
    monkeypatch.setattr(terminal, "console", type(terminal.console)(file=written, width=200, soft_wrap=True))
    monkeypatch.setattr(terminal.Verbosity, "quiet", quiet)
    monkeypatch.setattr(terminal.Verbosity, "verbose", verbose)
    bar = terminal.Bar(clock=lambda: now[0])
    bar.start("reading", 100)
    for _ in range(35):
        now[0] += 1
        bar.advance()
    bar.finish()
    assert len(written.getvalue().splitlines()) == lines


@pytest.mark.parametrize(("seconds", "said"), [(40.2, "40 s"), (720, "12 min"), (11_100, "3 h 5 min")])
def test_durations_are_said_as_people_say_them(seconds: float, said: str) -> None:
    assert terminal.duration(seconds) == said
