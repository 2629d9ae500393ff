"""The command line: parses, calls, prints. Nothing is computed here; the commands are in `commands/`."""

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Sequence

from roundelay import __version__
from roundelay.commands import advice, comparisons, hosts, kept, launching, lists, scaling
from roundelay.commands.examples import EXAMPLES, FIRST_STEPS
from roundelay.commands.parser import Parser
from roundelay.commands.plugins import OF_SPEECH, OF_THE_LABORATORY, add_plugins
from roundelay.core.errors import UserError
from roundelay.core.extras import import_uncollected, load
from roundelay.core.plugins import find_plugins
from roundelay.core.strategy_text import did_you_mean
from roundelay.runtime.launch.c_libraries import wait_politely
from roundelay.stopping import Ended
from roundelay.terminal import Verbosity, complain, console, tidy

ABOUT = "Train acoustic models on many learners, from recorded speech to word error rate."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0 if done, 1 for a defect, or bad recordings among many, 2 for a mistake that the user
    can mend, 130 if interrupted, 128 plus its number after another signal."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words:
        console.print(f"{ABOUT}\n\n{FIRST_STEPS}", end="")
        return 0
    try:
        with tidy():
            options = _parse(words)
            Verbosity.quiet, Verbosity.verbose = options.quiet, options.verbose
            options.alone = arguments is None  # this process does nothing else
            options.parser.check_values(options)
            wait_politely()  # before any command imports torch
            import_uncollected("torch")
            return int(options.run(options) or 0)
    except UserError as error:
        if Verbosity.verbose:
            traceback.print_exc()
        complain(str(error))
        return 2
    except OSError as error:  # of a folder that no command thought to be closed to it
        if error.errno not in (errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT) or error.filename is None:
            raise
        complain(f"{os.fsdecode(error.filename)}: {error.strerror}. Mend that, and run the same command again.")
        return 2
    except Ended as error:
        complain(str(error))
        return error.status
    except KeyboardInterrupt:
        complain("interrupted.")
        return 130


def _parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the words of a command line. Overrides may stand anywhere, also after flags, where argparse alone would not
    know them; words behind -- are kept as they are for commands that hand them on."""
    place = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    parser, commands = _parsers(*words[place : place + 1])
    parser.check_names(words[:place])
    if place < len(words):
        _command(words[place], commands).check_names(words[place + 1 :])
    behind: list[str] = []
    if place < len(words) and "--" in words and commands[words[place]].get_default("behind") is not None:
        cut = words.index("--")
        words, behind = words[:cut], [*words[cut + 1 :]]
    options, rest = parser.parse_known_args(words)
    options.behind = behind
    if rest:
        if not hasattr(options, "overrides"):
            commands[words[place]].error(f"takes no further words, and there is {' '.join(rest)}")
        if wrong := [text for text in rest if text.startswith("-") or "=" not in text]:
            commands[words[place]].error(f"{' '.join(wrong)} is neither an option nor an override, section.key=value")
        options.overrides = [*options.overrides, *rest]
    return options


def _command(name: str, commands: dict[str, Parser]) -> Parser:
    if name not in commands:
        if name in OF_THE_LABORATORY:
            raise UserError(
                f"`roundelay {name}` is a command of the laboratory, which is not installed: "
                "`pip install ./lab` in a clone of Roundelay."
            )
        if name in OF_SPEECH:
            raise UserError(
                f"`roundelay {name}` is a command of the package roundelay-speech, which is not installed: "
                "pip install 'roundelay[speech]'."
            )
        raise UserError(f"there is no command {name!r}.{did_you_mean(name, commands)} `roundelay help` lists all.")
    return commands[name]


def command_parsers() -> dict[str, Parser]:
    """Return the parser of each command, by name: for their documentation."""
    return _parsers()[1]


def _parsers(asked: str = "help") -> tuple[Parser, dict[str, Parser]]:
    """Return the parser of the whole command line, and that of each command. Commands of other packages are looked for
    if this package lacks the command `asked`, and for the list of all."""
    parser = Parser(prog="roundelay", description=ABOUT, epilog=FIRST_STEPS)
    parser.add_argument("--version", action="version", version=f"roundelay {__version__}", help="print the version")
    adding = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    commands: dict[str, Parser] = {}

    def command(name: str, run: object, text: str, examples: Sequence[str] = ()) -> argparse.ArgumentParser:
        lines = [f"  {line}" for line in examples or EXAMPLES.get(name, ())]
        epilog = "\n".join(["examples:", *lines]) if lines else None
        commands[name] = adding.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", epilog=epilog)
        commands[name].set_defaults(run=run, asked=name, parser=commands[name])
        commands[name].add_argument("-q", "--quiet", action="store_true", help="print results and errors only")
        commands[name].add_argument("-v", "--verbose", action="store_true", help="say more of work and of errors")
        return commands[name]

    for group in (launching, comparisons, scaling, advice, hosts, kept, lists):
        group.add(command)

    def show_help(options: argparse.Namespace) -> None:
        name, *further = options.command or [None]
        _explain(parser if name is None else _command(name, commands), further)

    def complete(options: argparse.Namespace) -> None:
        shtab = load("shtab", "completion", "completion")
        console.out(shtab.complete(parser, shell=options.shell), highlight=False)

    sub = command("help", show_help, "explain a command, or list all of them")
    sub.add_argument(
        "command", nargs="*", help="the command, and one of its words or options, without hyphens (default: all)"
    )
    sub = command("completion", complete, "print a script that completes commands and options in a shell")
    sub.add_argument("shell", choices=["bash", "zsh", "tcsh"], help="the shell")
    if asked not in commands or asked in ("help", "completion"):
        plugins = [*find_plugins("commands", commands).values()]
        functions = {one.value for one in plugins if one.name == asked}
        add_plugins([one for one in plugins if one.value in functions or not functions], command)
    return parser, commands


def _explain(parser: Parser, words: Sequence[str]) -> None:
    """Print the help of a command, or the meaning of those of its words or options that are named."""
    console.out(parser.format_help(), highlight=False, end="")
    for word in words:
        if (about := _about(parser, word)) is None:
            command = parser.prog.removeprefix("roundelay ")
            raise UserError(f"{command} has no word or option {word!r}: all are above.")
        console.out(f"\n{word}: {about}", highlight=False)


def _about(parser: Parser, word: str) -> str | None:
    """Return a sentence on a word or an option of a command; None if the command does not know it."""
    for action in parser.options:
        if f"--{word}" in action.option_strings:
            return str(action.help)
        if word in (action.choices or ()):
            if action.dest != "corpus":
                return str(action.help)
            known = load("roundelay_speech.recipes.known", "speech", f"help {word}")
            return str(known.corpora().get(word, action.help))
    return None


if __name__ == "__main__":
    sys.exit(main())
