"""The demo: one learner alone, two, and two of which one is slowed, with and without waiting; then a sentence."""

import argparse
from pathlib import Path

from roundelay.commands.base import Command, add_described
from roundelay.core.extras import need
from roundelay.terminal import console

SENTENCE = "wav/demo-uma/demo-uma-000.wav"  # GO TO GATE G, by a speaker who is not in train
EQUAL = ["training.threads=1", "training.minibatch_per_learner=256", "training.rate=as-is", "schedule.rule=anneal"]
EQUAL += ["schedule.factor=0.5"]
"""Every learner has a core and a minibatch of its own: cut between two, the recipe's would leave both waiting. Learning
rates are for as many learners as there are."""
OF_ONE_LEARNER = ["--learners", "1", "schedule.learning_rate=0.02", "schedule.anneal_from=2", "schedule.max_epochs=4"]
TWO = ["--learners", "2", "schedule.learning_rate=0.04", "schedule.anneal_from=3", "schedule.max_epochs=5"]
"""Options of one learner and of two, each with its best learning rate (docs/log.md). An epoch more before the rate
falls brings two to the loss of one also where chance is against them; seconds are counted to that loss."""
SLOWED = ["--straggler", "1:3x"]
RUNS = {
    "alone": ["sgd", *OF_ONE_LEARNER],
    "two": ["adpsgd:random-ring", *TWO],
    "ssgd-slowed": ["ssgd", *TWO, *SLOWED],
    "adpsgd-slowed": ["adpsgd:random-ring", *TWO, *SLOWED],
}
"""Strategy and options of each training, by name of its folder."""


_DEMO = """
demo: synthesise a small corpus and train on it: one learner alone, two, and two with one slow, waiting or not
--folder <path> =demo | where everything goes
$ roundelay demo --folder demo
"""


def add(command: Command) -> None:
    """Add the command of this file to the command line."""
    add_described(command, _demo, _DEMO)


def _demo(options: argparse.Namespace) -> int:
    from roundelay.cli import main

    need("demo", "demo")
    for step in demo_steps(options.folder):
        console.print(f"\n$ roundelay {' '.join(step)}")
        if code := main([*step, *["--quiet"] * options.quiet, *["--verbose"] * options.verbose]):
            return code
    return 0


def demo_steps(folder: Path) -> list[list[str]]:
    """Return the command lines of the demo, in order; all write into `folder`. A model already packed is kept."""
    paths = [f"corpus={folder / 'data'}", f"alignment={folder / 'alignment'}"]
    folders = [str(folder / name) for name in RUNS]
    return [
        ["prepare", "demo", "--data", str(folder / "data")],
        ["align", "demo", *paths],
        *(
            ["train", "demo", *paths, "--exp", str(folder / name), "--strategy", *how, *EQUAL]
            for name, how in RUNS.items()
        ),
        ["decode", *folders],
        ["report", *folders, "--audio", "--out", str(folder / "report.html")],
        *([] if (folder / "model").exists() else [["pack", folders[-1], "--out", str(folder / "model")]]),
        ["transcribe", str(folder / "model"), str(folder / "data" / SENTENCE)],
    ]
