"""One exchange between two hosts whose link breaks: both ends go through their states, as the code's own machines do.

Each step is an event that is fed to the client's or the server's machine; a step that its table does not allow raises.
"""

from dataclasses import dataclass

from _ink import arrow, box, line, paragraph, picture, text, wide

from roundelay.runtime.hosts.exchange.states import Event, ExchangeState, Role, State

WIDTH, TOP, STEP = 940.0, 176.0, 34.0
X = {"row 1": 178.0, "client": 370.0, "server": 620.0, "row 3": 820.0}
HOSTS = {"host 0": (28.0, 450.0), "host 1": (540.0, WIDTH - 28)}
HUE = {
    State.IDLE: "grey",
    State.IN_DOUBT: "red",
    State.COMMITTED: "green",
    State.VOID: "red",
}


@dataclass(frozen=True)
class Entered:
    """An end has taken an event and is in a state."""

    end: str
    state: State


@dataclass(frozen=True)
class Sent:
    """A message between the two ends; a lost one does not arrive."""

    word: str
    source: str
    target: str
    lost: bool = False


@dataclass(frozen=True)
class Touched:
    """An end does something to its row, under that row's lock."""

    end: str
    row: str
    what: str


def happened() -> list[Entered | Sent | Touched]:
    """Row 1 travels to row 3; the link breaks while the reply is on its way."""
    client, server = ExchangeState(Role.CLIENT), ExchangeState(Role.SERVER)
    steps: list[Entered | Sent | Touched] = []

    def take(end: str, event: Event) -> None:
        steps.append(Entered(end, (client if end == "client" else server).take(event)))

    take("client", Event.CHECK_OUT)
    steps.append(Touched("client", "row 1", "copy, check out"))
    steps.append(Sent(client.word, "client", "server"))
    take("client", Event.SEND)
    take("server", Event.RECEIVE)
    steps.append(Touched("server", "row 3", "apply the rule"))
    take("server", Event.APPLY)
    steps.append(Sent(server.word, "server", "client", lost=True))
    take("client", Event.CUT)
    steps.append(Sent(client.word, "client", "server"))
    take("server", Event.AGAIN)
    steps.append(Sent(reply := server.word, "server", "client"))
    steps.append(Entered("client", client.hear(reply)))
    steps.append(Touched("client", "row 1", "apply the change, check in"))
    take("client", Event.APPLY)
    take("client", Event.CHECK_IN)
    return steps


def _state(entered: Entered, y: float) -> str:
    x, width = X[entered.end], wide(entered.state.value, 11.5) + 18
    name = text(entered.state.value, x, y + 4, "small", "middle")
    return box(x - width / 2, y - 10, width, 20, HUE.get(entered.state, "blue"), 10) + name


def _message(sent: Sent, y: float) -> str:
    side = 8 if X[sent.target] > X[sent.source] else -8
    begin, end = X[sent.source] + side, X[sent.target] - side
    if not sent.lost:
        return arrow(begin, y, end, y) + text(sent.word, (begin + end) / 2, y - 6, "mono", "middle")
    middle = (begin + end) / 2
    cross = [line((middle - 6, y + d), (middle + 6, y - d), class_="red-line") for d in (-6, 6)]
    word = text(sent.word, (begin + middle) / 2, y - 6, "mono", "middle")
    why = text("the link breaks", middle, y + 21, "small quiet", "middle")
    return line((begin, y), (middle, y), class_="line dashed") + "".join(cross) + word + why


def _touch(touched: Touched, y: float) -> str:
    x, row = X[touched.end], X[touched.row]
    side = 8 if row > x else -8
    said = text(touched.what, (x + row) / 2, y - 6, "small", "middle")
    lock = box(row - 6, y - 9, 12, 18, "amber", 4)
    return arrow(x + side, y, row - side, y, "amber-line", "amber-mark") + said + lock


def draw() -> str:
    """The picture."""
    steps = happened()
    at = [TOP + STEP * (n + 1) for n in range(len(steps))]
    bottom = at[-1] + 26
    parts = []
    for name, (begin, end) in HOSTS.items():
        parts.append(box(begin, TOP - 62, end - begin, bottom - TOP + 62, "rule paper", 8))
        parts.append(text(name, begin + 12, TOP - 43, "small strong quiet"))
    for name, x in X.items():
        parts += [line((x, TOP - 4), (x, bottom - 8), class_="rule"), text(name, x, TOP - 14, "strong", "middle")]
    touches = [y for step, y in zip(steps, at, strict=True) if isinstance(step, Touched) and step.row == "row 1"]
    x, middle = X["row 1"], (touches[0] + touches[-1]) / 2
    parts.append(box(x - 3, touches[0], 6, touches[-1] - touches[0], "violet", 3))
    parts.append(text("in flight:", x - 14, middle - 4, "small quiet", "end"))
    parts.append(text("no other exchange", x - 14, middle + 11, "small quiet", "end"))
    for step, y in zip(steps, at, strict=True):
        match step:
            case Entered():
                parts.append(_state(step, y))
            case Sent():
                parts.append(_message(step, y))
            case Touched():
                parts.append(_touch(step, y))
    said = [
        "The row of the lower rank travels. The client is in doubt whether its message was applied, asks again, and",
        "hears the reply that the server has kept: the rule is applied exactly once at each end. No lock (amber) is",
        "held on the way.",
    ]
    return picture(
        WIDTH,
        bottom + 24,
        "One exchange between two hosts, whose link breaks",
        paragraph(said, 28, 60, "small quiet"),
        *parts,
    )
