"""The decoding graph of a recipe, and the other inputs of a search.

ALIGNMENT/graphs/   decoding graphs, shared by all runs that use the same lexicon, tied states and language model
EXP/graphs/         those of a run without an alignment
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay.core.progress import Progress, mention
from roundelay_speech.data.problems import named
from roundelay_speech.decode.confidence import Pronouncing
from roundelay_speech.decode.graphs import HmmGraph
from roundelay_speech.decode.graphs.base import Columns
from roundelay_speech.decode.graphs.ctc import CtcGraph, UnitsAndBlank
from roundelay_speech.decode.graphs.graph import GRAPH_FILE, GraphConfig
from roundelay_speech.decode.graphs.hmm import TiedStates
from roundelay_speech.decode.graphs.making import (
    LEXICON_FILE,
    GraphJob,
    LanguageOptions,
    find_or_make,
    find_or_make_second,
)
from roundelay_speech.decode.lm.given import declared_counts, expected, load_model
from roundelay_speech.decode.parallel import SearchedGraph, SpelledWords, decoders
from roundelay_speech.decode.rescore import Rescorer, rescorer_of
from roundelay_speech.hmm.alignment import Alignment
from roundelay_speech.hmm.topology import Tying
from roundelay_speech.lexicon.lexicon import read_lexicon
from roundelay_speech.ngrams.estimate import Estimator
from roundelay_speech.prepared import Corpus
from roundelay_speech.recipes.recipe import Decoding, Recipe
from roundelay_speech.recognition.loglikelihoods import FRAME_SECONDS, Models, Source
from roundelay_speech.unit_labels import units_of
from roundelay_speech.units import Chain

GRAPHS = "graphs"


def columns_of(recipe: Recipe, own: Corpus, source: Source) -> Columns:
    """Return the columns of the log-likelihoods of a run, whose own corpus is `own`.

    Raises:
        UserError: a file that decode.graph names cannot be used; a run without an alignment, whose columns are units,
            and decode.graph for tied states.
    """
    kind = recipe.decode.graph
    if not recipe.unaligned:
        return kind.columns(Alignment.load(recipe.aligned).tying)
    fit = graph_of(recipe)
    if kind.name != fit or isinstance(kind, HmmGraph):
        raise UserError(
            f"decode.graph is {kind.name}, which is not for models trained with training.objective="
            f"{recipe.training.objective.name}. Give decode.graph={fit}."
        )
    units = source.members[0].model.units if isinstance(source, Models) else None
    return kind.columns_of(units or units_of(recipe.units, own), own.lexicon.silence)


def graph_of(recipe: Recipe) -> str:
    """Return the name of the kind of graph for a recipe's model."""
    if not recipe.unaligned:
        return "hmm"
    return "chain" if isinstance(recipe.units, Chain) else "ctc"


@contextmanager
def searched(
    exp: Path, recipe: Recipe, own: Corpus, columns: Columns, progress: Progress, said: str
) -> Iterator[SearchedGraph]:
    """Provide the search for the recipe of the run in `exp`; worker processes end with the block. `said` is shown with
    the making of the graph.

    Raises:
        UserError: words, language model and columns do not fit together.
    """
    config = recipe.decode
    if isinstance(columns, UnitsAndBlank) and isinstance(config.graph, CtcGraph) and config.graph.search != "words":
        yield SearchedGraph(SpelledWords(columns, config.graph), columns, None)
        return
    graph = decoding_graph(recipe, own, columns, progress, said, exp)
    words = pronouncing(graph, columns.tying, config) if config.ctm and isinstance(columns, TiedStates) else None
    second = second_model(recipe, own, columns, graph, progress)
    with decoders(graph, config.workers, words, rescorer(graph, second, progress)) as run:
        yield SearchedGraph(run, columns, set(read_lexicon(graph / LEXICON_FILE).words))


def decoding_graph(
    recipe: Recipe, corpus: Corpus, columns: Columns, progress: Progress, said: str, exp: Path | None = None
) -> Path:
    """Return the folder of the decoding graph, built unless it exists; `said` is shown with it. For a run without an
    alignment, the folder is in its directory, `exp`."""
    job = _job(recipe, corpus, columns)

    def say(large: str) -> None:
        progress.advance(0, f"of {large}")
        progress.finish()  # shown before the work begins
        progress.start("building the decoding graph")

    progress.start("building the decoding graph")
    beside = exp if exp is not None and recipe.unaligned else recipe.aligned
    folder, new = find_or_make(job, beside / GRAPHS, say)
    info = read_json(folder / GRAPH_FILE)
    note = (
        f"{info['words']:,} words, {info['states']:,} states, {info['arcs']:,} arcs, {info['build_seconds']:.1f} s ("
        f"{info['language_model_seconds']:.1f} s for the language model), {info['peak_bytes'] / 1e9:.2f} GB. "
    )
    progress.advance(0, said + (note if new else "") + info["left_out"])
    progress.finish()
    return folder


def _job(recipe: Recipe, corpus: Corpus, columns: Columns) -> GraphJob:
    # The cost of words is put on when the graph is loaded: one graph serves all of them.
    config, transcripts = recipe.decode, tuple(corpus.transcripts("train"))
    return GraphJob(
        language_options(config), GraphConfig(config.silence_probability), transcripts, corpus.lexicon, columns
    )


def second_model(recipe: Recipe, corpus: Corpus, columns: Columns, graph: Path, progress: Progress) -> Path | None:
    """Return the file of the model by which a graph's lattices are rescored, made unless it exists; None: no rescoring.

    Args:
        graph: the folder that `decoding_graph` returns for this recipe.
    """
    config = recipe.decode
    if not config.rescore_order:
        return config.rescore
    how = Estimator(config.rescore_order, config.method, config.discount, config.rescore_cutoffs)
    progress.start("language model of the second pass")
    path, new = find_or_make_second(_job(recipe, corpus, columns), graph, how)
    progress.advance(0, f"{sum(declared_counts(path)):,} n-grams" if new else "there already")
    progress.finish()
    return path


def language_options(config: Decoding, *, guess: bool | None = None) -> LanguageOptions:
    """Return the sources of words and language model that a section decode names, with `guess`, if given, in place of
    its own."""
    return LanguageOptions(
        Estimator(config.order, config.method, config.discount, config.cutoffs, config.prune),
        config.arpa,
        config.text,
        config.join,
        config.transcript_weight,
        config.words_of_text,
        config.lexicon,
        config.guess if guess is None else guess,
    )


def rescorer(graph: Path, model: Path | None, progress: Progress) -> Rescorer | None:
    """Load the rescorer of a graph's lattices with the model in a file, if there is one, after showing the memory that
    it takes."""
    if model is None:
        return None
    mention(progress, f"rescoring with {expected(model)}")  # what it takes is seen before it is done
    progress.start(f"reading {model.name}")
    found = rescorer_of(graph, load_model(model))
    if lacking := found.unknown:
        said = f"{len(lacking)} words are not in {model.name} and cannot be recognised: {named(lacking, 10)}."
        progress.advance(0, said)
    progress.finish()
    return found


def pronouncing(graph: Path, tying: Tying, config: Decoding) -> Pronouncing:
    """Return the pronunciations of a graph's words, by which words are timed."""
    lexicon = read_lexicon(graph / LEXICON_FILE, tying.phones[0]).in_phones(tying.phones)
    return Pronouncing(lexicon, tying, config.silence_probability, FRAME_SECONDS)
