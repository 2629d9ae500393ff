"""Adaptation to speakers: adapt."""

import argparse
from pathlib import Path

from roundelay.commands.base import Command, add_described
from roundelay.terminal import Bar, console, print_table

_ADAPT = """
adapt: estimate transforms and vectors of speakers, as features for networks
recipe | a YAML file, or the name of a packaged recipe
overrides * | section.key=value, for example adapt.passes=1
--corpus DIR <path> | adapt this prepared corpus, of other speakers, by the models of the recipe's own; needs --out
--out DIR <path> | with --corpus: the folder of its transforms and vectors
$ roundelay adapt an4
$ roundelay adapt an4 adapt.passes=1 decode.order=1
$ roundelay adapt an4 --corpus data/mine --out exp/mine/adaptation
"""


def add(command: Command) -> None:
    """Add the command of this file to the command line."""
    add_described(command, _adapt, _ADAPT)


def _adapt(options: argparse.Namespace) -> None:
    from roundelay_speech.recipes.known import check_recipe

    check_recipe(options.recipe, options.overrides)  # names a slip before torch is loaded
    from roundelay_speech.adapt.folder import FEATURES_FILE
    from roundelay_speech.data.problems import counted, listing
    from roundelay_speech.recipes.recipe import load_recipe
    from roundelay_speech.recognition.adaptation import adapt

    recipe = load_recipe(options.recipe, options.overrides)
    found = adapt(recipe, Bar(), of=options.corpus, out=options.out)
    names = ["not adapted", *(f"adapted in pass {number}" for number in range(2, recipe.adapt.passes + 2))]
    rows = [
        (split, name, text) for split, some in found.summaries.items() for name, text in zip(names, some, strict=True)
    ]
    print_table(["split", "mixtures", "word errors"], rows)
    if found.identities:
        console.print(
            f"{counted(len(found.identities), 'transform')} of {found.speakers} are the identity, for want of speech "
            f"(adapt.min_frames):\n{listing(found.identities)}"
        )
    again = " (there already, from the same corpus and configuration)" if found.again else ""
    data = recipe.corpus if options.corpus is None else options.corpus
    following = command_of_features(data, found.folder / FEATURES_FILE)
    console.print(f"adaptation is ready in {found.folder}{again}\nnext: {following}")


def command_of_features(data: Path, features: Path) -> str:
    """Return the command that gives a prepared corpus the features of a file. It names the corpus's copies at other
    speeds, since others would be removed."""
    from roundelay_speech.prepared import load_corpus

    speeds = sorted({u.speed for u in load_corpus(data).utterances} - {1.0})
    copies = f" --speed {' '.join(f'{speed:g}' for speed in speeds)}" if speeds else ""
    return f"roundelay features {data} --features {features}{copies}"
