"""Corpora: prepare, features, export."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from roundelay.commands.arguments import picked
from roundelay.commands.base import Command, add_described
from roundelay.core.errors import UserError
from roundelay.core.extras import need
from roundelay.core.folders import check_there
from roundelay.core.plugins import find_plugins, load_plugin
from roundelay.stopping import ending, resumes_from
from roundelay.terminal import Bar, console, print_table
from roundelay_speech.data.manifest import DISTORTIONS
from roundelay_speech.exporting import EXPORT_FORMATS

if TYPE_CHECKING:
    from roundelay_speech.corpus.options import Copies
    from roundelay_speech.features.parts import FeatureConfig
    from roundelay_speech.prepared import Corpus

OWN = ("kaldi", "lhotse")
"""Names of formats for users' own recordings."""
FEW_HOURS = 2.0
"""Hours of training speech below which copies at other speeds help, as measured with half an hour and with 1.2."""


_OF_FEATURES = """
--features YAML <path> | a file with the parts of features (docs/features.md)
--bins <count> | bins of the filterbank (default: 40)
--speed S <positive> + | add copies of the training utterances played at these speeds, for example 0.9 1.1
--warp W <positive> + | add copies with the frequencies of the filterbanks warped, as a vocal tract of another length
    would; above 1 a shorter one, for example 1.1
--warp-of GROUP =all | whose utterances --warp copies: all, women, men, few (women or men, who say less), or a file
    that lists speakers
--distort KIND {distortions} + | add a copy of each training utterance as it would sound with noise, by
    telephone, in a room, or at another level; of several kinds (@distortion_names) each takes its turn
--workers <count> | processes (default: as many as are worth starting)
"""
_PREPARE = """
prepare: check a corpus, read its lexicon, compute its features
corpus {corpora} | a corpus by name, or the
    format of your own (kaldi, lhotse); `roundelay list corpora` describes them
--source <path> | the folder that holds the corpus (with --download: downloads/CORPUS)
--download | download free, missing files into the source first
--also DIR <path> ... | switchboard: another folder that holds parts of it; may be repeated
--data <path> | where to put the prepared corpus (default: data/CORPUS)
--lexicon <path> | pronunciation dictionary in CMU format
--split NAME=FOLDER ... | source of a split; kaldi: a data directory inside the source; lhotse: a part of the
    manifests; librispeech: a part, and a split may be named several times
--unlabelled | kaldi, recordings: speech to be recognised alone; transcripts, speakers, a dictionary and a split named
    train may be missing
--vocabulary TEXT <path> | recognise the words of this text or list and those of the training transcripts; other words
    of held-out speech count as errors
--vocabulary-size N <whole> =0 | only the N most frequent words of the vocabulary; 0 for all
--on-bad-audio {error,skip} =error | audio that is missing, cut short or of a wrong rate: stop, or leave the utterance
    out
--on-missing-words {error,skip,map,guess} =error | words that are not in the lexicon: stop, leave their utterances out,
    replace them by --map-to, or guess pronunciations from their spelling
--lexicon-case {keep,upper,lower} | kaldi: write the dictionary's words in this case (default: that of the transcripts,
    if they have one)
--strip-stress | kaldi: read AH0 and AH1 as AH
--map-to WORD | with --on-missing-words map: the word that stands for them
--max-bad-share SHARE <share> =0.1 | share of a split's utterances that may be left out; more stop the command
--allow-pipes | kaldi, lhotse: run the shell commands that wav.scp or recordings hold; only for files you trust
--pipe-seconds <positive> =300 | seconds that such a command may take
--use-feats | kaldi: take the features of feats.scp although there is audio
--frame-shift-ms <positive> | kaldi: frame shift of feats.scp (default: the file frame_shift, or 10)
--rate HZ <count> | resample all audio to this sampling rate, as it is read
--channel N <whole> | kaldi: of recordings with several, counted from 0, where `segments` names none (default: 0);
    lhotse: of the channels that a supervision names
--clean-transcripts | write words as the dictionary does: in its case, without punctuation at their ends, and without
    marks of noises such as <cough>
--on-overlap {warn,error} =warn | a speaker, or the same audio, in train and in another split
--shards N <count> | cut the features of train into N parts, folders that a host can have alone (docs/hosts.md)
--seed <whole> =0 | demo: seed of the synthesised corpus
@of_features
$ roundelay prepare demo
$ roundelay prepare an4 --download
$ roundelay prepare an4 --download --shards 4
$ roundelay prepare kaldi --source s5/data --lexicon words.dict --split train=tr --split dev=cv
$ roundelay prepare recordings --unlabelled --source talks --data data/talks
"""
_FEATURES = """
features: give a prepared corpus other features, or copies at other speeds or warps
data <path> <is-there> | the prepared corpus
--on-bad-audio {error,skip} =error | utterances whose audio, or given features, cannot be read: stop, or leave them out
@of_features
$ roundelay features data/an4 --bins 80
$ roundelay features data/an4 --speed 0.9 1.1
"""
_EXPORT = """
export: write a corpus as Kaldi or Lhotse read it, or an acoustic model for Kaldi, as ONNX or torch.export
format {formats} | the format to write (`roundelay list exports`): kaldi and lhotse of a corpus; onnx, torch and sherpa
    (sherpa-onnx) of a model, kaldi of a packed one
data CORPUS|EXP|MODEL <path> | the folder that `roundelay prepare` wrote; or a run directory, or a packed model
--out DIR <path> ! | the folder to write to
--split NAME ... | write only this split; may be repeated (default: all)
--features | kaldi: write feats.scp and cmvn.scp with their archives too
$ roundelay export kaldi data/an4 --out kaldi/an4
$ roundelay export onnx exp/an4/dnn --out exported/dnn
$ roundelay export kaldi models/an4 --out kaldi/an4-model
$ roundelay export sherpa exp/an4/ctc --out exported/ctc
"""


