"""Other words for a packed model, without training: words added to its grammar, or another grammar.

A word that is added becomes a 1-gram as likely as the model's words are on average (the mean of log P(w)); all other
probabilities stay. They then sum to a little more than 1, which only a list of words as long as the model's would show.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roundelay.core.configure import build
from roundelay.core.errors import UserError
from roundelay.core.files import read_json, read_text
from roundelay.core.progress import Progress
from roundelay_speech.data.problems import listing
from roundelay_speech.decode.graphs.graph import GRAPH_FILE, GraphConfig
from roundelay_speech.decode.graphs.making import (
    LEXICON_FILE,
    LM_FILE,
    GraphJob,
    language_lexicon,
    language_model,
    write_graph,
)
from roundelay_speech.decode.lm.arpa_file import read_arpa
from roundelay_speech.decode.lm.vocabulary import VocabularyLexicon
from roundelay_speech.lexicon.g2p import load_g2p
from roundelay_speech.lexicon.lexicon import Lexicon, NearWords, Pronunciation, base_phone, read_lexicon
from roundelay_speech.ngrams.ngram import NEVER, RESERVED, UNKNOWN, Arpa
from roundelay_speech.ngrams.ngram import build as build_model
from roundelay_speech.packed.card import Card, Vocabulary, write_model
from roundelay_speech.packed.folder import CARD, DICTIONARY, G2P, read_packed
from roundelay_speech.packed.making import GRAPH_FILES, new_folder, refuse_existing
from roundelay_speech.packed.model import packed_columns
from roundelay_speech.recipes.known import apply_overrides
from roundelay_speech.recipes.recipe import Decoding
from roundelay_speech.recognition.graph import language_options
from roundelay_speech.trained import load_model as load_network

GRAMMAR = ("text", "arpa", "order", "method", "discount", "cutoffs", "prune", "join", "vocabulary", "lexicon", "guess")
"""Options of the section decode that may be set for another grammar."""
ALL_WORDS = 10**9


@dataclass(frozen=True)
class Rewording:
    """Options of `roundelay pack MODEL`."""

    out: Path  # the folder that is made
    # a file with a word a line, and its phones behind it where they are known; None: no words are added.
    words: Path | None = None
    overrides: Sequence[str] = ()  # `decode.KEY=VALUE` of another grammar; none: the model's own


def reword(source: Path, options: Rewording, progress: Progress) -> Card:
    """Make a packed model with other words; the network and the settings of the search stay.

    Raises:
        UserError: `source` is no packed model, or one that is rescored; the folder exists; a word without
            pronunciation.
    """
    refuse_existing(options.out)
    packed = read_packed(source)
    if packed.rescored:
        raise UserError(
            f"{source}: the model has a second pass with a large language model, which knows no other words."
        )
    config = _grammar(options.overrides)
    if not options.overrides and options.words is None:
        raise UserError(
            f"{source} is packed already. Give --words FILE, or --set decode.text=FILE for another grammar."
        )
    columns = packed_columns(source, packed, load_network(source / packed.networks[0].folder).units)
    silence = columns.phones[0]
    dictionary = read_lexicon(source / DICTIONARY, silence)
    with new_folder(options.out) as folder:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        for name in GRAPH_FILES:
            (folder / name).unlink()
        begun = os.times().elapsed
        progress.start("building the decoding graph")
        job = GraphJob(
            language_options(config, guess=config.guess or (folder / G2P).is_file()),
            GraphConfig(packed.search.silence_probability),
            (),
            dictionary,
            columns,
        )
        if options.overrides:
            found = language_lexicon(job, folder)
            model, left_out = language_model(job, found.lexicon)
        else:
            found, left_out = VocabularyLexicon(read_lexicon(source / LEXICON_FILE, silence)), ""
            model = read_arpa(source / LM_FILE)
        if options.words is not None:
            found, model = _with_words(folder, options.words, found, model, job)
        write_graph(folder, found, model, job, left_out, begun)
        progress.advance(0, str(read_json(folder / GRAPH_FILE)["left_out"]))
        progress.finish()
        card = _card(read_json(source / CARD), options.out.name, folder)
        write_model(folder, card, packed)
    return card


def _grammar(overrides: Sequence[str]) -> Decoding:
    """Return the section decode for another grammar, by default of all words of the text."""
    for assignment in overrides:
        key = assignment.partition("=")[0].strip()
        if key.removeprefix("decode.") not in GRAMMAR:
            raise UserError(
                f"pack --set {assignment}: of a packed model only its grammar can be set: {', '.join(GRAMMAR)}."
            )
    mapping: dict[str, Any] = {"decode": {}}
    apply_overrides(mapping, overrides)
    config = build(Decoding, mapping["decode"], "decode")
    if config.vocabulary == "transcripts":
        raise UserError("pack --set decode.vocabulary=transcripts: a packed model has none. Give a number of words.")
    if overrides and not config.text and config.arpa is None:
        raise UserError("pack --set: another grammar needs decode.text or decode.arpa.")
    return replace(config, vocabulary=ALL_WORDS) if config.text and config.vocabulary is None else config


def _with_words(
    folder: Path, path: Path, found: VocabularyLexicon, model: Arpa, job: GraphJob
) -> tuple[VocabularyLexicon, Arpa]:
    """Add the words in a file to lexicon and language model; return both."""
    known, phones = found.lexicon, set(map(base_phone, job.columns.phones))
    guesser = load_g2p(folder / G2P) if (folder / G2P).is_file() else None
    near, added, guessed, faults = NearWords(known), dict[str, tuple[Pronunciation, ...]](), [], []
    text = read_text(path, "a word a line is needed, and its phones behind it where they are known")
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields:
            continue
        word, said = near.in_case(fields[0]), tuple(fields[1:])
        if fields[0] in (*RESERVED, *UNKNOWN):
            faults.append(f"{path}:{number}: {fields[0]} is reserved for decoding graphs")
        elif strange := sorted(set(said) - phones):
            faults.append(f"{path}:{number}: {word} has phones that the model does not know: {', '.join(strange)}")
        elif (spelled := job.columns.spelled([word])) is not None:
            added |= spelled.pronunciations
            if word not in spelled:
                faults.append(f"{path}:{number}: {word} cannot be written in the units of the model")
        elif said:
            added[word] = (*added.get(word, known.pronunciations.get(word, ())), said)
        elif word in job.lexicon:
            added.setdefault(word, job.lexicon.pronunciations[word])
        elif guesser is not None and (guess := guesser.pronounce(word)):
            added[word] = (guess[0].phones,)
            guessed.append(word)
        else:
            faults.append(
                f"{path}:{number}: {word} has no pronunciation, and none can be guessed; write its phones behind it"
            )
    if faults or not added:
        raise UserError("\n".join(["Words that cannot be added:", listing(faults)]) if faults else f"{path}: no words.")
    lexicon = Lexicon({**known.pronunciations, **added}, known.silence)
    return VocabularyLexicon(lexicon, found.dropped, (*found.guessed, *guessed)), with_unigrams(model, list(added))


def with_unigrams(model: Arpa, words: Sequence[str]) -> Arpa:
    """Add words to a language model, each as likely as the others are on average; known words keep their
    probability."""
    new = [word for word in words if word not in model.words]
    if not new:
        return model
    levels = [
        (ids, model.log10[level.start - 1 : level.stop - 1], model.backoff[level.start - 1 : level.stop - 1])
        for ids, level in zip(model.spelled(), model.levels(), strict=True)
    ]
    ids, log10, backoff = levels[0]
    likely = float(np.mean(log10[log10 > NEVER]))
    more = np.arange(len(model.words), len(model.words) + len(new))[:, None]
    levels[0] = (
        np.concatenate([ids, more]),
        np.concatenate([log10, np.full(len(new), likely)]),
        np.concatenate([backoff, np.zeros(len(new))]),
    )
    return build_model([*model.words, *new], levels, model.orphans)[0]


def _card(told: Mapping[str, Any], name: str, folder: Path) -> Card:
    """Return the card of a model with other words, without word errors, which were those of the old words."""
    info = read_json(folder / GRAPH_FILE)
    words = Vocabulary(int(info["words"]), int(info["lm_order"]), sum(info["lm_ngrams"]), told["vocabulary"]["spells"])
    return Card(**{**told, "name": name, "vocabulary": words, "word_errors": {}, "confidences": {}})
