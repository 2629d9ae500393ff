"""Commands of other packages: entry points of the group `roundelay.commands`.

An entry point bears the name of its command and names a function `add(command: Command)` that adds it, as those of this
folder do; one function may be that of several commands. It is loaded when one of them is asked for, so that a package
that is broken harms no other command.
"""

import argparse
from collections.abc import Container, Sequence
from importlib.metadata import EntryPoint, entry_points

from roundelay.commands.base import Command
from roundelay.core.errors import UserError

GROUP = "roundelay.commands"
OF_THE_LABORATORY = ("calibrate", "claims", "published", "storm")
"""Commands that come with the package `roundelay-lab`, folder `lab` of the repository."""
OF_SPEECH = (
    "adapt",
    "align",
    "compare",
    "decode",
    "demo",
    "evaluate",
    "export",
    "export-alignment",
    "features",
    "finetune",
    "import-alignment",
    "inspect",
    "pack",
    "prepare",
    "realign",
    "score",
    "serve",
    "train",
    "transcribe",
)
"""Commands that come with the package `roundelay-speech`, folder `speech` of the repository."""


def find_plugins(taken: Container[str] = ()) -> list[EntryPoint]:
    """Return the commands of all installed packages, by name.

    Args:
        taken: names that they may not have.

    Raises:
        UserError: one of them has such a name, or two packages have a command of the same; names them.
    """
    found: dict[str, EntryPoint] = {}
    for one in entry_points(group=GROUP):
        if one.name in taken:
            raise UserError(f"the package {_package(one)} has a command {one.name!r}, which Roundelay has itself.")
        other = found.setdefault(one.name, one)
        if other.value != one.value:
            raise UserError(
                f"the packages {_package(other)} and {_package(one)} both have a command {one.name!r}: uninstall one."
            )
    return [found[name] for name in sorted(found)]


def add_plugins(found: Sequence[EntryPoint], command: Command) -> None:
    """Add the commands of entry points to the command line; a function of several is called once.

    Raises:
        UserError: it cannot be loaded, or does not add the commands of its entry points; names the package.
    """
    for value in dict.fromkeys(one.value for one in found):
        _add([one for one in found if one.value == value], command)


def _add(of_one: Sequence[EntryPoint], command: Command) -> None:
    """Add the commands of entry points that name one function."""
    found = of_one[0]
    try:
        add = found.load()
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"the command {found.name!r} of the package {_package(found)} cannot be loaded: {error}."
        ) from error
    added: list[str] = []

    def noting(name: str, run: object, text: str, examples: Sequence[str] = ()) -> argparse.ArgumentParser:
        added.append(name)
        return command(name, run, text, examples)

    add(noting)
    if set(added) != {one.name for one in of_one}:
        raise UserError(
            f"the entry point {found.name!r} of the package {_package(found)} adds {', '.join(added) or 'no command'}: "
            "the command must have the name of its entry point."
        )


def _package(found: EntryPoint) -> str:
    return found.dist.name if found.dist else found.value
