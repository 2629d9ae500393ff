"""Reports of long work to its caller; the command line draws them, tests ignore them."""

from collections.abc import Iterable, Iterator, Sized
from typing import Protocol, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """A receiver of progress, such as a bar: `start` names the work and its size, `advance` moves it, `finish` closes
    it."""

    def start(self, what: str, total: int | None = None) -> None: ...
    def advance(self, n: int = 1, note: str = "") -> None: ...
    def finish(self) -> None: ...


class Silent:
    """A receiver of progress that shows nothing."""

    def start(self, what: str, total: int | None = None) -> None: ...
    def advance(self, n: int = 1, note: str = "") -> None: ...
    def finish(self) -> None: ...


class Prefixed:
    """A receiver of progress that puts the name of the whole before that of each piece of work."""

    def __init__(self, progress: Progress, whole: str) -> None:
        self._progress, self._whole = progress, whole

    def start(self, what: str, total: int | None = None) -> None:
        self._progress.start(f"{self._whole}: {what}", total)

    def advance(self, n: int = 1, note: str = "") -> None:
        self._progress.advance(n, note)

    def finish(self) -> None:
        self._progress.finish()


def tracked(progress: Progress, what: str, items: Iterable[T], total: int | None = None) -> Iterator[T]:
    """Yield the items, and advance a bar after each; `total` is their number, if they have no length."""
    progress.start(what, len(items) if total is None and isinstance(items, Sized) else total)
    for item in items:
        yield item
        progress.advance()
    progress.finish()


def mention(progress: Progress, what: str, note: str = "") -> None:
    """Show a line of progress at once: work `what` of no size, with a note behind it."""
    progress.start(what)
    if note:
        progress.advance(0, note)
    progress.finish()
