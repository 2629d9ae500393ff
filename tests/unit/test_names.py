"""A class or constant of one name is one thing inside a wing: distributed training, speech, shell, laboratory."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from support.source import SourceFile, source_files

SPEECH = ("speech",)
SHELL = ("api", "commands", "options", "reports", "cli.py", "stopping.py", "terminal.py", "__init__.py", "__main__.py")
JOINED = tuple(
    f"speech/{name}"
    for name in (
        *("api", "commands", "advice", "grids", "transcription", "exporting", "packed", "recognition", "acoustic.py"),
        *("acoustic_task.py", "starting.py", "recipes", "objectives", "forward_backward"),
    )
)
"""The modules of speech where the wings meet count as shell."""

REGISTRIES = ("speech/corpus/readers", "algorithms/codecs", "lab/commands", "speech/commands")
"""Folders of files that are read alike, one a corpus, a codec or a command: the same constant says the same of each."""


def wing(file: SourceFile) -> str:
    if file.below(("lab",)):
        return "laboratory"
    return "shell" if file.below((*SHELL, *JOINED)) else "speech" if file.below(SPEECH) else "distributed"


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


def twice(found: Iterator[tuple[str, str, str]]) -> dict[tuple[str, str], list[str]]:
    """The files of each (wing, name) that has several."""
    places = defaultdict(list)
    for where, name, path in found:
        places[where, name].append(path)
    return {key: paths for key, paths in places.items() if len(paths) > 1}


def test_no_class_name_is_there_twice_in_a_wing() -> None:
    found = ((wing(file), name, file.path) for file in source_files() for name in classes(file))
    assert twice(found) == {}


def test_no_constant_is_there_twice_in_a_wing() -> None:
    files = [file for file in source_files() if not file.below(REGISTRIES)]
    assert twice((wing(file), name, file.path) for file in files for name in constants(file)) == {}


def test_every_wing_has_classes() -> None:
    files = {(wing(file), file.path) for file in source_files() if any(True for _ in classes(file))}
    assert {where for where, _ in files} == {"speech", "shell", "distributed", "laboratory"}
