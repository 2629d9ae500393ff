"""What a terminal sees when a command ends early."""

import io

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
