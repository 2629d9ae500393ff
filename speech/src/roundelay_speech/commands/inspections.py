"""Inspection of a corpus: what is odd in it, and what mends it."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from roundelay.commands.arguments import count
from roundelay.commands.base import Command
from roundelay.core.folders import check_there
from roundelay.terminal import Bar, console, print_table, write
from roundelay_speech.commands.corpora import split_and_folder
from roundelay_speech.commands.examples import EXAMPLES

if TYPE_CHECKING:
    from roundelay_speech.corpus.inspection.findings import Inspection


def add(command: Command) -> None:
    """Add its options."""
    sub = command(
        "inspect",
        _inspect,
        "say what is odd in a corpus, and what mends it, before hours of training",
        EXAMPLES["inspect"],
    )
    sub.add_argument(
        "corpus",
        type=Path,
        check=check_there,
        help="a prepared corpus, a Kaldi data directory, or a folder that holds several",
    )
    sub.add_argument(
        "--split",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="a data directory inside the corpus and the split it is; may be repeated (default: all that are there)",
    )
    sub.add_argument(
        "--root", type=Path, metavar="DIR", help="what paths of wav.scp are relative to (default: the corpus)"
    )
    sub.add_argument(
        "--lexicon", type=Path, help="dictionary in CMU format to hold words against (default: a prepared corpus's own)"
    )
    sub.add_argument(
        "--alignment",
        type=Path,
        metavar="DIR",
        help="the folder of `roundelay align`: adds its comparison of every transcript with those of others",
    )
    sub.add_argument("--workers", type=count, help="processes (default: as many as are worth starting)")
    sub.add_argument("--format", choices=["text", "json"], default="text", help="what to print (default: text)")


def _inspect(options: argparse.Namespace) -> int:
    from roundelay_speech.api.corpora import inspect
    from roundelay_speech.corpus.inspection.inspect import InspectOptions

    splits = dict(map(split_and_folder, options.split))
    how = InspectOptions(splits, options.root, options.lexicon, options.alignment, options.workers)
    found = inspect(options.corpus, how, progress=Bar(quiet=True))
    if options.format == "json":
        write(json.dumps(found.to_json(), indent=2, ensure_ascii=False) + "\n")
    else:
        _show(found)
    return 0 if found.usable else 2


def _show(found: "Inspection") -> None:
    rows = [
        (name, f"{n.utterances}", f"{n.hours:.2f}", f"{n.speakers}", _people(n.women), _people(n.men), f"{n.words}")
        for name, n in found.splits.items()
    ]
    print_table(["split", "utterances", "hours", "speakers", "women", "men", "words"], rows)
    for one in found.findings:
        console.print(f"\n{one.severity}: {one.what}.\n  -> {one.proposal}", markup=False)
    console.print("")
    for sentence in found.unseen:
        console.print(f"Not looked at: {sentence}", markup=False)
    grave = sum(one.severity != "note" for one in found.findings)
    if found.sound:
        console.print(f"{found.corpus}: nothing to mend.", markup=False)
    else:
        what = "1 thing" if grave == 1 else f"{grave} things"
        stops = "" if found.usable else " Errors stop `roundelay prepare`, or what follows it."
        console.print(f"{found.corpus}: {what} to look at.{stops}", markup=False)


def _people(number: int | None) -> str:
    return "?" if number is None else f"{number}"
