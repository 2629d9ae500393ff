"""Output for a person at a terminal: bars, tables, errors. Logs and pipes get plain lines."""

import os
import signal
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

_JOINERS = "\u200c\u200d"  # invisible, but letters of Persian and Indic words need them


def visible(text: str) -> str:
    """Return text from files, with everything that a terminal would obey, or not show, written out: `\\x1b[2J`,
    `\\ufeff`.

    Line ends and tabs stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in "\n\t" or not _acts(c) else c.encode("unicode_escape").decode() for c in text)


def _acts(character: str) -> bool:
    """Return True for control and invisible characters, those that change the direction of writing, and surrogates."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in _JOINERS


class _Shown(Console):
    """Prints text as text: codes in files of other people are shown, never obeyed, `dpsgd:ring:` is no picture, and
    `[b]` in a name no bold."""

    def __init__(self, **options: Any) -> None:
        super().__init__(emoji=False, markup=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(visible(one) if isinstance(one, str) else one for one in objects), **options)

    def on_broken_pipe(self) -> None:
        _end_unread()


console: Console = _Shown(highlight=False, soft_wrap=True)


class Verbosity:
    """Amount of output on work under way; results and errors are printed in any case."""

    quiet: ClassVar[bool] = False
    """Show nothing of work under way."""
    verbose: ClassVar[bool] = False
    """Print a line every ten seconds where no bar is drawn, and tracebacks of errors."""


FIRST_LINE, RAREST_LINE = 60.0, 1800.0
VERBOSE_LINE = 10.0
"""Fewest seconds after which work without a bar prints a line on its progress, and most seconds until the next."""
NOTEBOOK_LINE, NOTEBOOK_WIDTH = 0.5, 30
"""Seconds between two updates of a notebook's line, and characters of its bar."""


def duration(seconds: float) -> str:
    """Return a number of seconds as people say it: `40 s`, `12 min`, `3 h 5 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


class Bar:
    """A progress bar on a terminal (`core.progress.Progress`). A quiet one leaves no line of finished work. Logs and
    pipes get a line after a minute, and then ever more rarely: the progress, and the time left. A notebook gets one
    line that is written over."""

    _drawn: ClassVar[set[RichProgress]] = set()

    def __init__(self, *, quiet: bool = False, clock: Callable[[], float] | None = None) -> None:
        self._quiet, self._clock = quiet or Verbosity.quiet, clock
        self._bars: RichProgress | None = None
        self._counted: RichProgress | None = None  # where nothing is drawn
        self._next = FIRST_LINE
        self._over = 0  # characters of a notebook's line
        self._task: TaskID | None = None
        self._what, self._note = "", ""

    def start(self, what: str, total: int | None = None) -> None:
        self.finish()
        self._what, self._note = what, ""
        if console.is_terminal and not console.is_jupyter and total is not None and not Verbosity.quiet:
            self._bars = RichProgress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}", markup=False),
                console=console,
                transient=True,
            )
            self._bars.start()
            Bar._drawn.add(self._bars)
            self._task = self._bars.add_task(visible(what), total=total, note="")
        elif total is not None and not (Verbosity.quiet if console.is_jupyter else self._quiet):
            self._counted = RichProgress(console=console, disable=True, get_time=self._clock, speed_estimate_period=600)
            self._counted.add_task(what, total=total)
            self._next = VERBOSE_LINE if Verbosity.verbose else FIRST_LINE
            if console.is_jupyter:
                self._next = NOTEBOOK_LINE

    def advance(self, n: int = 1, note: str = "") -> None:
        self._note = note or self._note
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, advance=n, note=visible(self._note))
        if self._counted is not None:
            (task,) = self._counted.tasks
            self._counted.advance(task.id, n)
            elapsed, left = task.elapsed or 0.0, task.time_remaining
            if elapsed < self._next or left is None:
                return
            if console.is_jupyter:
                self._next = elapsed + NOTEBOOK_LINE
                self._write_over(f"{self._what} {_blocks(task.percentage)} about {duration(left)} left  {self._note}")
            else:
                self._next = elapsed + (VERBOSE_LINE if Verbosity.verbose else min(elapsed, RAREST_LINE))
                console.print(f"{self._what}: {task.completed:,.0f} of {task.total:,.0f}, about {duration(left)} left")

    def finish(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            Bar._drawn.discard(self._bars)
            self._bars = self._task = None
        self._counted = None
        if self._over:
            self._write_over("")
        if self._what and not self._quiet:
            console.print("  ".join(part for part in (self._what, self._note) if part))
        self._what = self._note = ""

    def _write_over(self, line: str) -> None:
        """Write a line in place of the one before, as notebooks do after a carriage return."""
        shown = visible(line).rstrip()
        write(f"\r{shown.ljust(self._over)}" + "\r" * (not shown))
        self._over = len(shown)


def _blocks(percent: float) -> str:
    done = round(percent / 100 * NOTEBOOK_WIDTH)
    return "█" * done + "░" * (NOTEBOOK_WIDTH - done)


@contextmanager
def tidy() -> Iterator[None]:
    """Stop all bars, give the terminal its cursor back and flush printed text, however a command ends."""
    try:
        yield
    finally:
        while Bar._drawn:
            Bar._drawn.pop().stop()
        write("")


_WIDEST = 10_000  # characters of a line that no person sees


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """Print a table whose first `left` columns are words and the rest numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < left else "right", no_wrap=number >= left)
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    if console.is_terminal:
        console.print(table)
        return
    # For a program, or a file: a line for each row, however long, and nothing behind its last word.
    wide = _Shown(highlight=False, width=_WIDEST)
    with wide.capture() as shown:
        wide.print(table)
    for line in shown.get().splitlines():
        console.out(line.rstrip(), highlight=False)


def write(text: str) -> None:
    """Write text for another program, on standard output, at once."""
    if sys.stdout is None:  # it was closed from the beginning
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _end_unread()


def _end_unread() -> NoReturn:
    """End the process silently, with the status of SIGPIPE, after the reader of standard output has closed it, as
    `head` does. The signal itself stays ignored, since it would also end a process that writes to a dead learner."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for text still to be let out at the exit
    raise SystemExit(128 + signal.SIGPIPE)


def complain(message: str) -> None:
    """Print an error, on standard error."""
    print(f"roundelay: {visible(message)}", file=sys.stderr)
