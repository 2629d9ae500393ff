"""Recognition: decode, score."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from roundelay.commands.arguments import picked
from roundelay.commands.base import Command, add_described
from roundelay.core.errors import UserError
from roundelay.stopping import ending, resumes_from
from roundelay.terminal import Bar, console

if TYPE_CHECKING:
    from roundelay_speech.recognition.recognise import Recognised

MOST_NAMED = 10  # words that cannot be recognised


_DECODE = """
decode: recognise the held-out splits with trained models, and score them
exp <path> <is-run> + | run directories
--set decode.KEY=VALUE ++ | recognise with other options than the run's recipe has (`roundelay list options` names them)
--with EXP[:WEIGHT] + ->others | decode the weighted mean of its log-likelihoods and those of the run, which has
    weight 1
--corpus,--data DIR <path> <is-there> | recognise this instead of the run's corpus, with the run's words and language
    model: a prepared corpus, a Kaldi data directory or a folder of recordings, with or without transcripts; needs
    --out, unless the run's own corpus is not found: then this one, prepared, stands for it
--split NAME ... | recognise this split; may be repeated (default: as the recipe says, of another corpus all but train)
--scores FILE <path> | decode these log-likelihoods instead of the model's (.scp, .ark, .npz, or a folder of .npy
    files), with the run's words and language model; needs --out
--out DIR <path> | where results go (default: into the run directory)
$ roundelay decode exp/demo/four
$ roundelay decode exp/demo/four --set decode.beam=13 decode.nbest=10 --out exp/demo/wider
$ roundelay decode exp/demo/four --set decode.order=1 decode.rescore=trigram.arpa.gz --out exp/demo/rescored
$ roundelay decode exp/demo/four --data talks --out exp/demo/talks
$ roundelay decode exp/demo/four --scores ctc.scp --set decode.graph=ctc --out exp/demo/ctc
"""
_SCORE = """
score: score decoded words again, or any trn, stm and ctm files
exp <path> * | run directories
--ref <path> | reference in trn format
--hyp <path> | hypotheses in trn format
--stm <path> | reference in segments with times, in stm format
--ctm <path> | recognised words with times, in ctm format
--glm <path> | mapping rules for both sides; implies --marks, and splits at hyphens
--keep-hyphens | with --glm: hyphenated words stay one word
--marks | read { a / b } as alternatives, @ as no word, (word) as optional, wor- as a fragment, word;x as word
--ignore-case | upper and lower case are the same
--sclite-costs | align with sclite's costs, not with fewest errors
--missing-as-empty | count utterances without hypothesis as all deleted
--interval | 95 %% bootstrap interval of the word error rate
--over {utterances,speakers} =utterances | units that the bootstrap of --interval and --compare draws
--compare RUN <path> | another system: a run directory, or hypotheses
--per-speaker | word errors of each speaker
--subsets | word errors of each part of the test set
--by gender|FILE = | word errors of women and men, or of the groups that a file gives utterances or speakers: lines of
    `NAME GROUP`, as in spk2gender and utt2lang
