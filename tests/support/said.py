"""A progress that keeps what a user would be told."""

from roundelay.core.progress import Silent


class Said(Silent):
    """Keeps the names of work that begins, and the notes beside it, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def start(self, what: str, total: int | None = None) -> None:
        self.lines.append(what)

    def advance(self, n: int = 1, note: str = "") -> None:
        self.lines += [note] if note else []
