"""Notes of exchanges between hosts, for a record: when each row of this host was sent, and when it was changed.

They are taken under the row's lock, so the notes of a row are in the order in which things happened to it. The terms of
an exchange are noted once for all exchanges with the same terms, by the host whose row travels.
"""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from roundelay.core.errors import UserError
from roundelay.runtime.hosts.exchange.messages import ExchangeTerms
from roundelay.runtime.messages import InvalidMessage, plain, read
from roundelay.runtime.rows import Row
from roundelay.runtime.trace import Kind, TraceWriter, has_events, read_array


class ExchangeNotes:
    """Notes of exchanges; this class keeps none. All methods but the first are called under the row's lock."""

    def so_far(self, rank: int) -> tuple[int, int]:
        """Return the highest numbers noted of a request of learner `rank`, and of an exchange of its row."""
        return 0, 0

    def sent(self, row: Row, peer: int, number: int) -> None:
        """Note that `row` is sent to row `peer`, as the other half of exchange `number` of row `peer`."""

    def begins(self, row: Row, number: int, terms: ExchangeTerms, asked: tuple[int, int], both: bool = True) -> None:
        """Note that exchange `number` of `row`, which travels, begins; if `both` rows travel, also that `row` is sent.
        In any other exchange the learner waits, and notes the rest itself.

        Args:
            asked: the learner that has asked for the exchange, and the number of its request.
        """

    def taken(self, row: Row, peer: int, number: int) -> None:
        """Note that `row` is changed by exchange `number` with row `peer`."""


NO_NOTES = ExchangeNotes()


@final
class RecordedExchanges(ExchangeNotes):
    """Notes of exchanges that are kept in the folder of a trace.

    Args:
        goes_on: True if the run goes on from an earlier one, whose notes the folder may have.
    """

    def __init__(self, folder: Path, goes_on: bool = False) -> None:
        self._folder, self._new, self._gate = folder, not goes_on, threading.Lock()
        self._writers: dict[int, TraceWriter] = {}
        self._terms: dict[int, list[str]] = {}  # by row, in the order of their numbers
        folder.mkdir(parents=True, exist_ok=True)

    def so_far(self, rank: int) -> tuple[int, int]:
        if self._new or not has_events(self._folder, rank):
            return 0, 0
        asked, of_row = read_array(self._folder, rank), read_array(self._folder, rank, carried=True)
        requests = asked["mine"][asked["kind"] == Kind.ASKED]
        return int(requests.max(initial=0)), int(of_row["theirs"].max(initial=0))

    def _note(self, row: Row, kind: Kind, peer: int, mine: int, number: int = -1, value: float = 0.0) -> None:
        with self._gate:
            writer = self._writers.get(row.rank)
            if writer is None:
                writer = self._writers[row.rank] = TraceWriter(self._folder, row.rank, self._new, True)
        writer.note(kind, peer, mine, number, value)

    def sent(self, row: Row, peer: int, number: int) -> None:
        self._note(row, Kind.SENT, peer, row.version, number, -1.0)

    def begins(self, row: Row, number: int, terms: ExchangeTerms, asked: tuple[int, int], both: bool = True) -> None:
        asks, since = (None if number is None else 0 for number in (terms.asked, terms.since))
        text = json.dumps(plain(replace(terms, asked=asks, since=since, mass=0.0)), default=plain)
        path = _terms_path(self._folder, row.rank)
        with self._gate:
            if (known := self._terms.get(row.rank)) is None:
                known = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
                self._terms[row.rank] = known
            if text not in known:
                known.append(text)
                with open(path, "a", encoding="utf-8") as file:
                    file.write(text + "\n")
        place = float(known.index(text))
        self._note(row, Kind.BIDDEN, *asked, value=place)
        if both:
            self._note(row, Kind.SENT, terms.peer, row.version, number, place)

    def taken(self, row: Row, peer: int, number: int) -> None:
        self._note(row, Kind.TAKEN, peer, row.version, number)


def _terms_path(folder: Path, rank: int) -> Path:
    return folder / f"carried-{rank}.jsonl"


def read_terms(folder: Path, rank: int) -> Iterator[ExchangeTerms]:
    """Yield the terms of exchanges by which row `rank` has travelled, in order of their numbers.

    Raises:
        UserError: the file of terms is damaged; names file and line.
    """
    path = _terms_path(folder, rank)
    if not path.exists():
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            said: Any = json.loads(line)
            yield read(ExchangeTerms, said)
        except (ValueError, InvalidMessage) as error:
            raise UserError(f"{path}:{number}: no terms of an exchange ({error}): damaged.") from error
