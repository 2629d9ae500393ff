"""Trainings of several hosts one after the other: the first host names the next, and the others do their part.

All hosts run the same command. The first one listens where hosts meet, and says before each training which of those
that all hosts know it is; the training itself meets at the next port. No message is run as code: it names a training,
and one that does not ends the host's part with an error.

    first host           others
    NextTraining  ->                 the training that comes now, by name, learning rate and seed
    StopTurn      ->                 it is to end
                  <-     TurnEnded   its part here has ended: well, or for a reason
    Over          ->                 no further training
"""

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Annotated, Self, final

from roundelay.core.errors import UserError
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.wire import Link, LinkError
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.messages import Dialect, Message, Range

TURNS = "turns"
"""Word that every host says when it connects for turns."""
MEETING_SECONDS = 120.0
"""Seconds within which all hosts must have come."""
SILENT_SECONDS = 60.0
"""Seconds of silence after which a host counts as lost."""
PARTS_END_SECONDS = 120.0
"""Seconds for which the others' parts may outlast that of the first host."""


class NextTraining(Message):
    """Message that names the training that comes now: the stem of its directories, its learning rate, and its seed."""

    name: str
    rate: Annotated[float, Range(0.0, float("inf"))]
    seed: int


class StopTurn(Message):
    """Message that the present training is to end."""


class Over(Message):
    """Message that no further training comes."""


class TurnEnded(Message):
    """Message that a host's part of a training has ended; `why` is the reason where it did not end well, else ""."""

    why: str


FROM_FIRST, FROM_OTHERS = Dialect(NextTraining, StopTurn, Over), Dialect(TurnEnded)


def training_place(place: HostPlace) -> HostPlace:
    """Return the place of a host in a training: one port beyond that of the turns."""
    listen = (place.listen[0], place.port + 1) if place.conducts else place.listen
    return dataclasses.replace(place, port=place.port + 1, listen=listen)


@final
class FirstHost:
    """The host that names the next training. Use it as a context manager.

    Args:
        place: the place of this host.
        about: a digest of the command's purpose; that of the other hosts must be the same.
        seconds: time within which the other hosts must come.

    Raises:
        UserError: the others do not come in time; one has another purpose; or this host cannot listen at its address.
    """

    def __init__(self, place: HostPlace, about: str, seconds: float = MEETING_SECONDS) -> None:
        self.place, self._links = place, dict[int, MonitoredLink]()
        self._said: SimpleQueue[tuple[int, str]] = SimpleQueue()  # first rank of a host, and why its part has ended
        self._lost: dict[int, str] = {}
        where = f"{place.listen[0]}:{place.listen[1]}"
        try:
            listener = Listener(place.listen, place.secret, {"what": TURNS}, SILENT_SECONDS)
        except OSError as error:
            raise UserError(
                f"{where}: nothing can listen there ({error.strerror or error}). Give MASTER_PORT one that is free."
            ) from error
        try:
            self._meet(listener, about, seconds)
        except BaseException:
            self.close()
            raise
        finally:
            listener.close()

    def _meet(self, listener: Listener, about: str, seconds: float) -> None:
        missing = set(range(self.place.learners)) - set(self.place.ranks)
        while missing:
            link = listener.accept(seconds)
            if link is None:
                raise UserError(
                    f"learners {', '.join(map(str, sorted(missing)))} did not come to {listener.address[0]}:"
                    f"{listener.address[1]} within {seconds:.0f} s: start the same command on their hosts, with the "
                    "same MASTER_ADDR, MASTER_PORT, WORLD_SIZE and secret."
                )
            ranks, theirs = link.hello.get("ranks"), link.hello.get("about")
            if link.hello.get("what") != TURNS or not isinstance(ranks, list) or not set(ranks) <= missing or not ranks:
                link.close()
                continue
            first = min(ranks)
            line = MonitoredLink(link, SILENT_SECONDS)
            if theirs != about:
                with suppress(LinkError):
                    line.say(Over())
                line.close()
                raise UserError(
                    f"the host of learner {first} was started with another command, or another version of the script: "
                    "give all hosts the same."
                )
            missing -= set(ranks)
            self._links[first] = line
            line.beat()
            line.listen(FROM_OTHERS, partial(self._hear, first), partial(self._lose, first))

    def _hear(self, first: int, message: Message) -> None:
        assert isinstance(message, TurnEnded)
        self._said.put((first, message.why))

    def _lose(self, first: int, why: str) -> None:
        self._lost[first] = why
        self._said.put((first, f"the host is lost: {why}"))

    @contextmanager
    def turn(self, name: str, rate: float, seed: int) -> Iterator[HostPlace]:
        """Have all hosts do a training; this host does its part inside the context, at the place that is yielded.

        Raises:
            UserError: another host is lost, or its part did not end well; says which and why.
        """
        for first, why in self._lost.items():
            raise UserError(f"the host of learner {first} is lost: {why}. Start the same command on all hosts again.")
        for first, line in self._links.items():
            try:
                line.say(NextTraining(name, rate, seed))
            except LinkError as error:
                raise UserError(f"the host of learner {first} is lost: {error}. Start all hosts again.") from error
        try:
            yield training_place(self.place)
        except BaseException:
            self.stop()
            with suppress(UserError):
                self._await_ends()
            raise
        self._await_ends()

    def stop(self) -> None:
        """Tell the others that the training is to end."""
        for line in self._links.values():
            with suppress(LinkError):
                line.say(StopTurn())

    def _await_ends(self) -> None:
        left, wrong = set(self._links), list[str]()
        while left:
            try:
                first, why = self._said.get(timeout=PARTS_END_SECONDS)
            except Empty:
                self.stop()
                wrong += [f"the host of learner {one} did not end its part" for one in sorted(left)]
                break
            left.discard(first)
            wrong += [f"the host of learner {first}: {why}"] if why else []
        if wrong:
            raise UserError("; ".join(wrong))

    def close(self) -> None:
        """Tell the others that all is over."""
        for line in self._links.values():
            with suppress(LinkError):
                line.say(Over())
            line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Part = Callable[[NextTraining, HostPlace, Callable[[], bool]], None]