--table | the table that sclite prints
--confusions N <count> =0 | print the N most frequent errors of each kind
--errors | also print every error in its place
$ roundelay score exp/demo/four --interval --per-speaker
$ roundelay score exp/demo/four --by gender
$ roundelay score --ref ref.trn --hyp hyp.trn --ignore-case --table
$ roundelay score --stm ref.stm --ctm hyp.ctm --glm words.glm
"""


def add(command: Command) -> None:
    """Add the commands of this file to the command line."""
    add_described(command, _decode, _DECODE)
    add_described(command, _score, _SCORE)


def _decode(options: argparse.Namespace) -> None:
    def kept() -> str:
        from roundelay_speech.recognition.settings import kept_of

        for folder in (options.out,) if options.out else options.exp:
            if done := kept_of(folder / "decode"):
                return resumes_from(folder, f"everything so far ({done})")
        return "no setting and no split was finished yet. The same command begins anew."

    with ending(kept):
        _decode_into(options)


def _decode_into(options: argparse.Namespace) -> None:
    from roundelay_speech.recipes.known import check_overrides

    check_overrides(options.set)  # names a slip before torch is loaded
    from roundelay_speech.api.recognition import decode, decode_recipe, prepared_speech
    from roundelay_speech.trained import check_trained

    if len(options.exp) > 1 and (options.out or options.others):
        raise UserError("decode --with and --out are for one run directory; name further runs with --with.")
    others = [weighted(text) for text in options.others]
    changes = [*options.set, *([f"decode.splits=[{','.join(options.split)}]"] if options.split else [])]
    corpus = options.corpus
    if corpus is not None:
        corpus = prepared_speech(options.exp[0], corpus, options.out, Bar())
    # Everything is looked at before anything is decoded, which takes long.
    for exp in (*options.exp, *(exp for exp, _ in others)):
        decode_recipe(exp, changes, corpus)
        if options.scores is None:
            check_trained(exp)
    for exp in options.exp:
        done = decode(
            exp,
            changes,
            others=others,
            corpus=corpus,
            scores=options.scores,
            out=options.out,
            progress=Bar(),
        )
        for found in done:
            console.print(
                f"{options.out or exp} {found.split}: {_errors(found)}  acoustic scale {found.search.scale:g}, "
                f"word cost {found.search.word_cost or 0.0:g}, beam {found.search.beam:g}, at most "
                f"{found.search.max_active:,} paths, {found.real_time_factor:.4f} x real time on one core",
                markup=False,
            )
            if (units := found.unit_errors) is not None:
                console.print(
                    f"  units read off without lexicon and language model: {units.wer:.2f} % errors "
                    f"({units.total:,} of {units.ref:,})",
                    markup=False,
                )
            for name, part in found.subsets.items():
                console.print(f"  {name}: {part}", markup=False)
            if found.unknown_words:
                console.print(f"  {unknown_words(found.unknown_words, found.score.errors.ref)}", markup=False)
        for sentence in done[0].edges if done else ():
            console.print(f"  {sentence}", markup=False)


def unknown_words(unknown: Mapping[str, int], said: int) -> str:
    """Return a sentence on spoken words that cannot be recognised, the most frequent first; `said`: all words."""
    some = [f"{word}{f' ({times})' if times > 1 else ''}" for word, times in list(unknown.items())[:MOST_NAMED]]
    more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
    return (
        f"{sum(unknown.values()):,} of {said:,} words said are not among the words that can be recognised: "
        f"{', '.join(some)}{more}"
    )


def _errors(found: "Recognised") -> str:
    """Return words on the word errors of a split; "" if its words are not known."""
    return str(found.summary) if found.scored else "words are in hyp.trn; there are no transcripts to score them by."


def weighted(text: str) -> tuple[Path, float]:
    """Parse `EXP` or `EXP:WEIGHT`; return folder and weight, 1 by default."""
    exp, colon, weight = text.rpartition(":")
    if Path(text).exists() or not colon:
        return Path(text), 1.0
    try:
        return Path(exp), float(weight)
    except ValueError:
        raise UserError(f"--with {text!r}: write EXP or EXP:WEIGHT, for example exp/blstm:0.5.") from None


def _score(options: argparse.Namespace) -> None:
    from roundelay_speech.scoring.normalise import Rules
    from roundelay_speech.scoring.output import Asked, OutputOptions, answers

    asked = Asked(options.exp, options.ref, options.hyp, options.stm, options.ctm, options.compare)
    rules = Rules(
        marked=options.marks,
        missing="empty" if options.missing_as_empty else "error",
        **picked(options, "glm", "keep_hyphens", "ignore_case", "sclite_costs"),
    )
    wanted = OutputOptions(
        unit=options.over,
        **picked(options, "interval", "per_speaker", "subsets", "by", "table", "confusions", "errors"),
    )
    for text in answers(asked, rules, wanted):
        console.print(text, markup=False)
