"""The states of an exchange between two hosts, drawn from the table that client and server run by.

The states of each end stand in a line. An event that leads on is an arrow on the line or an arc above it, one that
leads back an arc below it; events that change nothing, and the message that a state sends, are named in its box.
"""

from _ink import picture, text
from _states import HEAD, arc, label, state

from roundelay.runtime.hosts.exchange.states import TRANSITIONS, WORDS, Event, Role, State

STEP, WIDTH, HEIGHT, RISE = 172, 104, 58, 34
"""Pixels from state to state, of a box, and that an arc rises for each state it passes."""
LEFT, GAP, TOP = 86, 46, 52
HUE = {State.IDLE: "grey", State.COMMITTED: "green", State.VOID: "red"}
ENDS = {
    Role.CLIENT: "client: the end whose row travels",
    Role.SERVER: "server: the end whose row is visited",
    Role.ASKER: "asker: its row is visited, because it has asked a lower rank",
    Role.READER: "reader: fetches a row, and changes none",
}


def draw() -> str:
    """The picture."""
    parts, top = [HEAD], float(TOP)
    for role, words in ENDS.items():
        panel, height = _panel(role, words, top)
        parts += panel
        top += height
    width = 2 * LEFT + STEP * (max(map(len, TRANSITIONS.values())) - 1)
    return picture(width, round(top + GAP / 2), "States of an exchange between two hosts", *parts)


def _panel(role: Role, words: str, top: float) -> tuple[list[str], float]:
    table = TRANSITIONS[role]
    order = list(table)
    arcs: dict[tuple[int, int], list[str]] = {}
    stays: dict[State, list[str]] = {}
    for one, row in table.items():
        for event, following in row.items():
            if following is one:
                stays.setdefault(one, []).append(event.value)
            else:
                arcs.setdefault((order.index(one), order.index(following)), []).append(event.value)
    above = max([b - a for a, b in arcs if b - a > 1], default=0)
    below = max([a - b for a, b in arcs if a > b], default=0)
    line = top + GAP + 0.75 * RISE * above + HEIGHT / 2 + 14
    found = [text(words, LEFT - WIDTH / 2, top + GAP / 2 + 10, "strong")]
    labels, boxes = [], []
    for (a, b), events in sorted(arcs.items()):
        path, at = _arc(a, b, line)
        found.append(arc(path))
        labels.append(label(*at, ", ".join(events)))
    for n, one in enumerate(order):
        lines = [one.value]
        if word := WORDS[role].get(one):
            lines.append(f"{'replies' if role is Role.SERVER else 'sends'} {word}")
        if events := [event for event in stays.get(one, []) if event != Event.SEND.value]:
            lines.append(f"({', '.join(events)})")
        boxes.append(state(LEFT + n * STEP, line, WIDTH, HEIGHT, HUE.get(one, "blue"), lines))
    return found + labels + boxes, line + HEIGHT / 2 + 0.75 * RISE * below + 14 - top


def _arc(a: int, b: int, line: float) -> tuple[str, tuple[float, float]]:
    """The path from state `a` to state `b`, and where its label stands."""
    x, y = float(LEFT + a * STEP), float(LEFT + b * STEP)
    if b == a + 1:
        return f"M{x + WIDTH / 2:g},{line:g} L{y - WIDTH / 2:g},{line:g}", ((x + y) / 2, line - 12)
    up = b > a
    edge, side = line + (-HEIGHT if up else HEIGHT) / 2, 1 if up else -1
    far = edge - side * RISE * abs(b - a)
    x, y = x + side * 0.25 * WIDTH, y - side * (0.42 - 0.08 * abs(b - a)) * WIDTH
    path = f"M{x:g},{edge:g} C{x:g},{far:g} {y:g},{far:g} {y:g},{edge:g}"
    return path, ((x + y) / 2, edge + 0.75 * (far - edge))
