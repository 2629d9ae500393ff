"""From texts, a lexicon and the columns of a model to a decoding graph in a folder, made once and found again by its
contents.

A folder holds HCLG.fst, words.txt, phones.txt and graph.json (graph.py); lm.arpa.gz; lexicon.txt, the words that can be
recognised; dropped.txt, words of the vocabulary without a pronunciation; guessed.txt, those whose pronunciation is a
guess; second-ORDER-CUTOFFS.arpa, larger models of the same texts for a second pass.

A graph of 20,000 words takes some gigabytes while it is made and a tenth of that afterwards. So a process of its own
makes it, and all of its memory is given back.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.files import write_text
from roundelay_speech.data.processes import start_workers
from roundelay_speech.decode.graphs.base import Columns
from roundelay_speech.decode.graphs.graph import GRAPH_FILE, GraphConfig, save_graph
from roundelay_speech.decode.lm.arpa_file import read_arpa, write_arpa
from roundelay_speech.decode.lm.given import (
    GRAPH_BYTES,
    READING_BYTES,
    READING_SECONDS,
    check_fits,
    declared_counts,
    gigabytes,
)
from roundelay_speech.decode.lm.vocabulary import (
    VocabularyLexicon,
    count_words,
    joined,
    most_frequent,
    pronounced,
    read_dictionary,
    read_sentences,
)
from roundelay_speech.lexicon.g2p import g2p_of
from roundelay_speech.lexicon.lexicon import Lexicon, Pronunciation, read_lexicon, write_lexicon
from roundelay_speech.ngrams.estimate import Estimator, estimate, prune, share_of_histories
from roundelay_speech.ngrams.ngram import Arpa, restrict

LM_FILE, LEXICON_FILE, DROPPED_FILE, GUESSED_FILE = "lm.arpa.gz", "lexicon.txt", "dropped.txt", "guessed.txt"
SECOND_LM = "second"  # how the names of larger models of the same texts begin
G2P_MODEL = "g2p.json.gz"  # beside the graphs: one dictionary serves many
_MANY = 1_000_000  # n-grams, above which it is said how long they take
_WAY_OUT = (
    "Make the graph of a smaller grammar, and rescore its results with the large one: decode.rescore=FILE, and "
    "decode.prune=1e-7 or higher cutoffs or a pruned decode.arpa for the graph (docs/decoding.md)."
)
_MANY_WORDS, _FEW_HEARD = 5_000, 10  # words of a dictionary, and how many times those of the sentences
_LARGE = 20_000  # words of text, above which a process of its own pays


@dataclass(frozen=True)
class LanguageOptions:
    """Sources of the language model and the lexicon of a graph."""

    estimator: Estimator = Estimator()  # how to estimate the model from text
    arpa: Path | None = None  # a model to take instead
    text: tuple[Path, ...] = ()  # files with a sentence a line, plain or gzipped, beside the training transcripts
    join: int = 0  # run consecutive lines of these files together to lines of at least so many words; 0: leave them
    transcript_weight: int = 1  # how often each training transcript is counted
    # the most frequent words of the text, so many (0: none), and all of the transcripts; None: the words of the
    # dictionary.
    vocabulary: int | None = None
    dictionary: Path | None = None  # pronunciations in CMU's format, plain or gzipped; None: those of the corpus
    guess: bool = False  # guess the pronunciations of words that no dictionary has, instead of leaving them out

    def __post_init__(self) -> None:
        if self.transcript_weight < 0 or self.join < 0:
            raise UserError("decode.transcript_weight and decode.join must be 0 or more.")

    @property
    def files(self) -> list[Path]:
        """Files of which the graph is made."""
        return [path for path in (self.arpa, *self.text, self.dictionary) if path is not None]


@dataclass(frozen=True, eq=False)
class GraphJob:
    """A graph to be made: its lexicon, language model, columns and options."""

    options: LanguageOptions
    config: GraphConfig
    transcripts: tuple[str, ...]
    lexicon: Lexicon  # of the corpus
    columns: Columns

    def digest(self) -> str:
        """Return a hash that is equal only for equal graphs.

        Raises:
            UserError: a file is missing.
        """
        state = hashlib.sha256()
        options = asdict(self.options)
        options |= {"arpa": None, "text": None, "dictionary": None}  # their contents count, not their names
        values, table = self.columns.identity()
        told = [options, asdict(self.config), self.transcripts, self.lexicon.to_text(), values]
        state.update(json.dumps(told).encode() + table)
        for path in self.options.files:
            try:
                with open(path, "rb") as file:
                    state.update(hashlib.file_digest(file, "sha256").digest())
            except OSError as error:
                raise UserError(
                    f"{path}: cannot be read ({error.strerror}). The recipe's section decode names it."
                ) from None
        return state.hexdigest()[:16]


def _expected_reading(options: LanguageOptions) -> str:
    """Return words on size, memory and time of reading `decode.arpa`; "" if nothing large is to be read.

    Raises:
        UserError: too little memory to read it.
    """
    if options.arpa is None or (ngrams := sum(declared_counts(options.arpa))) < _MANY:
        return ""
    needed, seconds = ngrams * READING_BYTES, round(ngrams * READING_SECONDS)
    check_fits(needed, f"decode.arpa={options.arpa}: reading its {ngrams:,} n-grams", _WAY_OUT)
    text = f"{options.arpa.name}: {ngrams:,} n-grams, about {gigabytes(needed)} and {seconds} s to read"
    if options.estimator.prune:
        return f"{text}; then pruned"
    return f"{text}, and up to {gigabytes(ngrams * GRAPH_BYTES)} to make a graph of, if the lexicon has all their words"


def find_or_make(job: GraphJob, graphs: Path, say: Callable[[str], None] | None = None) -> tuple[Path, bool]:
    """Find a graph in `graphs`, or make it; return its folder, and True if it had to be made.

    Args:
        say: called with the memory and time of a large model, before it is read.

    Raises:
        UserError: texts, lexicon and columns do not fit together, or cannot be read.
    """
    folder = graphs / job.digest()
    if (folder / GRAPH_FILE).is_file():
        return folder, False
    if (large := _expected_reading(job.options)) and say is not None:
        say(large)
    folder.mkdir(parents=True, exist_ok=True)
    if job.options.text or job.options.arpa or sum(map(len, job.transcripts)) > 6 * _LARGE:
        with start_workers(1) as worker:
            worker.alone(make_graph, job, folder)
    else:
        make_graph(job, folder)
    return folder, True


def make_graph(job: GraphJob, folder: Path) -> None:
    """Make the graph of a job into `folder`, in this process."""
    begun = os.times().elapsed
    found = language_lexicon(job, folder.parent)
    model, left_out = language_model(job, found.lexicon)
    write_graph(folder, found, model, job, left_out, begun)


def write_graph(
    folder: Path, found: VocabularyLexicon, model: Arpa, job: GraphJob, left_out: str, begun: float
) -> None:
    """Compile words and a language model for the columns of a job, and write all files of the graph.

    Args:
        left_out: words of the language model that were left out, for people.
        begun: when the work on words and language model began, in seconds of `os.times().elapsed`.

    Raises:
        UserError: words, language model and columns do not fit together; too little memory.
    """
    write_arpa(folder / LM_FILE, model)
    write_lexicon(folder / LEXICON_FILE, found.lexicon)
    write_text(folder / DROPPED_FILE, "".join(f"{word}\n" for word in found.dropped))
    write_text(folder / GUESSED_FILE, "".join(f"{word}\n" for word in found.guessed))
    estimated = os.times().elapsed
    ngrams = sum(model.counts)
    # Refused are impossible sizes, not tight ones: kinds of graphs and lexica differ by a factor of two.
    check_fits(ngrams * GRAPH_BYTES / 2, f"The decoding graph of {ngrams:,} n-grams", _WAY_OUT)
    graph = job.columns.compile(found.lexicon, model, job.config)
    info = {
        **graph.info,
        "left_out": " ".join(text for text in (found.describe(), left_out, graph.info["left_out"]) if text),
        "dropped_words": len(found.dropped),
        "guessed_words": len(found.guessed),
        "language_model_seconds": round(estimated - begun, 2),
        "build_seconds": round(os.times().elapsed - estimated, 2),
        "peak_bytes": peak_bytes(),
    }
    save_graph(replace(graph, info=info), folder)


def language_lexicon(job: GraphJob, graphs: Path) -> VocabularyLexicon:
    """Return the words that can be recognised and their pronunciations; a model that guesses these is kept in
    `graphs`."""
    options, columns = job.options, job.columns
    if options.vocabulary is None and options.dictionary is None:
        lexicon = columns.spelled(job.lexicon.words) or job.lexicon
        return VocabularyLexicon(lexicon, tuple(word for word in job.lexicon.words if word not in lexicon))
    given = [] if options.dictionary is None else [read_dictionary(options.dictionary, job.lexicon)]
    dictionaries = [*given, job.lexicon]
    if options.vocabulary is None:
        every = dictionaries[0].words
        return pronounced(every, [columns.spelled(every) or dictionaries[0]], columns.phones)
    said = {word for text in job.transcripts for word in text.split()}
    counts = count_words(sentence for path in options.text for sentence in read_sentences(path))
    words = most_frequent(counts, options.vocabulary, said)
    if spelled := columns.spelled(words):
        return pronounced(words, [spelled], columns.phones)
    guess = _guesser(dictionaries[0], graphs / G2P_MODEL) if options.guess else None
    return pronounced(words, dictionaries, columns.phones, guess)


def _guesser(dictionary: Lexicon, cache: Path) -> Callable[[str], Pronunciation | None]:
    """Return a function that guesses pronunciations by spelling, learned from a dictionary; `cache` is its file."""
    model = g2p_of(dictionary, cache)

    def guess(word: str) -> Pronunciation | None:
        found = model.pronounce(word)
        return found[0].phones if found else None

    return guess


def language_model(job: GraphJob, lexicon: Lexicon) -> tuple[Arpa, str]:
    """Return the user's ARPA model, cut to the lexicon and pruned, or an n-gram model of texts and transcripts; and a
    remark on parts left out."""
    if job.options.arpa is not None:
        found = restrict(read_arpa(job.options.arpa), lexicon.words)
        model, threshold = found.model, job.options.estimator.prune
        return prune(model, threshold, share_of_histories(model)) if threshold else model, found.describe()
    return estimate(_sentences(job), lexicon.words, job.options.estimator), _unheard(job, lexicon)


def _unheard(job: GraphJob, lexicon: Lexicon) -> str:
    """Return a remark if the sentences have very few of a dictionary's words; else ""."""
    if job.options.text:
        return ""
    heard = {word for text in job.transcripts for word in text.split() if word in lexicon}
    if len(lexicon.words) < max(_MANY_WORDS, _FEW_HEARD * len(heard)):
        return ""
    return (
        f"The training transcripts have {len(heard):,} of the {len(lexicon.words):,} words, and all others are equally "
        "likely: decode.vocabulary=transcripts takes those of the transcripts alone, decode.text=[FILE] sentences with "
        "others."
    )


def _sentences(job: GraphJob) -> Iterator[list[str]]:
    for path in job.options.text:
        yield from joined(read_sentences(path), job.options.join)
    for _ in range(job.options.transcript_weight):
        yield from (text.split() for text in job.transcripts)


def find_or_make_second(job: GraphJob, folder: Path, how: Estimator) -> tuple[Path, bool]:
    """Find or make a second language model of the graph in `folder`, of its words and texts; return its file, and True
    if it had to be made. The file is beside the graph, not packed, which KenLM reads fastest.

    Raises:
        UserError: texts cannot be read.
    """
    path = folder / f"{SECOND_LM}-{'-'.join(map(str, (how.order, *how.cutoffs)))}.arpa"
    if path.is_file():
        return path, False
    with start_workers(1) as worker:
        worker.alone(_make_second, job, path, how)
    return path, True


def _make_second(job: GraphJob, path: Path, how: Estimator) -> None:
    words = read_lexicon(path.parent / LEXICON_FILE, job.lexicon.silence).words
    write_arpa(path, estimate(_sentences(job), words, how))


def peak_bytes() -> int:
    """Return the most memory in bytes that this process has held at once (getrusage would count its parent's too)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
