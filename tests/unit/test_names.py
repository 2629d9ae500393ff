"""A class or constant of one name is one thing inside a wing of the house: distributed training, speech, the shell."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from support.source import SourceFile, source_files

SPEECH = ("speech",)
SHELL = ("commands", "compare", "recipes", "report", "cli.py", "terminal.py", "__init__.py", "__main__.py")
JOINED = ("acoustic.py", "realignment.py", "recognise.py")
"""The modules where the wings meet count as shell."""

NOT_YET = {"Event", "Progress", "Role"}
NOT_YET_CONSTANTS = {
    "BLOCK",
    "ENDED",
    "GRACE_SECONDS",
    "HERE",
    "LARGEST",
    "LONGEST_PAUSE",
    "LOOK_SECONDS",
    "NAME",
    "OWN",
    "PAUSE_SECONDS",
    "PIECE",
    "SHORTEST_PAUSE",
    "SLOTS",
    "TABLES",
    "VERSION",
}
"""Names in runtime/ that do not keep the rule yet; nothing is added here."""

REGISTRIES = ("speech/corpus/readers", "algorithms/codecs")
"""Folders of files that are read alike, one a corpus or a codec: the same constant says the same of each."""


def wing(file: SourceFile) -> str:
    return "speech" if file.below(SPEECH) else "shell" if file.below((*SHELL, *JOINED)) else "distributed"


def classes(file: SourceFile) -> Iterator[str]:
    yield from (node.name for node in ast.walk(file.tree) if isinstance(node, ast.ClassDef))


def constants(file: SourceFile) -> Iterator[str]:
    """Names of module-level constants that other modules may import."""
    for node in file.tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for name in (name for target in targets for name in ast.walk(target)):
            if isinstance(name, ast.Name) and re.fullmatch(r"[A-Z][A-Z0-9_]+", name.id):
                yield name.id


def twice(found: Iterator[tuple[str, str, str]], known: set[str]) -> dict[tuple[str, str], list[str]]:
    """The files of each (wing, name) that has several, without the names `known`."""
    places = defaultdict(list)
    for where, name, path in found:
        places[where, name].append(path)
    return {key: paths for key, paths in places.items() if len(paths) > 1 and key[1] not in known}


def test_no_class_name_is_there_twice_in_a_wing() -> None:
    found = ((wing(file), name, file.path) for file in source_files() for name in classes(file))
    assert twice(found, NOT_YET) == {}


def test_no_constant_is_there_twice_in_a_wing() -> None:
    files = [file for file in source_files() if not file.below(REGISTRIES)]
    assert twice(((wing(file), name, file.path) for file in files for name in constants(file)), NOT_YET_CONSTANTS) == {}


def test_every_wing_has_classes() -> None:
    files = {(wing(file), file.path) for file in source_files() if any(True for _ in classes(file))}
    assert {where for where, _ in files} == {"speech", "shell", "distributed"}
