"""The floors of `roundelay`: every file and folder on its floor (.importlinter), and the imports that there are."""

from dataclasses import dataclass

from _imports import Arrows, floors, wing
from _ink import box, element, paragraph, picture, text, wide

WIDTH, TOP, STEP, HIGH, GAP, WIDE = 880.0, 88.0, 54.0, 28.0, 18.0, 300.0
COLUMN = {"training": 300.0, "neither": 710.0}
HUE = {"training": "blue", "neither": "grey"}
MEANING = {
    "training": "trains",
    "neither": "does not train",
}


@dataclass
class Place:
    """A box: its left edge, its floor from the top, its width."""

    x: float
    floor: int
    width: float

    @property
    def y(self) -> float:
        return TOP + STEP * self.floor

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


def _places(layers: list[list[str]], wings: dict[str, str]) -> dict[str, Place]:
    placed: dict[str, Place] = {}
    for floor, layer in enumerate(layers):
        if layer == ["core"]:
            placed["core"] = Place(60, floor, WIDTH - 120)
            continue
        for column in sorted(set(COLUMN.values())):
            names = [name for name in layer if COLUMN[wings[name]] == column]
            widths = [wide(name) + 26 for name in names]
            x = column - (sum(widths) + GAP * (len(names) - 1)) / 2
            for name, width in zip(names, widths, strict=True):
                placed[name] = Place(x, floor, width)
                x += width + GAP
    return placed


def _lane(wanted: float, boxes: list[Place], taken: list[float]) -> float:
    """The x nearest to `wanted` at which a line may go straight down past boxes and other lines."""
    free = (
        x
        for away in range(0, int(WIDTH), 3)
        for x in (wanted - away, wanted + away)
        if not any(b.x - 9 < x < b.x + b.width + 9 for b in boxes) and not any(abs(x - other) < 9 for other in taken)
    )
    return next(free)


def _lanes(placed: dict[str, Place], arrows: list[tuple[str, str]]) -> dict[tuple[str, str], float]:
    """The lane of every import that passes other floors; the shortest choose first."""
    lanes: dict[tuple[str, str], float] = {}
    for a, b in sorted(arrows, key=lambda arrow: (placed[arrow[1]].floor - placed[arrow[0]].floor, arrow)):
        above, below = placed[a], placed[b]
        passed = [place for place in placed.values() if above.floor < place.floor < below.floor]
        if below.floor - above.floor == 1:
            continue
        taken = [x for (c, d), x in lanes.items() if placed[c].floor < below.floor and above.floor < placed[d].floor]
        wanted = above.middle if below.width > WIDE else (2 * below.middle + above.middle) / 3
        lanes[a, b] = _lane(wanted, passed, taken)
    return lanes


def _ends(place: Place, towards: dict[str, float]) -> dict[str, float]:
    """Points along an edge of a box for the ends of its lines, in the order of their other ends, so that few cross."""
    if place.width > WIDE:
        return towards
    ordered = sorted(towards, key=lambda name: towards[name])
    return {name: place.x + 8 + (place.width - 16) * (n + 1) / (len(ordered) + 1) for n, name in enumerate(ordered)}


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    middle = (y + to_y) / 2
    return f"C{x:.1f},{middle:.1f} {to_x:.1f},{middle:.1f} {to_x:.1f},{to_y:.1f} "


def _lines(placed: dict[str, Place], arrows: list[tuple[str, str]]) -> str:
    lanes, gap, drawn = _lanes(placed, arrows), STEP - HIGH, []
    leaves, enters = {}, {}
    for name, place in placed.items():
        leaves[name] = _ends(place, {b: lanes.get((a, b), placed[b].middle) for a, b in arrows if a == name})
        enters[name] = _ends(place, {a: lanes.get((a, b), placed[a].middle) for a, b in arrows if b == name})
    for a, b in arrows:
        x, y, to_x, to_y = leaves[a][b], placed[a].y + HIGH, enters[b][a], placed[b].y
        path = f"M{x:.1f},{y:.1f} "
        if (a, b) in lanes:
            lane = lanes[a, b]
            path += (
                _curve(x, y, lane, y + gap) + f"L{lane:.1f},{to_y - gap:.1f} " + _curve(lane, to_y - gap, to_x, to_y)
            )
        else:
            path += _curve(x, y, to_x, to_y)
        drawn.append(element("path", d=path.strip(), class_="line faint"))
    return "".join(drawn)


def draw() -> str:
    """The picture."""
    layers = floors("floors")
    arrows = Arrows.among([name for layer in layers for name in layer])
    wings = {name: wing(name) for name in arrows.direct}
    placed = _places(layers, wings)
    boxes = []
    for name, place in placed.items():
        boxes.append(box(place.x, place.y, place.width, HIGH, HUE[wings[name]]))
        boxes.append(text(name, place.x + place.width / 2, place.y + HIGH / 2 + 4.5, "mono", "middle"))
    x, legend = 28.0, []
    below = TOP + STEP * len(layers) + 6
    for name, meaning in MEANING.items():
        legend += [box(x, below, 14, 14, HUE[name], 3), text(meaning, x + 21, below + 11.5, "small quiet")]
        x += 52 + wide(meaning, 10.4)
    said = ["A line is an import; imports that follow from others are left out. No line goes up."]
    return picture(
        WIDTH,
        below + 34,
        "The floors: everything imports downwards",
        paragraph(said, 28, 60, "small quiet"),
        _lines(placed, arrows.shown()),
        *boxes,
        *legend,
    )
