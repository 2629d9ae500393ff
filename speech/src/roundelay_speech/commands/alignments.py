"""Alignments: align, realign, import-alignment, export-alignment."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from roundelay.commands.arguments import add_overrides, count, positive, share, whole
from roundelay.commands.base import Command
from roundelay.core.errors import UserError
from roundelay.core.folders import check_run
from roundelay.stopping import ending, resumes_from
from roundelay.terminal import Bar, console
from roundelay_speech.commands.examples import EXAMPLES

if TYPE_CHECKING:
    pass


def add(command: Command) -> None:
    """Add their options."""
    sub = command(
        "align", _align, "train hidden Markov models from a flat start and label every frame", EXAMPLES["align"]
    )
    sub.add_argument("recipe", help="a YAML file, or the name of a packaged recipe")
    add_overrides(sub, "align.tied_states=500")
    _add_realign(
        command(
            "realign", _realign, "align again with trained networks, to train the next ones on", EXAMPLES["realign"]
        )
    )
    _add_import(
        command(
            "import-alignment",
            _import_alignment,
            "take the alignment that Kaldi or MFA made",
            EXAMPLES["import-alignment"],
        )
    )
    sub = command(
        "export-alignment",
        _export_alignment,
        "write an alignment as Kaldi or Praat read it",
        EXAMPLES["export-alignment"],
    )
    sub.add_argument("kind", choices=["kaldi", "textgrid"], help="the format to write")
    sub.add_argument("alignment", type=Path, help="the folder that `roundelay align` wrote")
    sub.add_argument("--corpus", type=Path, required=True, help="the prepared corpus")
    sub.add_argument("--out", type=Path, required=True, help="the folder to write to")


def _align(options: argparse.Namespace) -> None:
    from roundelay_speech.recipes.known import check_recipe

    check_recipe(options.recipe, options.overrides)  # names a slip before torch is loaded
    folder: list[Path] = []

    def kept() -> str:
        from roundelay_speech.hmm.unfinished import kept_in

        if folder and (done := kept_in(folder[0])):
            return resumes_from(folder[0], f"everything up to {done}")
        return "no pass was finished yet. The same command begins anew."

    with ending(kept):
        _align_into(options, folder)


def _align_into(options: argparse.Namespace, folder: list[Path]) -> None:
    """Align; the alignment's folder is put into the list as soon as it is known."""
    from roundelay_speech.api.corpora import align
    from roundelay_speech.hmm.boundaries import synthesised_boundaries
    from roundelay_speech.hmm.fit import warnings
    from roundelay_speech.prepared import load_corpus
    from roundelay_speech.recipes.recipe import load_recipe

    recipe = load_recipe(options.recipe, options.overrides)
    folder.append(recipe.aligned)
    corpus = load_corpus(recipe.corpus)
    summary = align(recipe, progress=Bar())
    console.print(str(summary), markup=False)
    for line in warnings(summary.fit, recipe.aligned):
        console.print(f"warning: {line}", markup=False)
    console.print(f"alignment is ready in {recipe.aligned}", markup=False)
    for line in synthesised_boundaries(corpus, recipe.aligned):
        console.print(line, markup=False)


def _realign(options: argparse.Namespace) -> None:
    from roundelay_speech.recognition.realignment import realign_with

    summary = realign_with(options.exp, options.out, Bar(), scale=options.scale, workers=options.workers)
    console.print(f"{summary}\nalignment is ready in {options.out}", markup=False)


def _import_alignment(options: argparse.Namespace) -> None:
    from roundelay_speech.hmm.formats.from_kaldi import KaldiAlignment, import_kaldi
    from roundelay_speech.hmm.formats.from_textgrid import import_textgrids
    from roundelay_speech.hmm.formats.interchange import ImportConfig
    from roundelay_speech.prepared import load_corpus

    corpus = load_corpus(options.corpus)
    config = ImportConfig(
        tying=("kaldi" if options.kind == "kaldi" else "monophones") if options.tying is None else options.tying,
        tied_states=options.tied_states,
        shares=tuple(options.shares),
        tolerance=options.tolerance,
        failure_share=options.failure_share,
    )
    if options.kind == "kaldi":
        source = KaldiAlignment(
            tuple(options.ali), tuple(options.pdfs), model=options.model, tree=options.tree, phones=options.phones
        )
        summary = import_kaldi(corpus, corpus.features(), source, config, options.out, Bar())
    else:
        if options.grids is None:
            raise UserError("import-alignment textgrid needs --grids, the folder of the TextGrids.")
        summary = import_textgrids(corpus, corpus.features(), options.grids, config, options.out, Bar())
    console.print(f"{summary}\nalignment is ready in {options.out}", markup=False)


def _export_alignment(options: argparse.Namespace) -> None:
    from roundelay_speech.hmm.alignment import Alignment
    from roundelay_speech.hmm.formats.export import export_kaldi, export_textgrids
    from roundelay_speech.prepared import load_corpus

    corpus, export = load_corpus(options.corpus), export_kaldi if options.kind == "kaldi" else export_textgrids
    number = export(corpus, corpus.features(), Alignment.load(options.alignment), options.out, Bar())
    console.print(f"{number} utterances written to {options.out}", markup=False)


def _add_realign(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "exp",
        nargs="+",
        type=Path,
        check=check_run,
        help="run directories; the log-likelihoods of several are averaged",
    )
    sub.add_argument("--out", type=Path, required=True, help="the folder of the new alignment")
    sub.add_argument("--scale", type=positive, default=0.5, help="factor on the log-likelihoods (default: 0.5)")
    sub.add_argument("--workers", type=whole, default=0, help="processes; 0 for one a core (default: 0)")


def _add_import(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("kind", choices=["kaldi", "textgrid"], help="the format to read")
    sub.add_argument("--corpus", type=Path, required=True, help="the prepared corpus")
    sub.add_argument("--out", type=Path, required=True, help="the alignment's folder")
    sub.add_argument("--ali", type=Path, action="append", default=[], help="kaldi: a folder with ali.*.gz; repeatable")
    sub.add_argument("--pdfs", type=Path, action="append", default=[], help="kaldi: instead, what ali-to-pdf printed")
    sub.add_argument("--model", type=Path, help="kaldi: final.mdl (default: in the first --ali)")
    sub.add_argument("--tree", type=Path, help="kaldi: the tree (default: in the first --ali)")
    sub.add_argument("--phones", type=Path, help="kaldi: phones.txt (default: in the first --ali)")
    sub.add_argument("--grids", type=Path, help="textgrid: the folder of ID.TextGrid files")
    sub.add_argument(
        "--tying",
        metavar="HOW|DIR",
        help="how states are tied: kaldi, monophones, grow (a new tree), or as in the folder of another alignment "
        "(default: kaldi; monophones for TextGrids)",
    )
    sub.add_argument(
        "--tied-states", type=count, default=500, help="with --tying grow: tied states, at most (default: 500)"
    )
    sub.add_argument(
        "--shares",
        type=positive,
        nargs=3,
        default=[1.0, 1.0, 1.0],
        help="textgrid: parts of a phone's time that its three states get (default: 1 1 1)",
    )
    sub.add_argument(
        "--tolerance", type=whole, default=0, help="frames that alignment and features may differ by (default: 0)"
    )
    sub.add_argument(
        "--failure-share", type=share, default=0.1, help="share of utterances that may be left out (default: 0.1)"
    )
