"""Reports of long work to its caller; the command line draws them, tests ignore them."""

from typing import Protocol


class Progress(Protocol):
    """A bar: `start` names the work and its size, `advance` moves it, `finish` closes it."""

    def start(self, what: str, total: int | None = None) -> None: ...
    def advance(self, n: int = 1, note: str = "") -> None: ...
    def finish(self) -> None: ...


class Silent:
    """Progress that is not shown."""

    def start(self, what: str, total: int | None = None) -> None: ...
    def advance(self, n: int = 1, note: str = "") -> None: ...
    def finish(self) -> None: ...


class Prefixed:
    """Says of all work what it belongs to."""

    def __init__(self, progress: Progress, whole: str) -> None:
        self._progress, self._whole = progress, whole

    def start(self, what: str, total: int | None = None) -> None:
        self._progress.start(f"{self._whole}: {what}", total)

    def advance(self, n: int = 1, note: str = "") -> None:
        self._progress.advance(n, note)

    def finish(self) -> None:
        self._progress.finish()
