"""The real imports of the packages, and the floors that .importlinter states, for the pictures that show them."""

import configparser
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
TRAINING = ("runtime", "learner", "strategies", "algorithms")
"""Modules that make an importer a part of the distributed wing."""
TRAINS, SPEAKS = "roundelay", "roundelay_speech"


@cache
def imports() -> grimp.ImportGraph:
    """All imports, but for those that only type checkers see."""
    return grimp.build_graph(TRAINS, SPEAKS, exclude_type_checking_imports=True, cache_dir=None)


def floors(contract: str) -> list[list[str]]:
    """The layers of a contract from the top; names of files and folders that are there."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter", encoding="utf-8")
    section = parser[f"importlinter:contract:{contract}"]
    above = section["containers"].strip()
    there = {name.rsplit(".", 1)[1] for name in imports().find_children(above)}
    layers = [[n.strip(" ()") for n in row.split("|")] for row in section["layers"].strip().splitlines()]
    return [kept for layer in layers if (kept := [name for name in layer if name in there])]


def uses(importer: str, imported: str) -> bool:
    """Return True if anything in `importer` imports anything in `imported`; dotted names."""
    return imports().direct_import_exists(importer=importer, imported=imported, as_packages=True)


@dataclass(frozen=True)
class Arrows:
    """Imports among some modules: importer -> those it imports directly."""

    direct: dict[str, frozenset[str]]

    @classmethod
    def among(cls, names: list[str], above: str = TRAINS) -> "Arrows":
        """Those among `names`, which are children of `above`."""
        dotted = {name: f"{above}.{name}" for name in names}
        return cls({a: frozenset(b for b in names if a != b and uses(dotted[a], dotted[b])) for a in names})

    def reached(self, name: str) -> frozenset[str]:
        """Everything that `name` imports, over however many others."""
        found: set[str] = set()
        waiting = list(self.direct[name])
        while waiting:
            found.add(following := waiting.pop())
            waiting += self.direct[following] - found
        return frozenset(found)

    def shown(self) -> list[tuple[str, str]]:
        """Imports that do not follow from others: enough to see who can reach whom."""
        return [
            (a, b)
            for a in self.direct
            for b in sorted(self.direct[a])
            if not any(b in self.reached(c) for c in self.direct[a] - {b})
        ]


def wing(name: str, above: str = TRAINS) -> str:
    """Return which wings a child of `above` is part of, or reaches: `training`, `speech`, `both` or `neither`."""
    trains = (above == TRAINS and name in TRAINING) or any(
        imports().chain_exists(importer=f"{above}.{name}", imported=f"{TRAINS}.{one}", as_packages=True)
        for one in TRAINING
    )
    return ("both" if trains else "speech") if above == SPEAKS else "training" if trains else "neither"