def add(command: Command) -> None:
    """Add the commands of this file to the command line."""
    from roundelay_speech.recipes.known import corpora

    of_features = _OF_FEATURES.replace("@distortion_names", ", ".join(DISTORTIONS)).strip()
    kinds = {"of_features": of_features, "distortions": DISTORTIONS}
    add_described(command, _prepare, _PREPARE, corpora=list(corpora()), **kinds)
    add_described(command, _features, _FEATURES, **kinds)
    add_described(command, _export, _EXPORT, formats=list(EXPORT_FORMATS))


OF_PREPARE = (
    *("on_missing_words", "map_to", "max_bad_share", "on_overlap", "strip_stress", "lexicon_case", "clean_transcripts"),
    *("allow_pipes", "pipe_seconds", "frame_shift_ms", "rate", "channel", "unlabelled", "shards", "workers"),
)
"""Options of the command that are fields of `PrepareOptions` by the same name."""


def _prepare(options: argparse.Namespace) -> None:
    if options.source is not None and not options.download:
        check_there(options.source)
    folder: list[Path] = []

    def kept() -> str:
        from roundelay_speech.features.partial import finished_in

        if not folder or not (done := finished_in(folder[0])):
            return "no features were computed yet. The same command begins anew."
        return resumes_from(folder[0], f"what is finished, with the features of {done:,} utterances,")

    with ending(kept):
        _prepare_into(options, folder)


def _prepare_into(options: argparse.Namespace, folder: list[Path]) -> None:
    """Prepare a corpus; append its folder to the list as soon as it is known."""
    from roundelay_speech.api.corpora import prepare, usual_data
    from roundelay_speech.corpus.options import PrepareOptions

    data = usual_data(options.corpus) if options.data is None else options.data
    folder.append(data)
    how = PrepareOptions(
        on_bad=options.on_bad_audio,
        features=_feature_options(options),
        copies=_copies(options),
        given_features=options.use_feats,
        **picked(options, *OF_PREPARE),
    )
    splits: dict[str, list[str]] = {}
    for split, part in map(split_and_folder, options.split):
        splits.setdefault(split, []).append(part)
    sources = picked(options, "source", "also", "download", "lexicon", "vocabulary", "vocabulary_size", "seed")
    prepared = prepare(options.corpus, data, options=how, progress=Bar(), splits=splits, **sources)
    _show_prepared(prepared, data)
    _advise_copies(prepared, options)


def _advise_copies(corpus: "Corpus", options: argparse.Namespace) -> None:
    """Print which copies a small corpus of the user's own would gain by, if it has none."""
    hours = sum(u.duration for u in corpus.splits.get("train", ())) / 3600
    if options.corpus in OWN and corpus.audio and not corpus.unlabelled and hours < FEW_HOURS and not options.speed:
        console.print(
            f"{hours:.2f} hours of training speech: with `--speed 0.9 1.1` a model of it makes fewer errors "
            "(docs/features.md#speed)."
        )


def _show_prepared(corpus: "Corpus", data: Path) -> None:
    """Print the splits as a table, the utterances left out, and remarks; the corpus is in the folder `data`."""
    from roundelay_speech.corpus.words import CHANGES_FILE, read_changes, table
    from roundelay_speech.data.problems import listing
    from roundelay_speech.prepared import GUESSED_LEXICON, HELD_OUT_LEXICON

    rows = [
        (name, f"{len(some)}", f"{sum(u.duration for u in some) / 3600:.2f}", f"{len({u.speaker for u in some})}")
        for name, some in corpus.splits.items()
    ]
    print_table(["split", "utterances", "hours", "speakers"], rows)
    for split, gone in corpus.left_out.items():
        console.print(
            f"{split}: left out {len(gone)} of {len(gone) + len(corpus.splits[split])} utterances:\n"
            f"{listing([one.reason for one in gone])}"
        )
    if corpus.guessed:
        guessed = "1 pronunciation was" if corpus.guessed == 1 else f"{corpus.guessed:,} pronunciations were"
        console.print(f"{guessed} guessed from spelling; see {data / GUESSED_LEXICON}")
    if corpus.held_out_words:
        words = f"{len(corpus.held_out_words):,} words of held-out transcripts alone"
        console.print(f"{words} are there to align them, not to recognise them; see {data / HELD_OUT_LEXICON}")
    if corpus.cleaned and (changes := read_changes(data)):
        print_table(["changed in transcripts", "most frequent", "times"], table(changes), left=2)
        console.print(f"All changes are in {data / CHANGES_FILE}")
    for remark in corpus.remarks:
        console.print(f"warning: {remark}.")
    console.print(f"{corpus.name} is ready in {data}")


