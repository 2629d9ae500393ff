"""Inspection of a corpus: its oddities, and their remedies."""

import argparse
import json
from typing import TYPE_CHECKING

from roundelay.commands.base import Command, add_described
from roundelay.terminal import Bar, console, print_table, write
from roundelay_speech.commands.corpora import split_and_folder

if TYPE_CHECKING:
    from roundelay_speech.corpus.inspection.findings import Inspection


_INSPECT = """
inspect: find oddities of a corpus, and their remedies, before hours of training
corpus <path> <is-there> | a prepared corpus, a Kaldi data directory, or a folder that holds several
--split NAME=FOLDER ... | a data directory inside the corpus and the split it is; may be repeated (default: all that are
    there)
--root DIR <path> | folder that paths of wav.scp begin at (default: the corpus)
--lexicon <path> | dictionary in CMU format to hold words against (default: a prepared corpus's own)
--alignment DIR <path> | the folder of `roundelay align`: adds its comparison of every transcript with those of others
--workers <count> | processes (default: as many as are worth starting)
--format {text,json} =text | what to print
$ roundelay inspect data/mine
$ roundelay inspect s5/data --split train=tr --split dev=cv --lexicon words.dict
$ roundelay inspect data/mine --alignment exp/mine/alignment --format json
"""


def add(command: Command) -> None:
    """Add the command of this file to the command line."""
    add_described(command, _inspect, _INSPECT)


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
        console.print(f"\n{one.severity}: {one.what}.\n  -> {one.proposal}")
    console.print("")
    for sentence in found.unseen:
        console.print(f"Not looked at: {sentence}")
    grave = sum(one.severity != "note" for one in found.findings)
    if found.sound:
        console.print(f"{found.corpus}: nothing to mend.")
    else:
        what = "1 thing" if grave == 1 else f"{grave} things"
        stops = "" if found.usable else " Errors stop `roundelay prepare`, or what follows it."
        console.print(f"{found.corpus}: {what} to look at.{stops}")


def _people(number: int | None) -> str:
    return "?" if number is None else f"{number}"
