"""Alignments: align, realign, import-alignment, export-alignment."""

import argparse
from pathlib import Path

from roundelay.commands.base import Command, add_described
from roundelay.core.errors import UserError
from roundelay.stopping import ending, resumes_from
from roundelay.terminal import Bar, console

_ALIGN = """
align: train hidden Markov models from a flat start and label every frame
recipe | a YAML file, or the name of a packaged recipe
--set KEY=VALUE ++ ->overrides | the same as KEY=VALUE without --set
overrides * | section.key=value, for example align.tied_states=500
$ roundelay align an4
$ roundelay align kaldi corpus=data/mine align.tied_states=1500
"""
_REALIGN = """
realign: align again with trained networks, to train the next ones on
exp <path> <is-run> + | run directories; the log-likelihoods of several are averaged
--out <path> ! | the folder of the new alignment
--scale <positive> =0.5 | factor on the log-likelihoods
--workers <whole> =0 | processes; 0 for one a core
$ roundelay realign exp/an4/dnn --out exp/an4/realigned
"""
_IMPORT = """
import-alignment: take the alignment that Kaldi or MFA made
kind {kaldi,textgrid} | the format to read
--corpus <path> ! | the prepared corpus
--out <path> ! | the alignment's folder
--ali <path> ... | kaldi: a folder with ali.*.gz; repeatable
--pdfs <path> ... | kaldi: instead, output of ali-to-pdf
--model <path> | kaldi: final.mdl (default: in the first --ali)
--tree <path> | kaldi: the tree (default: in the first --ali)
--phones <path> | kaldi: phones.txt (default: in the first --ali)
--grids <path> | textgrid: the folder of ID.TextGrid files
--tying HOW|DIR | how states are tied: kaldi, monophones, grow (a new tree), or as in the folder of another alignment
    (default: kaldi; monophones for TextGrids)
--tied-states <count> =500 | with --tying grow: tied states, at most
--shares <positive> 3 =1,1,1 | textgrid: parts of a phone's time that its three states get (default: 1 1 1)
--tolerance <whole> =0 | frames that alignment and features may differ by
--failure-share <share> =0.1 | share of utterances that may be left out
$ roundelay import-alignment kaldi --ali exp/tri3_ali --corpus data/mine --out exp/mine/alignment
$ roundelay import-alignment textgrid --grids aligned --corpus data/mine --out exp/mine/alignment
"""
_EXPORT_ALIGNMENT = """
export-alignment: write an alignment as Kaldi or Praat read it
kind {kaldi,textgrid} | the format to write
alignment <path> | the folder that `roundelay align` wrote
--corpus <path> ! | the prepared corpus
--out <path> ! | the folder to write to
$ roundelay export-alignment textgrid exp/an4/alignment --corpus data/an4 --out grids
"""


def add(command: Command) -> None:
    """Add the commands of this file to the command line."""
    add_described(command, _align, _ALIGN)
    add_described(command, _realign, _REALIGN)
    add_described(command, _import_alignment, _IMPORT)
    add_described(command, _export_alignment, _EXPORT_ALIGNMENT)


def _align(options: argparse.Namespace) -> None:
    from roundelay_speech.recipes.known import check_recipe

    check_recipe(options.recipe, options.overrides)  # names a slip before torch is loaded
    folder: list[Path] = []

    def kept() -> str:
        from roundelay_speech.hmm.flat_start import kept_in

        if folder and (done := kept_in(folder[0])):
            return resumes_from(folder[0], f"everything up to {done}")
        return "no pass was finished yet. The same command begins anew."

    with ending(kept):
        _align_into(options, folder)


def _align_into(options: argparse.Namespace, folder: list[Path]) -> None:
    """Align a corpus; append the alignment's folder to the list as soon as it is known."""
    from roundelay_speech.api.corpora import align
    from roundelay_speech.hmm.boundaries import synthesised_boundaries
    from roundelay_speech.hmm.fit import warnings
    from roundelay_speech.prepared import load_corpus
    from roundelay_speech.recipes.recipe import load_recipe

    recipe = load_recipe(options.recipe, options.overrides)
    folder.append(recipe.aligned)
    corpus = load_corpus(recipe.corpus)
    summary = align(recipe, progress=Bar())
    console.print(str(summary))
    for line in warnings(summary.fit, recipe.aligned):
        console.print(f"warning: {line}")
    console.print(f"alignment is ready in {recipe.aligned}")
    for line in synthesised_boundaries(corpus, recipe.aligned):
        console.print(line)


def _realign(options: argparse.Namespace) -> None:
    from roundelay_speech.recognition.realignment import realign_with

    summary = realign_with(options.exp, options.out, Bar(), scale=options.scale, workers=options.workers)
    console.print(f"{summary}\nalignment is ready in {options.out}")


def _import_alignment(options: argparse.Namespace) -> None:
    from roundelay_speech.hmm.formats.from_kaldi import KaldiAlignment, import_kaldi
    from roundelay_speech.hmm.formats.interchange import ImportConfig
    from roundelay_speech.hmm.formats.textgrid import import_textgrids
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
    console.print(f"{summary}\nalignment is ready in {options.out}")


def _export_alignment(options: argparse.Namespace) -> None:
    from roundelay_speech.hmm.alignment import Alignment
    from roundelay_speech.hmm.formats.export import export_kaldi, export_textgrids
    from roundelay_speech.prepared import load_corpus

    corpus, export = load_corpus(options.corpus), export_kaldi if options.kind == "kaldi" else export_textgrids
    number = export(corpus, corpus.features(), Alignment.load(options.alignment), options.out, Bar())
    console.print(f"{number} utterances written to {options.out}")