def _copies(options: argparse.Namespace) -> "Copies":
    from roundelay_speech.corpus.options import Copies
    from roundelay_speech.features.warps import Warps, group_of

    warps = Warps(tuple(options.warp), group_of(options.warp_of))
    return Copies(tuple(options.speed), warps, tuple(options.distort))


def _features(options: argparse.Namespace) -> None:
    from roundelay_speech.corpus.build import change_features

    corpus = change_features(
        options.data,
        _feature_options(options),
        Bar(),
        copies=_copies(options),
        workers=options.workers,
        on_bad=options.on_bad_audio,
    )
    store = corpus.features()
    parts = ", ".join(f"{p.name} {p.width}{f' with {p.deltas} deltas' if p.deltas else ''}" for p in store.parts)
    console.print(f"{len(store.array):,} frames of {parts} are ready in {store.folder}")


def _export(options: argparse.Namespace) -> None:
    if options.format in ("onnx", "torch", "sherpa"):
        return _export_model(options)
    if options.format == "kaldi" and _is_model(options.data):
        return _export_for_kaldi(options)
    if plugin := find_plugins("exports").get(options.format):
        _refuse_corpus_options(options)
        console.print(load_plugin(plugin)(options.data, options.out))
        return None
    from roundelay_speech.corpus.formats.export import export_kaldi, export_lhotse
    from roundelay_speech.prepared import load_corpus

    corpus = load_corpus(options.data)
    if options.format == "kaldi":
        done = export_kaldi(corpus, options.out, Bar(), features=options.features, splits=options.split)
    else:
        if options.features:
            raise UserError("export lhotse writes no features; only `roundelay export kaldi` takes --features.")
        done = export_lhotse(corpus, options.out, splits=options.split)
    for one in done:
        frames = "" if one.frames is None else f", {one.frames} frames of features"
        console.print(f"{one.split}: {one.utterances} utterances{frames} -> {one.folder}")


def _is_model(folder: Path) -> bool:
    """Return True for packed models and runs, which have no features or utterances of their own."""
    from roundelay_speech.packed.folder import is_packed
    from roundelay_speech.trained import MODEL_META

    return is_packed(folder) or (folder / MODEL_META).is_file()


def _refuse_corpus_options(options: argparse.Namespace) -> None:
    if options.split or options.features:
        raise UserError(f"export {options.format} takes a model, which has no --split and no --features of a corpus.")


def _export_for_kaldi(options: argparse.Namespace) -> None:
    _refuse_corpus_options(options)
    from roundelay_speech.exporting.kaldi.writing import export_kaldi

    done = export_kaldi(options.data, options.out)
    live = ", for Kaldi's programs, live decoders and vosk" if done.live else ", for Kaldi's programs"
    console.print(f"{done.pdfs} pdfs, a graph of {done.states:,} states{live} -> {done.folder}")
    for sentence in done.left_out:
        console.print(sentence)


def _export_model(options: argparse.Namespace) -> None:
    _refuse_corpus_options(options)
    need("export", f"export {options.format}")
    check_there(options.data)
    from roundelay_speech.exporting.writing import export

    done = export(options.data, options.out, options.format)
    console.print(f"{done.file}: agrees with the network to {done.difference:.1e} of its largest log-likelihood")


def split_and_folder(text: str) -> tuple[str, str]:
    """Parse `NAME=FOLDER`, the value of `--split`; return name and folder.

    Raises:
        UserError: `text` is written otherwise.
    """
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise UserError(f"--split {text!r}: write NAME=FOLDER, for example train=data/train.")
    return name, folder


def _feature_options(options: argparse.Namespace) -> "FeatureConfig":
    """Return the features that `--features` and `--bins` ask for."""
    from roundelay.core.configure import build, read_yaml
    from roundelay_speech.features.fbank import FbankConfig
    from roundelay_speech.features.parts import FeatureConfig, only_fbank

    if options.features is not None and options.bins is not None:
        raise UserError("Give --features or --bins, not both: a file of features names the bins of its filterbanks.")
    if options.features is not None:
        given = read_yaml(options.features)  # a fault of the file names it
        try:
            return build(FeatureConfig, given)
        except UserError as error:
            raise UserError(f"{options.features}: {error}") from None
    return only_fbank(FbankConfig(num_bins=options.bins)) if options.bins is not None else FeatureConfig()