"""Function that does a host's part of a training, at a place; it calls the last argument again and again, and ends
when that returns True.

Raises:
    UserError: the part cannot be done.
"""


def follow(
    place: HostPlace, about: str, part: Part, asked: Callable[[], bool], seconds: float = MEETING_SECONDS
) -> None:
    """Do this host's part of each training that the first host names, until that says that all is over.

    Args:
        about: as for `FirstHost`.
        part: does the part of one training.
        asked: returns True if this host is to stop.

    Raises:
        UserError: the first host does not answer, or is lost.
    """
    hello = {"what": TURNS, "ranks": list(place.ranks), "about": about}
    where = (place.address, place.port)
    try:
        link = Link.connect(where, place.secret, hello, SILENT_SECONDS, within=seconds, expected={"what": TURNS})
    except LinkError as error:
        raise UserError(
            f"rank {place.ranks[0]}: cannot reach the first host at {where[0]}:{where[1]} ({error}). Start the same "
            "command there, with the same secret; is that port, and the next, open in firewalls?"
        ) from error
    line, turns = MonitoredLink(link, SILENT_SECONDS), SimpleQueue[NextTraining | str]()
    stop = threading.Event()

    def hear(message: Message) -> None:
        if isinstance(message, NextTraining):
            stop.clear()
            turns.put(message)
            return
        stop.set()
        if isinstance(message, Over):
            turns.put("")

    def gone(why: str) -> None:
        stop.set()
        turns.put(f"the first host is lost: {why}. The same command on all hosts goes on.")

    line.beat()
    line.listen(FROM_FIRST, hear, gone)
    try:
        while not asked():
            try:
                turn = turns.get(timeout=0.2)
            except Empty:
                continue
            if isinstance(turn, str):
                if turn:
                    raise UserError(turn)
                return
            why = ""
            try:
                part(turn, training_place(place), lambda: stop.is_set() or asked())
            except UserError as error:
                why = str(error)
            with suppress(LinkError):
                line.say(TurnEnded(why))
    finally:
        line.close()
