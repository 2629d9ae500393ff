"""Commands of other packages: entry points of the group `roundelay.commands`.

An entry point bears the name of its command and names a function `add(command: Command)` that adds it, as those of this
folder do; one function may be that of several commands. It is loaded when one of them is asked for, so that a package
that is broken harms no other command.
"""

import argparse
from collections.abc import Sequence
from importlib.metadata import EntryPoint

from roundelay.commands.base import Command
from roundelay.core.errors import UserError
from roundelay.core.plugins import load_plugin, package_of

OF_THE_LABORATORY = ("calibrate", "claims", "published", "storm")
"""Commands that come with the package `roundelay-lab`, folder `lab` of the repository."""
OF_SPEECH = (
    *("adapt", "align", "compare", "decode", "demo", "evaluate", "export", "export-alignment", "features", "finetune"),
    *("import-alignment", "inspect", "pack", "prepare", "realign", "score", "serve", "train", "transcribe"),
)
"""Commands that come with the package `roundelay-speech`, folder `speech` of the repository."""


def add_plugins(found: Sequence[EntryPoint], command: Command) -> None:
    """Add the commands of entry points to the command line; a function of several is called once.

    Raises:
        UserError: a function cannot be loaded, or does not add the commands of its entry points; names the package.
    """
    for value in dict.fromkeys(one.value for one in found):
        _add([one for one in found if one.value == value], command)


def _add(of_one: Sequence[EntryPoint], command: Command) -> None:
    """Add the commands of entry points that all name the same function."""
    found = of_one[0]
    add = load_plugin(found)
    added: list[str] = []

    def noting(name: str, run: object, text: str, examples: Sequence[str] = ()) -> argparse.ArgumentParser:
        added.append(name)
        return command(name, run, text, examples)

    add(noting)
    if set(added) != {one.name for one in of_one}:
        raise UserError(
            f"the entry point {found.name!r} of the package {package_of(found)} adds "
            f"{', '.join(added) or 'no command'}: the command must have the name of its entry point."
        )
