"""The command line: parses, calls, prints. Nothing is computed here; the commands are in `commands/`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from roundelay import __version__
from roundelay.commands import alignments, comparisons, corpora, hosts, kept, recognition, training
from roundelay.commands.base import DEFAULT_LEARNERS
from roundelay.core.errors import UserError
from roundelay.runtime.procs.threads import wait_politely
from roundelay.terminal import complain, console, tidy


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 done, 1 a defect, 2 something the user can mend, 130 interrupted."""
    options = _parse(arguments)
    wait_politely()  # before any command imports torch
    try:
        with tidy():
            return int(options.run(options) or 0)
    except UserError as error:
        complain(str(error))
        return 2
    except KeyboardInterrupt:
        complain("interrupted.")
        return 130


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Overrides may stand anywhere, also after flags, where argparse alone would not know them."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest:
        if not hasattr(options, "overrides") or any(text.startswith("-") or "=" not in text for text in rest):
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        options.overrides = [*options.overrides, *rest]
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roundelay", description="Train acoustic models on many learners, from recorded speech to word error rate."
    )
    parser.add_argument("--version", action="version", version=f"roundelay {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, run: object, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        sub.set_defaults(run=run)
        return sub

    for group in (corpora, alignments, training, recognition, comparisons, hosts, kept):
        group.add(command)
    sub = command(
        "demo", _demo, "synthesise a small corpus and run the whole path on it, with one learner and with four"
    )
    sub.add_argument("--folder", type=Path, default=Path("demo"), help="where everything goes (default: demo)")
    return parser


def _demo(options: argparse.Namespace) -> int:
    folder: Path = options.folder
    runs = {"sgd-1": ["sgd", 1], "adpsgd-random-ring-4": ["adpsgd:random-ring", DEFAULT_LEARNERS]}
    paths = [f"corpus={folder / 'data'}", f"alignment={folder / 'alignment'}"]
    steps: list[list[str]] = [
        ["prepare", "demo", "--data", str(folder / "data")],
        ["align", "demo", *paths],
        *(
            [
                "train",
                "demo",
                *paths,
                "--exp",
                str(folder / name),
                "--strategy",
                str(strategy),
                "--learners",
                str(learners),
            ]
            for name, (strategy, learners) in runs.items()
        ),
        ["decode", *(str(folder / name) for name in runs)],
        ["report", *(str(folder / name) for name in runs), "--out", str(folder / "report.html")],
    ]
    for step in steps:
        console.print(f"\n$ roundelay {' '.join(step)}", markup=False)
        if code := main(step):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
