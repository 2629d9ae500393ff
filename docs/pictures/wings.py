"""The two wings, with the floors inside them: folders within folders, as .importlinter has them and as they import."""

from dataclasses import dataclass, field
from typing import final

from _imports import SPEAKS, TRAINS, floors, wing
from _ink import box, paragraph, picture, text, wide

HIGH, GAP, PAD, TITLE = 24.0, 6.0, 9.0, 25.0
WIDTH, TOP = 960.0, 84.0
INSIDE = {
    "runtime": "floors-of-runtime",
    "attached": "floors-of-attached",
    "procs": "floors-of-procs",
    "hosts": "floors-of-hosts",
    "decode": "floors-of-decode",
}
"""Folders that are drawn with what is in them, and the contract that says on which floor it is."""


@final
@dataclass
class Room:
    """A box with a name: alone, or with floors of boxes inside, from the top."""

    name: str
    hue: str
    floors: list[list["Room"]] = field(default_factory=list)

    @property
    def width(self) -> float:
        """Pixels that its rooms and its name need."""
        rows = [sum(room.width for room in floor) + GAP * (len(floor) - 1) for floor in self.floors]
        return max([wide(self.name, 12) + 18, *(row + 2 * PAD for row in rows)])

    @property
    def height(self) -> float:
        if not self.floors:
            return HIGH
        return TITLE + PAD - GAP + sum(max(room.height for room in floor) + GAP for floor in self.floors)

    def drawn(self, x: float, y: float, width: float, height: float) -> str:
        """Itself, stretched to `width` and `height`, and what is inside."""
        if not self.floors:
            name = text(self.name, x + width / 2, y + height / 2 + 4.5, "small", "middle")
            return box(x, y, width, height, self.hue, 4) + name
        parts = [box(x, y, width, height, self.hue, 7), text(self.name, x + PAD, y + 17, "small strong")]
        below = y + TITLE
        spare = (height - self.height) / len(self.floors)
        for floor in self.floors:
            tall = max(room.height for room in floor) + spare
            left = width - 2 * PAD - GAP * (len(floor) - 1) - sum(room.width for room in floor)
            at = x + PAD
            for room in floor:
                parts.append(room.drawn(at, below, room.width + left / len(floor), tall))
                at += room.width + left / len(floor) + GAP
            below += tall + GAP
        return "".join(parts)


def _room(name: str, hue: str) -> Room:
    inside = floors(INSIDE[name]) if name in INSIDE else []
    return Room(name, hue, [[_room(child, hue) for child in floor] for floor in inside])


def _row(names: list[str], hue: str) -> Room:
    """Several in one box, whose floors are not shown."""
    return Room(" · ".join(names), hue)


def draw() -> str:
    """The picture."""
    names: dict[str, list[list[str]]] = {"training": [], "both": [], "speech": [], "neither": []}
    for package, contract in ((TRAINS, "floors"), (SPEAKS, "floors-of-speech")):
        for layer in floors(contract):
            for which, there in names.items():
                if kept := [name for name in layer if wing(name, package) == which]:
                    there.append(kept)
    every = {which: [name for layer in rows for name in layer] for which, rows in names.items()}
    below = ["runtime", "learner", "strategies", "algorithms"]
    left = Room("distributed training: for anybody with a torch.nn.Module", "blue")
    above = [name for name in every["training"] if name not in below]
    left.floors = [[_row(above[n : n + 5], "blue")] for n in range(0, len(above), 5)]
    left.floors += [[_room(name, "blue") for name in layer] for layer in names["training"] if layer[0] in below]
    right = Room("speech: for anybody with audio", "green")
    right.floors = [[_room(name, "green") for name in layer] for layer in names["speech"]]
    title = "both, in the package of speech: acoustic models are trained and used"
    both = Room(title, "violet", [[_row(every["both"], "violet")]])
    plain = [name for name in every["neither"] if name != "core"]
    neither = Room("below both", "grey", [[_row(plain, "grey")], [_room("core", "grey")]])
    inner, parts, y = WIDTH - 56, [], TOP
    parts.append(both.drawn(28, y, inner, both.height))
    y += both.height + 10
    tall = max(left.height, right.height)
    assert left.width + right.width + 10 <= inner, "the picture has become too narrow"
    share = (inner - 10 - left.width - right.width) / 2
    parts.append(left.drawn(28, y, left.width + share, tall))
    parts.append(right.drawn(38 + left.width + share, y, right.width + share, tall))
    y += tall + 10
    parts.append(neither.drawn(28, y, inner, neither.height))
    said = "Nothing in a box imports a box above it, and the two wings do not import each other."
    return picture(
        WIDTH,
        y + neither.height + 28,
        "Two wings, and the floors inside them",
        paragraph([said], 28, 60, "small quiet"),
        *parts,
    )
